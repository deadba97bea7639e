/*
 * linear.c - forward of linear layers in the model's number format: quantization, fusion, adapters.
 *
 * fp32 and bf16 use operands as stored. fp8 and mxfp8 quantize activations and gradients for the
 * product, but weight gradients use both as stored. int4 quantizes weights only. A residual, a
 * gated activation and further layers of the same input are fused into one op call where the op
 * supports it; layers with adapters, experts or sums over ranks run one product at a time. With
 * adapters the layers' own weights are frozen.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/layers/linear.h"

#include "engine/model/graph/layers/lora.h"
#include "engine/model/graph/layers/tp_reduce.h"

#include "base/invar_banned.h"

/* ---- operands -------------------------------------------------------------------------------- */

invar_tensor invar_linear_codes(invar_builder *b, const invar_tensor *x, const invar_weight *w)
{
    if (!invar_linear_quantizes(w))
        return (invar_tensor){0};
    return invar_op_graph_tensor(b->graph, w->w.dtype, x->shape[0], x->shape[1]);
}

invar_tensor invar_linear_quantize(invar_builder *b, const invar_tensor *x, const invar_weight *w,
                                   const char *name, bool gradient)
{
    invar_tensor q = invar_linear_codes(b, x, w);

    INVAR_APPEND(b->graph, b->layer, QUANTIZE, quantize, .q = q, .x = *x);
    invar_build_codes(b, name, gradient, &q);
    return q;
}

/*
 * Returns the operand of a product with w: x itself, or its quantized form, which is computed once
 * per value.
 */
static invar_tensor operand_of(invar_builder *b, const invar_tensor *x, const invar_weight *w)
{
    invar_value_info *built = invar_build_value_info(b, x);
    bool slots = invar_tensor_present(&built->by_slot);
    invar_tensor q;

    if (!invar_linear_quantizes(w))
        return *x;
    if (!invar_tensor_present(&built->codes)) {
        q = invar_linear_quantize(b, x, w, slots ? NULL : built->name, false);
        invar_build_value_info(b, x)->codes = q;
    }
    return invar_build_value_info(b, x)->codes;
}

/* ---- forward --------------------------------------------------------------------------------- */

static void linears_backward(invar_builder *b, const void *noted)
{
    const invar_linear_group *l = noted;
    invar_tensor d[INVAR_MAX_OUTPUTS];

    for (int32_t i = 0; i < l->count; i++)
        d[i] = invar_build_grad_in(b, &l->y[i]);
    invar_linear_group_back(b, l, d, NULL);
}

static invar_linear_group record_of(invar_tensor x, const invar_projection *outputs, int32_t count,
                                    const invar_moe_routing *routes)
{
    invar_linear_group l = {.x = x, .count = count, .of_experts = routes != NULL};

    for (int32_t i = 0; i < count; i++) {
        l.name[i] = outputs[i].name;
        l.y[i] = outputs[i].y;
        l.u[i] = outputs[i].u;
        l.w[i] = outputs[i].w;
        l.bias[i] = outputs[i].bias;
    }
    if (routes) {
        l.experts = routes->local_expert_offsets;
        l.row_token = routes->row_token;
    }
    return l;
}

/*
 * Restricts a stack of experts to those that this rank computes. `all`: the stack holds all
 * experts, not only the ones that this rank holds.
 */
static void select_local_experts(invar_tensor *of, const invar_moe_routing *routes, bool all)
{
    int64_t each = of->shape[0] / (all ? routes->experts.count : routes->n_held);
    int64_t first = (all ? routes->held_first : 0) + routes->local_first;

    if (invar_tensor_present(of))
        *of = invar_tensor_rows(of, first * each, routes->local_expert_offsets.count * each);
}

/*
 * Weights, and adapters that are split like them, hold this rank's experts; other adapters hold
 * all.
 */
static void select_all_local_experts(invar_projection *outputs, int32_t count,
                                     const invar_moe_routing *routes)
{
    for (int32_t i = 0; routes && i < count; i++) {
        invar_weight *w = &outputs[i].w;
        select_local_experts(&w->w, routes, false);
        select_local_experts(&w->dw, routes, false);
        select_local_experts(&w->adapter.a, routes, !w->split.columns);
        select_local_experts(&w->adapter.da, routes, !w->split.columns);
        select_local_experts(&w->adapter.b, routes, w->split.columns);
        select_local_experts(&w->adapter.db, routes, w->split.columns);
    }
}

