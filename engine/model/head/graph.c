/*
 * graph.c - op graph of the head: row selection, norm, logits, log-probs, and the backward.
 *
 * The backward is written out instead of derived as for layers: chunks go back in the order of the
 * forward, because the head's weight gradient adds units in that order, and each chunk computes its
 * logits again first. A reversed walk would begin with the last chunk and give other bits.
 *
 * If ranks divide the vocabulary, each computes the logits of its own ids, and log-probs come from
 * partial sums of all ranks. Full logits are gathered only if the caller asks for them.
 *
 * With context parallelism each rank has some of the selected rows. All ranks gather all of them
 * and compute their norm. Of each chunk, a rank takes an equal range of rows to log-probs and back,
 * so the load does not depend on which rank has the response rows. It computes the head's weight
 * gradient for a range of ids.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdint.h>
#include <string.h>

#include "engine/model/graph/layers/context_parallel.h"
#include "engine/model/head/head.h"

#include "base/invar_banned.h"

/* Source points that no node of a graph computes. */
const invar_graph_point invar_head_stream = {.name = "head.dx", .layer = -1};
const invar_graph_point invar_head_dlogp = {.name = "head.dlogp", .layer = -1};
const invar_graph_point invar_head_dentropy = {.name = "head.dentropy", .layer = -1};

static invar_tensor input_slice(invar_builder *b, invar_graph_input which, invar_dtype dtype,
                                int64_t first, int64_t count)
{
    invar_tensor t = invar_build_array(b, which, dtype, count);

    t.data = (char *)t.data + (size_t)first * 4;
    return t;
}

/* This rank's elements of a vector over the rows of a chunk. */
static invar_tensor chunk_vector(const invar_tensor *vector, const invar_head_chunk *p)
{
    return invar_tensor_1d((char *)vector->data + (size_t)(p->first + p->local_rows.first) * 4,
                           vector->dtype, p->local_rows.count);
}

static invar_tensor chunk_rows(const invar_tensor *t, const invar_head_chunk *p)
{
    return invar_tensor_rows(t, p->first + p->local_rows.first, p->local_rows.count);
}

static invar_tensor chunk_input(invar_builder *b, invar_graph_input which, invar_dtype dtype,
                                const invar_head_chunk *p)
{
    return input_slice(b, which, dtype, p->first + p->local_rows.first, p->local_rows.count);
}

/* Gathers all rows of a chunk, after the node that computed this rank's. */
static void gather_chunk(invar_builder *b, const invar_tensor *t, const invar_head_chunk *p)
{
    invar_tensor table = t->rank == 1 ? invar_tensor_2d(t->data, t->dtype, t->shape[0], 1) : *t;

    if (p->shared)
        invar_op_graph_transfer(
            b->graph,
            &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_ROW_RANGES,
                                    .axis = INVAR_GRAPH_TRANSFER_CONTEXT,
                                    .full = invar_tensor_rows(&table, p->first, p->rows)});
}

static invar_weight head_weight(invar_builder *b, const invar_model *model)
{
    invar_weight w = invar_build_weight(b, model->head);

    if (invar_tensor_present(&model->tied_grad)) {
        w.dw = model->tied_grad;
        w.dw.data =
            (char *)invar_op_graph_input(b->graph, INVAR_INPUT_GRADS) + (uintptr_t)w.dw.data;
    }
    return w;
}

static void append_point(invar_builder *b, const char *name, const invar_tensor *rows,
                         int64_t samples, bool backward)
{
    invar_op_graph_point(b->graph, &(invar_graph_point){.name = name,
                                                        .backward = backward,
                                                        .layer = -1,
                                                        .samples = (int32_t)samples,
                                                        .rows = *rows});
}

/* Extra columns after a rank's own logits: targets of other ranks point there. */
#define SPARE_COLUMNS 8

/*
 * Declares logits of this rank's ids and, with `values`, of all ids; otherwise partial sums, own
 * and of all ranks.
 */
static void declare_divided_logits(invar_pass *pass, invar_builder *b, int64_t rows, bool values)
{
    const invar_param *head = pass->model->head;
    int64_t sums = invar_logprob_sum_columns(head->rows, b->model.tensors);
    // complete chunks, regardless of where the vocabulary ends
    int64_t own =
        invar_vocab_parallel_part_chunks(head, &pass->model->part) * INVAR_VOCAB_PARALLEL_CHUNK;
    int64_t all = invar_vocab_parallel_chunks(head) * INVAR_VOCAB_PARALLEL_CHUNK;
    invar_head_activations *h = &pass->head.acts;

    h->local_logits = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, rows, own);
    h->parts = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, b->model.tensors * rows,
                                     values ? own : sums);
    if (values) {
        h->logits = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, rows, all);
        h->logits = invar_tensor_columns(&h->logits, 0, head->rows);
    } else {
        h->sums = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, rows, sums);
    }
    if (pass->options.train)
        h->d_logits = invar_op_graph_tensor(b->graph, b->model.storage, rows,
                                            head->local.rows + SPARE_COLUMNS);
}

