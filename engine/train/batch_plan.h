/*
 * batch_plan.h - splits the samples of an optimizer step into units and micro-batches.
 *
 * A unit is a run of consecutive samples whose gradient is summed as one. Gradients are added unit
 * by unit in order, so the split into units is semantic (docs/arithmetic.md, section 5). A
 * micro-batch is a run of whole consecutive units that go through one forward and backward; it is a
 * free choice and changes no bit. Neither split reorders samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_BATCH_PLAN_H
#define INVAR_ENGINE_TRAIN_BATCH_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct invar_batch_plan_options {
    int64_t unit_rows; /* largest number of rows in a unit; a longer sample is a unit by itself */
    /*
     * smallest number of units if there are that many samples, at least 1; limits a unit to
     * invar_batch_plan_unit_samples
     */
    int64_t unit_count;
    /*
     * largest number of samples in a micro-batch, 0 for no limit; a larger unit is a micro-batch
     * by itself
     */
    int64_t micro_batch;
    /*
     * largest number of rows in a micro-batch, 0 for no limit; a larger unit is a micro-batch by
     * itself
     */
    int64_t max_tokens;
} invar_batch_plan_options;

/*
 * Result of the split. Micro-batch b has the samples [first_sample[b], first_sample[b + 1]), which
 * are the units [first_unit[b], first_unit[b + 1]). Release with invar_batch_plan_release.
 */
typedef struct invar_batch_plan {
    int64_t samples;
    int64_t units;
    int64_t n_micro_batches; /* number of micro-batches */
    int64_t *unit_sample;    /* (units + 1) first sample of each unit */
    int64_t *first_unit;     /* (n_micro_batches + 1) first unit of each micro-batch */
    int64_t *first_sample;   /* (n_micro_batches + 1) first sample of each micro-batch */
    int64_t max_tokens;      /* rows of the largest micro-batch */
    /* block that holds the three arrays; owned */
    void *memory;
} invar_batch_plan;

/* Returns the largest number of samples in a unit of a step with `samples` samples. */
int64_t invar_batch_plan_unit_samples(const invar_batch_plan_options *options, int64_t samples);

/*
 * Makes the plan for samples with tokens[i] >= 0 rows each. If both limits of a micro-batch are
 * set, both are kept. Returns INVAR_E_INVALID if an option or a row count is out of range.
 */
invar_status invar_batch_plan_make(invar_batch_plan *out, const int64_t *tokens, int64_t samples,
                                   const invar_batch_plan_options *options) INVAR_MUST_USE;
void invar_batch_plan_release(invar_batch_plan *plan);

#endif
