/*
 * context_parallel.c - exchanges rows and columns between context-parallel ranks.
 *
 * A transfer sends one contiguous block per rank. If a block consists of some columns, its rows are
 * packed before the transfer or unpacked after it. The copies use op embedding.fwd with ids 0, 1,
 * ..., so they need no op of their own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/layers/context_parallel.h"

#include "base/invar_banned.h"

invar_index_range invar_cp_columns(const invar_builder *b, int64_t columns)
{
    if (!invar_cp_divides(b))
        return (invar_index_range){0, columns};
    return invar_layout_range_of(columns, b->rows.context->size, b->rows.context->rank);
}

static void copy_rows(invar_builder *b, const invar_tensor *to, const invar_tensor *from)
{
    invar_tensor out = *to, table = *from;

    // the op copies 32-bit values unchanged, but its type must be a float
    if (table.dtype == INVAR_DTYPE_I32)
        out.dtype = table.dtype = INVAR_DTYPE_F32;
    INVAR_APPEND(b->graph, b->layer, EMBEDDING_FWD, embedding_fwd, .out = out, .table = table,
                 .ids = invar_build_array(b, INVAR_INPUT_IN_ORDER, INVAR_DTYPE_I32, out.shape[0]));
}

/* Returns the tensor without gaps between rows, because complete rows are transferred. */
static invar_tensor pack_rows(invar_builder *b, const invar_tensor *x)
{
    invar_tensor copy;

    if (x->row_stride == x->shape[1])
        return *x;
    copy = invar_op_graph_tensor(b->graph, x->dtype, x->shape[0], x->shape[1]);
    copy_rows(b, &copy, x);
    return copy;
}

invar_tensor invar_cp_gather(invar_builder *b, const invar_tensor *x)
{
    invar_tensor all, own;

    if (!invar_cp_divides(b))
        return *x;
    own = pack_rows(b, x);
    all = invar_op_graph_tensor(b->graph, x->dtype, b->rows.all_count, x->shape[1]);
    invar_op_graph_transfer(b->graph,
                            &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_ROW_RANGES,
                                                    .axis = INVAR_GRAPH_TRANSFER_CONTEXT,
                                                    .full = all,
                                                    .local = own,
                                                    .start = b->rows.context->row});
    return all;
}

/* *columns = the columns of rank r in x; *block = their block in a tensor of x's extents. */
static void columns_of(invar_tensor *columns, invar_tensor *block, const invar_builder *b,
                       const invar_tensor *x, const invar_tensor *blocks, int r)
{
    invar_index_range share = invar_layout_range_of(x->shape[1], b->rows.context->size, r);
    size_t element = (size_t)invar_dtype_bits(x->dtype) / 8;

    *columns = invar_tensor_columns(x, share.first, share.count);
    *block = invar_tensor_2d((char *)blocks->data + (size_t)(x->shape[0] * share.first) * element,
                             x->dtype, x->shape[0], share.count);
}

invar_tensor invar_cp_spread(invar_builder *b, const invar_tensor *x, int64_t rows,
                             const int64_t *start)
{
    invar_tensor blocks, all, columns, block;

    if (!invar_cp_divides(b))
        return *x;
    blocks = invar_op_graph_tensor(b->graph, x->dtype, x->shape[0], x->shape[1]);
    all = invar_op_graph_tensor(b->graph, x->dtype, rows, invar_cp_columns(b, x->shape[1]).count);
    for (int r = 0; r < b->rows.context->size; r++) {
        columns_of(&columns, &block, b, x, &blocks, r);
        copy_rows(b, &block, &columns);
    }
    invar_op_graph_transfer(b->graph,
                            &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_ROWS_TO_COLUMNS,
                                                    .axis = INVAR_GRAPH_TRANSFER_CONTEXT,
                                                    .full = all,
                                                    .local = blocks,
                                                    .start = start});
    return all;
}

void invar_cp_return(invar_builder *b, const invar_tensor *y, const invar_tensor *x)
{
    invar_tensor blocks = invar_op_graph_tensor(b->graph, y->dtype, y->shape[0], y->shape[1]);
    invar_tensor columns, block;

    invar_op_graph_transfer(b->graph,
                            &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_COLUMNS_TO_ROWS,
                                                    .axis = INVAR_GRAPH_TRANSFER_CONTEXT,
                                                    .full = blocks,
                                                    .local = *x,
                                                    .start = b->rows.context->row});
    for (int r = 0; r < b->rows.context->size; r++) {
        columns_of(&columns, &block, b, y, &blocks, r);
        copy_rows(b, &columns, &block);
    }
}

void invar_cp_fold(invar_builder *b, const invar_tensor *out, const invar_tensor *sums)
{
    int64_t blocks = invar_token_blocks_max(&b->rows.all_units, b->rows.all_count);
    invar_tensor all = *sums;

    if (invar_cp_divides(b)) {
        all = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, blocks, sums->shape[1]);
        invar_op_graph_transfer(b->graph,
                                &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_ROW_RANGES,
                                                        .axis = INVAR_GRAPH_TRANSFER_CONTEXT,
                                                        .full = all,
                                                        .local = *sums,
                                                        .start = b->rows.context->block});
    }
    INVAR_APPEND(b->graph, b->layer, TOKEN_FOLD, token_fold, .out = *out, .sums = all,
                 .units = b->rows.all_units, .tokens = b->rows.all_count);
}