static void declare_logits(invar_pass *pass, invar_builder *b, int64_t rows)
{
    int64_t width = pass->model->head->rows;
    invar_head_activations *h = &pass->head.acts;

    h->logits = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, rows, width);
    if (pass->options.train)
        h->d_logits = b->model.storage == INVAR_DTYPE_F32
                          ? h->logits
                          : invar_op_graph_tensor(b->graph, b->model.storage, rows, width);
}

static void declare_activations(invar_pass *pass, invar_builder *b, bool values)
{
    int64_t rows = pass->head.rows.count,
            piece_rows = values ? rows : invar_head_max_chunk_rows(pass);
    int64_t hidden = pass->model->spec.hidden;
    invar_op_graph *p = b->graph;
    invar_head_activations *h = &pass->head.acts;
    invar_tensor both;

    memset(h, 0, sizeof *h);
    h->x = invar_op_graph_tensor(p, b->model.storage, rows, hidden);
    h->norm = invar_op_graph_tensor(p, b->model.storage, rows, hidden);
    if (invar_vocab_parallel_divided(pass->model->head))
        declare_divided_logits(pass, b, piece_rows, values);
    else
        declare_logits(pass, b, piece_rows);
    // adjacent, so that one download gets both
    both = invar_op_graph_tensor(p, INVAR_DTYPE_F32, 2 * rows, 0);
    h->logp = invar_tensor_1d(both.data, INVAR_DTYPE_F32, rows);
    h->entropy = invar_tensor_1d((char *)both.data + rows * 4, INVAR_DTYPE_F32, rows);
    h->max = invar_op_graph_tensor(p, INVAR_DTYPE_F32, rows, 0);
    h->logsum = invar_op_graph_tensor(p, INVAR_DTYPE_F32, rows, 0);
    if (!pass->options.train)
        return;
    h->d_norm = invar_op_graph_tensor(p, b->model.storage, rows, hidden);
    h->d_x = invar_op_graph_tensor(p, b->model.storage, rows + 1, hidden);
}

static void select_rows(invar_pass *pass, invar_builder *b, const invar_weight *norm)
{
    invar_head_activations *h = &pass->head.acts;
    invar_index_range own = invar_head_chosen_rows(pass);
    invar_tensor stream = invar_tensor_2d(
        invar_op_graph_input(b->graph, INVAR_INPUT_STREAM), b->model.storage,
        invar_row_partition_count(&pass->division.context), pass->model->spec.hidden);

    pass->head.stream = (invar_graph_point){.name = "mlp", .layer = pass->model->spec.layers - 1};
    invar_op_graph_source(b->graph, stream.data, &pass->head.stream);
    INVAR_APPEND(b->graph, -1, EMBEDDING_FWD, embedding_fwd,
                 .out = invar_tensor_rows(&h->x, own.first, own.count), .table = stream,
                 .ids = input_slice(b, INVAR_INPUT_ROWS, INVAR_DTYPE_I32, own.first, own.count));
    if (invar_head_divides_rows(pass))
        invar_op_graph_transfer(b->graph,
                                &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_ROW_RANGES,
                                                        .axis = INVAR_GRAPH_TRANSFER_CONTEXT,
                                                        .full = h->x,
                                                        .start = pass->head.chosen});
    INVAR_APPEND(b->graph, -1, RMSNORM_FWD, rmsnorm_fwd, .y = invar_build_heads(&h->norm, 1),
                 .x = invar_build_heads(&h->x, 1), .weight = norm->w, .eps = b->model.norm_eps);
}

/* This rank's logits of a chunk, with `spare` extra columns; on a single rank all logits. */
static invar_tensor local_logits_of(const invar_pass *pass, const invar_head_chunk *p,
                                    int64_t spare)
{
    const invar_head_activations *h = &pass->head.acts;
    invar_tensor own;

    if (!invar_tensor_present(&h->local_logits))
        return invar_tensor_rows(&h->logits, 0, p->local_rows.count);
    own = invar_tensor_columns(&h->local_logits, 0, pass->model->head->local.rows + spare);
    return invar_tensor_rows(&own, 0, p->local_rows.count);
}

