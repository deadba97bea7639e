/*
 * kl.h - the estimators of KL at one token, and their derivatives.
 *
 * Formulas and the order of operations: docs/arithmetic.md section 13.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_KL_H
#define INVAR_ENGINE_RL_KL_H

#include "engine/rl/loss.h"

#ifdef __cplusplus
extern "C" {
#endif

/* exp of a difference of log-probabilities, which is cut to [-20, 20]. */
typedef struct invar_ratio {
    float value;
    bool cut; /* the difference was outside: the derivative is zero */
} invar_ratio;

invar_ratio invar_ratio_of(float log_ratio);

typedef struct invar_kl_term {
    float value;
    float slope; /* with respect to logp */
} invar_kl_term;

typedef struct invar_kl_traits {
    invar_kl_term (*at)(float logp, float base);
    float limit; /* of its value, in both directions; 0: none */
    bool flat;   /* the mean of its derivative says nothing: no use as a loss, only as a metric */
} invar_kl_traits;

/* `type` is in range. */
const invar_kl_traits *invar_kl_traits_of(invar_kl type);

/* Equal arguments give exactly 0. */
invar_kl_term invar_kl_at(invar_kl type, float logp, float base);

/* Times the ratio of logp to old, through which the derivative flows too. */
invar_kl_term invar_kl_unbiased(invar_kl type, float logp, float base, float old);

#ifdef __cplusplus
}
#endif
#endif
