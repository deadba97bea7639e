/*
 * plugin_kinds.c - names of the kinds of calls of plug-ins, and of the events of hooks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/plugin_kinds.h"

#include <stddef.h>

#include "engine/ext/invar_plugin.h"

#include "base/invar_banned.h"

const char *invar_plugin_kind_name(uint32_t kind)
{
    switch (kind) {
    case INVAR_PLUGIN_KIND_REWARD: return "reward";
    case INVAR_PLUGIN_KIND_GROUP_REWARD: return "group_reward";
    case INVAR_PLUGIN_KIND_FILTER: return "filter";
    case INVAR_PLUGIN_KIND_LOSS: return "loss";
    case INVAR_PLUGIN_KIND_HOOK: return "hook";
    case INVAR_PLUGIN_KIND_GENERATE: return "generate";
    case INVAR_PLUGIN_KIND_TEACHER: return "teacher";
    case INVAR_PLUGIN_KIND_BUFFER_FILTER: return "buffer_filter";
    case INVAR_PLUGIN_KIND_PROMPTS: return "prompts";
    case INVAR_PLUGIN_KIND_AGENT: return "agent";
    default: return NULL;
    }
}

const char *invar_plugin_hook_name(int hook)
{
    static const char *const names[] = {
        [INVAR_PLUGIN_AFTER_INIT] = "after_init",
        [INVAR_PLUGIN_BEFORE_LOGPROB] = "before_logprob",
        [INVAR_PLUGIN_BEFORE_TRAIN_STEP] = "before_train_step",
        [INVAR_PLUGIN_AFTER_ROLLOUT] = "after_rollout",
        [INVAR_PLUGIN_AFTER_EVAL] = "after_eval",
    };

    return names[hook];
}