/* Declares the outputs. In training, the gradients of several outputs form a group. */
static void declare_outputs(invar_builder *b, const invar_tensor *x, invar_projection *outputs,
                            int32_t count, const invar_moe_routing *routes)
{
    int32_t group = b->train && count > 1 && !routes ? invar_build_grad_group(b, x->shape[0]) : 0;

    select_all_local_experts(outputs, count, routes);
    for (int32_t i = 0; i < count; i++) {
        int64_t cols = outputs[i].w.w.shape[0] / (routes ? routes->local_expert_offsets.count : 1);
        outputs[i].y = invar_op_graph_tensor(
            b->graph, outputs[i].f32 ? INVAR_DTYPE_F32 : b->model.storage, x->shape[0], cols);
        outputs[i].u = invar_adapter_buffer(b, &outputs[i].w, x->shape[0]);
        invar_build_grad_group_add(b, group, &outputs[i].y);
        if (routes)
            invar_build_slots(b, &outputs[i].y, routes);
    }
}

/* Logical shards of the sum over the layer's inputs. */
static int32_t input_shards(const invar_weight *w)
{
    return w->split.columns ? w->split.shards : 1;
}

static invar_linear_fwd_args projection_arguments(const invar_tensor *x,
                                                  const invar_projection *outputs, int32_t count)
{
    invar_linear_fwd_args args = {.y = outputs[0].y,
                                  .x = *x,
                                  .w = outputs[0].w.w,
                                  .bias = outputs[0].bias.w,
                                  .k_shards = input_shards(&outputs[0].w),
                                  .k_atom = outputs[0].w.split.atom,
                                  .n_more = count - 1};

    for (int32_t i = 1; i < count; i++)
        args.more[i - 1] = (invar_linear_output){outputs[i].y, outputs[i].w.w, outputs[i].bias.w};
    return args;
}

/*
 * y = residual + x w^T of one layer if each rank has some of x's columns: partial products, then a
 * reduction over ranks.
 */
static void divided_product(invar_builder *b, const invar_tensor *taken,
                            const invar_projection *out, const invar_tensor *residual,
                            const invar_moe_routing *routes)
{
    invar_sum_parts parts = invar_build_sum_parts(b, out->w.n_total, &out->w.split);
    invar_tp_reduce d = invar_tp_reduce_divide(b, taken->shape[0], &out->y, parts.count);

    for (int32_t i = 0; i < parts.count; i++) {
        const invar_sum_part *part = &parts.part[i];
        invar_tensor y = invar_tp_reduce_buffer(&d, i), x = invar_tp_reduce_columns(taken, part);
        invar_tensor w = invar_tp_reduce_columns(&out->w.w, part);
        if (routes)
            INVAR_APPEND(b->graph, b->layer, MOE_LINEAR_FWD, moe_linear_fwd, .y = y, .x = x, .w = w,
                         .experts = routes->local_expert_offsets, .k_shards = part->shards,
                         .k_atom = out->w.split.atom);
        else
            INVAR_APPEND(b->graph, b->layer, LINEAR_FWD, linear_fwd, .y = y, .x = x, .w = w,
                         .k_shards = part->shards, .k_atom = out->w.split.atom);
    }
    invar_tp_reduce_unite(b, &d, &out->y, residual);
}

/* Returns true if the sum over inputs is divided over ranks. */
static bool sums_over_ranks(const invar_weight *w)
{
    return w->split.columns && invar_weight_is_divided(w);
}

/* Appends the product of one layer, with a reduction if ranks divide its sum. */
static void single_product(invar_builder *b, const invar_tensor *taken, const invar_projection *out,
                           const invar_moe_routing *routes)
{
    invar_linear_fwd_args args = projection_arguments(taken, out, 1);

    if (sums_over_ranks(&out->w))
        divided_product(b, taken, out, NULL, routes);
    else if (routes)
        INVAR_APPEND(b->graph, b->layer, MOE_LINEAR_FWD, moe_linear_fwd, .y = out->y, .x = *taken,
                     .w = out->w.w, .experts = routes->local_expert_offsets,
                     .k_shards = args.k_shards, .k_atom = args.k_atom);
    else
        invar_op_graph_append(b->graph, INVAR_OP_LINEAR_FWD, &args, b->layer);
}

