/*
 * rowwise.c - layer functions on single rows: embedding, RMS norm, residual addition.
 *
 * The forward needs no communication, except for an embedding whose ids ranks divide, and under
 * sequence parallelism for the gather of normed rows, because products need all rows. If ranks
 * divide rows, the backward gathers the rows of the embedding's gradient, the block sums of a
 * norm's weight gradient, and the gradient of an added value.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/layers/context_parallel.h"

#include "base/invar_banned.h"

/* ---- embedding ------------------------------------------------------------------------------- */

typedef struct embedding {
    invar_tensor y, dtable, ids;
} embedding;

static void embed_backward(invar_builder *b, const void *noted)
{
    const embedding *e = noted;
    invar_tensor d = invar_build_grad_in(b, &e->y), all;

    if (!invar_tensor_present(&e->dtable)) // frozen
        return;
    all = invar_build_all_rows(b, &d);
    INVAR_APPEND(b->graph, b->layer, EMBEDDING_BWD, embedding_bwd, .dtable = e->dtable,
                 .dout = invar_cp_gather(b, &all), .ids = e->ids, .units = b->rows.all_units);
}

/* Trades the lookups of this rank for all rows against those of all ranks for this rank's rows. */
static invar_tensor exchange_lookups(invar_builder *b, const invar_tensor *found)
{
    invar_tensor got =
        invar_build_residual_buffer(b, b->model.storage, b->model.tensors, found->shape[1]);

    invar_op_graph_transfer(b->graph, &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_EXCHANGE,
                                                              .full = got,
                                                              .local = *found,
                                                              .start = b->rows.stream->row});
    return got;
}

/*
 * Embedding whose ids ranks divide. Every rank reads all rows from its shard, the results are
 * gathered, and each row is picked from the rank that has its id. In the gradient, ids of other
 * ranks are mapped to spare rows after the table.
 */
static void append_divided_embedding(invar_builder *b, embedding *e, const invar_weight *table)
{
    int64_t cols = table->w.shape[1], parts = b->rows.stream ? 1 : b->model.tensors;
    invar_tensor found =
        invar_op_graph_tensor(b->graph, b->model.storage, parts * b->rows.count, cols);
    invar_tensor own = invar_tensor_rows(
        &found, b->rows.stream ? 0 : b->model.tensor * b->rows.count, b->rows.count);

    INVAR_APPEND(b->graph, b->layer, EMBEDDING_FWD, embedding_fwd, .out = own, .table = table->w,
                 .ids = invar_build_array(b, INVAR_INPUT_OWN_IDS, INVAR_DTYPE_I32, b->rows.count));
    if (b->rows.stream)
        found = exchange_lookups(b, &found);
    else
        invar_op_graph_transfer(
            b->graph, &(invar_graph_transfer){
                          .kind = INVAR_GRAPH_TRANSFER_PARTS, .full = found, .local = own});
    INVAR_APPEND(b->graph, b->layer, EMBEDDING_FWD, embedding_fwd, .out = e->y, .table = found,
                 .ids = invar_build_array(b, INVAR_INPUT_PICKED, INVAR_DTYPE_I32, e->y.shape[0]));
    if (!invar_tensor_present(&e->dtable)) // frozen
        return;
    e->dtable.shape[0] += INVAR_SPARE_ROWS;
    if (b->train)
        e->ids = invar_build_array(b, INVAR_INPUT_OWN_D_IDS, INVAR_DTYPE_I32, b->rows.all_count);
}

invar_tensor invar_graph_embed(invar_builder *b, const char *name, const invar_weight *table)
{
    embedding e = {invar_build_residual_buffer(b, b->model.storage, 1, table->w.shape[1]),
                   table->dw, b->rows.all_ids};

    if (invar_weight_is_divided(table))
        append_divided_embedding(b, &e, table);
    else
        INVAR_APPEND(b->graph, b->layer, EMBEDDING_FWD, embedding_fwd, .out = e.y,
                     .table = table->w, .ids = b->rows.ids);
    invar_build_record_backward(b, embed_backward, &e, sizeof e);
    return invar_build_stream(b, name, e.y);
}

/* ---- norm ------------------------------------------------------------------------------------ */

typedef struct norm {
    const char *name;
    invar_tensor y, x;
    invar_weight weight;
} norm;

/* Gathers the block sums of all tensor-parallel ranks if they divide the residual stream. */
static invar_tensor gather_block_sums(invar_builder *b, const invar_tensor *own)
{
    int64_t blocks = invar_token_blocks_max(&b->rows.units, b->rows.count);
    invar_tensor all;

    if (!b->rows.stream)
        return *own;
    all = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, blocks, own->shape[1]);
    invar_op_graph_transfer(b->graph,
                            &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_ROW_RANGES,
                                                    .full = all,
                                                    .local = *own,
                                                    .start = b->rows.stream->block});
    return all;
}

