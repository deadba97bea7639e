/*
 * reward_functions.h - the functions of the built-in rewards, and their traits.
 *
 * docs/rewards.md states what each function accepts.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_REWARD_REWARD_FUNCTIONS_H
#define INVAR_ENGINE_RL_REWARD_REWARD_FUNCTIONS_H

#include "base/status.h"
#include "engine/rl/reward/answer_text.h"
#include "engine/rl/sample.h"

typedef struct invar_reward_input {
    /* response; under boxed_ the content of its last \boxed{}, or "" without one */
    invar_str_view response;
    invar_str_view label; /* label, or the final answer in it */
    const invar_rl_sample *sample;
    invar_reward_parts *parts; /* output of a reward with parts */
} invar_reward_input;

/* A reward function: writes the reward to *out and parts to c->parts. */
typedef invar_status invar_reward_fn(double *out, const invar_reward_input *c);

/* Traits of a reward in rewards.def. */
typedef struct invar_reward_traits {
    invar_reward_fn *compute;
    bool needs_label;  /* no response is right without a label */
    bool final_answer; /* compare only the 72 of a label "... #### 72", as in GSM8K */
    bool finds_box;    /* the function finds \boxed{} itself, so boxed_ changes nothing */
    /* computed for all samples by a plug-in, a server or a script of this program */
    bool is_external;
    bool has_parts;    /* reward-key can select a part */
    bool parts_by_key; /* the sample gets parts only if reward-key is set */
} invar_reward_traits;

/*
 * Returns 1 if the last \boxed{} of the response equals the label, as a text or as a number; else
 * 0.
 */
invar_reward_fn invar_reward_fn_math;

/*
 * Returns 1 if the text after the last "Answer:" equals the label, else -1. Parts: score, the same
 * number, and acc, 1 or 0.
 */
invar_reward_fn invar_reward_fn_dapo;

/* Returns the F1 score of the words of response and label, 0 to 1. */
invar_reward_fn invar_reward_fn_f1;

/*
 * Returns the share of the metadata's rules that the response obeys. Parts: loose, the same number,
 * and strict, 1 if it obeys all rules, else 0.
 */
invar_reward_fn invar_reward_fn_ifeval;

/* Returns 1 if the response names the right option; else 0. */
invar_reward_fn invar_reward_fn_gpqa;

#endif
