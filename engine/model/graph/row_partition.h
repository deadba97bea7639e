/*
 * row_partition.h - rows of a pass that ranks divide: each has whole blocks of tokens.
 *
 * A sum over the tokens of a unit, as the gradient of a norm's weight is, goes block by block of
 * INVAR_TOKEN_BLOCK tokens. A rank that has whole blocks makes their sums alone; the sums of all
 * ranks' blocks, one after the other, are those that one rank would have made.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_ROW_PARTITION_H
#define INVAR_ENGINE_MODEL_GRAPH_ROW_PARTITION_H

#include "engine/model/graph/op_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_ROW_PARTITION_MAX_RANKS 512

/* Which rows are whose; plain data, the same on every rank but for `rank`. Size 1: undivided. */
typedef struct invar_row_partition {
    int32_t rank, size;
    int64_t row[INVAR_ROW_PARTITION_MAX_RANKS + 1]; /* where those of each rank begin; the end */
    int64_t
        block[INVAR_ROW_PARTITION_MAX_RANKS + 1]; /* the same for blocks, counted over all units */
    int64_t unit, units;                          /* that have rows here: the first, how many */
} invar_row_partition;

/* Blocks of tokens of all units. */
int64_t invar_row_partition_blocks(const invar_row_offsets *units);

/*
 * Neighbouring blocks for each rank, so that all have as many rows, up to a block; at least one, if
 * there are as many blocks as ranks. The units are the host's.
 */
void invar_row_partition_init(invar_row_partition *out, const invar_row_offsets *units, int size,
                              int rank);

/*
 * Rows that a rank has at most of so many, or of fewer, if these are divided where they have as
 * many blocks as there are ranks.
 */
int64_t invar_row_partition_max(int64_t rows, int size);

/*
 * A division seen by groups of `each` neighbours: `outer`, which rows each group has, and `inner`,
 * which of a group's rows each of its ranks has, counted from the group's first. The units of
 * `inner` are those of `of`.
 */
void invar_row_partition_group(invar_row_partition *outer, invar_row_partition *inner,
                               const invar_row_partition *of, const invar_row_offsets *units,
                               int each);

/* The units that have rows here, counted from the first of these: (division->units + 1). */
void invar_row_partition_units(int64_t *start, const invar_row_partition *division,
                               const invar_row_offsets *units);

static inline int64_t invar_row_partition_first(const invar_row_partition *d)
{
    return d->row[d->rank];
}

/* Where those of each rank begin, of what is divided; NULL: it is not. */
static inline const int64_t *invar_row_partition_shares(const invar_row_partition *d)
{
    return d->size > 1 ? d->row : NULL;
}

static inline int64_t invar_row_partition_count(const invar_row_partition *d)
{
    return d->row[d->rank + 1] - d->row[d->rank];
}

#ifdef __cplusplus
}
#endif
#endif
