/*
 * estimator.h - traits of the advantage estimators, and the state that their functions work on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_ESTIMATOR_H
#define INVAR_ENGINE_RL_ESTIMATOR_H

#include "engine/rl/masked_stats.h"

typedef struct invar_estimator_traits invar_estimator_traits;

/* State while advantages are computed. Per-token arrays cover all tokens of the batch. */
typedef struct invar_advantage_state {
    invar_masked_stats stats;
    const invar_rl_batch *batch;
    const invar_rl_options *options;
    const invar_estimator_traits *traits;
    float *reward;    /* (samples) normalized rewards */
    float *advantage; /* (T) */
    float *returns;   /* (T) returns; the caller's array, or `owned` */
    float *owned;     /* buffer for `returns` if the caller gave none, else NULL */
} invar_advantage_state;

struct invar_estimator_traits {
    /*
     * Writes advantage and return of the sample's unmasked tokens; those of masked tokens are +0
     * already.
     */
    void (*estimate)(invar_advantage_state *e, int64_t sample);
    bool needs_reward; /* the estimator uses rewards; else they are ignored */
    bool grouped;      /* the group's mean is subtracted from rewards */
    bool scaled;       /* the difference is divided by the group's standard deviation */
    bool discounts;    /* later rewards are discounted by gamma */
    bool penalized; /* kl-coef: the KL divergence from the reference is subtracted from rewards */
    bool whitened;  /* advantages are always whitened over the batch */
    bool critic;    /* the estimator uses the critic's values */
    /* the estimator uses the teacher's log-probs: the advantage is the distance to the teacher */
    bool teacher;
    bool one_ratio; /* the policy loss has one importance ratio per sample (GSPO) */
};

/* Returns the traits; `estimator` must be in range. */
const invar_estimator_traits *invar_estimator_traits_of(invar_estimator estimator);

/* Gives each token the sample's reward, less its KL penalty if the estimator is penalized. */
void invar_estimate_reward(invar_advantage_state *e, int64_t sample);

/*
 * Gives each token the discounted sum of rewards to the end. Masked tokens have no reward, but
 * discount by a factor gamma.
 */
void invar_estimate_return(invar_advantage_state *e, int64_t sample);

/*
 * GAE over the unmasked tokens, as if the masked ones did not exist; the value after the last token
 * is 0. Each branch is an episode, with the sample's reward at its end.
 */
void invar_estimate_gae(invar_advantage_state *e, int64_t sample);

#endif
