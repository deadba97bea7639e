/*
 * mlp.c - the second half of a layer: norm, gated MLP (dense, or experts.c), residual.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/pass.h"

#include "base/invar_banned.h"

/* act, from the operand of norm_mid, and its codes, unless they are absent. */
static invar_status activate(invar_pass *pass, int64_t layer, invar_acts *a, const invar_tensor *x,
                             const invar_tensor *codes)
{
    const invar_layer *w = &pass->model->layers[layer];
    const invar_block_output gate_up[2] = {{&a->gate, w->gate, NULL}, {&a->up, w->up, NULL}};

    if (!pass->probe.take && !invar_tensor_present(codes))
        return invar_block_gated(pass, &a->act, x, gate_up);
    INVAR_TRY(invar_block_linears(pass, x, gate_up, 2));
    INVAR_TRY(INVAR_SHOW(pass, layer, "gate", LINEAR_FWD, &a->gate,
                         .inputs = {"norm_mid", "norm_mid.q"}));
    INVAR_TRY(
        INVAR_SHOW(pass, layer, "up", LINEAR_FWD, &a->up, .inputs = {"norm_mid", "norm_mid.q"}));
    INVAR_TRY(INVAR_CALL(&pass->caller, SWIGLU_FWD, swiglu_fwd, .y = a->act, .gate = a->gate,
                         .up = a->up, .y_q = *codes));
    return INVAR_SHOW(pass, layer, "act", SWIGLU_FWD, &a->act, .inputs = {"gate", "up"});
}

static invar_status dense(invar_pass *pass, int64_t layer, invar_acts *a)
{
    const invar_layer *w = &pass->model->layers[layer];
    invar_tensor x, act = invar_block_codes(pass, &a->act, 0);

    INVAR_TRY(invar_block_operand(&x, pass, layer, "norm_mid", &a->norm_mid));
    INVAR_TRY(activate(pass, layer, a, &x, &act));
    if (!invar_tensor_present(&act))
        INVAR_TRY(invar_block_operand(&act, pass, layer, "act", &a->act));
    return invar_block_add_linear(
        pass, &a->y, &a->mid, &act, w->down,
        &(invar_forward_value){.point = "down", .layer = layer, .inputs = {"act", "act.q"}});
}

/* The rows of a shared buffer that this layer uses. */
static invar_tensor shaped(const invar_tensor *room, int64_t rows, int64_t cols)
{
    return invar_tensor_2d(room->data, room->dtype, rows, cols);
}

static void shape_dense(invar_pass *pass, invar_acts *a)
{
    int64_t rows = pass->rows.count, cols = pass->model->spec.intermediate;
    invar_temps *t = &pass->temps;
    invar_tensor both;

    a->gate = shaped(&a->gate, rows, cols);
    a->up = shaped(&a->up, rows, cols);
    a->act = shaped(&a->act, rows, cols);
    t->d_act = shaped(&t->d_act, rows, cols);
    both = shaped(&t->d_inner, rows, 2 * cols);
    t->d_gate = invar_tensor_columns(&both, 0, cols);
    t->d_up = invar_tensor_columns(&both, cols, cols);
}

invar_status invar_block_mlp(invar_pass *pass, int64_t layer, invar_acts *a)
{
    const invar_layer *w = &pass->model->layers[layer];

    INVAR_TRY(invar_block_norm(pass, &a->norm_mid, &a->mid, w->norm_post, 1));
    INVAR_TRY(INVAR_SHOW(pass, layer, "norm_mid", RMSNORM_FWD, &a->norm_mid, .inputs = {"attn"}));
    if (w->router) {
        INVAR_TRY(invar_block_experts(pass, layer, a));
        INVAR_TRY(
            INVAR_CALL(&pass->caller, ADD, add, .out = a->y, .a = a->mid, .b = pass->temps.branch));
    } else {
        shape_dense(pass, a);
        INVAR_TRY(dense(pass, layer, a));
    }
    return INVAR_SHOW(pass, layer, "mlp", ADD, &a->y, .inputs = {"attn", "down"}, .stream = true);
}

static invar_status dense_backward(invar_pass *pass, int64_t layer, invar_acts *a,
                                   invar_grads *grads)
{
    const invar_layer *w = &pass->model->layers[layer];
    invar_temps *t = &pass->temps;
    invar_tensor dgate_q = invar_block_codes(pass, &t->d_gate, 0);
    invar_tensor dup_q = invar_block_codes(pass, &t->d_up, 1);
    bool coded = invar_tensor_present(&dup_q);
    invar_block_part down = {&t->d, "dmlp", w->down, NULL, false};
    invar_block_part inner[2] = {{&t->d_gate, "dgate", w->gate, NULL, coded},
                                 {&t->d_up, "dup", w->up, NULL, coded}};

    INVAR_TRY(invar_block_linear_backward(pass, layer, &t->d_act, &a->act, &down, 1, NULL, grads));
    INVAR_TRY(
        INVAR_SHOW_BACK(pass, layer, "dact", LINEAR_DX, &t->d_act, .inputs = {"d", "dmlp.q"}));
    INVAR_TRY(INVAR_CALL(&pass->caller, SWIGLU_BWD, swiglu_bwd, .dgate = t->d_gate, .dup = t->d_up,
                         .dy = t->d_act, .gate = a->gate, .up = a->up, .dgate_q = dgate_q,
                         .dup_q = dup_q));
    INVAR_TRY(INVAR_SHOW_BACK(pass, layer, "dgate", SWIGLU_BWD, &t->d_gate,
                              .inputs = {"dact", "gate", "up"}));
    INVAR_TRY(INVAR_SHOW_BACK(pass, layer, "dup", SWIGLU_BWD, &t->d_up,
                              .inputs = {"dact", "gate", "up"}));
    INVAR_TRY(
        invar_block_linear_backward(pass, layer, &t->branch, &a->norm_mid, inner, 2, NULL, grads));
    return INVAR_SHOW_BACK(pass, layer, "dnorm_mid", LINEAR_DX, &t->branch,
                           .inputs = {"dgate", "dup", "dgate.q", "dup.q"});
}

invar_status invar_block_mlp_backward(invar_pass *pass, int64_t layer, invar_acts *a,
                                      invar_grads *grads)
{
    const invar_layer *w = &pass->model->layers[layer];
    const invar_block_join join = {&a->mid,      w->norm_post, "dattn",
                                   "dattn.norm", "dnorm_mid",  "attn"};

    if (w->router) {
        INVAR_TRY(invar_block_experts_backward(pass, layer, a, grads));
    } else {
        shape_dense(pass, a);
        INVAR_TRY(dense_backward(pass, layer, a, grads));
    }
    return invar_block_join_backward(pass, layer, &join, grads);
}