static void compute_local_logits(invar_pass *pass, invar_builder *b, const invar_weight *w,
                                 const invar_head_chunk *p)
{
    INVAR_APPEND(b->graph, -1, LINEAR_FWD, linear_fwd, .y = local_logits_of(pass, p, 0),
                 .x = chunk_rows(&pass->head.acts.norm, p), .w = w->w, .k_shards = 1);
}

/* View of rows of f32 as rows of vocabulary chunks. */
static invar_tensor as_chunks(const invar_tensor *t, int64_t rows)
{
    return invar_tensor_2d(t->data, INVAR_DTYPE_F32,
                           rows * (t->row_stride / INVAR_VOCAB_PARALLEL_CHUNK),
                           INVAR_VOCAB_PARALLEL_CHUNK);
}

/* Computes the logits of all ids for all rows. */
static void compute_all_logits(invar_pass *pass, invar_builder *b, const invar_weight *w,
                               const invar_head_chunk *p)
{
    invar_head_activations *h = &pass->head.acts;
    invar_tensor out;

    compute_local_logits(pass, b, w, p);
    if (!invar_tensor_present(&h->local_logits))
        return;
    out = as_chunks(&h->logits, p->local_rows.count);
    invar_op_graph_transfer(b->graph, &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_PARTS,
                                                              .full = h->parts,
                                                              .local = h->local_logits});
    INVAR_APPEND(b->graph, -1, EMBEDDING_FWD, embedding_fwd, .out = out,
                 .table = as_chunks(&h->parts, h->parts.shape[0]),
                 .ids = input_slice(b, INVAR_INPUT_CHUNKS, INVAR_DTYPE_I32, 0, out.shape[0]));
}

/* Computes the log-probs of a chunk from the partial sums of all ranks. */
static void join_logprobs(invar_pass *pass, invar_builder *b, const invar_tensor *own,
                          const invar_head_chunk *p)
{
    invar_head_activations *h = &pass->head.acts;
    invar_tensor sums = invar_tensor_rows(&h->sums, 0, p->local_rows.count);
    invar_tensor parts = invar_tensor_rows(&h->parts, 0, b->model.tensors * p->local_rows.count);

    INVAR_APPEND(b->graph, -1, LOGPROB_SUM, logprob_sum, .sums = sums, .logits = *own,
                 .targets = chunk_input(b, INVAR_INPUT_OWN_TARGETS, INVAR_DTYPE_I32, p),
                 .temperature = pass->head.rows.temperature);
    invar_op_graph_transfer(
        b->graph,
        &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_PARTS, .full = parts, .local = sums});
    INVAR_APPEND(b->graph, -1, LOGPROB_JOIN, logprob_join, .logp = chunk_vector(&h->logp, p),
                 .entropy = chunk_vector(&h->entropy, p), .max = chunk_vector(&h->max, p),
                 .logsum = chunk_vector(&h->logsum, p), .sums = parts,
                 .targets = chunk_input(b, INVAR_INPUT_TARGETS, INVAR_DTYPE_I32, p),
                 .vocabulary = pass->model->head->rows, .parts = b->model.tensors,
                 .temperature = pass->head.rows.temperature);
}

static void chunk_logprobs(invar_pass *pass, invar_builder *b, const invar_weight *w,
                           const invar_head_chunk *p)
{
    invar_head_activations *h = &pass->head.acts;
    invar_tensor logits = local_logits_of(pass, p, 0);

    compute_local_logits(pass, b, w, p);
    append_point(b, "head.logits", &logits, 1 + p->number, false);
    if (invar_tensor_present(&h->local_logits)) {
        join_logprobs(pass, b, &logits, p);
        return;
    }
    INVAR_APPEND(b->graph, -1, LOGPROB_FWD, logprob_fwd, .logp = chunk_vector(&h->logp, p),
                 .entropy = chunk_vector(&h->entropy, p), .max = chunk_vector(&h->max, p),
                 .logsum = chunk_vector(&h->logsum, p), .logits = logits,
                 .targets = chunk_input(b, INVAR_INPUT_TARGETS, INVAR_DTYPE_I32, p),
                 .temperature = pass->head.rows.temperature);
}

static void chunk_forward(invar_pass *pass, invar_builder *b, const invar_weight *w,
                          const invar_head_chunk *p)
{
    if (p->local_rows.count > 0)
        chunk_logprobs(pass, b, w, p);
    gather_chunk(b, &pass->head.acts.logp, p);
    gather_chunk(b, &pass->head.acts.entropy, p);
}

