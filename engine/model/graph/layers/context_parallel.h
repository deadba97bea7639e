/*
 * context_parallel.h - rows and columns that context-parallel ranks give each other.
 *
 * A rank has its run of the rows of a pass. Whatever is a function of a row alone needs no others.
 * Attention is one of a head: ranks trade their rows of all heads for all rows of some heads. A
 * gradient of a weight is one of a feature: likewise, and each rank makes a share of its rows.
 *
 * Where rows are not divided, nothing moves, and the tensors themselves come back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_LAYERS_CONTEXT_PARALLEL_H
#define INVAR_ENGINE_MODEL_GRAPH_LAYERS_CONTEXT_PARALLEL_H

#include "engine/model/graph/builder.h"
#include "engine/ranks/layout/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline bool invar_cp_divides(const invar_builder *b)
{
    return b->context != NULL;
}

/* Which of `columns` this rank has with all rows: of a weight's rows, its own. */
invar_index_range invar_cp_columns(const invar_builder *b, int64_t columns);

/* The rows of all ranks, whose own are `x`; behind the last call. */
invar_tensor invar_cp_gather(invar_builder *b, const invar_tensor *x);

/*
 * All rows of this rank's columns of x, of which every rank has some of `rows` rows: those that
 * `start` says, or its share (NULL).
 */
invar_tensor invar_cp_spread(invar_builder *b, const invar_tensor *x, int64_t rows,
                             const int64_t *start);

/* The other way round: `x` has all rows of this rank's columns, y gets its rows of all. */
void invar_cp_return(invar_builder *b, const invar_tensor *y, const invar_tensor *x);

/* Adds the sum over all rows to `out`: `sums` are those of this rank's blocks of tokens. */
void invar_cp_fold(invar_builder *b, const invar_tensor *out, const invar_tensor *sums);

#ifdef __cplusplus
}
#endif
#endif
