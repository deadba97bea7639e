/*
 * token_arrays.h - per-token numbers of a rollout, as flat arrays over all response tokens.
 *
 * Token j of sample i is at offsets[i] + j in every array. The batches of advantages and losses
 * (invar_rl_batch) are views of these arrays, so they must not outlive them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_TOKEN_ARRAYS_H
#define INVAR_ENGINE_RL_TOKEN_ARRAYS_H

#include "engine/rl/loss.h"
#include "engine/rl/sample.h"

/* Arrays that are not needed are NULL. All arrays are in `memory`. */
typedef struct invar_token_arrays {
    int64_t samples;
    /* response tokens of all samples */
    int64_t tokens;
    int64_t *offsets; /* (samples + 1) offset of each sample's tokens */
    int64_t *group;   /* (samples) */
    float *reward;    /* (samples) */
    /* (tokens) 1 if the token takes part in the loss; 0 for samples that a filter excluded */
    uint8_t *mask;
    uint8_t *sampled_mask; /* (tokens) 1 for tokens that the model sampled; 0 for inserted ones */
    float *rollout_logp;   /* (tokens) log-probs at sampling */
    float *score_logp; /* (tokens) old log-probs: those of the scoring forward, or of the rollout */
    bool sampled; /* a rollout computed rollout_logp; if false, they are a copy of score_logp */
    /* one of rollout_logp and score_logp is a copy of the other, so they are not compared */
    bool copied;
    float *ref_logp;
    float *teacher_logp;
    float *values;
    /* (tokens) 1 if a branch begins at the token; exists together with `values` */
    uint8_t *branch_start;
    float *train_logp; /* (tokens) log-probs of the training forward */
    float *entropy;
    float *train_values;
    float *advantage;
    float *returns;
    void *memory;
} invar_token_arrays;

/* Flags of the optional arrays: those that are needed. */
typedef struct invar_token_array_flags {
    bool reference, teacher, critic;
} invar_token_array_flags;

/*
 * Allocates the arrays and fills in offsets, group, reward, mask, sampled_mask, rollout_logp and
 * branch_start; the caller fills in the others, `sampled` and `copied`. Release with
 * invar_token_arrays_release.
 */
invar_status invar_token_arrays_make(invar_token_arrays *out, const invar_rl_samples *samples,
                                     const invar_token_array_flags *wants) INVAR_MUST_USE;
void invar_token_arrays_release(invar_token_arrays *arrays);

/* Writes the offsets (count + 1) of the tokens of samples [first, first + count), from 0. */
void invar_token_arrays_starts(int64_t *out, const invar_token_arrays *arrays, int64_t first,
                               int64_t count);

/*
 * Returns a view of the samples [first, first + count). `start` comes from
 * invar_token_arrays_starts for the same samples; it and all arrays are borrowed.
 */
invar_rl_batch invar_token_arrays_batch(const invar_token_arrays *arrays, int64_t first,
                                        int64_t count, const int64_t *start);

/*
 * Returns the unbiased pass@k, 1 - C(n - c, k) / C(n, k), as the mean over groups; a reward of 1 is
 * correct. A group of fewer than k samples counts with all of them.
 */
double invar_token_arrays_pass_at(const invar_token_arrays *arrays, int64_t k);

/* Largest difference between two arrays of log-probs, over the sampled tokens. */
typedef struct invar_logp_diff {
    float max, p50, p99;
    int64_t sample;   /* index in the range of samples; -1 if `max` is 0 */
    int64_t position; /* index of the token in its response; -1 if `max` is 0 */
    int64_t differ;   /* number of tokens that differ in any bit, also if only +0 and -0 differ */
} invar_logp_diff;

/*
 * Compares the samples [first, first + count), without percentiles. NaN counts as the largest
 * difference.
 */
invar_logp_diff invar_token_arrays_max_logp_diff(const invar_token_arrays *arrays, int64_t first,
                                                 int64_t count, const float *a, const float *b);

/* Compares like invar_token_arrays_max_logp_diff, and computes the percentiles. */
invar_status invar_token_arrays_logp_diff(invar_logp_diff *out, const invar_token_arrays *arrays,
                                          int64_t first, int64_t count, const float *a,
                                          const float *b) INVAR_MUST_USE;

#endif
