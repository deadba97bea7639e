/*
 * token_arrays.h - the per-token numbers of a rollout, one array each over all response tokens in
 * order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_TOKEN_ARRAYS_H
#define INVAR_ENGINE_RL_TOKEN_ARRAYS_H

#include "engine/rl/loss.h"
#include "engine/rl/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arrays that are not wanted stay NULL. */
typedef struct invar_token_arrays {
    int64_t samples;
    int64_t tokens;
    int64_t *start;        /* (samples + 1) */
    int64_t *group;        /* (samples) */
    float *reward;         /* (samples) */
    uint8_t *mask;         /* (tokens); zero for samples that a filter removed */
    uint8_t *sampled_mask; /* (tokens); zero for those that were put between what was sampled */
    float *rollout_logp;   /* (tokens) as sampled */
    float *score_logp;     /* old: by the scoring forward, or those of the rollout */
    bool sampled;          /* a rollout gave rollout_logp; if false they are a copy of score_logp */
    bool copied;           /* one of the two is a copy of the other: there is nothing to compare */
    float *ref_logp;
    float *teacher_logp;
    float *values;
    uint8_t *branch_start; /* (tokens) beside the values; 1: a branch begins there */
    float *train_logp;     /* by the training forward */
    float *entropy;
    float *train_values;
    float *advantage;
    float *returns;
    void *memory;
} invar_token_arrays;

/* What beside the always present arrays is wanted. */
typedef struct invar_token_array_flags {
    bool reference, teacher, critic;
} invar_token_array_flags;

/* Lays out all, fills start, group, reward, mask, drawn and rollout_logp. Released before. */
invar_status invar_token_arrays_make(invar_token_arrays *out, const invar_rl_samples *samples,
                                     const invar_token_array_flags *wants) INVAR_MUST_USE;
void invar_token_arrays_release(invar_token_arrays *flat);

/* (count + 1) where the tokens of samples [first, first + count) start, from 0. */
void invar_token_arrays_starts(int64_t *out, const invar_token_arrays *flat, int64_t first,
                               int64_t count);

/*
 * The view of samples [first, first + count), with all that is there; borrowed, like `start`, which
 * invar_token_arrays_starts has made for them.
 */
invar_rl_batch invar_token_arrays_batch(const invar_token_arrays *flat, int64_t first,
                                        int64_t count, const int64_t *start);

/*
 * pass@k, unbiased: 1 - C(n - c, k) / C(n, k), a reward of 1 being correct; mean over groups. A
 * group of fewer than k samples counts with all that it has.
 */
double invar_token_arrays_pass_at(const invar_token_arrays *flat, int64_t k);

/* Where two arrays of log-probabilities differ most, of the tokens that were drawn. */
typedef struct invar_logp_diff {
    float max, p50, p99;
    int64_t sample;   /* its place in the range; -1: no difference */
    int64_t position; /* token of its response; -1 */
    int64_t differ;   /* tokens that differ in any bit */
} invar_logp_diff;

/* Of samples [first, first + count), without percentiles. NaN counts as the largest difference. */
invar_logp_diff invar_token_arrays_worst(const invar_token_arrays *flat, int64_t first,
                                         int64_t count, const float *a, const float *b);

/* The same with percentiles. */
invar_status invar_token_arrays_gap(invar_logp_diff *out, const invar_token_arrays *flat,
                                    int64_t first, int64_t count, const float *a,
                                    const float *b) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
