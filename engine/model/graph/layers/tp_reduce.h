/*
 * tp_reduce.h - sums partial products of tensor-parallel ranks, for layer functions.
 *
 * Each partial product is as large as the full result. Either every rank gathers all of them and
 * adds them (small results), or each rank gets the partial products of its range of rows, adds
 * them, and the sums are gathered: fewer bytes, but two transfers. Under sequence parallelism the
 * sums of the residual stream are not gathered, because a rank keeps only its range of rows.
 *
 * The sums are folded as the tree over logical shards prescribes, so the bits do not depend on the
 * number of ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_LAYERS_TP_REDUCE_H
#define INVAR_ENGINE_MODEL_GRAPH_LAYERS_TP_REDUCE_H

#include "engine/model/graph/builder.h"

typedef struct invar_tp_reduce {
    invar_tensor sums; /* f32 partial products of this rank, or of all ranks if `shared` is false */
    int64_t rows;      /* rows of one partial product */
    int32_t parts;     /* partial products of this rank */
    int32_t all, first; /* partial products of all ranks; index of this rank's first among them */
    bool shared;        /* each rank adds a range of the rows; else every rank adds all rows */
    bool stream;        /* the result is this rank's rows of the residual stream, not gathered */
} invar_tp_reduce;

/*
 * Plans the reduction of `parts` partial products over `rows` rows and allocates them. `y` is the
 * result; it has this rank's rows only if the residual stream is divided.
 */
invar_tp_reduce invar_tp_reduce_divide(invar_builder *b, int64_t rows, const invar_tensor *y,
                                       int32_t parts);

/* Returns the tensor for partial product i of this rank. */
invar_tensor invar_tp_reduce_buffer(const invar_tp_reduce *sums, int32_t i);

/*
 * y = the sum of the partial products of all ranks, plus `residual` unless it is NULL. Call after
 * the last partial product is appended.
 */
void invar_tp_reduce_unite(invar_builder *b, const invar_tp_reduce *sums, const invar_tensor *y,
                           const invar_tensor *residual);

/*
 * Returns the columns (or rows) of the part; the tensor itself if the part is all of it, because a
 * quantized tensor cannot be sliced.
 */
invar_tensor invar_tp_reduce_columns(const invar_tensor *t, const invar_sum_part *part);
invar_tensor invar_tp_reduce_rows(const invar_tensor *t, const invar_sum_part *part);

#endif
