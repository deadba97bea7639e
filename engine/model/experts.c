/*
 * experts.c - a mixture of experts: router, plan, gather, expert MLPs, combine.
 *
 * The backward adds the two gradients of the normed rows, the experts' and the router's, in this
 * order, with one rounding. Rows of experts are shown in the order of tokens and their slots: that
 * of the plan depends on the micro-batch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/model/pass.h"

#include "base/invar_banned.h"

static invar_moe_router router_of(const invar_model_spec *s)
{
    return (invar_moe_router){.scoring = INVAR_MOE_SOFTMAX,
                              .groups = 1,
                              .groups_kept = 1,
                              .group_score_top = 1,
                              .normalise = s->normalise_experts,
                              .scale = 1.0f};
}

int64_t invar_model_sparse_layers(const invar_model *model)
{
    int64_t count = 0;

    for (int64_t i = 0; i < model->spec.layers; i++)
        count += model->spec.sparse[i];
    return count;
}

/* The columns of this layer in an array (T, sparse layers, slots). */
static invar_tensor routing_of(const invar_pass *pass, int64_t layer, const int32_t *routing)
{
    const invar_model_spec *s = &pass->model->spec;
    int64_t slots = s->experts_per_token, sparse = invar_model_sparse_layers(pass->model);
    int64_t before = 0;
    invar_tensor view;

    for (int64_t i = 0; i < layer; i++)
        before += s->sparse[i];
    view = invar_tensor_2d((int32_t *)(uintptr_t)routing + before * slots, INVAR_DTYPE_I32,
                           pass->rows.count, slots);
    view.row_stride = sparse * slots;
    return view;
}

static void shape_experts(invar_pass *pass, invar_acts *a)
{
    const invar_model_spec *s = &pass->model->spec;
    int64_t rows = pass->rows.count * s->experts_per_token, cols = s->expert_intermediate;
    invar_temps *t = &pass->temps;
    invar_tensor *shaped[] = {&a->gate, &a->up, &a->act, &t->d_act}, both;

    for (size_t i = 0; i < sizeof shaped / sizeof *shaped; i++)
        *shaped[i] = invar_tensor_2d(shaped[i]->data, shaped[i]->dtype, rows, cols);
    both = invar_tensor_2d(t->d_inner.data, t->d_inner.dtype, 2 * rows, cols);
    t->d_gate = invar_tensor_rows(&both, 0, rows);
    t->d_up = invar_tensor_rows(&both, rows, rows);
}

/* ---- showing --------------------------------------------------------------------------------- */

/* Rows (P, n) of experts as (T, slots * n). */
static void by_token(char *out, const invar_tensor *rows, const int32_t *slot_row)
{
    size_t bytes = (size_t)rows->shape[1] * (size_t)invar_dtype_bits(rows->dtype) / 8;

    for (int64_t i = 0; i < rows->shape[0]; i++)
        memcpy(out + (size_t)i * bytes, (const char *)rows->data + (size_t)slot_row[i] * bytes,
               bytes);
}

/* By the host and not by an op, which may be what somebody looks for. */
static invar_status show_by_token(invar_pass *pass, const invar_acts *a,
                                  const invar_forward_value *value, invar_window windows[2])
{
    invar_forward_value shown = *value;
    invar_tensor rows, slot_row, copy;
    invar_status status;
    void *room;

    INVAR_TRY(invar_window_tensor(&rows, &windows[0], value->rows));
    INVAR_TRY(invar_window_tensor(&slot_row, &windows[1], &a->slot_row));
    INVAR_TRY(invar_alloc(&room, (size_t)rows.shape[0] * (size_t)rows.shape[1],
                          (size_t)invar_dtype_bits(rows.dtype) / 8, "rows of experts to show"));
    by_token(room, &rows, slot_row.data);
    copy = invar_tensor_2d(room, rows.dtype, pass->rows.count, slot_row.shape[1] * rows.shape[1]);
    shown.rows = &copy;
    shown.near = true;
    status = invar_pass_show(pass, &shown);
    invar_free(room);
    return status;
}

static invar_status show_rows(invar_pass *pass, const invar_acts *a,
                              const invar_forward_value *value)
{
    invar_window windows[2] = {{.dev = &pass->caller.dev}, {.dev = &pass->caller.dev}};
    invar_status status;

    if (!pass->probe.take)
        return INVAR_OK;
    status = show_by_token(pass, a, value, windows);
    invar_window_release(&windows[0]);
    invar_window_release(&windows[1]);
    return status;
}

