/*
 * builder.c - parameters, values and gradients of a model's op graph while it is built.
 *
 * Values are identified by the buffer of their tensor: a list indexed by buffer holds name, readers
 * and gradient of each. Backward records hold copies of the arguments of layer functions in one
 * byte array. After the first error of the op graph nothing is recorded; lookups then return a
 * dummy.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/builder.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels-deterministic/math/shards.h"

#include "base/invar_banned.h"

void invar_builder_release(invar_builder *b)
{
    invar_free(b->lists.values);
    invar_free(b->lists.backward_records);
    invar_free(b->lists.args);
    invar_free(b->lists.groups);
    b->lists.values = NULL;
    b->lists.backward_records = NULL;
    b->lists.args = NULL;
    b->lists.groups = NULL;
}

/* Grows a list to at least `need` bytes and zeroes the new part. */
static bool grow_zeroed(invar_builder *b, void *list, size_t *room, size_t need)
{
    char **block = list;
    size_t before = *room;

    if (!invar_op_graph_grow(b->graph, list, room, before, need))
        return false;
    if (*room > before)
        memset(*block + before, 0, *room - before);
    return true;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static invar_weight declare_param(invar_builder *b, const invar_param *p)
{
    if (b->model.declared) {
        invar_param *out = &b->model.declared[b->model.next_param];
        char name[INVAR_PARAM_NAME_SIZE];
        *out = *p;
        memcpy(name, p->name, sizeof name);
        if (b->layer >= 0)
            (void)snprintf(out->name, sizeof out->name, "model.layers.%" PRId64 ".%.60s", b->layer,
                           name);
    }
    b->model.next_param++;
    return (invar_weight){.w = invar_tensor_2d(NULL, b->model.storage, p->stack * p->rows, p->cols),
                          .split = p->split,
                          .n_total = p->split.columns ? p->cols : p->rows,
                          .n_shards = p->split.shards};
}

/* Returns the symbolic address of `at` in an input buffer that starts at `base`. */
static void *symbolic_address(invar_builder *b, invar_graph_input which, const void *at,
                              const void *base)
{
    return (char *)invar_op_graph_input(b->graph, which) + ((const char *)at - (const char *)base);
}

/* Returns the symbolic tensor of a parameter's weight. */
static invar_tensor weight_of(invar_builder *b, const invar_param *p)
{
    bool frozen = b->model.frozen_base && p->kind != INVAR_PARAM_ADAPTER;
    invar_graph_input which = frozen ? INVAR_INPUT_BASE : INVAR_INPUT_MODEL;
    const void *base = frozen ? b->model.frozen_base : b->model.param_base;
    invar_tensor w = p->weight;

    w.data = symbolic_address(b, which, w.data, base);
    if (w.scale)
        w.scale = symbolic_address(b, which, w.scale, base);
    return w;
}

/* Returns the symbolic gradient of a parameter; absent if it is frozen or not on this rank. */
static invar_tensor gradient_of(invar_builder *b, const invar_param *p)
{
    invar_tensor dw = p->grad;

    if (dw.dtype != INVAR_DTYPE_NONE)
        dw.data = symbolic_address(b, INVAR_INPUT_GRADS, dw.data, NULL);
    return dw;
}

invar_weight invar_build_weight(invar_builder *b, const invar_param *p)
{
    const invar_param *a = p->adapter;
    invar_weight w = {.w = weight_of(b, p),
                      .dw = gradient_of(b, p),
                      .split = p->split,
                      .n_total = p->split.columns ? p->cols : p->rows,
                      .first_shard = p->local.first_shard,
                      .n_shards = p->local.n_shards};

    if (a)
        w.adapter = (invar_adapter){weight_of(b, &a[0]), gradient_of(b, &a[0]), weight_of(b, &a[1]),
                                    gradient_of(b, &a[1]), a->factor};
    return w;
}

invar_weight invar_build_cut_param(invar_builder *b, invar_param_kind kind, const char *name,
                                   int64_t rows, int64_t cols, const invar_logical_split *split)
{
    const invar_param *p;

    if (!b->model.params) {
        invar_param own = {.kind = kind,
                           .layer = b->layer,
                           .stack = split->experts,
                           .rows = rows,
                           .cols = cols,
                           .split = *split};
        (void)snprintf(own.name, sizeof own.name, "%s", name);
        return declare_param(b, &own);
    }
    p = &b->model.params[b->model.next_param++];
    INVAR_CHECK(p->kind == kind && p->rows == rows && p->cols == cols);
    INVAR_CHECK(p->split.shards == split->shards && p->split.columns == split->columns &&
                p->split.atom == split->atom && p->split.experts == split->experts);
    return invar_build_weight(b, p);
}

invar_weight invar_build_param(invar_builder *b, invar_param_kind kind, const char *name,
                               int64_t stack, int64_t rows, int64_t cols)
{
    return invar_build_cut_param(b, kind, name, rows, cols,
                                 &(invar_logical_split){.shards = 1, .experts = stack});
}

invar_heads invar_build_heads_of(const invar_weight *projection, int64_t dim)
{
    invar_heads heads = {.count = projection->w.shape[0] / dim,
                         .n_total = projection->n_total / dim,
                         .split = projection->split,
                         .first_shard = projection->first_shard,
                         .n_shards = projection->n_shards};

    heads.split.atom /= dim;
    return heads;
}

invar_sum_parts invar_build_single_shards(const invar_builder *b, int64_t n_total,
                                          const invar_logical_split *split)
{
    int32_t own = split->shards / b->model.tensors, first = b->model.tensor * own;
    int64_t begin = invar_shard_start(n_total, split->atom, split->shards, first);
    invar_sum_parts out = {.count = own};

    for (int32_t i = 0; i < own; i++) {
        int64_t at = invar_shard_start(n_total, split->atom, split->shards, first + i);
        int64_t next = invar_shard_start(n_total, split->atom, split->shards, first + i + 1);
        out.part[i] = (invar_sum_part){at - begin, next - at, 1};
    }
    return out;
}

invar_sum_parts invar_build_sum_parts(const invar_builder *b, int64_t n_total,
                                      const invar_logical_split *split)
{
    int32_t own = split->shards / b->model.tensors, first = b->model.tensor * own;
    int64_t begin, end;

    if (!invar_shards_divide_evenly(n_total, split->atom, split->shards, b->model.tensors))
        return invar_build_single_shards(b, n_total, split);
    begin = invar_shard_start(n_total, split->atom, split->shards, first);
    end = invar_shard_start(n_total, split->atom, split->shards, first + own);
    return (invar_sum_parts){.count = 1, .part = {{0, end - begin, own}}};
}

invar_tensor invar_build_array(invar_builder *b, invar_graph_input which, invar_dtype dtype,
                               int64_t count)
{
    return invar_tensor_1d(invar_op_graph_input(b->graph, which), dtype, count);
}

/* ---- values ---------------------------------------------------------------------------------- */

invar_value_info *invar_build_value_info(invar_builder *b, const invar_tensor *value)
{
    int32_t room = invar_op_graph_buffer_of(value->data);

    if (!grow_zeroed(b, &b->lists.values, &b->lists.value_bytes,
                     ((size_t)room + 1) * sizeof *b->lists.values)) {
        b->lists.lost = (invar_value_info){0};
        return &b->lists.lost;
    }
    return &b->lists.values[room];
}

void invar_build_rename(invar_builder *b, const invar_tensor *value, const char *name)
{
    invar_build_value_info(b, value)->name = name;
}

void invar_build_slots(invar_builder *b, const invar_tensor *value, const invar_moe_routing *routes)
{
    invar_value_info *built = invar_build_value_info(b, value);

    built->by_slot = routes->slot_row;
    if (b->model.experts > 1)
        built->experts = routes->experts;
}

static void append_point(invar_builder *b, const invar_graph_point *point)
{
    invar_graph_point p = *point;

    if (!p.name)
        return;
    p.recomputed = b->hide_points;
    p.layer = b->layer;
    if (p.stream && b->rows.stream)
        p.tp_starts = b->rows.stream->row;
    if (p.stream && b->rows.context)
        p.cp_starts = b->rows.context->row;
    invar_op_graph_point(b->graph, &p);
}

invar_tensor invar_build_result(invar_builder *b, const char *name, invar_tensor value)
{
    invar_value_info *built = invar_build_value_info(b, &value);

    built->name = name;
    append_point(b, &(invar_graph_point){.name = name,
                                         .stream = built->stream,
                                         .rows = value,
                                         .by_slot = built->by_slot,
                                         .experts = built->experts});
    return value;
}

invar_tensor invar_build_stream(invar_builder *b, const char *name, invar_tensor value)
{
    invar_build_value_info(b, &value)->stream = true;
    return invar_build_result(b, name, value);
}

static void append_suffixed_point(invar_builder *b, const char *name, const char *suffix,
                                  bool gradient, const invar_tensor *rows)
{
    append_point(b, &(invar_graph_point){.name = name,
                                         .suffix = suffix,
                                         .gradient = gradient,
                                         .backward = gradient,
                                         .rows = *rows});
}

void invar_build_codes(invar_builder *b, const char *name, bool gradient, const invar_tensor *codes)
{
    append_suffixed_point(b, name, "q", gradient, codes);
}

void invar_build_adapted(invar_builder *b, const char *name, bool gradient, const invar_tensor *u)
{
    append_suffixed_point(b, name, "lora", gradient, u);
}

invar_tensor invar_build_heads(const invar_tensor *t, int64_t heads)
{
    invar_tensor view = invar_tensor_3d(t->data, t->dtype, t->shape[0], heads, t->shape[1] / heads);

    view.row_stride = t->row_stride;
    return view;
}

/* ---- rows that ranks divide ------------------------------------------------------------------ */

invar_tensor invar_build_residual_buffer(invar_builder *b, invar_dtype dtype, int32_t parts,
                                         int64_t cols)
{
    int64_t all = invar_op_graph_rows(b->graph, b->rows.count);
    int64_t most =
        b->rows.stream ? invar_row_partition_max(all, b->rows.stream->size) : b->rows.count;
    invar_tensor room = invar_op_graph_tensor(b->graph, dtype, parts * most, cols);

    return b->rows.stream
               ? invar_tensor_rows(&room, 0, parts * invar_row_partition_count(b->rows.stream))
               : room;
}

invar_tensor invar_build_own_rows(const invar_builder *b, const invar_tensor *all)
{
    return b->rows.stream ? invar_tensor_rows(all, invar_row_partition_first(b->rows.stream),
                                              invar_row_partition_count(b->rows.stream))
                          : *all;
}

invar_tensor invar_build_all_rows(invar_builder *b, const invar_tensor *own)
{
    invar_tensor all;

    if (!b->rows.stream)
        return *own;
    INVAR_CHECK(own->row_stride == own->shape[1]); // rows are transferred without gaps
    all = invar_op_graph_tensor(b->graph, own->dtype, b->rows.count, own->shape[1]);
    invar_op_graph_transfer(b->graph,
                            &(invar_graph_transfer){.kind = INVAR_GRAPH_TRANSFER_ROW_RANGES,
                                                    .full = all,
                                                    .local = *own,
                                                    .start = b->rows.stream->row});
    return all;
}

invar_tensor invar_build_value_rows(invar_builder *b, const invar_tensor *value)
{
    const invar_value_info built = *invar_build_value_info(b, value);

    if (!invar_tensor_present(&built.local_rows) || built.rows_kept)
        return *value;
    return invar_build_all_rows(b, &built.local_rows);
}

/* ---- backward -------------------------------------------------------------------------------- */

void invar_build_record_backward(invar_builder *b, invar_backward_fn backward, const void *args,
                                 size_t bytes)
{
    size_t whole = (bytes + 15) / 16 * 16;

    if (!b->train ||
        !grow_zeroed(b, &b->lists.backward_records, &b->lists.record_bytes,
                     ((size_t)b->lists.n_records + 1) * sizeof *b->lists.backward_records) ||
        !grow_zeroed(b, &b->lists.args, &b->lists.args_capacity, b->lists.n_args + whole))
        return;
    memcpy(b->lists.args + b->lists.n_args, args, bytes);
    b->lists.backward_records[b->lists.n_records++] =
        (invar_backward_record){backward, b->layer, b->lists.n_args};
    b->lists.n_args += whole;
}

void invar_build_discard_backward(invar_builder *b, int32_t mark)
{
    if (b->lists.n_records > mark) {
        b->lists.n_args = b->lists.backward_records[mark].args;
        b->lists.n_records = mark;
    }
}

void invar_build_backward(invar_builder *b, int32_t mark)
{
    for (int32_t i = b->lists.n_records - 1; i >= mark && b->graph->status == INVAR_OK; i--) {
        b->layer = b->lists.backward_records[i].layer;
        b->lists.backward_records[i].backward(b, b->lists.args + b->lists.backward_records[i].args);
    }
    invar_build_discard_backward(b, mark);
}

void invar_build_reads(invar_builder *b, const invar_tensor *value)
{
    invar_build_value_info(b, value)->readers++;
}

int32_t invar_build_grad_group(invar_builder *b, int64_t rows)
{
    if (!grow_zeroed(b, &b->lists.groups, &b->lists.group_bytes,
                     ((size_t)b->lists.n_groups + 2) * sizeof *b->lists.groups))
        return 0;
    b->lists.groups[++b->lists.n_groups] = (invar_grad_group){.rows = rows};
    return b->lists.n_groups;
}

void invar_build_grad_group_add(invar_builder *b, int32_t group, const invar_tensor *value)
{
    invar_value_info *built = invar_build_value_info(b, value);

    if (group == 0)
        return;
    built->group = group;
    built->column = (int32_t)b->lists.groups[group].cols;
    b->lists.groups[group].cols += value->shape[1];
}

/* Declares a tensor for the gradient of a value outside any group. */
static invar_tensor grad_buffer_outside_group(invar_builder *b, const invar_tensor *value)
{
    const invar_value_info *built = invar_build_value_info(b, value);

    if (built->stream || invar_tensor_present(&built->local_rows))
        return invar_build_residual_buffer(b, b->model.storage, 1, value->shape[1]);
    return invar_op_graph_tensor(b->graph, b->model.storage, value->shape[0], value->shape[1]);
}

invar_tensor invar_build_grad_buffer(invar_builder *b, const invar_tensor *value)
{
    const invar_value_info *built = invar_build_value_info(b, value);
    invar_grad_group *g = built->group ? &b->lists.groups[built->group] : NULL;

    if (!g)
        return grad_buffer_outside_group(b, value);
    if (!invar_tensor_present(&g->buffer))
        g->buffer = invar_op_graph_tensor(b->graph, b->model.storage, g->rows, g->cols);
    return invar_tensor_columns(&g->buffer, built->column, value->shape[1]);
}

invar_tensor invar_build_grad_in(invar_builder *b, const invar_tensor *value)
{
    invar_value_info *built = invar_build_value_info(b, value);
    invar_tensor d = built->grad;

    INVAR_CHECK(invar_tensor_present(&d) || b->graph->status != INVAR_OK);
    built->grad = (invar_tensor){0};
    if (invar_tensor_present(&d))
        invar_build_value_info(b, &d)->n_sharers--;
    return d;
}

void invar_build_grad_set(invar_builder *b, const invar_tensor *value, const invar_tensor *d)
{
    if (invar_tensor_present(&invar_build_value_info(b, value)->grad))
        (void)invar_build_grad_in(b, value);
    invar_build_value_info(b, value)->grad = *d;
    invar_build_value_info(b, d)->n_sharers++;
}

static void append_grad_point(invar_builder *b, const invar_tensor *value, const invar_tensor *d,
                              const char *reader)
{
    const invar_value_info *built = invar_build_value_info(b, value);

    append_point(b, &(invar_graph_point){.name = built->name,
                                         .suffix = reader,
                                         .gradient = true,
                                         .backward = true,
                                         .stream = built->stream && !reader,
                                         .rows = *d,
                                         .by_slot = built->by_slot,
                                         .experts = built->experts});
}

void invar_build_grad_point(invar_builder *b, const invar_tensor *value, const invar_tensor *d,
                            const char *reader, bool sum)
{
    invar_value_info *built = invar_build_value_info(b, value);
    bool whole = ++built->n_grads_received == built->readers && (sum || built->readers == 1);

    append_grad_point(b, value, d, whole ? NULL : reader);
}

void invar_build_grad_add(invar_builder *b, const invar_tensor *value, const invar_tensor *d)
{
    const invar_value_info *built = invar_build_value_info(b, value);
    invar_tensor before = built->grad, sum;
    bool last = built->n_grads_received == built->readers;

    if (!invar_tensor_present(&before)) {
        invar_build_grad_set(b, value, d);
        return;
    }
    sum = grad_buffer_outside_group(b, value);
    INVAR_APPEND(b->graph, b->layer, ADD, add, .out = sum, .a = before, .b = *d);
    if (last)
        append_grad_point(b, value, &sum, NULL);
    invar_build_grad_set(b, value, &sum);
}
