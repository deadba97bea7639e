/*
 * mlp.c - the second half of a layer: norm, gated MLP (dense, or experts.c), residual.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/pass.h"

#include "base/invar_banned.h"

static invar_status dense(invar_pass *pass, const invar_layer *w, invar_acts *a)
{
    invar_tensor x, act;

    INVAR_TRY(invar_block_operand(&x, pass, &a->norm_mid, 0));
    INVAR_TRY(invar_block_linear(pass, &a->gate, &x, w->gate, NULL, NULL));
    INVAR_TRY(invar_block_linear(pass, &a->up, &x, w->up, NULL, NULL));
    INVAR_TRY(INVAR_CALL(&pass->caller, SWIGLU_FWD, swiglu_fwd, .y = a->act, .gate = a->gate,
                         .up = a->up));
    INVAR_TRY(invar_block_operand(&act, pass, &a->act, 0));
    return invar_block_linear(pass, &pass->temps.branch, &act, w->down, NULL, NULL);
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

    a->gate = shaped(&a->gate, rows, cols);
    a->up = shaped(&a->up, rows, cols);
    a->act = shaped(&a->act, rows, cols);
    t->d_gate = shaped(&t->d_gate, rows, cols);
    t->d_up = shaped(&t->d_up, rows, cols);
    t->d_act = shaped(&t->d_act, rows, cols);
}

invar_status invar_block_mlp(invar_pass *pass, int64_t layer, invar_acts *a)
{
    const invar_layer *w = &pass->model->layers[layer];

    INVAR_TRY(invar_block_norm(pass, &a->norm_mid, &a->mid, w->norm_post, 1));
    if (w->router) {
        INVAR_TRY(invar_block_experts(pass, layer, a));
    } else {
        shape_dense(pass, a);
        INVAR_TRY(dense(pass, w, a));
    }
    INVAR_TRY(
        INVAR_CALL(&pass->caller, ADD, add, .out = a->y, .a = a->mid, .b = pass->temps.branch));
    if (!w->router) { // rows of experts are in another order
        INVAR_TRY(invar_pass_show(pass, "gate", layer, &a->gate));
        INVAR_TRY(invar_pass_show(pass, "up", layer, &a->up));
    }
    return invar_pass_show(pass, "mlp", layer, &a->y);
}

static invar_status dense_backward(invar_pass *pass, const invar_layer *w, invar_acts *a,
                                   invar_grads *grads)
{
    invar_temps *t = &pass->temps;
    invar_block_part down = {&t->d, w->down, NULL};
    invar_block_part inner[2] = {{&t->d_gate, w->gate, NULL}, {&t->d_up, w->up, NULL}};

    INVAR_TRY(invar_block_linear_backward(pass, &t->d_act, &a->act, &down, 1, NULL, grads));
    INVAR_TRY(INVAR_CALL(&pass->caller, SWIGLU_BWD, swiglu_bwd, .dgate = t->d_gate, .dup = t->d_up,
                         .dy = t->d_act, .gate = a->gate, .up = a->up));
    return invar_block_linear_backward(pass, &t->branch, &a->norm_mid, inner, 2, NULL, grads);
}

invar_status invar_block_mlp_backward(invar_pass *pass, int64_t layer, invar_acts *a,
                                      invar_grads *grads)
{
    const invar_layer *w = &pass->model->layers[layer];
    invar_temps *t = &pass->temps;

    if (w->router) {
        INVAR_TRY(invar_block_experts_backward(pass, layer, a, grads));
    } else {
        shape_dense(pass, a);
        INVAR_TRY(dense_backward(pass, w, a, grads));
    }
    INVAR_TRY(invar_block_norm_backward(pass, &t->d_norm, &t->branch, &a->mid, w->norm_post, 1,
                                        &pass->rows.units, grads));
    return INVAR_CALL(&pass->caller, ADD, add, .out = t->d, .a = t->d, .b = t->d_norm);
}
