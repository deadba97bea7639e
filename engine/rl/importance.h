/*
 * importance.h - importance weights and rejection for the mismatch between trainer and sampler.
 *
 * TIS and MIS compare old with rollout log-probs, which are known before the first gradient of the
 * step: weights, masks and normalizers are computed once for the whole step. OPSM needs the current
 * log-probs and decides sample by sample.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_IMPORTANCE_H
#define INVAR_ENGINE_RL_IMPORTANCE_H

#include "engine/rl/masked_stats.h"

typedef struct invar_importance {
    float *weight; /* (T) weights; NULL if all are 1 */
    uint8_t *keep; /* (T) mask after rejection; equal to the batch's mask if nothing is rejected */
    void *memory;
} invar_importance;

/*
 * Computes weights and mask, and adds the metrics of the mismatch to `stats` as columns. Release
 * with invar_importance_release, also after a failure.
 */
invar_status invar_importance_init(invar_importance *out, invar_masked_stats *stats,
                                   const invar_rl_options *options) INVAR_MUST_USE;
void invar_importance_release(invar_importance *importance);

/*
 * Returns OPSM's distance of a sample: the mean of old - now over the unmasked tokens. `now` has
 * the sample's tokens only. Overwrites stats->row.
 */
float invar_importance_distance(const invar_masked_stats *stats, int64_t sample, const float *now);

#endif
