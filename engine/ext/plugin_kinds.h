/*
 * plugin_kinds.h - kinds of calls of plug-ins, and their names.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_PLUGIN_KINDS_H
#define INVAR_ENGINE_EXT_PLUGIN_KINDS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of calls that a plug-in can offer; a mask. */
#define INVAR_PLUGIN_KIND_REWARD 1u
#define INVAR_PLUGIN_KIND_GROUP_REWARD 2u
#define INVAR_PLUGIN_KIND_FILTER 4u
#define INVAR_PLUGIN_KIND_LOSS 8u
#define INVAR_PLUGIN_KIND_HOOK 16u
#define INVAR_PLUGIN_KIND_GENERATE 32u
#define INVAR_PLUGIN_KIND_TEACHER 64u /* servers only */
#define INVAR_PLUGIN_KIND_BUFFER_FILTER 128u
#define INVAR_PLUGIN_KIND_PROMPTS 256u
#define INVAR_PLUGIN_KIND_AGENT 512u /* calls the model itself, over HTTP (engine/sample/agent) */
#define INVAR_PLUGIN_KINDS 1023u     /* mask of all kinds */

/* Name of a kind, "reward", "group_reward", ...; NULL if `kind` is not exactly one kind. */
const char *invar_plugin_kind_name(uint32_t kind);

/*
 * Name of a hook: "after_init", "before_logprob", "before_train_step", "after_rollout",
 * "after_eval".
 */
const char *invar_plugin_hook_name(int hook);

#ifdef __cplusplus
}
#endif
#endif