/* y of one layer with an adapter: both sums are kept as f32 and folded with one rounding. */
static void adapted_product(invar_builder *b, const invar_tensor *x, const invar_tensor *taken,
                            const invar_projection *out, const invar_tensor *residual,
                            const invar_moe_routing *routes)
{
    const invar_lora_linear of = {.name = out->name,
                                  .w = &out->w,
                                  .x = *x,
                                  .u = out->u,
                                  .experts = routes ? &routes->local_expert_offsets : NULL};
    int64_t rows = out->y.shape[0], cols = out->y.shape[1];
    invar_projection low = {.w = invar_adapter_a(&out->w)}, added = {.w = invar_adapter_b(&out->w)};
    invar_projection base = *out;
    invar_tensor sums, u = out->u;

    if (rows != x->shape[0]) // y has this rank's rows of the residual stream; B is then not split
        u = invar_build_own_rows(b, &u);
    low.y = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, x->shape[0], out->u.shape[1]);
    sums = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, 2 * rows, cols);
    base.y = invar_tensor_rows(&sums, 0, rows);
    added.y = invar_tensor_rows(&sums, rows, rows);
    single_product(b, x, &low, routes);
    invar_adapter_scale(b, &of, &out->u, &low.y, false);
    single_product(b, &u, &added, routes);
    single_product(b, taken, &base, routes);
    invar_adapter_fold(b, &out->y, &sums, residual);
}

static bool any_adapter(const invar_projection *outputs, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (invar_adapter_present(&outputs[i].w))
            return true;
    return false;
}

/* Appends one product of a group that is not fused. */
static void unfused_product(invar_builder *b, const invar_tensor *x, const invar_tensor *taken,
                            const invar_projection *out, const invar_moe_routing *routes)
{
    static const invar_tensor none;

    if (invar_adapter_present(&out->w))
        adapted_product(b, x, taken, out, &none, routes);
    else
        single_product(b, taken, out, routes);
}

/* Appends the products and their points, in one call if possible. */
static void append_products(invar_builder *b, const invar_tensor *x,
                            const invar_projection *outputs, int32_t count,
                            const invar_moe_routing *routes)
{
    invar_tensor taken = operand_of(b, x, &outputs[0].w);
    invar_linear_fwd_args args = projection_arguments(&taken, outputs, count);
    bool at_once = !routes && !any_adapter(outputs, count) && !sums_over_ranks(&outputs[0].w);

    if (at_once)
        invar_op_graph_append(b->graph, INVAR_OP_LINEAR_FWD, &args, b->layer);
    for (int32_t i = 0; i < count; i++) {
        if (!at_once)
            unfused_product(b, x, &taken, &outputs[i], routes);
        (void)invar_build_result(b, outputs[i].name, outputs[i].y);
    }
}

void invar_graph_linears(invar_builder *b, invar_tensor x, invar_projection *outputs, int32_t count,
                         const invar_moe_routing *routes)
{
    invar_linear_group l;

    declare_outputs(b, &x, outputs, count, routes);
    append_products(b, &x, outputs, count, routes);
    invar_build_reads(b, &x);
    l = record_of(x, outputs, count, routes);
    invar_build_record_backward(b, linears_backward, &l, sizeof l);
}

/* ---- with a residual ------------------------------------------------------------------------- */

typedef struct added {
    invar_linear_group l;
    invar_tensor residual;
} added;

static void add_linear_backward(invar_builder *b, const void *noted)
{
    const added *a = noted;
    invar_tensor d = invar_build_grad_in(b, &a->l.y[0]);

    invar_build_grad_add(b, &a->residual, &d);
    d = invar_build_all_rows(b, &d);
    invar_linear_group_back(b, &a->l, &d, NULL);
}