/* Appends the head's weight gradient; context-parallel ranks compute a range of ids each. */
static void append_head_dw(invar_pass *pass, invar_builder *b, const invar_tensor *all,
                           const invar_tensor *d_logits, const invar_head_chunk *p,
                           const invar_row_offsets *units)
{
    invar_tensor dw = *all, dy = *d_logits;

    if (p->shared) {
        invar_index_range ids = invar_cp_columns(b, dw.shape[0]);
        dy = invar_cp_spread(b, d_logits, p->rows, NULL);
        dw = invar_tensor_rows(&dw, ids.first, ids.count);
    }
    INVAR_APPEND(b->graph, -1, LINEAR_DW, linear_dw, .dw = dw, .dy = dy,
                 .x = invar_tensor_rows(&pass->head.acts.norm, p->first, p->rows), .units = *units);
    if (p->number == 0)
        invar_op_graph_mark_overwrite(b->graph, offsetof(invar_linear_dw_args, fresh));
}

/* Appends the backward from d_logits of a chunk to d_norm of its rows, and the weight gradient. */
static void project_backward(invar_pass *pass, invar_builder *b, const invar_weight *w,
                             const invar_head_chunk *p, const invar_row_offsets *units)
{
    invar_head_activations *h = &pass->head.acts;
    invar_tensor columns = invar_tensor_columns(&h->d_logits, 0, w->w.shape[0]);
    invar_tensor d_logits = invar_tensor_rows(&columns, 0, p->local_rows.count);
    invar_tensor d_norm = chunk_rows(&h->d_norm, p);

    if (invar_tensor_present(&w->dw))
        append_head_dw(pass, b, &w->dw, &d_logits, p, units);
    if (p->local_rows.count > 0)
        invar_build_input_gradient(b, &d_norm, &d_logits, w);
    gather_chunk(b, &h->d_norm, p);
}

/* Appends d_logits of this rank's rows of a chunk. */
static void logprob_backward(invar_pass *pass, invar_builder *b, const invar_weight *w,
                             const invar_head_chunk *p, bool entropy)
{
    invar_head_activations *h = &pass->head.acts;
    invar_logprob_bwd_args args = {
        .dlogits = invar_tensor_rows(&h->d_logits, 0, p->local_rows.count),
        .dlogp = chunk_input(b, INVAR_INPUT_DLOGP, INVAR_DTYPE_F32, p),
        .max = chunk_vector(&h->max, p),
        .logsum = chunk_vector(&h->logsum, p),
        .logits = local_logits_of(pass, p, SPARE_COLUMNS),
        .targets = chunk_input(b,
                               invar_tensor_present(&h->local_logits) ? INVAR_INPUT_OWN_TARGETS
                                                                      : INVAR_INPUT_TARGETS,
                               INVAR_DTYPE_I32, p),
        .temperature = pass->head.rows.temperature};

    // keeps the sources of points independent of the number of chunks
    if (h->pieces > 1) {
        compute_local_logits(pass, b, w, p);
        invar_op_graph_point(b->graph, &(invar_graph_point){.name = "head.logits",
                                                            .layer = -1,
                                                            .recomputed = true,
                                                            .rows = local_logits_of(pass, p, 0)});
    }
    if (entropy) {
        args.dentropy = chunk_input(b, INVAR_INPUT_DENTROPY, INVAR_DTYPE_F32, p);
        args.entropy = chunk_vector(&h->entropy, p);
    }
    invar_op_graph_append(b->graph, INVAR_OP_LOGPROB_BWD, &args, -1);
    append_point(b, "head.dlogits", &args.dlogits, 1 + p->number, true);
}

static void chunk_backward(invar_pass *pass, invar_builder *b, const invar_weight *w,
                           const invar_head_chunk *p, bool entropy)
{
    invar_row_offsets units = {(int64_t *)invar_op_graph_input(b->graph, INVAR_INPUT_PARTS) +
                                   invar_head_part_at(p),
                               p->units};

    if (p->local_rows.count > 0)
        logprob_backward(pass, b, w, p, entropy);
    project_backward(pass, b, w, p, &units);
}

