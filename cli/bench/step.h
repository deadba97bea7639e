/*
 * step.h - an optimizer step that is repeated and timed in variants, for step.c and tests/bench.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_STEP_H
#define INVAR_CLI_BENCH_STEP_H

#include "cli/bench/model.h"
#include "engine/rl/token_arrays.h"
#include "engine/train/learner.h"

/* Samples of the step, and the objects that compute it. */
typedef struct invar_bench_step {
    const invar_bench_subject *subject;
    invar_bench_train *train;
    invar_rl_samples samples; /* (train->samples) */
    invar_token_arrays flat;
    invar_trainer *trainer;
    invar_learner learner;
} invar_bench_step;

/* Makes the samples and everything else. Close it even after a failure. */
invar_status invar_bench_step_open(invar_bench_step *step, const invar_bench_subject *subject,
                                   invar_bench_train *train) INVAR_MUST_USE;
void invar_bench_step_close(invar_bench_step *step);

/* Computes the gradients, which must be zero, and their norm. */
invar_status invar_bench_step_gradients(invar_bench_step *step) INVAR_MUST_USE;

/* Runs the step and waits for it. `payload` is not used. */
invar_status invar_bench_step_run(invar_bench_step *step, void *payload) INVAR_MUST_USE;

/* Profiles a step, if a profile is requested. */
invar_status invar_bench_step_profile(invar_bench_profile *out,
                                      invar_bench_step *step) INVAR_MUST_USE;

/* A variant of the step that is timed. */
typedef struct invar_bench_variant {
    invar_status (*run)(invar_bench_step *step, void *payload);
    void *payload;
    double *median_out;
    double times[64];
} invar_bench_variant;

/* Times variants in turn, and writes the median of each. */
invar_status invar_bench_step_measure(invar_bench_step *step, invar_bench_variant *variants,
                                      int count) INVAR_MUST_USE;

#endif
