/*
 * sampling.h - measurements of whole rollouts and of speculative decoding, for bench.sampling.
 *
 * They run on a model of invar bench (cli/bench/model.h). Responses are given, so that passes and
 * draws are equal in every run and on every machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_BENCH_SAMPLING_SAMPLING_H
#define INVAR_TESTS_BENCH_SAMPLING_SAMPLING_H

#include "cli/bench/model.h"

typedef struct invar_bench_passes {
    int64_t count, tokens; /* number of drawn tokens */
    double seconds;
} invar_bench_passes;

typedef struct invar_bench_rollout {
    int64_t groups, group;     /* prompts, and samples of each */
    int64_t batch, context;    /* concurrent sequences, and tokens of a prompt */
    int64_t shortest, longest; /* range of response lengths */
    /* results of the measurement */
    int64_t tokens;          /* tokens of all responses */
    int64_t recomputed_rows; /* rows computed again after a preemption */
    double seconds;          /* seconds of the complete rollout */
    /* passes with prefill or recomputed tokens; passes in which all sequences drew; others */
    invar_bench_passes prompts, all, fewer;
    size_t cache, activations; /* bytes */
    invar_bench_decode steady; /* decoding alone: the same number of sequences with the mean
                                  context */
} invar_bench_rollout;

/* Returns the response length of a sample from a fixed list, log-uniform between the two bounds. */
int64_t invar_bench_rollout_length(int64_t shortest, int64_t longest, int64_t sample);

invar_status invar_bench_rollout_run(invar_bench_rollout *rollout,
                                     const invar_bench_subject *subject) INVAR_MUST_USE;

/* Result of a rollout with given responses. */
typedef struct invar_bench_draft_result {
    int64_t n_draft_tokens; /* draft tokens per pass; 0 without speculation */
    int64_t tokens;         /* tokens of all responses */
    /* number of passes, of draft tokens, and of draft tokens equal to those of the response */
    int64_t passes, drafted, accepted;
    double seconds;
} invar_bench_draft_result;

enum { INVAR_BENCH_DRAFTED = 4 }; /* number of measured draft lengths; the first one is 0 */

typedef enum invar_bench_text {
    INVAR_BENCH_TEXT_TABLE,
    INVAR_BENCH_TEXT_PROBLEMS,
    INVAR_BENCH_TEXT_COUNT
} invar_bench_text;

typedef struct invar_bench_speculation {
    int64_t batch; /* number of sequences */
    /* results of the measurement */
    invar_bench_draft_result drafted[INVAR_BENCH_TEXT_COUNT][INVAR_BENCH_DRAFTED];
} invar_bench_speculation;

invar_status invar_bench_speculation_run(invar_bench_speculation *speculation,
                                         const invar_bench_subject *subject) INVAR_MUST_USE;

#endif
