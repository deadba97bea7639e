/*
 * masked_stats.h - what belongs to a step as a whole: its counts, and the means of per-token
 * values.
 *
 * A column holds one sum per sample, REDUCE over the sample's tokens; its mean is a REDUCE over
 * samples in order. So it does not matter in which calls the samples came.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_MASKED_STATS_H
#define INVAR_ENGINE_RL_MASKED_STATS_H

#include "engine/rl/loss.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { INVAR_MASKED_STATS_COLUMNS = 48 };

typedef struct invar_masked_stats {
    const invar_rl_batch *batch;
    bool per_token;
    float *count;    /* (samples) tokens that the mask counts */
    float tokens;    /* of all samples */
    int64_t longest; /* tokens of the longest sample, masked ones too */
    float *row;      /* (longest) for the caller: one sample's values */
    float *room;     /* (samples) */
    float *sums;     /* (columns, samples) */
    const char *name[INVAR_MASKED_STATS_COLUMNS];
    int columns;
} invar_masked_stats;

/* Checks the batch's shape. The batch is borrowed until release. */
invar_status invar_masked_stats_init(invar_masked_stats *out, const invar_rl_batch *batch,
                                     bool per_token) INVAR_MUST_USE;
void invar_masked_stats_release(invar_masked_stats *tally);

/* A new column of zeros; `name` is borrowed. */
int invar_masked_stats_add(invar_masked_stats *tally, const char *name);

/* The sample's values, +0 where they do not count: (its tokens). */
void invar_masked_stats_put(invar_masked_stats *tally, int column, int64_t sample,
                            const float *row);

/* One value for all of the sample's tokens that count. */
void invar_masked_stats_put_all(invar_masked_stats *tally, int column, int64_t sample, float value);

/*
 * Per sample: the mean over samples of sum / max(count, 1), or of sum / divisor where divisor > 0.
 * Per token: the sum of all / max(tokens, 1); a divisor goes before.
 */
float invar_masked_stats_mean(const invar_masked_stats *tally, int column, float divisor);

/* The factor by which a token's derivative enters that of the mean. */
float invar_masked_stats_factor(const invar_masked_stats *tally, int64_t sample, float divisor);

/* Fails, naming sample and token, where a counted token's value is not finite. `row` is (tokens of
 * `sample`). */
invar_status invar_masked_stats_finite(const invar_masked_stats *tally, int64_t sample,
                                       const float *row, const char *what) INVAR_MUST_USE;

/* The same for all samples of a flat array; NULL passes. */
invar_status invar_masked_stats_finite_all(const invar_masked_stats *tally, const float *values,
                                           const char *what) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
