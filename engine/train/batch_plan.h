/*
 * batch_plan.h - the batch plan: samples -> units -> micro-batches.
 *
 * A unit is a run of consecutive samples, and gradients are summed unit by unit in order: units are
 * semantic, and their rule is docs/arithmetic.md, section 5. A micro-batch is a run of whole
 * consecutive units: a free choice, which changes no bit. Nothing is ever reordered.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_BATCH_PLAN_H
#define INVAR_ENGINE_TRAIN_BATCH_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_batch_plan_options {
    int64_t unit_rows;   /* most rows of a unit; a longer sample is a unit by itself */
    int64_t unit_count;  /* at least so many units where there are as many samples */
    int64_t micro_batch; /* most samples of a micro-batch; a larger unit is one by itself. 0: any */
    int64_t max_tokens;  /* most rows of a micro-batch, likewise */
} invar_batch_plan_options;

/* Micro-batch b: samples [sample[b], sample[b+1]), which are the units [unit[b], unit[b+1]). */
typedef struct invar_batch_plan {
    int64_t samples;
    int64_t units;
    int64_t count;        /* micro-batches */
    int64_t *unit_sample; /* (units + 1) first sample of each unit */
    int64_t *unit;        /* (count + 1) */
    int64_t *sample;      /* (count + 1) */
    int64_t max_tokens;   /* of the largest micro-batch */
    void *memory;
} invar_batch_plan;

/* Most samples of a unit where there are `samples` in all. */
int64_t invar_batch_plan_unit_samples(const invar_batch_plan_options *options, int64_t samples);

/* tokens[i] >= 0 are the rows of sample i. Both limits, where both are given, are kept. */
invar_status invar_batch_plan_make(invar_batch_plan *out, const int64_t *tokens, int64_t samples,
                                   const invar_batch_plan_options *options) INVAR_MUST_USE;
void invar_batch_plan_release(invar_batch_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
