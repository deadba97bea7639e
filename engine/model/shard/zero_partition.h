/*
 * zero_partition.h - which rows of every parameter each data-parallel rank owns.
 *
 * Data-parallel ranks hold the same parameters. Each owns some rows of them: it has the sum of
 * their gradients, their moments and their masters, and moves them. Who owns what is a function of
 * the model and of the number of ranks, so every rank knows what every other one owns.
 *
 * Rows are divided where no leaf of the tree hash is cut, and so no chunk of a sum of squares: what
 * is known of a piece (logical_shards.h) can be put together from what owners know of its leaves.
 * Rows that share scales in some format stay together, too, so that a model has the same owners in
 * all of them, and the rows of an expert that is cut along columns; what ranks own begins at
 * multiples of INVAR_ALIGN. The embedding is divided by itself, since both ends of a
 * pipeline may have it, and so is the rest of each chunk of a pipeline: chunks are added in turn.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_ZERO_PARTITION_H
#define INVAR_ENGINE_MODEL_SHARD_ZERO_PARTITION_H

#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Fills in model->owners, where other ranks of its layout hold the same parameters; invar_free.
 * Else a rank owns all of what is here.
 */
invar_status invar_zero_partition_make(invar_model *model) INVAR_MUST_USE;

/* Do several ranks own rows of it? */
bool invar_zero_partition_divide(const invar_model *model);

/* Rows of a parameter's tensors, of those that are here: of any rank, and of this one. */
invar_index_range invar_zero_partition_rows(const invar_model *model, int64_t param, int rank);
invar_index_range invar_zero_partition_here(const invar_model *model, int64_t param);

/*
 * (ranks, params) how many elements each rank has of the parameters that this one gives
 * (logical_shards.h), as `count` has it of the rows that it owns; invar_free.
 */
invar_status invar_zero_partition_count(
    int64_t **out, const invar_model *model,
    int64_t (*count)(const invar_param *param, const invar_index_range *rows)) INVAR_MUST_USE;

/*
 * `out` becomes what all ranks know of the parameters, parameter by parameter: `counts` elements of
 * `size` bytes, of which this rank has `own`. The host's memory; a call of all of them. A device
 * that is dry gets zeros; NULL: nothing.
 */
invar_status invar_zero_partition_gather(void *out, const invar_model *model, const char *phase,
                                         const void *own, size_t size,
                                         const int64_t *counts) INVAR_MUST_USE;

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Bytes of a block that are each rank's, in the order in which they travel. Release. */
typedef struct invar_zero_ranges {
    int size;
    invar_byte_range *ranges; /* those of rank 0, of rank 1, ... */
    int64_t count, capacity;
    int64_t *end;  /* (size) behind the last range of each */
    size_t *bytes; /* (size) of each */
} invar_zero_ranges;

invar_status invar_zero_ranges_init(invar_zero_ranges *out, int size) INVAR_MUST_USE;
void invar_zero_ranges_release(invar_zero_ranges *owned);

/* One more range of the rank added last, or of a later one. */
invar_status invar_zero_ranges_add(invar_zero_ranges *owned, int rank, size_t first,
                                   size_t bytes) INVAR_MUST_USE;

/* Of a block that has a float for each element, as masters and moments lie. */
invar_status invar_zero_ranges_masters(invar_zero_ranges *out,
                                       const invar_model *model) INVAR_MUST_USE;

/* Of the model's memory: what ops read, with its scales. */
invar_status invar_zero_ranges_weights(invar_zero_ranges *out,
                                       const invar_model *model) INVAR_MUST_USE;

#define INVAR_ZERO_RANGES_ALL (-1)

/* Of a block of gradients: those of a chunk of the pipeline, or INVAR_ZERO_RANGES_ALL. */
invar_status invar_zero_ranges_grads(invar_zero_ranges *out, const invar_model *model,
                                     int chunk) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
