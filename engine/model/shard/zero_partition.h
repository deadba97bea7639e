/*
 * zero_partition.h - ZeRO-1 partition: which rows of each parameter a data-parallel rank owns.
 *
 * Data-parallel ranks hold the same parameters. The owner of rows reduces their gradients and has
 * their moments and masters. Ownership is a function of the model and of the number of ranks, so
 * every rank knows what the others own.
 *
 * Owners change only at leaf boundaries of the tree hash, and therefore at chunk boundaries of sums
 * of squares, so that results for a logical shard (logical_shards.h) can be assembled from its
 * leaves. Rows that share scales in any number format stay together, so that ownership does not
 * depend on the format: blocks of 128 rows, or all rows of an expert. A parameter that is split
 * along columns stays together too, or each of its experts. Owned ranges start at multiples of
 * INVAR_ALIGN. The embedding is divided separately, because the first and last pipeline stage may
 * both have it, and so is the rest of each model chunk, because chunks are reduced one after
 * another.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_ZERO_PARTITION_H
#define INVAR_ENGINE_MODEL_SHARD_ZERO_PARTITION_H

#include "engine/model/model.h"

/*
 * Sets model->zero_rows if other ranks of its layout hold the same parameters; free it with
 * invar_free. Otherwise this rank owns all its rows.
 */
invar_status invar_zero_partition_make(invar_model *model) INVAR_MUST_USE;

/* Returns true if several ranks own rows of the model. */
bool invar_zero_partition_is_divided(const invar_model *model);

/*
 * Rows of the local shard of a parameter that data-parallel rank `rank` owns (only if several ranks
 * own rows); those that this rank owns.
 */
invar_index_range invar_zero_partition_rows(const invar_model *model, int64_t param, int rank);
invar_index_range invar_zero_partition_local_rows(const invar_model *model, int64_t param);

/*
 * *out (ranks, params) = count(param, rows of the rank) for every parameter that this rank
 * contributes (invar_logical_shards_is_contributor), 0 for the others. The caller frees *out with
 * invar_free.
 */
invar_status invar_zero_partition_count(
    int64_t **out, const invar_model *model,
    int64_t (*count)(const invar_param *param, const invar_index_range *rows)) INVAR_MUST_USE;

/*
 * Gathers data of all owners, ordered by parameter, then by rank: `counts` of
 * invar_zero_partition_count elements of `size` bytes; `own` has those of this rank. Host memory.
 * On a dry-run device `out` gets zeros; it may be NULL then. Collective over the data axis.
 */
invar_status invar_zero_partition_gather(void *out, const invar_model *model, const char *phase,
                                         const void *own, size_t size,
                                         const int64_t *counts) INVAR_MUST_USE;

/* ---- byte ranges ----------------------------------------------------------------------------- */

/*
 * Byte ranges of a block by owner, in the order in which they are sent. Release with
 * invar_zero_ranges_release.
 */
typedef struct invar_zero_ranges {
    int size;                 /* number of ranks */
    invar_byte_range *ranges; /* ranges of rank 0, then of rank 1, ... */
    int64_t count, capacity;
    int64_t *end;  /* (size) index after the last range of each rank */
    size_t *bytes; /* (size) bytes of each rank */
} invar_zero_ranges;

invar_status invar_zero_ranges_init(invar_zero_ranges *out, int size) INVAR_MUST_USE;
void invar_zero_ranges_release(invar_zero_ranges *ranges);

/* Adds a range of the rank that was added last, or of a higher one. Merges adjacent ranges. */
invar_status invar_zero_ranges_add(invar_zero_ranges *ranges, int rank, size_t first,
                                   size_t bytes) INVAR_MUST_USE;

/* Ranges of a block with one f32 per element in memory order, as masters and moments are stored. */
invar_status invar_zero_ranges_masters(invar_zero_ranges *out,
                                       const invar_model *model) INVAR_MUST_USE;

/* Ranges of the model's memory that hold the weights and their scales. */
invar_status invar_zero_ranges_weights(invar_zero_ranges *out,
                                       const invar_model *model) INVAR_MUST_USE;

#define INVAR_ZERO_RANGES_ALL (-1)

/*
 * Ranges of a block of gradients: of one pipeline model chunk, or of all with
 * INVAR_ZERO_RANGES_ALL.
 */
invar_status invar_zero_ranges_grads(invar_zero_ranges *out, const invar_model *model,
                                     int chunk) INVAR_MUST_USE;

#endif
