/*
 * linear.c - linear layers in the model's format: what is quantised, and when.
 *
 * fp32, bf16: operands as stored. fp8, mxfp8: activations and gradients are quantised for the
 * product; weight gradients take both as stored. int4: weights only.
 *
 * What follows a product goes with it into one call, where nobody looks at what lies between: with
 * a probe it is a call of its own. The bits are the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "engine/model/pass.h"

#include "base/invar_banned.h"

static bool quantises_operands(const invar_param *w)
{
    return w->weight.dtype == INVAR_DTYPE_FP8 || w->weight.dtype == INVAR_DTYPE_MXFP8;
}

/* `x` in the buffer of that number. */
static invar_tensor codes_of(const invar_pass *pass, const invar_tensor *x, int slot)
{
    const invar_tensor *room = &pass->temps.operand[slot];

    return invar_tensor_quantised(room->data, room->scale, room->dtype, 1, x->shape[0],
                                  x->shape[1]);
}

invar_tensor invar_block_codes(const invar_pass *pass, const invar_tensor *x, int slot)
{
    if (pass->probe.take || !invar_tensor_present(&pass->temps.operand[slot]))
        return (invar_tensor){0};
    return codes_of(pass, x, slot);
}

/* `x` into the buffer of that number. */
static invar_status quantise(invar_tensor *out, invar_pass *pass, const invar_forward_value *value,
                             int slot)
{
    const invar_tensor *x = value->rows;
    invar_forward_value shown = *value;
    char point[32];

    *out = codes_of(pass, x, slot);
    INVAR_TRY(INVAR_CALL(&pass->caller, QUANTISE, quantise, .q = *out, .x = *x));
    if (!value->point) // rows in an order that is no sample's
        return INVAR_OK;
    snprintf(point, sizeof point, "%s.q", value->point);
    shown.point = point;
    shown.op = invar_op_name(INVAR_OP_QUANTISE);
    shown.rows = out;
    return invar_pass_show(pass, &shown);
}

invar_status invar_block_operand(invar_tensor *out, invar_pass *pass, int64_t layer, const char *of,
                                 const invar_tensor *x)
{
    *out = *x;
    if (!invar_tensor_present(&pass->temps.operand[0]))
        return INVAR_OK;
    return quantise(out, pass,
                    &(invar_forward_value){.point = of, .layer = layer, .inputs = {of}, .rows = x},
                    0);
}

invar_status invar_block_linear(invar_pass *pass, const invar_tensor *y, const invar_tensor *x,
                                const invar_param *w, const invar_param *bias,
                                const invar_segments *experts)
{
    invar_tensor none = {0};

    if (experts)
        return INVAR_CALL(&pass->caller, MOE_LINEAR_FWD, moe_linear_fwd, .y = *y, .x = *x,
                          .w = w->weight, .experts = *experts, .k_shards = 1);
    return INVAR_CALL(&pass->caller, LINEAR_FWD, linear_fwd, .y = *y, .x = *x, .w = w->weight,
                      .bias = bias ? bias->weight : none, .k_shards = 1);
}

static invar_linear_output output_of(const invar_block_output *o)
{
    invar_linear_output out = {.y = *o->y, .w = o->w->weight};

    if (o->bias)
        out.bias = o->bias->weight;
    return out;
}

static invar_linear_fwd_args outputs_of(const invar_tensor *x, const invar_block_output *outputs,
                                        int32_t n_outputs)
{
    invar_linear_output first = output_of(&outputs[0]);
    invar_linear_fwd_args args = {.y = first.y,
                                  .x = *x,
                                  .w = first.w,
                                  .bias = first.bias,
                                  .k_shards = 1,
                                  .n_more = n_outputs - 1};

    for (int32_t i = 1; i < n_outputs; i++)
        args.more[i - 1] = output_of(&outputs[i]);
    return args;
}

invar_status invar_block_linears(invar_pass *pass, const invar_tensor *x,
                                 const invar_block_output *outputs, int32_t n_outputs)
{
    invar_linear_fwd_args args = outputs_of(x, outputs, n_outputs);

    return invar_caller_run(&pass->caller, INVAR_OP_LINEAR_FWD, &args);
}

invar_status invar_block_gated(invar_pass *pass, const invar_tensor *act, const invar_tensor *x,
                               const invar_block_output gate_up[2])
{
    invar_linear_fwd_args args = outputs_of(x, gate_up, 2);

    args.act = *act;
    if (!pass->options.train)
        args.y = args.more[0].y = (invar_tensor){0};
    return invar_caller_run(&pass->caller, INVAR_OP_LINEAR_FWD, &args);
}

