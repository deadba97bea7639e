/*
 * reward.h - built-in verifiable rewards: a number from a response and a label.
 *
 * Rewards are pure functions of text: no clock, no locale, no network. docs/rewards.md states what
 * each one accepts; tests compare them with the rewards of Miles.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_REWARD_REWARD_H
#define INVAR_ENGINE_RL_REWARD_REWARD_H

#include "base/recipe/choices.h"
#include "engine/rl/sample.h"

typedef enum invar_reward {
#define INVAR_REWARD(ID, ...) INVAR_REWARD_##ID,
#include "engine/rl/reward/rewards.def"
#undef INVAR_REWARD
    INVAR_REWARD_COUNT
} invar_reward;

/*
 * Words of the key rm-type. Recipes may put "boxed_" before a word: the reward then gets the
 * content of the last \boxed{} only.
 */
extern const invar_choices invar_reward_choices;

/*
 * Parses "math", "boxed_f1", ... The message of a failure begins with the verb, so that the caller
 * can put the name of the key before it.
 */
invar_status invar_reward_parse(invar_reward *out, bool *boxed_out,
                                const char *name) INVAR_MUST_USE;

/* Returns true if the reward is always wrong without a label. */
bool invar_reward_needs_label(invar_reward reward);

/* Returns true if a plug-in computes the reward: a server, or a script of this program. */
bool invar_reward_is_external(invar_reward reward);

/* Returns true if the reward has parts, of which the key reward-key can select one. */
bool invar_reward_has_parts(invar_reward reward);

/*
 * Computes reward and parts of a sample. metadata.rm_type of the sample takes precedence over
 * `reward` and `boxed`. `key` names the part that becomes the reward; NULL if no part does.
 */
invar_status invar_reward_compute(invar_rl_sample *sample, invar_reward reward, bool boxed,
                                  const char *key) INVAR_MUST_USE;

/*
 * Sets *out to true if a reward function applies to the sample: that of `reward`, or of its
 * metadata.
 */
invar_status invar_reward_has_function(bool *out, invar_reward reward,
                                       const invar_rl_sample *sample) INVAR_MUST_USE;

/* Computes the reward without its parts, and changes nothing in the sample. */
invar_status invar_reward_of(double *out, invar_reward reward, bool boxed,
                             const invar_rl_sample *sample) INVAR_MUST_USE;

/*
 * Makes the part named `key` the sample's reward. Does nothing if `key` is NULL. Returns
 * INVAR_E_INVALID if the sample has no such part.
 */
invar_status invar_reward_select_part(invar_rl_sample *sample, const char *key) INVAR_MUST_USE;

#endif
