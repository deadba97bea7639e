/*
 * linear_backward.c - backward of linear layers: gradients of weights, adapters and the input.
 *
 * Weight gradients are sums over all rows. With context parallelism each rank gathers all rows of a
 * range of output features and computes the gradients of that range; with experts it computes those
 * of its experts. The input gradient sums over the outputs of all layers of the group in one chain
 * per logical shard, and is reduced over tensor-parallel ranks if they divide the outputs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/layers/context_parallel.h"
#include "engine/model/graph/layers/linear.h"
#include "engine/model/graph/layers/lora.h"
#include "engine/model/graph/layers/tp_reduce.h"
#include "engine/ranks/layout/layout.h"

#include "base/invar_banned.h"

/* ---- weight gradients ------------------------------------------------------------------------ */

static size_t bytes_of(const invar_tensor *t, int64_t elements)
{
    return (size_t)elements * (size_t)invar_dtype_bits(t->dtype) / 8;
}

/*
 * Extends dw and dy by the rows and columns of the next layer if they are adjacent in memory. Each
 * element is the same chain as before, and one large product is faster than two.
 */
static bool merge_adjacent(invar_tensor *dw, invar_tensor *dy, const invar_tensor *next_dw,
                           const invar_tensor *next_dy)
{
    if (next_dw->row_stride != dw->row_stride || next_dw->shape[1] != dw->shape[1] ||
        next_dy->row_stride != dy->row_stride ||
        (char *)next_dw->data != (char *)dw->data + bytes_of(dw, dw->shape[0] * dw->row_stride) ||
        (char *)next_dy->data != (char *)dy->data + bytes_of(dy, dy->shape[1]))
        return false;
    dw->shape[0] += next_dw->shape[0];
    dy->shape[1] += next_dy->shape[1];
    return true;
}

static bool any_trained(const invar_linear_group *l)
{
    for (int32_t i = 0; i < l->count; i++)
        if (invar_tensor_present(&l->w[i].dw) || invar_adapter_present(&l->w[i]))
            return true;
    return false;
}

/* Returns the input with all rows, which weight gradients sum over. */
static invar_tensor gather_input_rows(invar_builder *b, const invar_linear_group *l)
{
    invar_tensor own;

    if (l->of_experts || !any_trained(l))
        return l->x;
    own = invar_build_value_rows(b, &l->x);
    return invar_cp_gather(b, &own);
}

/* Context parallelism: each rank computes the gradients of its range of output features. */
static void context_parallel_gradients(invar_builder *b, const invar_linear_group *l,
                                       const invar_tensor *d, const invar_tensor *x)
{
    for (int32_t i = 0; i < l->count; i++) {
        invar_index_range share = invar_cp_columns(b, d[i].shape[1]);
        invar_tensor dy;
        if (!invar_tensor_present(&l->w[i].dw)) // frozen
            continue;
        dy = invar_cp_spread(b, &d[i], b->rows.all_count, b->rows.context->row);
        if (share.count == 0)
            continue;
        INVAR_APPEND(b->graph, b->layer, LINEAR_DW, linear_dw,
                     .dw = invar_tensor_rows(&l->w[i].dw, share.first, share.count), .dy = dy,
                     .x = *x, .units = b->rows.all_units);
        invar_op_graph_mark_overwrite(b->graph, offsetof(invar_linear_dw_args, fresh));
        if (invar_tensor_present(&l->bias[i].w))
            INVAR_APPEND(b->graph, b->layer, TOKEN_SUM, token_sum,
                         .out = invar_tensor_1d((float *)l->bias[i].dw.data + share.first,
                                                INVAR_DTYPE_F32, share.count),
                         .x = dy, .units = b->rows.all_units);
    }
}

static void weight_gradients(invar_builder *b, const invar_linear_group *l, const invar_tensor *d,
                             const invar_tensor *x)
{
    for (int32_t i = 0, next; i < l->count; i = next) {
        invar_tensor dw = l->w[i].dw, dy = d[i];
        next = i + 1;
        if (!invar_tensor_present(&dw)) // frozen
            continue;
        while (next < l->count && merge_adjacent(&dw, &dy, &l->w[next].dw, &d[next]))
            next++;
        INVAR_APPEND(b->graph, b->layer, LINEAR_DW, linear_dw, .dw = dw, .dy = dy, .x = *x,
                     .units = b->rows.units);
        invar_op_graph_mark_overwrite(b->graph, offsetof(invar_linear_dw_args, fresh));
    }
    for (int32_t i = 0; i < l->count; i++)
        if (invar_tensor_present(&l->bias[i].dw))
            INVAR_APPEND(b->graph, b->layer, TOKEN_SUM, token_sum, .out = l->bias[i].dw, .x = d[i],
                         .units = b->rows.units);
}

