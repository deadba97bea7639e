/*
 * context_parallel.h - exchanges rows and columns between context-parallel ranks.
 *
 * A rank has consecutive rows of a pass. A function of single rows needs no communication.
 * Attention is a function of single heads, so ranks trade their rows of all heads for all rows of
 * some heads (as DeepSpeed-Ulysses does). A weight gradient is a function of single output
 * features, so it is computed in the same way, and each rank gets a range of its rows.
 *
 * If rows are not divided, nothing moves: invar_cp_gather and invar_cp_spread return their
 * argument, invar_cp_fold only adds, and invar_cp_return must not be called.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_LAYERS_CONTEXT_PARALLEL_H
#define INVAR_ENGINE_MODEL_GRAPH_LAYERS_CONTEXT_PARALLEL_H

#include "engine/model/graph/builder.h"
#include "engine/ranks/layout/layout.h"

static inline bool invar_cp_divides(const invar_builder *b)
{
    return b->rows.context != NULL;
}

/*
 * Returns the range of `columns` that this rank has with all rows; for a weight gradient, its range
 * of rows.
 */
invar_index_range invar_cp_columns(const invar_builder *b, int64_t columns);

/* Gathers the rows of all ranks, after the last node; `x` has this rank's. */
invar_tensor invar_cp_gather(invar_builder *b, const invar_tensor *x);

/*
 * Returns all rows of this rank's range of x's columns. Each rank has some of the `rows` rows:
 * those that `start` gives, or equal ranges if `start` is NULL.
 */
invar_tensor invar_cp_spread(invar_builder *b, const invar_tensor *x, int64_t rows,
                             const int64_t *start);

/*
 * Inverse of invar_cp_spread: `x` has all rows of this rank's columns, y receives this rank's rows
 * of all columns.
 */
void invar_cp_return(invar_builder *b, const invar_tensor *y, const invar_tensor *x);

/*
 * Adds the sum over all rows to `out`; `sums` are the sums of the token blocks of this
 * context-parallel rank.
 */
void invar_cp_fold(invar_builder *b, const invar_tensor *out, const invar_tensor *sums);

#endif
