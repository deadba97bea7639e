/*
 * reward.h - built-in verifiable rewards: a response and a label give a number.
 *
 * Pure functions of text; no clock, no locale, no network. What they accept is stated in
 * docs/recipes.md and compared with Miles' rules in tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_REWARD_REWARD_H
#define INVAR_ENGINE_REWARD_REWARD_H

#include "base/recipe/choices.h"
#include "engine/rl/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_reward {
#define INVAR_REWARD(ID, ...) INVAR_REWARD_##ID,
#include "engine/reward/rewards.def"
#undef INVAR_REWARD
    INVAR_REWARD_COUNT
} invar_reward;

/* Recipes may put "boxed_" before a word: the last \boxed{} is judged. */
extern const invar_choices invar_reward_choices;

/* Reads "math", "boxed_f1", ... */
invar_status invar_reward_parse(invar_reward *out, bool *boxed_out,
                                const char *name) INVAR_MUST_USE;

/* True when nothing is right without a label. */
bool invar_reward_needs_label(invar_reward reward);

/* Judges one response. metadata.rm_type, if a sample has one, goes before the recipe's. */
invar_status invar_reward_of(double *out, invar_reward reward, bool boxed,
                             const invar_rl_sample *sample) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
