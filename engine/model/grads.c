/*
 * grads.c - gradients of a model: one block of device memory, its layout, and the final reduction.
 *
 * invar_grads_finalize runs once per step. It gathers the row ranges that context-parallel ranks
 * have computed, and adapters of experts that all expert-parallel ranks hold; then it adds the
 * gradient of a tied head to the embedding's, which pipeline stages exchange first. Every rank
 * works on the rows that it owns.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/forward.h"

#include "base/alloc.h"
#include "engine/model/graph/graph_transfer.h"
#include "engine/model/graph/row_partition.h"
#include "engine/model/lora/adapters.h"
#include "engine/model/shard/logical_shards.h"
#include "engine/model/shard/zero_partition.h"

#include "base/invar_banned.h"

static invar_status zero_all(invar_grads *grads)
{
    return invar_device_zero(&grads->dev, grads->memory, grads->bytes);
}

/* Returns the tensor whose data is at offset at->data of the block. */
static invar_tensor tensor_in_block(const invar_grads *grads, const invar_tensor *at)
{
    invar_tensor t = *at;

    t.data = (char *)grads->memory + (uintptr_t)at->data;
    return t;
}

static int64_t list_full_shards(invar_tensor *out, const invar_grads *grads,
                                const invar_model *model, int64_t param)
{
    const invar_param *p = &model->params[param];
    int64_t count = invar_logical_shards_here(p);

    for (int64_t k = 0; out && k < count; k++)
        out[k] = invar_logical_shard_of(p, &grads->tensors[param], k);
    return count;
}

static int64_t list_owned_shards(invar_tensor *out, const invar_grads *grads,
                                 const invar_model *model, int64_t param)
{
    const invar_param *p = &model->params[param];
    invar_index_range rows = invar_zero_partition_local_rows(model, param);
    invar_index_range pieces = invar_logical_shards_among(p, &rows);
    int64_t count = 0;

    for (int64_t k = pieces.first; k < pieces.first + pieces.count; k++)
        count += invar_logical_shard_parts(out ? out + count : NULL, p, &grads->tensors[param], k,
                                           &rows);
    return count;
}

/* Lists the logical shards that this rank contributes; counts them only if `out` is NULL. */
static int64_t list_shards(invar_tensor *out, const invar_grads *grads, const invar_model *model)
{
    bool owned = invar_zero_partition_is_divided(model);
    int64_t count = 0;

    for (int64_t i = 0; i < model->n_params; i++) {
        invar_tensor *to = out ? out + count : NULL;
        if (invar_logical_shards_is_contributor(model, &model->params[i]))
            count += owned ? list_owned_shards(to, grads, model, i)
                           : list_full_shards(to, grads, model, i);
    }
    return count;
}

static invar_status make_shard_list(invar_grads *grads, const invar_model *model)
{
    grads->n_pieces = list_shards(NULL, grads, model);
    INVAR_TRY(INVAR_ALLOC(grads->pieces, (size_t)grads->n_pieces, "the list of gradients"));
    (void)list_shards(grads->pieces, grads, model);
    return INVAR_OK;
}

/*
 * Assigns addresses. The embedding comes first unless it is frozen, then the other matrices,
 * vectors, and the tied head.
 */
static void lay_out(invar_grads *grads, const invar_model *model)
{
    char *end = (char *)grads->memory + grads->bytes;
    bool frozen = invar_model_is_adapted(model);

    INVAR_CHECK(frozen || (model->order[0] == 0 && model->embedding == &model->params[0]));
    for (int64_t k = 0; k < model->n_params; k++) {
        int64_t i = model->order[k];
        grads->tensors[i] = tensor_in_block(grads, &model->params[i].grad);
        if (k == 1 && !frozen)
            grads->embedding_bytes = (uintptr_t)model->params[i].grad.data;
        if (model->params[i].cols == 0 && !grads->vectors)
            grads->vectors = grads->tensors[i].data;
    }
    if (invar_tensor_present(&model->tied_grad)) {
        grads->tied_head = tensor_in_block(grads, &model->tied_grad);
        end = grads->tied_head.data;
    }
    if (!grads->vectors) // adapters have no vectors
        grads->vectors = end;
    grads->vector_bytes = (size_t)(end - (char *)grads->vectors);
}

