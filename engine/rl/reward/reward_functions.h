/*
 * reward_functions.h - the functions of the built-in rewards. What they accept: docs/recipes.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_REWARD_REWARD_FUNCTIONS_H
#define INVAR_ENGINE_RL_REWARD_REWARD_FUNCTIONS_H

#include "base/status.h"
#include "engine/rl/reward/answer_text.h"
#include "engine/rl/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_reward_input {
    invar_str_view response; /* or its last \boxed{} alone */
    invar_str_view label;    /* or the final answer in it */
    const invar_rl_sample *sample;
    invar_reward_parts *parts; /* where a rule with parts puts them */
} invar_reward_input;

typedef invar_status invar_reward_fn(double *out, const invar_reward_input *c);

/* What sets the rewards of rewards.def apart. */
typedef struct invar_reward_traits {
    invar_reward_fn *compute;
    bool needs_label;  /* nothing is right without one */
    bool final_answer; /* of a label "... #### 72", as GSM8K has them, 72 alone is compared */
    bool finds_box;    /* looks for \boxed{} itself: boxed_ changes nothing */
    bool is_external;  /* a plug-in judges all samples, a server or a script of this program */
    bool has_parts;    /* reward-key can pick one */
    bool parts_by_key; /* but without reward-key it has none, as always */
} invar_reward_traits;

/* 1 when the last \boxed{} of the response is the label, as text or as a number; else 0. */
invar_reward_fn invar_reward_fn_math;

/* 1 when what follows the last "Answer:" is the label, else -1: score; acc is 1 or 0. */
invar_reward_fn invar_reward_fn_dapo;

/* The F1 of the words of both, 0 to 1. */
invar_reward_fn invar_reward_fn_f1;

/* The share of the rules in its metadata that the response obeys: loose; strict is 1 or 0. */
invar_reward_fn invar_reward_fn_ifeval;

/* 1 when the response names the right option; else 0. */
invar_reward_fn invar_reward_fn_gpqa;

#ifdef __cplusplus
}
#endif
#endif
