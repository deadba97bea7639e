/*
 * row_partition.h - splits the rows of a pass over ranks at token-block boundaries.
 *
 * A sum over the tokens of a unit, such as the gradient of a norm's weight, is computed in blocks
 * of INVAR_TOKEN_BLOCK tokens. A rank that has complete blocks can compute their sums alone, and
 * the sums of all ranks' blocks in order are the ones that a single rank would have computed. A
 * split at any other row would change the bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_ROW_PARTITION_H
#define INVAR_ENGINE_MODEL_GRAPH_ROW_PARTITION_H

#include "engine/model/graph/op_graph.h"

#define INVAR_ROW_PARTITION_MAX_RANKS 512

/*
 * Row ranges of all ranks; plain data that is equal on every rank except for `rank`, `unit` and
 * `units`. `size` is 1 if the rows are not divided.
 */
typedef struct invar_row_partition {
    int32_t rank, size;
    int64_t row[INVAR_ROW_PARTITION_MAX_RANKS + 1]; /* first row of each rank, then the number of
                                                       rows */
    /* first token block of each rank, counted over all units, then the number of blocks */
    int64_t block[INVAR_ROW_PARTITION_MAX_RANKS + 1];
    int64_t unit, units; /* first unit with rows on this rank, and the number of such units */
} invar_row_partition;

/* Returns the number of token blocks of all units. */
int64_t invar_row_partition_blocks(const invar_row_offsets *units);

/*
 * Gives each rank consecutive blocks so that all have about the same number of rows, and at least
 * one block if there are as many blocks as ranks. `units` is in host memory.
 */
void invar_row_partition_init(invar_row_partition *out, const invar_row_offsets *units, int size,
                              int rank);

/*
 * Returns the largest number of rows that a rank can get of `rows` rows or fewer, if rows are
 * divided only if there are at least as many blocks as ranks.
 */
int64_t invar_row_partition_max(int64_t rows, int size);

/*
 * Splits a partition into two levels, groups of `each` consecutive ranks: `outer` has the rows of
 * each group, `inner` the rows of each rank of this rank's group; rows and blocks of `inner` are
 * relative to the group's first. The units of `inner` are those of `of`.
 */
void invar_row_partition_group(invar_row_partition *outer, invar_row_partition *inner,
                               const invar_row_partition *of, const invar_row_offsets *units,
                               int each);

/*
 * Writes the offsets of the units with rows on this rank, relative to its first row:
 * (division->units + 1).
 */
void invar_row_partition_units(int64_t *start, const invar_row_partition *division,
                               const invar_row_offsets *units);

static inline int64_t invar_row_partition_first(const invar_row_partition *d)
{
    return d->row[d->rank];
}

/* Start rows of the ranks; NULL if the rows are not divided. */
static inline const int64_t *invar_row_partition_shares(const invar_row_partition *d)
{
    return d->size > 1 ? d->row : NULL;
}

static inline int64_t invar_row_partition_count(const invar_row_partition *d)
{
    return d->row[d->rank + 1] - d->row[d->rank];
}

#endif