invar_status invar_grads_new(invar_grads **out, const invar_model *model)
{
    invar_grads *grads = NULL;
    size_t bytes = model->grad_bytes;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(grads, 1, "gradients"));
    *grads = (invar_grads){.bytes = bytes, .dev = model->dev};
    status = INVAR_ALLOC(grads->tensors, (size_t)model->n_params, "the list of gradients");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(grads->digests, (size_t)model->n_params, "digests of gradients");
    if (status == INVAR_OK)
        status = invar_device_alloc(&grads->dev, &grads->memory, bytes, "gradients");
    if (status == INVAR_OK)
        status = zero_all(grads);
    if (status == INVAR_OK) {
        lay_out(grads, model);
        status = make_shard_list(grads, model);
    }
    if (status != INVAR_OK) {
        invar_grads_free(grads);
        return status;
    }
    grads->overwrite_next = true;
    *out = grads;
    return INVAR_OK;
}

void invar_grads_free(invar_grads *grads)
{
    if (!grads)
        return;
    invar_free(grads->tensors);
    invar_free(grads->pieces);
    invar_free(grads->digests);
    invar_device_free(&grads->dev, grads->memory);
    invar_free(grads);
}

invar_status invar_grads_zero(invar_grads *grads)
{
    grads->overwrite_next = true;
    INVAR_TRY(invar_device_zero(&grads->dev, grads->memory, grads->embedding_bytes));
    return invar_device_zero(&grads->dev, grads->vectors, grads->vector_bytes);
}

invar_status invar_grads_clear(invar_grads *grads)
{
    grads->overwrite_next = false;
    return zero_all(grads);
}

/* Parameters before the layers belong to the first chunk, those after them to the last. */
int invar_grads_chunk(const invar_model *model, const invar_param *p)
{
    const invar_model_partition *part = &model->part;
    int chunk = p == model->embedding ? 0 : part->stages * part->chunks - 1;

    if (p->layer < 0)
        return chunk;
    while (invar_model_partition_chunk(part, model->spec.layers, chunk).first > p->layer)
        chunk--;
    return chunk;
}

static void extend_range(invar_byte_range *range, const invar_tensor *grad)
{
    size_t first = (uintptr_t)grad->data;
    size_t bytes = invar_aligned((size_t)(grad->shape[0] * grad->row_stride) * sizeof(float));

    if (range->bytes == 0)
        range->first = first;
    range->bytes = first + bytes - range->first;
}

/* The parameters of a chunk are adjacent in memory, so each range holds nothing else. */
void invar_grads_ranges(invar_byte_range out[INVAR_GRADS_RANGES], const invar_model *model,
                        int chunk)
{
    const invar_model_partition *part = &model->part;

    out[0] = out[1] = (invar_byte_range){0, 0};
    for (int64_t k = 0; k < model->n_params; k++) {
        const invar_param *p = &model->params[model->order[k]];
        if (invar_tensor_present(&p->grad) && invar_grads_chunk(model, p) == chunk)
            extend_range(&out[p->cols == 0], &p->grad);
    }
    if (invar_tensor_present(&model->tied_grad) && chunk == part->stages * part->chunks - 1)
        extend_range(&out[1], &model->tied_grad);
}

typedef struct tied_exchange {
    const invar_layout *layout;
    invar_device *dev;
    char *give, *get; /* device memory to send from and to receive into */
    size_t bytes;
    char *room; /* host memory of two buckets */
} tied_exchange;

static invar_status exchange_bucket(const tied_exchange *t, size_t at, size_t bytes)
{
    const invar_layout_axis *axis = &t->layout->pipeline;
    int other = axis->rank == 0 ? axis->size - 1 : 0;
    invar_comm_transfer transfer = {.op = INVAR_COMM_SENDRECV,
                                    .phase = "gradients of a tied head",
                                    .timeout_s = t->layout->timeout_s,
                                    .in = t->room,
                                    .out = t->room + bytes,
                                    .dst_rank = other,
                                    .src_rank = other,
                                    .to_bytes = bytes,
                                    .from_bytes = bytes};

    INVAR_TRY(invar_device_download(t->dev, t->room, t->give + at, bytes));
    INVAR_TRY(invar_comm_run(axis->comm, &transfer));
    return invar_device_upload(t->dev, t->get + at, t->room + bytes, bytes);
}

