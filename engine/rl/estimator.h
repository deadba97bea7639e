/*
 * estimator.h - what sets the estimators of advantages apart, and what their functions work on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_ESTIMATOR_H
#define INVAR_ENGINE_RL_ESTIMATOR_H

#include "engine/rl/masked_stats.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_estimator_traits invar_estimator_traits;

/* Advantages at work; a token's arrays are flat. */
typedef struct invar_advantage_state {
    invar_masked_stats tally;
    const invar_rl_batch *batch;
    const invar_rl_options *options;
    const invar_estimator_traits *facts;
    float *reward;    /* (samples) after normalisation */
    float *advantage; /* (T) */
    float *returns;   /* (T); the caller's, or memory of our own */
    float *owned;     /* that memory */
} invar_advantage_state;

struct invar_estimator_traits {
    /* Writes advantage and return of the sample's tokens that the mask counts; others are +0. */
    void (*estimate)(invar_advantage_state *e, int64_t sample);
    bool needs_reward; /* needs rewards; else they are not read */
    bool grouped;      /* from a reward its group's mean is subtracted */
    bool scaled;       /* and it is divided by the group's deviation */
    bool discounts;    /* later rewards, by gamma */
    bool penalised; /* kl-coef: the divergence from the reference is subtracted from the reward */
    bool whitened;  /* always, over the batch */
    bool critic;    /* needs its values */
    bool teacher;   /* needs its log-probabilities: the advantage is the distance to it */
    bool one_ratio; /* the policy loss has one importance ratio for a whole sample */
};

/* `estimator` is in range. */
const invar_estimator_traits *invar_estimator_traits_of(invar_estimator estimator);

/* The sample's reward at every token; less the penalty at each, where there is one. */
void invar_estimate_reward(invar_advantage_state *e, int64_t sample);

/* Discounted sum to the end. Masked tokens have no reward, but each costs a factor gamma. */
void invar_estimate_return(invar_advantage_state *e, int64_t sample);

/*
 * GAE over the tokens that count, as if the others were not there; after the last one: 0. Each
 * branch is an episode of its own, with the sample's reward at its end.
 */
void invar_estimate_gae(invar_advantage_state *e, int64_t sample);

#ifdef __cplusplus
}
#endif
#endif