invar_status invar_block_add_linear(invar_pass *pass, const invar_tensor *y,
                                    const invar_tensor *residual, const invar_tensor *x,
                                    const invar_param *w, const invar_forward_value *branch)
{
    const invar_tensor *rows = &pass->temps.branch;
    invar_forward_value shown = *branch;

    if (!pass->probe.take)
        return INVAR_CALL(&pass->caller, LINEAR_FWD, linear_fwd, .y = *y, .x = *x, .w = w->weight,
                          .k_shards = 1, .residual = *residual);
    INVAR_TRY(invar_block_linear(pass, rows, x, w, NULL, NULL));
    shown.op = invar_op_name(INVAR_OP_LINEAR_FWD);
    shown.rows = rows;
    INVAR_TRY(invar_pass_show(pass, &shown));
    return INVAR_CALL(&pass->caller, ADD, add, .out = *y, .a = *residual, .b = *rows);
}

static invar_status input_gradient(invar_pass *pass, const invar_tensor *dx,
                                   const invar_linear_part *parts, int32_t n_parts,
                                   const invar_segments *experts)
{
    invar_linear_dx_args dense = {.dx = *dx, .n_parts = n_parts, .k_shards = 1};
    invar_moe_linear_dx_args grouped = {.dx = *dx, .n_parts = n_parts, .k_shards = 1};

    for (int32_t i = 0; i < n_parts; i++)
        dense.parts[i] = grouped.parts[i] = parts[i];
    if (!experts)
        return invar_caller_run(&pass->caller, INVAR_OP_LINEAR_DX, &dense);
    grouped.experts = *experts;
    return invar_caller_run(&pass->caller, INVAR_OP_MOE_LINEAR_DX, &grouped);
}

static size_t bytes_of(const invar_tensor *t, int64_t elements)
{
    return (size_t)elements * (size_t)invar_dtype_bits(t->dtype) / 8;
}

/*
 * Makes the rows of dw and the columns of dy longer by those of the next layer, if these lie behind
 * them. An element of the result is the same chain, and one large product is faster than two.
 */
static bool join(invar_tensor *dw, invar_tensor *dy, const invar_tensor *next_dw,
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

static invar_status weight_gradients(invar_pass *pass, const invar_tensor *x,
                                     const invar_block_part *parts, int32_t n_parts,
                                     invar_grads *grads)
{
    for (int32_t i = 0, next; i < n_parts; i = next) {
        invar_tensor dw = *invar_pass_grad(pass, grads, parts[i].w), dy = *parts[i].dy;
        next = i + 1;
        while (next < n_parts &&
               join(&dw, &dy, invar_pass_grad(pass, grads, parts[next].w), parts[next].dy))
            next++;
        INVAR_TRY(INVAR_CALL(&pass->caller, LINEAR_DW, linear_dw, .dw = dw, .dy = dy, .x = *x,
                             .units = pass->given.units, .fresh = grads->fresh));
    }
    for (int32_t i = 0; i < n_parts; i++)
        if (parts[i].bias)
            INVAR_TRY(INVAR_CALL(&pass->caller, TOKEN_SUM, token_sum,
                                 .out = *invar_pass_grad(pass, grads, parts[i].bias),
                                 .x = *parts[i].dy, .units = pass->given.units));
    return INVAR_OK;
}

static invar_status expert_gradients(invar_pass *pass, const invar_tensor *x,
                                     const invar_block_part *parts, int32_t n_parts,
                                     const invar_acts *acts, const invar_segments *experts,
                                     invar_grads *grads)
{
    for (int32_t i = 0; i < n_parts; i++)
        INVAR_TRY(INVAR_CALL(&pass->caller, MOE_LINEAR_DW, moe_linear_dw,
                             .dw = *invar_pass_grad(pass, grads, parts[i].w), .dy = *parts[i].dy,
                             .x = *x, .row_token = acts->row_token, .experts = *experts,
                             .units = pass->given.units, .fresh = grads->fresh));
    return INVAR_OK;
}

invar_status invar_block_linear_backward(invar_pass *pass, int64_t layer, const invar_tensor *dx,
                                         const invar_tensor *x, const invar_block_part *parts,
                                         int32_t n_parts, const invar_acts *acts,
                                         invar_grads *grads)
{
    invar_linear_part operands[INVAR_LINEAR_MAX_PARTS];
    invar_segments groups = {NULL, 0}, *experts = NULL;

    if (acts) {
        groups = (invar_segments){acts->expert_start, pass->model->spec.experts};
        experts = &groups;
    }
    for (int32_t i = 0; i < n_parts; i++) {
        operands[i] = (invar_linear_part){*parts[i].dy, parts[i].w->weight};
        if (parts[i].coded)
            operands[i].dy = codes_of(pass, parts[i].dy, i);
        else if (quantises_operands(parts[i].w))
            INVAR_TRY(quantise(&operands[i].dy, pass,
                               &(invar_forward_value){
                                   .point = parts[i].of,
                                   .layer = layer,
                                   .backward = true,
                                   .inputs = {parts[i].dy == &pass->temps.d ? "d" : parts[i].of},
                                   .rows = parts[i].dy},
                               i));
    }
    INVAR_TRY(experts ? expert_gradients(pass, x, parts, n_parts, acts, experts, grads)
                      : weight_gradients(pass, x, parts, n_parts, grads));
    return input_gradient(pass, dx, operands, n_parts, experts);
}
