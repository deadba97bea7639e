/*
 * dp_grads.h - gradients of an optimizer step, summed over data-parallel ranks and model chunks.
 *
 * Data-parallel ranks compute different units. The gradient of each unit starts at +0; unit_sum.h
 * adds the units in order, each rank for the rows that it owns
 * (engine/model/shard/zero_partition.h). A pipeline stage with several model chunks runs their
 * backward passes interleaved, each for another unit, so each chunk has a sum of its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_DP_GRADS_H
#define INVAR_ENGINE_TRAIN_DP_GRADS_H

#include "engine/model/forward.h"
#include "engine/train/unit_sum.h"

/* Unit sum of one model chunk. */
typedef struct invar_dp_grad_sum {
    invar_unit_sum *sum;
    int chunk;
} invar_dp_grad_sum;

/*
 * Gradient sums of one step. Zero-initialize before use. Release with invar_dp_grads_release, also
 * after a failure.
 */
typedef struct invar_dp_grads {
    invar_grads *grads; /* gradients of the current units, and of the step at the end; borrowed */
    const invar_model *model;   /* borrowed */
    const invar_layout *layout; /* borrowed */
    /* (n_sums) one for each model chunk of this stage; NULL if this rank computes all units */
    invar_dp_grad_sum *sums;
    int n_sums;
} invar_dp_grads;

/* Starts a step in which no unit is summed yet. */
invar_status invar_dp_grads_init(invar_dp_grads *out, invar_grads *grads, const invar_model *model,
                                 const invar_layout *layout,
                                 const invar_device *dev) INVAR_MUST_USE;
void invar_dp_grads_release(invar_dp_grads *grads);

/*
 * Zeroes the gradients of the chunk. Call before the backward of each unit that this rank computes.
 */
invar_status invar_dp_grads_begin(invar_dp_grads *grads, int chunk) INVAR_MUST_USE;

/*
 * Adds the units of a round to the sum of the chunk. Call after the backward: the data-parallel
 * ranks 0 to givers - 1 have computed one unit each. Collective: all data-parallel ranks must call
 * it.
 */
invar_status invar_dp_grads_add(invar_dp_grads *grads, int chunk, int givers) INVAR_MUST_USE;

/* Writes the sums of the rows that this rank owns to the gradients. Call after the last round. */
invar_status invar_dp_grads_end(invar_dp_grads *grads) INVAR_MUST_USE;

#endif
