/*
 * experts.c - self-check of the expert block: router, plan, products in every weight format.
 *
 * Forward and backward of all moe ops on one set of random weights; the products are repeated in
 * each low-precision format that is defined for the storage type.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/selfcheck/layer.h"

#include <stdio.h>

#include "base/invar_banned.h"

enum { EXPERTS = 4, SLOTS = 2, EXPERT_ROWS = TOKENS * SLOTS };

/* Checks the products of the experts in one low-precision format. */
static invar_status low_precision_experts(invar_selfcheck *r, const invar_selfcheck_operands *plain,
                                          invar_row_offsets experts, invar_dtype format)
{
    invar_selfcheck_operands q;
    invar_tensor y, dx;
    char what[32];

    if (!invar_selfcheck_has_product(r, format))
        return INVAR_OK;
    INVAR_TRY(invar_selfcheck_quantize_operands(&q, r, plain, format));
    INVAR_TRY(invar_selfcheck_make(&y, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(invar_selfcheck_make(&dx, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(invar_moe_linear_fwd(
        r->dev, &(invar_moe_linear_fwd_args){
                    .y = y, .x = q.x, .w = q.w, .experts = experts, .k_shards = 1}));
    INVAR_TRY(invar_moe_linear_dx(
        r->dev,
        &(invar_moe_linear_dx_args){
            .dx = dx, .parts = {{q.dy, q.w}}, .n_parts = 1, .experts = experts, .k_shards = 1}));
    snprintf(what, sizeof what, "y %s", invar_dtype_name(format));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_LINEAR_FWD, what, &y));
    snprintf(what, sizeof what, "dx %s", invar_dtype_name(format));
    return invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_LINEAR_DX, what, &dx);
}

invar_status invar_selfcheck_experts(invar_selfcheck *r, const invar_tensor *h)
{
    void *expert_start;
    invar_tensor wr, logits, ids, weights, scores, row_token, slot_row, x, w, y, out;
    invar_tensor dout, dy, dweights, dx, dw, dh, dlogits;
    invar_moe_router router = {.scoring = INVAR_MOE_SOFTMAX,
                               .groups = 1,
                               .groups_kept = 1,
                               .group_score_top = 1,
                               .normalise = 1,
                               .scale = 1.0f};

    INVAR_TRY(invar_selfcheck_make_random(&wr, r, r->storage, EXPERTS, WIDTH, 0.3f));
    INVAR_TRY(invar_selfcheck_linear(r, &logits, h, &wr, NULL, 1, INVAR_DTYPE_F32));
    INVAR_TRY(invar_selfcheck_make(&ids, r, INVAR_DTYPE_I32, TOKENS, SLOTS));
    INVAR_TRY(invar_selfcheck_make(&weights, r, INVAR_DTYPE_F32, TOKENS, SLOTS));
    INVAR_TRY(invar_selfcheck_make(&scores, r, INVAR_DTYPE_F32, TOKENS, EXPERTS));
    INVAR_TRY(invar_moe_route_fwd(
        r->dev,
        &(invar_moe_route_fwd_args){
            .ids = ids, .weights = weights, .scores = scores, .logits = logits, .router = router}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_ROUTE_FWD, "ids", &ids));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_ROUTE_FWD, "weights", &weights));
    INVAR_TRY(invar_selfcheck_make(&row_token, r, INVAR_DTYPE_I32, 1, EXPERT_ROWS));
    row_token = invar_selfcheck_as_1d(&row_token);
    INVAR_TRY(invar_selfcheck_make(&slot_row, r, INVAR_DTYPE_I32, TOKENS, SLOTS));
    INVAR_TRY(invar_selfcheck_make_raw(&expert_start, r, (EXPERTS + 1) * sizeof(int64_t)));
    INVAR_TRY(invar_moe_plan(r->dev, &(invar_moe_plan_args){.row_token = row_token,
                                                            .slot_row = slot_row,
                                                            .expert_start = expert_start,
                                                            .ids = ids,
                                                            .experts = EXPERTS}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_PLAN, "slot_row", &slot_row));
    INVAR_TRY(invar_selfcheck_make(&x, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(invar_moe_gather_fwd(
        r->dev, &(invar_moe_gather_fwd_args){.out = x, .x = *h, .row_token = row_token}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_GATHER_FWD, "out", &x));

    INVAR_TRY(invar_selfcheck_make_random(&w, r, r->storage, EXPERTS * WIDTH, WIDTH, 0.15f));
    INVAR_TRY(invar_selfcheck_make(&y, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(invar_moe_linear_fwd(
        r->dev, &(invar_moe_linear_fwd_args){
                    .y = y, .x = x, .w = w, .experts = {expert_start, EXPERTS}, .k_shards = 1}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_LINEAR_FWD, "y", &y));
    INVAR_TRY(invar_selfcheck_make(&out, r, r->storage, TOKENS, WIDTH));
    INVAR_TRY(invar_moe_combine_fwd(
        r->dev, &(invar_moe_combine_fwd_args){
                    .out = out, .y = y, .weights = weights, .slot_row = slot_row, .shared = *h}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_COMBINE_FWD, "out", &out));

    INVAR_TRY(invar_selfcheck_make_random(&dout, r, r->storage, TOKENS, WIDTH, 1.0f));
    INVAR_TRY(invar_selfcheck_make(&dy, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(invar_selfcheck_make(&dweights, r, INVAR_DTYPE_F32, TOKENS, SLOTS));
    INVAR_TRY(invar_moe_combine_bwd(r->dev, &(invar_moe_combine_bwd_args){.dy = dy,
                                                                          .dweights = dweights,
                                                                          .dout = dout,
                                                                          .y = y,
                                                                          .weights = weights,
                                                                          .slot_row = slot_row}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_COMBINE_BWD, "dy", &dy));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_COMBINE_BWD, "dweights", &dweights));
    INVAR_TRY(invar_selfcheck_make(&dx, r, r->storage, EXPERT_ROWS, WIDTH));
    INVAR_TRY(
        invar_moe_linear_dx(r->dev, &(invar_moe_linear_dx_args){.dx = dx,
                                                                .parts = {{dy, w}},
                                                                .n_parts = 1,
                                                                .experts = {expert_start, EXPERTS},
                                                                .k_shards = 1}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_LINEAR_DX, "dx", &dx));
    INVAR_TRY(invar_selfcheck_make(&dw, r, INVAR_DTYPE_F32, EXPERTS * WIDTH, WIDTH));
    INVAR_TRY(
        invar_moe_linear_dw(r->dev, &(invar_moe_linear_dw_args){.dw = dw,
                                                                .dy = dy,
                                                                .x = x,
                                                                .row_token = row_token,
                                                                .experts = {expert_start, EXPERTS},
                                                                .units = r->samples}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_LINEAR_DW, "dw", &dw));
    for (invar_dtype format = INVAR_DTYPE_FP8; format <= INVAR_DTYPE_INT4; format++)
        INVAR_TRY(low_precision_experts(r, &(invar_selfcheck_operands){x, w, dy},
                                        (invar_row_offsets){expert_start, EXPERTS}, format));
    INVAR_TRY(invar_selfcheck_make(&dh, r, r->storage, TOKENS, WIDTH));
    INVAR_TRY(invar_moe_gather_bwd(
        r->dev, &(invar_moe_gather_bwd_args){.dx = dh, .dout = dx, .slot_row = slot_row}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_GATHER_BWD, "dx", &dh));
    INVAR_TRY(invar_selfcheck_make(&dlogits, r, r->storage, TOKENS, EXPERTS));
    INVAR_TRY(invar_moe_route_bwd(r->dev, &(invar_moe_route_bwd_args){.dlogits = dlogits,
                                                                      .dweights = dweights,
                                                                      .ids = ids,
                                                                      .scores = scores,
                                                                      .router = router}));
    return invar_selfcheck_emit_tensor(r, INVAR_OP_MOE_ROUTE_BWD, "dlogits", &dlogits);
}
