/*
 * tp_reduce.c - all-reduce of partial products in the fixed order of logical shards.
 *
 * Three variants: gather all partial products and fold them on every rank; exchange ranges of rows,
 * fold, gather; or exchange ranges of rows and fold, for a divided residual stream. All fold the
 * same tree with op shards.fold, so they give the same bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/layers/tp_reduce.h"

#include "engine/ranks/layout/layout.h"

#include "base/invar_banned.h"

#define FEW_BYTES                                                                                  \
    ((int64_t)1 << 18) /* bytes of a partial product below which the latency of a second transfer
                          costs more than its bytes */

invar_tp_reduce invar_tp_reduce_divide(invar_builder *b, int64_t rows, const invar_tensor *y,
                                       int32_t parts)
{
    int64_t cols = y->shape[1], bytes = rows * cols * (int64_t)sizeof(float);
    invar_tp_reduce d = {.rows = rows,
                         .parts = parts,
                         .all = parts * b->model.tensors,
                         .first = parts * b->model.tensor,
                         .stream = y->shape[0] != rows,
                         .shared = y->shape[0] != rows || bytes > FEW_BYTES};

    d.sums =
        invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, (d.shared ? parts : d.all) * rows, cols);
    return d;
}

invar_tensor invar_tp_reduce_buffer(const invar_tp_reduce *d, int32_t i)
{
    return invar_tensor_rows(&d->sums, ((d->shared ? 0 : d->first) + i) * d->rows, d->rows);
}

static void append_fold(invar_builder *b, const invar_tensor *y, const invar_tensor *sums,
                        const invar_tensor *residual, int32_t shards)
{
    INVAR_APPEND(b->graph, b->layer, SHARDS_FOLD, shards_fold, .y = *y, .x = *sums,
                 .residual = *residual, .shards = shards);
}

/* Folds this rank's partial products into one: a subtree of the tree over all ranks. */
static invar_tensor fold_local_parts(invar_builder *b, const invar_tp_reduce *d)
{
    static const invar_tensor none;
    invar_tensor sum;

    if (d->parts == 1)
        return d->sums;
    sum = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, d->rows, d->sums.shape[1]);
    append_fold(b, &sum, &d->sums, &none, d->parts);
    return sum;
}

/*
 * Exchanges partial products: `got` receives those of all ranks for this rank's rows. `start` has
 * the first row of each rank (invar_graph_transfer).
 */
static void append_exchange(invar_builder *b, const invar_tp_reduce *d, const invar_tensor *got,
                            const int64_t *start)
{
    invar_tensor part = fold_local_parts(b, d);

    invar_op_graph_transfer(b->graph, &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_EXCHANGE,
                                                              .full = *got,
                                                              .local = part,
                                                              .start = start});
}

static void reduce_stream(invar_builder *b, const invar_tp_reduce *d, const invar_tensor *y,
                          const invar_tensor *residual)
{
    invar_tensor got =
        invar_build_residual_buffer(b, INVAR_DTYPE_F32, b->model.tensors, y->shape[1]);

    append_exchange(b, d, &got, b->rows.stream->row);
    append_fold(b, y, &got, residual, b->model.tensors);
}

static void reduce_ranges(invar_builder *b, const invar_tp_reduce *d, const invar_tensor *y,
                          const invar_tensor *residual)
{
    invar_index_range own = invar_layout_range_of(d->rows, b->model.tensors, b->model.tensor);
    invar_tensor got =
        invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, b->model.tensors * own.count, y->shape[1]);
    invar_tensor rows = invar_tensor_rows(y, own.first, own.count), added = *residual;

    INVAR_CHECK(y->row_stride == y->shape[1]); // rows are transferred without gaps
    if (invar_tensor_present(residual))
        added = invar_tensor_rows(residual, own.first, own.count);
    append_exchange(b, d, &got, NULL);
    append_fold(b, &rows, &got, &added, b->model.tensors);
    invar_op_graph_transfer(
        b->graph, &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_ROW_RANGES, .full = *y});
}

static void reduce_gathered(invar_builder *b, const invar_tp_reduce *d, const invar_tensor *y,
                            const invar_tensor *residual)
{
    invar_op_graph_transfer(b->graph,
                            &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_PARTS,
                                                    .full = d->sums,
                                                    .local = invar_tp_reduce_buffer(d, 0)});
    append_fold(b, y, &d->sums, residual, d->all);
}

void invar_tp_reduce_unite(invar_builder *b, const invar_tp_reduce *d, const invar_tensor *y,
                           const invar_tensor *residual)
{
    static const invar_tensor none;
    const invar_tensor *added = residual ? residual : &none;

    if (d->stream)
        reduce_stream(b, d, y, added);
    else if (d->shared)
        reduce_ranges(b, d, y, added);
    else
        reduce_gathered(b, d, y, added);
}

invar_tensor invar_tp_reduce_columns(const invar_tensor *t, const invar_sum_part *part)
{
    bool whole = part->count == t->shape[1] || !invar_tensor_present(t); // absent: none

    return whole ? *t : invar_tensor_columns(t, part->first, part->count);
}

invar_tensor invar_tp_reduce_rows(const invar_tensor *t, const invar_sum_part *part)
{
    return part->count == t->shape[0] ? *t : invar_tensor_rows(t, part->first, part->count);
}
