/*
 * dp_grads.h - gradients of an optimizer step that several ranks compute.
 *
 * Data-parallel ranks have other units: each one's gradients begin at +0 and are added in the order
 * of units (unit_sum.h) by those who own their rows (engine/model/shard/zero_partition.h). A stage
 * with several chunks goes back through them in turn, each with another unit, so that the sums are
 * those of each chunk.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_DP_GRADS_H
#define INVAR_ENGINE_TRAIN_DP_GRADS_H

#include "engine/model/forward.h"
#include "engine/train/unit_sum.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is a chunk's. */
typedef struct invar_dp_grad_sum {
    invar_unit_sum *sum;
    int chunk;
} invar_dp_grad_sum;

/* Zeroed, nothing; release. */
typedef struct invar_dp_grads {
    invar_grads *grads;         /* borrowed */
    const invar_model *model;   /* borrowed */
    const invar_layout *layout; /* borrowed */
    invar_dp_grad_sum *sums;    /* (n_sums) where ranks have other units */
    int n_sums;
} invar_dp_grads;

/* Of a step in which nothing was computed yet. */
invar_status invar_dp_grads_init(invar_dp_grads *out, invar_grads *grads, const invar_model *model,
                                 const invar_layout *layout,
                                 const invar_device *dev) INVAR_MUST_USE;
void invar_dp_grads_release(invar_dp_grads *ranks);

/* Before the backward of a unit of this rank's own. */
invar_status invar_dp_grads_begin(invar_dp_grads *ranks, int chunk) INVAR_MUST_USE;

/* After it: the data-parallel ranks below `givers` have computed one each. A call of all. */
invar_status invar_dp_grads_add(invar_dp_grads *ranks, int chunk, int givers) INVAR_MUST_USE;

/* After the last: the sums, of the rows that this rank owns. */
invar_status invar_dp_grads_end(invar_dp_grads *ranks) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