static void expert_gradients(invar_builder *b, const invar_linear_group *l, const invar_tensor *d)
{
    for (int32_t i = 0; i < l->count; i++) {
        if (!invar_tensor_present(&l->w[i].dw)) // frozen
            continue;
        INVAR_APPEND(b->graph, b->layer, MOE_LINEAR_DW, moe_linear_dw, .dw = l->w[i].dw, .dy = d[i],
                     .x = l->x, .row_token = l->row_token, .experts = l->experts,
                     .units = b->rows.all_units);
        invar_op_graph_mark_overwrite(b->graph, offsetof(invar_moe_linear_dw_args, fresh));
    }
}

/* ---- input gradient -------------------------------------------------------------------------- */

/* Appends chain `number` of this rank: dx summed over its outputs of every layer. */
static void append_dx_chain(invar_builder *b, const invar_linear_group *l,
                            const invar_tensor *operands, const invar_tensor *dx,
                            const invar_sum_parts *parts, int32_t number)
{
    invar_linear_dx_args dense = {
        .dx = *dx, .n_parts = l->count, .k_shards = parts[0].part[number].shards};
    invar_moe_linear_dx_args grouped = {
        .dx = *dx, .n_parts = l->count, .experts = l->experts, .k_shards = dense.k_shards};

    for (int32_t i = 0; i < l->count; i++) {
        const invar_sum_part *part = &parts[i].part[number];
        invar_linear_part own = {invar_tp_reduce_columns(&operands[i], part), l->w[i].w};
        if (!l->of_experts)
            own.w = invar_tp_reduce_rows(&own.w, part);
        dense.parts[i] = grouped.parts[i] = own;
        dense.k_atom[i] = grouped.k_atom[i] = l->w[i].split.atom;
    }
    if (l->of_experts)
        invar_op_graph_append(b->graph, INVAR_OP_MOE_LINEAR_DX, &grouped, b->layer);
    else
        invar_op_graph_append(b->graph, INVAR_OP_LINEAR_DX, &dense, b->layer);
}

/* Computes the chains of each layer; all layers must have the same number of them. */
static void plan_dx_chains(invar_sum_parts *out, const invar_builder *b,
                           const invar_linear_group *l)
{
    bool even = true;

    for (int32_t i = 0; i < l->count; i++) {
        out[i] = invar_build_sum_parts(b, l->w[i].n_total, &l->w[i].split);
        even = even && out[i].count == 1;
    }
    for (int32_t i = 0; i < l->count && !even; i++)
        out[i] = invar_build_single_shards(b, l->w[i].n_total, &l->w[i].split);
}

static void append_reduced_dx(invar_builder *b, const invar_linear_group *l,
                              const invar_tensor *operands, const invar_tensor *dx)
{
    invar_sum_parts parts[INVAR_MAX_OUTPUTS];
    invar_tp_reduce d;

    plan_dx_chains(parts, b, l);
    d = invar_tp_reduce_divide(b, operands[0].shape[0], dx, parts[0].count);
    for (int32_t i = 0; i < parts[0].count; i++) {
        invar_tensor room = invar_tp_reduce_buffer(&d, i);
        append_dx_chain(b, l, operands, &room, parts, i);
    }
    invar_tp_reduce_unite(b, &d, dx, NULL);
}

static void append_dx(invar_builder *b, const invar_linear_group *l, const invar_tensor *operands,
                      const invar_tensor *dx)
{
    int32_t shards = l->w[0].split.columns ? 1 : l->w[0].split.shards;
    invar_sum_parts whole[INVAR_MAX_OUTPUTS];
    invar_tensor taken[INVAR_MAX_OUTPUTS];

    if (!l->w[0].split.columns && invar_weight_is_divided(&l->w[0])) {
        append_reduced_dx(b, l, operands, dx);
        return;
    }
    for (int32_t i = 0; i < l->count; i++) {
        bool all = operands[i].shape[0] == dx->shape[0];
        whole[i] = (invar_sum_parts){1, {{0, operands[i].shape[1], shards}}};
        taken[i] = all ? operands[i] : invar_build_own_rows(b, &operands[i]);
    }
    append_dx_chain(b, l, taken, dx, whole, 0);
}

