/*
 * adapter.c - adapters of linear layers: two narrow products beside the layer's own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/program/verb/adapter.h"

#include "base/invar_banned.h"

static const invar_tensor none;

invar_tensor invar_adapter_room(invar_builder *b, const invar_weight *w, int64_t rows)
{
    if (!invar_adapter_is(w))
        return none;
    return invar_program_room(b->program, b->storage, rows, w->adapter.b.shape[1]);
}

/* y = x w^T + bias, of experts or not; `shards` of the layer's atoms. */
static void product(invar_builder *b, const invar_adapted *l, const invar_tensor *y,
                    const invar_tensor *x, const invar_tensor *w, const invar_tensor *bias,
                    int32_t shards)
{
    int64_t atom = l->w->cut.atom;

    if (l->experts)
        INVAR_APPEND(b->program, b->layer, MOE_LINEAR_FWD, moe_linear_fwd, .y = *y, .x = *x,
                     .w = *w, .experts = *l->experts, .k_shards = shards, .k_atom = atom);
    else
        INVAR_APPEND(b->program, b->layer, LINEAR_FWD, linear_fwd, .y = *y, .x = *x, .w = *w,
                     .bias = *bias, .k_shards = shards, .k_atom = atom);
}

/* u or du = round(s * low). Rows of slots have no point: their order is no sample's. */
static void scale(invar_builder *b, const invar_adapted *l, const invar_tensor *u,
                  const invar_tensor *low, bool gradient)
{
    INVAR_APPEND(b->program, b->layer, SCALE, scale, .y = *u, .x = *low, .factor = b->lora_factor);
    if (!l->experts)
        invar_build_adapted(b, l->name, gradient, u);
}

void invar_adapter_fold(invar_builder *b, const invar_tensor *y, const invar_tensor *sums,
                        const invar_tensor *residual)
{
    INVAR_APPEND(b->program, b->layer, SHARDS_FOLD, shards_fold, .y = *y, .x = *sums,
                 .residual = *residual, .shards = 2);
}

void invar_adapter_forward(invar_builder *b, const invar_adapted *l, const invar_tensor *taken,
                           const invar_tensor *bias, const invar_tensor *residual,
                           const invar_tensor *y)
{
    int64_t rows = y->shape[0];
    int32_t shards = l->w->cut.columns ? l->w->cut.pieces : 1;
    invar_tensor low = invar_program_room(b->program, INVAR_DTYPE_F32, rows, l->u.shape[1]);
    invar_tensor sums = invar_program_room(b->program, INVAR_DTYPE_F32, 2 * rows, y->shape[1]);
    invar_tensor base = invar_tensor_rows(&sums, 0, rows);
    invar_tensor added = invar_tensor_rows(&sums, rows, rows);

    product(b, l, &low, &l->x, &l->w->adapter.a, &none, shards);
    scale(b, l, &l->u, &low, false);
    product(b, l, &added, &l->u, &l->w->adapter.b, &none, 1);
    product(b, l, &base, taken, &l->w->w, bias, shards);
    invar_adapter_fold(b, y, &sums, residual);
}

static void weight_gradient(invar_builder *b, const invar_adapted *l, const invar_tensor *dw,
                            const invar_tensor *dy, const invar_tensor *x)
{
    if (l->experts) {
        INVAR_APPEND(b->program, b->layer, MOE_LINEAR_DW, moe_linear_dw, .dw = *dw, .dy = *dy,
                     .x = *x, .row_token = l->row_token, .experts = *l->experts,
                     .units = b->all_units);
        invar_program_fresh(b->program, offsetof(invar_moe_linear_dw_args, fresh));
        return;
    }
    INVAR_APPEND(b->program, b->layer, LINEAR_DW, linear_dw, .dw = *dw, .dy = *dy, .x = *x,
                 .units = b->units);
    invar_program_fresh(b->program, offsetof(invar_linear_dw_args, fresh));
}

/* low = dy B, in shards where the layer's outputs are cut. */
static void narrow_back(invar_builder *b, const invar_adapted *l, const invar_tensor *low,
                        const invar_tensor *dy)
{
    const invar_cut *cut = &l->w->cut;
    int32_t shards = cut->columns ? 1 : cut->pieces;

    if (l->experts)
        INVAR_APPEND(b->program, b->layer, MOE_LINEAR_DX, moe_linear_dx, .dx = *low,
                     .parts = {{*dy, l->w->adapter.b}}, .n_parts = 1, .experts = *l->experts,
                     .k_shards = shards, .k_atom = {cut->atom});
    else
        INVAR_APPEND(b->program, b->layer, LINEAR_DX, linear_dx, .dx = *low,
                     .parts = {{*dy, l->w->adapter.b}}, .n_parts = 1, .k_shards = shards,
                     .k_atom = {cut->atom});
}

invar_tensor invar_adapter_back(invar_builder *b, const invar_adapted *l, const invar_tensor *dy)
{
    int64_t rows = l->u.shape[0], cols = l->u.shape[1];
    invar_tensor low = invar_program_room(b->program, INVAR_DTYPE_F32, rows, cols);
    invar_tensor du = invar_program_room(b->program, b->storage, rows, cols);

    weight_gradient(b, l, &l->w->adapter.db, dy, &l->u);
    narrow_back(b, l, &low, dy);
    scale(b, l, &du, &low, true);
    weight_gradient(b, l, &l->w->adapter.da, &du, &l->x);
    return du;
}