/*
 * The first pipeline stage has the embedding's gradient and memory for the head's, the last one the
 * reverse: they exchange them.
 */
static invar_status exchange_tied(invar_grads *grads, const invar_model *model,
                                  const invar_tensor *embedding, const invar_tensor *head)
{
    const invar_layout *layout = model->layout;
    bool first = model->part.stage == 0;
    tied_exchange t = {.layout = layout,
                       .dev = &grads->dev,
                       .give = first ? embedding->data : head->data,
                       .get = first ? head->data : embedding->data,
                       .bytes = (size_t)(head->shape[0] * head->shape[1]) * sizeof(float)};
    INVAR_AUTO_FREE char *room = NULL;
    size_t bucket;

    if (model->part.stages == 1 || t.bytes == 0 ||
        invar_layout_skips_transfers(layout, grads->dev.backend->memory.dry_run))
        return INVAR_OK;
    bucket = layout->bucket_bytes < t.bytes ? layout->bucket_bytes : t.bytes;
    INVAR_TRY(INVAR_ALLOC_SIZED(room, 2, bucket, "gradients on their way"));
    t.room = room;
    for (size_t at = 0; at < t.bytes; at += bucket)
        INVAR_TRY(exchange_bucket(&t, at, bucket < t.bytes - at ? bucket : t.bytes - at));
    return INVAR_OK;
}

/*
 * Returns true if context-parallel ranks compute ranges of rows. Embedding and norms are sums over
 * token blocks, which every rank computes in full.
 */
static bool is_computed_in_ranges(const invar_param *p)
{
    return p->kind != INVAR_PARAM_EMBEDDING && p->kind != INVAR_PARAM_NORM;
}

/* Gathers the ranges of gradients. */
typedef struct grad_gatherer {
    const invar_model *model;
    invar_transfer_runner mover;
    invar_op_runner *caller;
    int64_t *start; /* buffer for the start rows of an axis, and their end */
} grad_gatherer;

/*
 * Writes the start rows of the context-parallel ranks: ranges of all rows, or of the experts that
 * the ranks of a context group hold.
 */
static void context_starts(int64_t *start, const invar_model *model, const invar_tensor *grad,
                           const invar_param *p)
{
    const invar_model_partition *part = &model->part;
    invar_index_range here = {0, grad->shape[0]};
    int64_t each = 1;

    if (p->kind == INVAR_PARAM_EXPERT || p->stack > 1) { // expert, or an adapter of experts
        here.count = p->local.experts;
        each = grad->shape[0] / here.count;
        if (invar_adapter_is_uncut(p))
            here = invar_layout_range_of(p->stack, part->experts, part->expert);
    }
    for (int r = 0; r < part->contexts; r++)
        start[r] = (here.first + invar_layout_range_of(here.count, part->contexts, r).first) * each;
    start[part->contexts] = (here.first + here.count) * each;
}

/*
 * Writes the start rows of the expert-parallel ranks for a parameter that all of them hold in full.
 */
static void expert_starts(int64_t *start, const invar_model *model, const invar_tensor *grad,
                          const invar_param *p)
{
    int64_t each = grad->shape[0] / p->stack;

    for (int r = 0; r < model->part.experts; r++)
        start[r] = invar_layout_range_of(p->stack, model->part.experts, r).first * each;
    start[model->part.experts] = grad->shape[0];
}