invar_tensor invar_graph_add_linear(invar_builder *b, const char *name, invar_tensor residual,
                                    invar_tensor x, const invar_weight *w)
{
    invar_projection out = {.name = name, .w = *w};
    invar_linear_fwd_args args;
    invar_tensor taken;
    added a;

    out.y = invar_build_residual_buffer(b, b->model.storage, 1, w->w.shape[0]);
    out.u = invar_adapter_buffer(b, w, x.shape[0]);
    taken = operand_of(b, &x, w);
    args = projection_arguments(&taken, &out, 1);
    args.residual = residual;
    if (invar_adapter_present(w))
        adapted_product(b, &x, &taken, &out, &residual, NULL);
    else if (sums_over_ranks(w))
        divided_product(b, &taken, &out, &residual, NULL);
    else
        invar_op_graph_append(b->graph, INVAR_OP_LINEAR_FWD, &args, b->layer);
    invar_build_reads(b, &x);
    a = (added){record_of(x, &out, 1, NULL), residual};
    invar_build_record_backward(b, add_linear_backward, &a, sizeof a);
    return invar_build_stream(b, name, out.y);
}

/* ---- with a gated activation ----------------------------------------------------------------- */

typedef struct gated {
    invar_linear_group l; /* gate, then up */
    invar_tensor act;
} gated;

static void swiglu_backward(invar_builder *b, const void *noted)
{
    const gated *g = noted;
    const invar_tensor *gate = &g->l.y[0], *up = &g->l.y[1];
    invar_tensor dy = invar_build_grad_in(b, &g->act);
    invar_tensor d[2], codes[2];

    for (int i = 0; i < 2; i++) {
        d[i] = invar_build_grad_buffer(b, &g->l.y[i]);
        codes[i] = invar_linear_codes(b, &d[i], &g->l.w[i]);
    }
    INVAR_APPEND(b->graph, b->layer, SWIGLU_BWD, swiglu_bwd, .dgate = d[0], .dup = d[1], .dy = dy,
                 .gate = *gate, .up = *up, .dgate_q = codes[0], .dup_q = codes[1]);
    for (int i = 0; i < 2; i++)
        invar_build_grad_point(b, &g->l.y[i], &d[i], NULL, false);
    for (int i = 0; i < 2; i++)
        if (!g->l.of_experts && invar_tensor_present(&codes[i]))
            invar_build_codes(b, g->l.name[i], true, &codes[i]);
    invar_linear_group_back(b, &g->l, d, codes);
}

/* Appends one fused call. Without a backward, gate and up are not stored. */
static void swiglu_fused(invar_builder *b, const gated *g, const invar_projection *gate_up)
{
    invar_linear_fwd_args args = projection_arguments(&g->l.x, gate_up, 2);

    args.act = g->act;
    if (!b->train)
        args.y = args.more[0].y = (invar_tensor){0};
    invar_op_graph_append(b->graph, INVAR_OP_LINEAR_FWD, &args, b->layer);
    for (int i = 0; i < 2 && b->train; i++)
        (void)invar_build_result(b, gate_up[i].name, gate_up[i].y);
}

static void swiglu_unfused(invar_builder *b, const gated *g, const invar_projection *gate_up,
                           const invar_moe_routing *routes)
{
    invar_tensor codes = invar_linear_codes(b, &g->act, &gate_up[0].w);

    append_products(b, &g->l.x, gate_up, 2, routes);
    INVAR_APPEND(b->graph, b->layer, SWIGLU_FWD, swiglu_fwd, .y = g->act, .gate = gate_up[0].y,
                 .up = gate_up[1].y, .y_q = codes);
    invar_build_value_info(b, &g->act)->codes = codes;
}

invar_tensor invar_graph_swiglu(invar_builder *b, const char *name, invar_tensor x,
                                invar_projection gate_up[2], const invar_moe_routing *routes)
{
    gated g;

    declare_outputs(b, &x, gate_up, 2, routes);
    g = (gated){
        record_of(x, gate_up, 2, routes),
        invar_op_graph_tensor(b->graph, b->model.storage, x.shape[0], gate_up[0].y.shape[1])};
    if (routes)
        invar_build_slots(b, &g.act, routes);
    if (routes || invar_linear_quantizes(&gate_up[0].w) || any_adapter(gate_up, 2))
        swiglu_unfused(b, &g, gate_up, routes);
    else
        swiglu_fused(b, &g, gate_up);
    invar_build_reads(b, &x);
    invar_build_record_backward(b, swiglu_backward, &g, sizeof g);
    (void)invar_build_result(b, name, g.act);
    if (!routes && invar_tensor_present(&invar_build_value_info(b, &g.act)->codes))
        invar_build_codes(b, name, false, &invar_build_value_info(b, &g.act)->codes);
    return g.act;
}