/*
 * The weight's gradient is a sum over all rows in token blocks: each rank computes the sums of its
 * own blocks, and all of them are folded.
 */
static void append_divided_norm_backward(invar_builder *b, const norm *n,
                                         const invar_rmsnorm_bwd_args *whole)
{
    invar_rmsnorm_bwd_args args = *whole;
    int64_t all = invar_token_blocks_max(&b->rows.all_units, b->rows.all_count);
    invar_tensor room = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, all, n->x.shape[1]), sums;

    args.dweight = (invar_tensor){0};
    args.units = b->rows.stream ? b->rows.stream_units : b->rows.units;
    args.block_sums =
        invar_tensor_rows(&room, 0, invar_token_blocks_max(&args.units, args.x.shape[0]));
    invar_op_graph_append(b->graph, INVAR_OP_RMSNORM_BWD, &args, b->layer);
    sums = gather_block_sums(b, &args.block_sums);
    invar_cp_fold(b, &n->weight.dw, &sums);
}

static void append_norm_backward(invar_builder *b, const norm *n,
                                 const invar_rmsnorm_bwd_args *args)
{
    bool frozen = !invar_tensor_present(&n->weight.dw); // then no sum over rows

    if (!frozen && (b->rows.stream || b->rows.context))
        append_divided_norm_backward(b, n, args);
    else
        invar_op_graph_append(b->graph, INVAR_OP_RMSNORM_BWD, args, b->layer);
}

/* Adds the gradient of the residual, if it is present, in the same call. */
static void norm_backward(invar_builder *b, const void *noted)
{
    const norm *n = noted;
    invar_tensor dy = invar_build_grad_in(b, &n->y),
                 residual = invar_build_value_info(b, &n->x)->grad, dx;
    invar_rmsnorm_bwd_args args = {.dweight = n->weight.dw,
                                   .dy = invar_build_heads(&dy, 1),
                                   .x = invar_build_heads(&n->x, 1),
                                   .weight = n->weight.w,
                                   .units = b->rows.units,
                                   .eps = b->model.norm_eps};

    if (!invar_tensor_present(&residual)) {
        dx = invar_build_grad_buffer(b, &n->x);
        args.dx = invar_build_heads(&dx, 1);
        append_norm_backward(b, n, &args);
        invar_build_grad_point(b, &n->x, &dx, n->name, false);
        invar_build_grad_add(b, &n->x, &dx);
        return;
    }
    // in place, unless the buffer is also the gradient of another value
    dx = invar_build_value_info(b, &residual)->n_sharers > 1 ? invar_build_grad_buffer(b, &n->x)
                                                             : residual;
    args.dx = invar_build_heads(&dx, 1);
    args.residual = invar_build_heads(&residual, 1);
    append_norm_backward(b, n, &args);
    invar_build_grad_point(b, &n->x, &dx, n->name, true);
    invar_build_grad_set(b, &n->x, &dx);
}

/*
 * Under sequence parallelism each rank norms its own rows, and then all rows are gathered, because
 * products need them.
 */
invar_tensor invar_graph_norm(invar_builder *b, const char *name, invar_tensor x,
                              const invar_weight *weight)
{
    invar_tensor own = invar_build_residual_buffer(b, b->model.storage, 1, x.shape[1]);
    norm n = {name, own, x, *weight};

    INVAR_APPEND(b->graph, b->layer, RMSNORM_FWD, rmsnorm_fwd, .y = invar_build_heads(&own, 1),
                 .x = invar_build_heads(&x, 1), .weight = weight->w, .eps = b->model.norm_eps);
    if (b->rows.stream) {
        n.y = invar_build_all_rows(b, &own);
        invar_build_value_info(b, &n.y)->local_rows = own;
        invar_build_value_info(b, &n.y)->rows_kept = b->hide_points; // backward follows at once
    }
    invar_build_reads(b, &x);
    invar_build_record_backward(b, norm_backward, &n, sizeof n);
    return invar_build_result(b, name, n.y);
}

/* ---- residual -------------------------------------------------------------------------------- */

typedef struct addition {
    invar_tensor y, residual, x;
} addition;

static void add_backward(invar_builder *b, const void *noted)
{
    const addition *a = noted;
    invar_tensor d = invar_build_grad_in(b, &a->y);

    invar_build_grad_add(b, &a->residual, &d);
    d = invar_build_all_rows(b, &d);
    invar_build_grad_add(b, &a->x, &d);
}

invar_tensor invar_graph_add(invar_builder *b, const char *name, invar_tensor residual,
                             invar_tensor x)
{
    addition a = {invar_build_residual_buffer(b, b->model.storage, 1, x.shape[1]), residual, x};

    INVAR_APPEND(b->graph, b->layer, ADD, add, .out = a.y, .a = residual,
                 .b = invar_build_own_rows(b, &x));
    invar_build_record_backward(b, add_backward, &a, sizeof a);
    return invar_build_stream(b, name, a.y);
}