/* Appends the gradient of the last layer's output: zero for rows that were not selected. */
static void norm_backward(invar_pass *pass, invar_builder *b, const invar_weight *norm)
{
    invar_head_activations *h = &pass->head.acts;
    invar_index_range own = invar_pass_own_rows(pass);
    invar_tensor d_x = invar_tensor_rows(&h->d_x, 0, h->x.shape[0]);
    invar_tensor stream = invar_tensor_2d(invar_op_graph_input(b->graph, INVAR_INPUT_D_STREAM),
                                          b->model.storage, own.count, h->d_x.shape[1]);

    if (h->pieces > 0)
        append_point(b, "head.dnorm", &h->d_norm, 0, true);
    INVAR_APPEND(b->graph, -1, RMSNORM_BWD, rmsnorm_bwd, .dx = invar_build_heads(&d_x, 1),
                 .dweight = norm->dw, .dy = invar_build_heads(&h->d_norm, 1),
                 .x = invar_build_heads(&h->x, 1), .weight = norm->w, .units = b->rows.units,
                 .eps = b->model.norm_eps);
    append_point(b, "head.drows", &d_x, 0, true);
    INVAR_APPEND(b->graph, -1, EMBEDDING_FWD, embedding_fwd, .out = stream, .table = h->d_x,
                 .ids = input_slice(b, INVAR_INPUT_BACK, INVAR_DTYPE_I32, own.first, own.count));
    invar_op_graph_point(
        b->graph,
        &(invar_graph_point){.name = invar_head_stream.name,
                             .backward = true,
                             .stream = true,
                             .layer = -1,
                             .samples = (int32_t)(1 + h->pieces),
                             .rows = stream,
                             .tp_starts = invar_row_partition_shares(&pass->division.stream),
                             .cp_starts = invar_row_partition_shares(&pass->division.context)});
}

invar_status invar_head_build(invar_pass *pass, bool values, bool entropy)
{
    const invar_logit_rows *head = &pass->head.rows;
    invar_builder *b = &pass->head.graph.builder;
    invar_head_chunk whole = {
        .rows = head->count, .units = head->units.count, .local_rows = {0, head->count}};
    invar_weight norm, w;

    invar_decoder_begin(b, pass->head.graph.graph, pass->model, head->count);
    b->rows.context = invar_head_divides_rows(pass) ? &pass->division.context : NULL;
    b->rows.units = (invar_row_offsets){invar_op_graph_input(b->graph, INVAR_INPUT_HEAD_UNITS),
                                        head->units.count};
    invar_op_graph_source(b->graph, invar_op_graph_input(b->graph, INVAR_INPUT_DLOGP),
                          &invar_head_dlogp);
    invar_op_graph_source(b->graph, invar_op_graph_input(b->graph, INVAR_INPUT_DENTROPY),
                          &invar_head_dentropy);
    norm = invar_build_weight(b, pass->model->norm);
    w = head_weight(b, pass->model);
    declare_activations(pass, b, values);
    pass->head.acts.pieces = values ? 1 : invar_head_count_chunks(pass);
    select_rows(pass, b, &norm);
    if (values) {
        if (!pass->options.train)
            append_point(b, "head.norm", &pass->head.acts.norm, 0, false);
        compute_all_logits(pass, b, &w, &whole);
        if (!pass->options.train)
            append_point(b, "head.logits", &pass->head.acts.logits, 0, false);
        invar_op_graph_host_access(b->graph, &pass->head.acts.logits);
    } else {
        append_point(b, "head.norm", &pass->head.acts.norm, 0, false);
        for (invar_head_chunk p = {0}; invar_head_next_chunk(&p, pass);)
            chunk_forward(pass, b, &w, &p);
        invar_op_graph_host_access(b->graph, &pass->head.acts.logp);
    }
    invar_op_graph_end_section(b->graph);
    if (!pass->options.train)
        return invar_pass_plan(pass, &pass->head.graph, "rows of the head");
    invar_op_graph_host_access(b->graph, &pass->head.acts.d_x);
    if (values) {
        invar_op_graph_host_access(b->graph, &pass->head.acts.d_logits);
        invar_op_graph_source(b->graph, pass->head.acts.d_logits.data, &invar_head_dlogp);
        project_backward(pass, b, &w, &whole, &b->rows.units);
    } else {
        for (invar_head_chunk p = {0}; invar_head_next_chunk(&p, pass);)
            chunk_backward(pass, b, &w, &p, entropy);
    }
    norm_backward(pass, b, &norm);
    // in section 1 too, so that the memory plan does not depend on what the caller reads
    invar_op_graph_host_access(b->graph, &pass->head.acts.logp);
    invar_op_graph_end_section(b->graph);
    return invar_pass_plan(pass, &pass->head.graph, "rows of the head");
}
