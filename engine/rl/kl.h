/*
 * kl.h - estimators of the KL divergence at one token, and their derivatives.
 *
 * docs/arithmetic.md, section 13, has the formulas and the order of operations.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_KL_H
#define INVAR_ENGINE_RL_KL_H

#include "engine/rl/loss.h"

/* exp of a difference of log-probs, which is clamped to [-20, 20]. */
typedef struct invar_ratio {
    float value;
    bool cut; /* the difference was clamped, so the derivative is zero */
} invar_ratio;

invar_ratio invar_ratio_of(float log_ratio);

typedef struct invar_kl_term {
    float value;
    float slope; /* derivative with respect to logp */
} invar_kl_term;

typedef struct invar_kl_traits {
    /* estimate at one token, before the limit */
    invar_kl_term (*estimate)(float logp, float base);
    float limit; /* largest absolute value; 0 for no limit */
    bool flat;   /* the mean of its derivative has no information: useless as a loss */
} invar_kl_traits;

/* Returns the traits; `type` must be in range. */
const invar_kl_traits *invar_kl_traits_of(invar_kl type);

/* Estimates the KL divergence at one token. Returns exactly 0 for equal arguments. */
invar_kl_term invar_kl_at(invar_kl type, float logp, float base);

/*
 * Multiplies the estimate by the ratio of logp to old; the derivative includes that of the ratio.
 */
invar_kl_term invar_kl_unbiased(invar_kl type, float logp, float base, float old);

#endif
