/*
 * masked_stats.h - masked counts, sums and means of per-token values of an optimizer step.
 *
 * A column holds one sum per sample, a REDUCE over the sample's tokens; its mean is a REDUCE over
 * samples in order. So the result does not depend on the calls in which the samples came.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_MASKED_STATS_H
#define INVAR_ENGINE_RL_MASKED_STATS_H

#include "engine/rl/loss.h"

enum { INVAR_MASKED_STATS_COLUMNS = 48 };

typedef struct invar_masked_stats {
    const invar_rl_batch *batch;
    /* means are over tokens instead of over samples */
    bool per_token;
    float *count;    /* (samples) unmasked tokens */
    float tokens;    /* unmasked tokens of all samples */
    int64_t longest; /* tokens of the longest sample, masked ones included */
    float *row;      /* (longest) scratch for the values of one sample; callers may use it; owned */
    float *scratch;  /* (samples) scratch */
    float *sums;     /* (columns, samples) */
    /* names of the columns; borrowed */
    const char *name[INVAR_MASKED_STATS_COLUMNS];
    int columns;
} invar_masked_stats;

/*
 * Checks the shape of the batch and counts its tokens. The batch is borrowed until release. Release
 * with invar_masked_stats_release.
 */
invar_status invar_masked_stats_init(invar_masked_stats *out, const invar_rl_batch *batch,
                                     bool per_token) INVAR_MUST_USE;
void invar_masked_stats_release(invar_masked_stats *stats);

/* Adds a column of zeros and returns its index; `name` is borrowed. */
int invar_masked_stats_add(invar_masked_stats *stats, const char *name);

/* Sets the sum of a sample to that of `row`, which has a value per token and +0 for masked ones. */
void invar_masked_stats_put(invar_masked_stats *stats, int column, int64_t sample,
                            const float *row);

/* Sets the sum of a sample as if all of its unmasked tokens had this value. */
void invar_masked_stats_put_all(invar_masked_stats *stats, int column, int64_t sample, float value);

/*
 * Returns the mean of a column. Per sample: the mean over samples of sum / max(count, 1), or of sum
 * / divisor if divisor > 0. Per token: the sum of all / max(tokens, 1); a divisor takes precedence.
 */
float invar_masked_stats_mean(const invar_masked_stats *stats, int column, float divisor);

/* Returns the factor with which the derivative of a token enters that of the mean. */
float invar_masked_stats_factor(const invar_masked_stats *stats, int64_t sample, float divisor);

/*
 * Fails and names sample and token if the value of an unmasked token is not finite. `row` has the
 * values of the sample's tokens; `what` is used in the error message only.
 */
invar_status invar_masked_stats_finite(const invar_masked_stats *stats, int64_t sample,
                                       const float *row, const char *what) INVAR_MUST_USE;

/* Checks all samples of a flat array, like invar_masked_stats_finite. `values` may be NULL. */
invar_status invar_masked_stats_finite_all(const invar_masked_stats *stats, const float *values,
                                           const char *what) INVAR_MUST_USE;

#endif