#define SHOW_ROWS(pass, acts, number, name, OP, tensor, ...)                                       \
    show_rows((pass), (acts),                                                                      \
              &(invar_forward_value){.point = (name),                                              \
                                     .layer = (number),                                            \
                                     .op = invar_op_name(INVAR_OP_##OP),                           \
                                     .rows = (tensor),                                             \
                                     __VA_ARGS__})

/* ---- forward --------------------------------------------------------------------------------- */

static invar_status route(invar_pass *pass, int64_t layer, invar_acts *a)
{
    const invar_layer *w = &pass->model->layers[layer];
    const invar_given *given = &pass->given;
    invar_tensor replay = {0};

    if (given->routing)
        a->chosen = routing_of(pass, layer, given->routing);
    if (given->routing_replay)
        replay = routing_of(pass, layer, given->routing_replay);
    INVAR_TRY(invar_block_linear(pass, &a->logits, &a->norm_mid, w->router, NULL, NULL));
    INVAR_TRY(INVAR_SHOW(pass, layer, "router", LINEAR_FWD, &a->logits, .inputs = {"norm_mid"}));
    INVAR_TRY(INVAR_CALL(&pass->caller, MOE_ROUTE_FWD, moe_route_fwd, .ids = a->chosen,
                         .weights = a->weights, .scores = a->scores, .logits = a->logits,
                         .replay = replay, .router = router_of(&pass->model->spec)));
    a->used = given->routing_replay ? replay : a->chosen;
    INVAR_TRY(INVAR_SHOW(pass, layer, "route", MOE_ROUTE_FWD, &a->used, .inputs = {"router"}));
    INVAR_TRY(
        INVAR_SHOW(pass, layer, "route.weight", MOE_ROUTE_FWD, &a->weights, .inputs = {"router"}));
    return INVAR_CALL(&pass->caller, MOE_PLAN, moe_plan, .row_token = a->row_token,
                      .slot_row = a->slot_row, .expert_start = a->expert_start, .ids = a->used,
                      .experts = pass->model->spec.experts);
}

invar_status invar_block_experts(invar_pass *pass, int64_t layer, invar_acts *a)
{
    const invar_layer *w = &pass->model->layers[layer];
    invar_segments experts = {a->expert_start, pass->model->spec.experts};
    invar_tensor x, act;

    shape_experts(pass, a);
    act = invar_block_codes(pass, &a->act, 0);
    INVAR_TRY(route(pass, layer, a));
    INVAR_TRY(INVAR_CALL(&pass->caller, MOE_GATHER_FWD, moe_gather_fwd, .out = a->gathered,
                         .x = a->norm_mid, .row_token = a->row_token));
    INVAR_TRY(SHOW_ROWS(pass, a, layer, "expert.x", MOE_GATHER_FWD, &a->gathered,
                        .inputs = {"norm_mid", "route"}));
    INVAR_TRY(invar_block_operand(&x, pass, layer, NULL, &a->gathered));
    INVAR_TRY(invar_block_linear(pass, &a->gate, &x, w->gate, NULL, &experts));
    INVAR_TRY(invar_block_linear(pass, &a->up, &x, w->up, NULL, &experts));
    INVAR_TRY(SHOW_ROWS(pass, a, layer, "gate", MOE_LINEAR_FWD, &a->gate, .inputs = {"expert.x"}));
    INVAR_TRY(SHOW_ROWS(pass, a, layer, "up", MOE_LINEAR_FWD, &a->up, .inputs = {"expert.x"}));
    INVAR_TRY(INVAR_CALL(&pass->caller, SWIGLU_FWD, swiglu_fwd, .y = a->act, .gate = a->gate,
                         .up = a->up, .y_q = act));
    INVAR_TRY(SHOW_ROWS(pass, a, layer, "act", SWIGLU_FWD, &a->act, .inputs = {"gate", "up"}));
    if (!invar_tensor_present(&act))
        INVAR_TRY(invar_block_operand(&act, pass, layer, NULL, &a->act));
    INVAR_TRY(invar_block_linear(pass, &a->expert_y, &act, w->down, NULL, &experts));
    INVAR_TRY(
        SHOW_ROWS(pass, a, layer, "expert.y", MOE_LINEAR_FWD, &a->expert_y, .inputs = {"act"}));
    INVAR_TRY(INVAR_CALL(&pass->caller, MOE_COMBINE_FWD, moe_combine_fwd, .out = pass->temps.branch,
                         .y = a->expert_y, .weights = a->weights, .slot_row = a->slot_row));
    return INVAR_SHOW(pass, layer, "down", MOE_COMBINE_FWD, &pass->temps.branch,
                      .inputs = {"expert.y", "route.weight"});
}

/* ---- backward -------------------------------------------------------------------------------- */

static invar_status experts_backward(invar_pass *pass, int64_t layer, invar_acts *a,
                                     invar_grads *grads)
{
    const invar_layer *w = &pass->model->layers[layer];
    invar_temps *t = &pass->temps;
    invar_tensor dgate_q = invar_block_codes(pass, &t->d_gate, 0);
    invar_tensor dup_q = invar_block_codes(pass, &t->d_up, 1);
    bool coded = invar_tensor_present(&dup_q);
    invar_block_part down = {&t->d_expert_y, NULL, w->down, NULL, false};
    invar_block_part inner[2] = {{&t->d_gate, NULL, w->gate, NULL, coded},
                                 {&t->d_up, NULL, w->up, NULL, coded}};

    INVAR_TRY(INVAR_CALL(&pass->caller, MOE_COMBINE_BWD, moe_combine_bwd, .dy = t->d_expert_y,
                         .dweights = t->d_weights, .dout = t->d, .y = a->expert_y,
                         .weights = a->weights, .slot_row = a->slot_row));
    INVAR_TRY(SHOW_ROWS(pass, a, layer, "dexpert.y", MOE_COMBINE_BWD, &t->d_expert_y,
                        .backward = true, .inputs = {"d", "route.weight"}));
    INVAR_TRY(INVAR_SHOW_BACK(pass, layer, "droute.weight", MOE_COMBINE_BWD, &t->d_weights,
                              .inputs = {"d", "expert.y"}));
    INVAR_TRY(invar_block_linear_backward(pass, layer, &t->d_act, &a->act, &down, 1, a, grads));
    INVAR_TRY(SHOW_ROWS(pass, a, layer, "dact", MOE_LINEAR_DX, &t->d_act, .backward = true,
                        .inputs = {"dexpert.y"}));
    INVAR_TRY(INVAR_CALL(&pass->caller, SWIGLU_BWD, swiglu_bwd, .dgate = t->d_gate, .dup = t->d_up,
                         .dy = t->d_act, .gate = a->gate, .up = a->up, .dgate_q = dgate_q,
                         .dup_q = dup_q));
    INVAR_TRY(SHOW_ROWS(pass, a, layer, "dgate", SWIGLU_BWD, &t->d_gate, .backward = true,
                        .inputs = {"dact", "gate", "up"}));
    INVAR_TRY(SHOW_ROWS(pass, a, layer, "dup", SWIGLU_BWD, &t->d_up, .backward = true,
                        .inputs = {"dact", "gate", "up"}));
    INVAR_TRY(
        invar_block_linear_backward(pass, layer, &t->d_gathered, &a->gathered, inner, 2, a, grads));
    INVAR_TRY(SHOW_ROWS(pass, a, layer, "dexpert.x", MOE_LINEAR_DX, &t->d_gathered,
                        .backward = true, .inputs = {"dgate", "dup"}));
    INVAR_TRY(INVAR_CALL(&pass->caller, MOE_GATHER_BWD, moe_gather_bwd, .dx = t->d_norm,
                         .dout = t->d_gathered, .slot_row = a->slot_row));
    return INVAR_SHOW_BACK(pass, layer, "dnorm_mid.experts", MOE_GATHER_BWD, &t->d_norm,
                           .inputs = {"dexpert.x"});
}

static invar_status router_backward(invar_pass *pass, int64_t layer, invar_acts *a,
                                    invar_grads *grads)
{
    const invar_layer *w = &pass->model->layers[layer];
    invar_temps *t = &pass->temps;
    invar_block_part part = {&t->d_logits, "drouter", w->router, NULL, false};

    INVAR_TRY(INVAR_CALL(&pass->caller, MOE_ROUTE_BWD, moe_route_bwd, .dlogits = t->d_logits,
                         .dweights = t->d_weights, .ids = a->used, .scores = a->scores,
                         .router = router_of(&pass->model->spec)));
    INVAR_TRY(INVAR_SHOW_BACK(pass, layer, "drouter", MOE_ROUTE_BWD, &t->d_logits,
                              .inputs = {"droute.weight", "router", "route"}));
    INVAR_TRY(invar_block_linear_backward(pass, layer, &t->d_router, &a->norm_mid, &part, 1, NULL,
                                          grads));
    return INVAR_SHOW_BACK(pass, layer, "dnorm_mid.router", LINEAR_DX, &t->d_router,
                           .inputs = {"drouter"});
}

invar_status invar_block_experts_backward(invar_pass *pass, int64_t layer, invar_acts *a,
                                          invar_grads *grads)
{
    invar_temps *t = &pass->temps;

    shape_experts(pass, a);
    INVAR_TRY(experts_backward(pass, layer, a, grads));
    INVAR_TRY(router_backward(pass, layer, a, grads));
    INVAR_TRY(
        INVAR_CALL(&pass->caller, ADD, add, .out = t->branch, .a = t->d_norm, .b = t->d_router));
    return INVAR_SHOW_BACK(pass, layer, "dnorm_mid", ADD, &t->branch,
                           .inputs = {"dnorm_mid.experts", "dnorm_mid.router"});
}
