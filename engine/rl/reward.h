/*
 * reward.h - built-in verifiable rewards: a response and a label give a number.
 *
 * Pure functions of text; no clock, no locale, no network. What they accept is stated in
 * docs/recipes.md and compared with Miles' rules in tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_REWARD_H
#define INVAR_ENGINE_RL_REWARD_H

#include "engine/rl/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_reward {
    INVAR_REWARD_NONE, /* a plug-in, or a loss that needs none */
    INVAR_REWARD_MATH,
    INVAR_REWARD_DAPO,
    INVAR_REWARD_F1,
    INVAR_REWARD_GPQA,
    INVAR_REWARD_DETERMINISTIC_RANDOM,
    INVAR_REWARD_EXACT,   /* 1 when the response, trimmed, is the label */
    INVAR_REWARD_OVERLAP, /* share of the label's characters that the response has in their place */
    INVAR_REWARD_COUNT
} invar_reward;

/* "deterministic_random"; recipes may put "boxed_" before a name: the last \boxed{} is judged. */
const char *invar_reward_name(invar_reward reward);

/* Reads "math", "boxed_f1", ... */
invar_status invar_reward_parse(invar_reward *out, bool *boxed_out,
                                const char *name) INVAR_MUST_USE;

/* True when nothing is right without a label. gpqa may have its answer in the metadata. */
bool invar_reward_needs_label(invar_reward reward);

/* Judges one response. metadata.rm_type, if a sample has one, goes before the recipe's. */
invar_status invar_reward_of(double *out, invar_reward reward, bool boxed,
                             const invar_rl_sample *sample) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
