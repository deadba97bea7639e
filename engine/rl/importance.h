/*
 * importance.h - weights and rejections for what the trainer and the sampler see differently.
 *
 * TIS and MIS compare old with rollout log-probabilities, which are known before the step's first
 * gradient: weights, masks and normalisers are computed once for the whole step. OPSM needs the
 * current log-probabilities and judges one sample at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_IMPORTANCE_H
#define INVAR_ENGINE_RL_IMPORTANCE_H

#include "engine/rl/masked_stats.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_importance {
    float *weight; /* (T) NULL: all are 1 */
    uint8_t *keep; /* (T) the mask after rejection; the batch's where nothing is rejected */
    void *memory;
} invar_importance;

/* Adds the columns tis* or mis_* to the tally. */
invar_status invar_importance_init(invar_importance *out, invar_masked_stats *tally,
                                   const invar_rl_options *options) INVAR_MUST_USE;
void invar_importance_release(invar_importance *importance);

/* OPSM's distance of a sample: the mean of old - now over the tokens that count. */
float invar_importance_distance(const invar_masked_stats *tally, int64_t sample, const float *now);

#ifdef __cplusplus
}
#endif
#endif
