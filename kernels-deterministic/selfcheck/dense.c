/*
 * dense.c - self-check of the dense block: SwiGLU, and products in every weight format.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/selfcheck/layer.h"

#include <stdio.h>

#include "base/invar_banned.h"

enum { INNER = 256 };

static invar_status low_precision(invar_selfcheck *r, const invar_selfcheck_operands *plain,
                                  invar_dtype format)
{
    invar_selfcheck_operands q;
    invar_tensor y, dx, back;
    char what[32];

    INVAR_TRY(invar_selfcheck_quantize_operands(&q, r, plain, format));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_QUANTIZE, invar_dtype_name(format), &q.w));
    INVAR_TRY(invar_selfcheck_make(&back, r, r->storage, q.w.shape[0], q.w.shape[1]));
    INVAR_TRY(invar_dequantize(r->dev, &(invar_dequantize_args){.x = back, .q = q.w}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_DEQUANTIZE, invar_dtype_name(format), &back));
    if (!invar_selfcheck_has_product(r, format))
        return INVAR_OK;
    INVAR_TRY(invar_selfcheck_linear(r, &y, &q.x, &q.w, NULL, 1, r->storage));
    snprintf(what, sizeof what, "y %s", invar_dtype_name(format));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_LINEAR_FWD, what, &y));
    INVAR_TRY(invar_selfcheck_input_grad(r, &dx, &(invar_linear_part){q.dy, q.w}, 1));
    snprintf(what, sizeof what, "dx %s", invar_dtype_name(format));
    return invar_selfcheck_emit_tensor(r, INVAR_OP_LINEAR_DX, what, &dx);
}

invar_status invar_selfcheck_dense(invar_selfcheck *r, const invar_tensor *h)
{
    invar_tensor wg, wu, wd, gate, up, act, y, out, dy, dact, dgate, dup, dx, dbias;

    INVAR_TRY(invar_selfcheck_make_random(&wg, r, r->storage, INNER, WIDTH, 0.15f));
    INVAR_TRY(invar_selfcheck_make_random(&wu, r, r->storage, INNER, WIDTH, 0.15f));
    INVAR_TRY(invar_selfcheck_make_random(&wd, r, r->storage, WIDTH, INNER, 0.15f));
    INVAR_TRY(invar_selfcheck_linear(r, &gate, h, &wg, NULL, 1, r->storage));
    INVAR_TRY(invar_selfcheck_linear(r, &up, h, &wu, NULL, 1, r->storage));
    INVAR_TRY(invar_selfcheck_make(&act, r, r->storage, TOKENS, INNER));
    INVAR_TRY(invar_swiglu_fwd(r->dev, &(invar_swiglu_fwd_args){.y = act, .gate = gate, .up = up}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_SWIGLU_FWD, "y", &act));
    INVAR_TRY(invar_selfcheck_linear(r, &y, &act, &wd, NULL, 4, r->storage));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_LINEAR_FWD, "y of 4 shards", &y));
    INVAR_TRY(invar_selfcheck_make(&out, r, r->storage, TOKENS, WIDTH));
    INVAR_TRY(invar_add(r->dev, &(invar_add_args){.out = out, .a = *h, .b = y}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_ADD, "out", &out));

    INVAR_TRY(invar_selfcheck_make_random(&dy, r, r->storage, TOKENS, WIDTH, 1.0f));
    INVAR_TRY(invar_selfcheck_input_grad(r, &dact, &(invar_linear_part){dy, wd}, 1));
    INVAR_TRY(invar_selfcheck_make(&dgate, r, r->storage, TOKENS, INNER));
    INVAR_TRY(invar_selfcheck_make(&dup, r, r->storage, TOKENS, INNER));
    INVAR_TRY(invar_swiglu_bwd(
        r->dev,
        &(invar_swiglu_bwd_args){.dgate = dgate, .dup = dup, .dy = dact, .gate = gate, .up = up}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_SWIGLU_BWD, "dgate", &dgate));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_SWIGLU_BWD, "dup", &dup));
    INVAR_TRY(invar_selfcheck_input_grad(r, &dx, (invar_linear_part[]){{dgate, wg}, {dup, wu}}, 2));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_LINEAR_DX, "dx of gate, up", &dx));
    INVAR_TRY(invar_selfcheck_make(&dbias, r, INVAR_DTYPE_F32, 1, INNER));
    INVAR_TRY(invar_token_sum(r->dev, &(invar_token_sum_args){.out = invar_selfcheck_as_1d(&dbias),
                                                              .x = dgate,
                                                              .units = r->samples}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_TOKEN_SUM, "out", &dbias));
    for (invar_dtype format = INVAR_DTYPE_FP8; format <= INVAR_DTYPE_INT4; format++)
        INVAR_TRY(low_precision(r, &(invar_selfcheck_operands){*h, wg, dgate}, format));
    return INVAR_OK;
}
