/*
 * reward.h - built-in verifiable rewards: a response and a label give a number.
 *
 * Pure functions of text; no clock, no locale, no network. What they accept is stated in
 * docs/recipes.md and compared with Miles' rules in tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_REWARD_REWARD_H
#define INVAR_ENGINE_RL_REWARD_REWARD_H

#include "base/recipe/choices.h"
#include "engine/rl/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_reward {
#define INVAR_REWARD(ID, ...) INVAR_REWARD_##ID,
#include "engine/rl/reward/rewards.def"
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

/* True when a plug-in gives it: a server, or a script of this program. */
bool invar_reward_is_external(invar_reward reward);

/* True when it has parts, of which reward-key can pick one. */
bool invar_reward_has_parts(invar_reward reward);

/*
 * Judges one response: sets reward and parts of the sample. metadata.rm_type, if a sample has one,
 * goes before the recipe's. `key` names the part that is the reward; NULL: none does.
 */
invar_status invar_reward_compute(invar_rl_sample *sample, invar_reward reward, bool boxed,
                                  const char *key) INVAR_MUST_USE;

/* True if a rule gives the sample a reward: `reward`, or that of its metadata. */
invar_status invar_reward_rules(bool *out, invar_reward reward,
                                const invar_rl_sample *sample) INVAR_MUST_USE;

/* The reward alone. */
invar_status invar_reward_of(double *out, invar_reward reward, bool boxed,
                             const invar_rl_sample *sample) INVAR_MUST_USE;

/* Makes the part that `key` names the sample's reward; NULL: the reward stays what it is. */
invar_status invar_reward_select_part(invar_rl_sample *sample, const char *key) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