void invar_build_input_gradient(invar_builder *b, const invar_tensor *dx, const invar_tensor *dy,
                                const invar_weight *w)
{
    invar_linear_group one = {.count = 1, .w = {*w}};

    append_dx(b, &one, dy, dx);
}

/* Appends the gradients of A and B, and returns du. */
static invar_tensor adapter_backward(invar_builder *b, const invar_linear_group *l,
                                     const invar_lora_linear *of, const invar_tensor *dy)
{
    const invar_linear_group wide = {.count = 1,
                                     .of_experts = l->of_experts,
                                     .w = {invar_adapter_b(of->w)},
                                     .experts = l->experts};
    int64_t rows = of->u.shape[0], cols = of->u.shape[1];
    invar_tensor low = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, rows, cols);
    invar_tensor du = invar_op_graph_tensor(b->graph, b->model.storage, rows, cols);
    invar_tensor u = l->of_experts ? of->u : invar_cp_gather(b, &of->u);

    invar_adapter_gradient(b, of, &of->w->adapter.db, dy, &u);
    append_dx(b, &wide, dy, &low);
    invar_adapter_scale(b, of, &du, &low, true);
    invar_adapter_gradient(b, of, &of->w->adapter.da, &du, &of->x);
    return du;
}

/*
 * Appends the gradients of all adapters. Returns the layers whose weights are their A; `du`
 * receives the matching gradients.
 */
static invar_linear_group adapters_backward(invar_builder *b, const invar_linear_group *l,
                                            const invar_tensor *d, const invar_tensor *x,
                                            invar_tensor *du)
{
    invar_linear_group narrow = {.of_experts = l->of_experts, .experts = l->experts};

    for (int32_t i = 0; i < l->count; i++) {
        const invar_lora_linear of = {.name = l->name[i],
                                      .w = &l->w[i],
                                      .x = *x,
                                      .u = l->u[i],
                                      .experts = l->of_experts ? &l->experts : NULL,
                                      .row_token = l->row_token};
        if (!invar_adapter_present(&l->w[i]))
            continue;
        du[narrow.count] = adapter_backward(b, l, &of, &d[i]);
        narrow.w[narrow.count++] =
            (invar_weight){.w = l->w[i].adapter.a, .split = {.shards = 1}, .n_shards = 1};
    }
    return narrow;
}

/* dx, including the contribution of adapters. */
static void append_dx_with_adapters(invar_builder *b, const invar_linear_group *l,
                                    const invar_tensor *operands, const invar_linear_group *narrow,
                                    const invar_tensor *du, const invar_tensor *dx)
{
    static const invar_tensor none;
    int64_t rows = dx->shape[0];
    invar_tensor sums, part;

    if (narrow->count == 0) {
        append_dx(b, l, operands, dx);
        return;
    }
    sums = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, 2 * rows, dx->shape[1]);
    part = invar_tensor_rows(&sums, rows, rows);
    append_dx(b, narrow, du, &part);
    part = invar_tensor_rows(&sums, 0, rows);
    append_dx(b, l, operands, &part);
    invar_adapter_fold(b, dx, &sums, &none);
}

static void add_input_gradient(invar_builder *b, const invar_linear_group *l,
                               const invar_tensor *operands, const invar_linear_group *narrow,
                               const invar_tensor *du)
{
    invar_tensor dx = invar_build_grad_buffer(b, &l->x);

    append_dx_with_adapters(b, l, operands, narrow, du, &dx);
    invar_build_grad_point(b, &l->x, &dx, l->name[0], false);
    invar_build_grad_add(b, &l->x, &dx);
}

void invar_linear_group_back(invar_builder *b, const invar_linear_group *l, const invar_tensor *d,
                             const invar_tensor *codes)
{
    invar_tensor operands[INVAR_MAX_OUTPUTS], du[INVAR_MAX_OUTPUTS], x;
    invar_linear_group narrow;

    for (int32_t i = 0; i < l->count; i++) {
        operands[i] = d[i];
        if (codes && invar_tensor_present(&codes[i]))
            operands[i] = codes[i];
        else if (invar_linear_quantizes(&l->w[i]))
            operands[i] =
                invar_linear_quantize(b, &d[i], &l->w[i], l->of_experts ? NULL : l->name[i], true);
    }
    x = gather_input_rows(b, l);
    if (l->of_experts)
        expert_gradients(b, l, d);
    else
        (b->rows.context ? context_parallel_gradients : weight_gradients)(b, l, d, &x);
    narrow = adapters_backward(b, l, d, &x, du);
    add_input_gradient(b, l, operands, &narrow, du);
}