static int64_t clamp_i64(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/*
 * Gathers the rows that this rank owns along an axis of `size` ranks; g->start has their start
 * rows.
 */
static invar_status gather_rows(grad_gatherer *g, const invar_tensor *grad, int64_t param,
                                invar_graph_transfer_axis axis, int32_t size)
{
    invar_index_range rows = invar_zero_partition_local_rows(g->model, param);
    int64_t cols = grad->rank == 1 ? 1 : grad->shape[1], *start = g->start, first, end;
    invar_tensor all = invar_tensor_2d(grad->data, grad->dtype, grad->shape[0], cols);

    first = clamp_i64(start[0], rows.first, rows.first + rows.count);
    end = clamp_i64(start[size], rows.first, rows.first + rows.count);
    for (int r = 0; r <= size; r++)
        start[r] = clamp_i64(start[r], first, end) - first;
    return invar_transfer_runner_run(
        &g->mover, g->caller,
        &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_ROW_RANGES,
                                .axis = axis,
                                .full = invar_tensor_rows(&all, first, end - first),
                                .start = start});
}

static invar_status gather_contexts(grad_gatherer *g, const invar_tensor *grad, int64_t param)
{
    if (g->model->part.contexts == 1)
        return INVAR_OK;
    context_starts(g->start, g->model, grad, &g->model->params[param]);
    return gather_rows(g, grad, param, INVAR_GRAPH_TRANSFER_CONTEXT, g->model->part.contexts);
}

static invar_status gather_param(grad_gatherer *g, const invar_grads *grads, int64_t i)
{
    const invar_model *model = g->model;
    const invar_param *p = &model->params[i];

    if (!is_computed_in_ranges(p) || p->local.experts == 0)
        return INVAR_OK;
    INVAR_TRY(gather_contexts(g, &grads->tensors[i], i));
    if (model->part.experts == 1 || !invar_adapter_is_uncut(p))
        return INVAR_OK;
    expert_starts(g->start, model, &grads->tensors[i], p);
    return gather_rows(g, &grads->tensors[i], i, INVAR_GRAPH_TRANSFER_EXPERT, model->part.experts);
}

/*
 * Gathers what context-parallel ranks have computed, and adapters of experts that all
 * expert-parallel ranks hold.
 */
static invar_status gather_ranges(invar_grads *grads, const invar_model *model,
                                  invar_op_runner *runner)
{
    const invar_model_partition *part = &model->part;
    grad_gatherer g = {.model = model, .mover = {.layout = model->layout}, .caller = runner};
    invar_status status;

    if (part->contexts == 1 && part->experts == 1)
        return INVAR_OK;
    status =
        INVAR_ALLOC(g.start, (size_t)(part->contexts + part->experts + 1), "shares of gradients");
    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++)
        status = gather_param(&g, grads, i);
    if (status == INVAR_OK && invar_tensor_present(&grads->tied_head) &&
        part->stage == part->stages - 1)
        status = gather_contexts(&g, &grads->tied_head, 0); // its rows are those of the embedding
    invar_transfer_runner_release(&g.mover, &runner->dev);
    invar_free(g.start);
    return status;
}

static invar_status reduce_grads(invar_grads *grads, const invar_model *model,
                                 invar_op_runner *runner)
{
    invar_index_range rows = invar_zero_partition_local_rows(model, 0);
    invar_tensor sum, head;

    INVAR_TRY(gather_ranges(grads, model, runner));
    if (!invar_tensor_present(&grads->tied_head))
        return INVAR_OK;
    INVAR_CHECK(model->embedding == &model->params[0]); // lay_out places it first
    sum = invar_tensor_rows(&grads->tensors[0], rows.first, rows.count);
    head = invar_tensor_rows(&grads->tied_head, rows.first, rows.count);
    INVAR_TRY(exchange_tied(grads, model, &sum, &head));
    if (rows.count == 0)
        return INVAR_OK;
    return INVAR_CALL(runner, ADD, add, .out = sum, .a = head, .b = sum);
}

invar_status invar_grads_finalize(invar_grads *grads, const invar_model *model,
                                  const invar_device *dev)
{
    INVAR_AUTO(invar_op_runner_release) invar_op_runner runner;

    invar_op_runner_init(&runner, dev);
    if (grads->overwrite_next) { // no backward in this step
        INVAR_TRY(zero_all(grads));
        grads->overwrite_next = false;
    }
    return reduce_grads(grads, model, &runner);
}
