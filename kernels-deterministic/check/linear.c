/*
 * linear.c - checks the arguments of the linear layers, dense and grouped by expert.
 *
 * Types of an operand pair must have a defined product. Shards and parts may split a chain only
 * where the split changes no group of the dot-step and no scale block.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels-deterministic/check/check.h"
#include "kernels-deterministic/step/step.h"

#include "base/invar_banned.h"

#define OPERAND_TYPES (INVAR_TYPES_STORAGE | INVAR_TYPES_QUANTIZED)

/*
 * Rejects pairs without a defined product: types must be equal, except bf16 activations with int4
 * weights.
 */
static invar_status check_pair(invar_op op, const char *arg, const invar_tensor *x,
                               const invar_tensor *w)
{
    bool int4 = w->dtype == INVAR_DTYPE_INT4;

    if (x->dtype == INVAR_DTYPE_INT4 || (int4 && x->dtype != INVAR_DTYPE_BF16) ||
        (!int4 && x->dtype != w->dtype))
        return INVAR_REJECT(op, "%s: no product of %s with %s is defined", arg,
                            invar_dtype_name(x->dtype), invar_dtype_name(w->dtype));
    if (x->dtype == INVAR_DTYPE_FP8 && x->scale_rows != 1)
        return INVAR_REJECT(op, "%s: activations take 1x128 scales", arg);
    if (w->dtype == INVAR_DTYPE_FP8 && w->scale_rows != INVAR_FP8_BLOCK)
        return INVAR_REJECT(op, "%s: weights take 128x128 scales", arg);
    return INVAR_OK;
}

/*
 * Returns the multiple at which a chain may be split into shards: a scale block, a group of the
 * dot-step, or a single value for f32.
 */
static int64_t chain_unit(invar_dtype dtype)
{
    switch (dtype) {
    case INVAR_DTYPE_F32: return 1;
    case INVAR_DTYPE_FP8: return INVAR_FP8_BLOCK;
    case INVAR_DTYPE_MXFP8: return INVAR_MX_BLOCK;
    default: return INVAR_STEP_BF16;
    }
}

/*
 * Returns the multiple at which a part of a chain may end. It is 1 for fp8, because a partial chain
 * never extends over two parts.
 */
static int64_t part_unit(invar_dtype dtype)
{
    return dtype == INVAR_DTYPE_F32 || dtype == INVAR_DTYPE_FP8 ? 1 : INVAR_STEP_BF16;
}

/* An atom must be a multiple of `unit`, because shards split the chain between atoms. */
static invar_status check_shards(invar_op op, int32_t shards, int64_t atom, int64_t unit)
{
    INVAR_TRY(invar_check_shards(op, "k_shards", shards, INVAR_LINEAR_MAX_SHARDS));
    if (shards > 1 && (atom < 1 || atom % unit != 0))
        return INVAR_REJECT(op,
                            "k_atom: %" PRId64 " values; a chain of these types is cut into"
                            " shards at multiples of %" PRId64,
                            atom, unit);
    return INVAR_OK;
}

/* Rejects a number of experts times rows that overflows an extent. */
static invar_status check_expert_rows(invar_op op, const char *arg, int64_t experts, int64_t rows)
{
    if (rows > 0 && experts > INT64_MAX / rows)
        return INVAR_REJECT(op, "%s: %" PRId64 " experts of %" PRId64 " rows are too many", arg,
                            experts, rows);
    return INVAR_OK;
}

/*
 * Experts share one tensor: a scale block must not hold rows of two experts, and may be short only
 * at the end of an expert.
 */
static invar_status check_expert_blocks(invar_op op, const invar_tensor *w, int64_t rows)
{
    if (w->dtype == INVAR_DTYPE_FP8 && w->scale_period != rows &&
        (w->scale_period != 0 || (rows % w->scale_rows != 0 && rows != w->shape[0])))
        return INVAR_REJECT(op,
                            "w: %" PRId64 " rows an expert, but 128x128 scales that begin anew"
                            " after %d",
                            rows, w->scale_period);
    return INVAR_OK;
}

static invar_status check_forward(invar_op op, const invar_tensor *y, const invar_tensor *x,
                                  const invar_tensor *w, int32_t k_shards, int64_t k_atom)
{
    // a shard must not cut a scale block of either operand
    int64_t unit = w->dtype == INVAR_DTYPE_INT4 ? INVAR_INT4_BLOCK : chain_unit(x->dtype);

    INVAR_TRY(check_pair(op, "w", x, w));
    INVAR_TRY(check_shards(op, k_shards, k_atom, unit));
    return invar_check_tensor(op, "y", y, INVAR_TYPES_STORAGE, 2,
                              (const int64_t[]){x->shape[0], INVAR_ANY});
}

/* Checks one output of a->x. `y` is out->y, or a tensor with its shape if that is absent. */
static invar_status check_output(invar_op op, const invar_linear_fwd_args *a,
                                 const invar_linear_output *out, const invar_tensor *y)
{
    const invar_tensor *x = &a->x, *w = &out->w;

    INVAR_TRY(invar_check_tensor(op, "w", w, OPERAND_TYPES, 2,
                                 (const int64_t[]){INVAR_ANY, x->shape[1]}));
    INVAR_TRY(check_expert_blocks(op, w, w->shape[0]));
    INVAR_TRY(check_forward(op, y, x, w, a->k_shards, a->k_atom));
    INVAR_TRY(invar_check_tensor(op, "y", y, INVAR_TYPES_STORAGE, 2,
                                 (const int64_t[]){x->shape[0], w->shape[0]}));
    return invar_check_optional(op, "bias", &out->bias, INVAR_TYPES_STORAGE, 1,
                                (const int64_t[]){w->shape[0]});
}

/* Checks which fused fields may be combined. */
static invar_status check_fused(invar_op op, const invar_linear_fwd_args *a)
{
    bool act = invar_tensor_present(&a->act);

    if (a->n_more < 0 || a->n_more >= INVAR_LINEAR_MAX_PARTS)
        return INVAR_REJECT(op, "n_more: %d; expected 0 to %d", a->n_more,
                            INVAR_LINEAR_MAX_PARTS - 1);
    if (invar_tensor_present(&a->residual) && a->n_more > 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: residual: not with more outputs than one",
                          invar_op_name(op));
    if (act && a->n_more != 1)
        return INVAR_REJECT(op, "act: needs two outputs; got %d", a->n_more + 1);
    if (act && invar_tensor_present(&a->y) != invar_tensor_present(&a->more[0].y))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: act: one of its two inputs is absent",
                          invar_op_name(op));
    return INVAR_OK;
}

invar_status invar_check_linear_fwd(const invar_device *dev, invar_op op,
                                    const invar_linear_fwd_args *a)
{
    invar_linear_output first = {a->y, a->w, a->bias};
    bool stored = invar_tensor_present(&a->y);

    (void)dev;
    INVAR_CHECK_2D(op, a, x, OPERAND_TYPES, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(check_fused(op, a));
    stored = stored || !invar_tensor_present(&a->act);
    INVAR_TRY(check_output(op, a, &first, stored ? &a->y : &a->act));
    for (int32_t i = 0; i < a->n_more; i++)
        INVAR_TRY(check_output(op, a, &a->more[i], stored ? &a->more[i].y : &a->act));
    if (stored && invar_tensor_present(&a->act)) {
        INVAR_TRY(invar_check_like(op, "act", &a->act, "y", &a->y));
        INVAR_TRY(invar_check_like(op, "more[0].y", &a->more[0].y, "y", &a->y));
    }
    if (invar_tensor_present(&a->residual))
        INVAR_TRY(invar_check_like(op, "residual", &a->residual, "y", &a->y));
    return INVAR_OK;
}

static invar_status check_parts(invar_op op, const invar_tensor *dx, const invar_linear_part *parts,
                                int32_t n_parts, int32_t k_shards, const int64_t *k_atom,
                                int64_t experts)
{
    if (n_parts < 1 || n_parts > INVAR_LINEAR_MAX_PARTS)
        return INVAR_REJECT(op, "n_parts: %d; expected 1 to %d", n_parts, INVAR_LINEAR_MAX_PARTS);
    for (int32_t i = 0; i < n_parts; i++) {
        const invar_linear_part *p = &parts[i];
        int64_t unit, width;

        INVAR_TRY(invar_check_tensor(op, "dy", &p->dy, OPERAND_TYPES, 2,
                                     (const int64_t[]){dx->shape[0], INVAR_ANY}));
        width = p->dy.shape[1];
        INVAR_TRY(check_expert_rows(op, "w", experts, width));
        INVAR_TRY(invar_check_tensor(op, "w", &p->w, OPERAND_TYPES, 2,
                                     (const int64_t[]){experts * width, dx->shape[1]}));
        INVAR_TRY(check_expert_blocks(op, &p->w, width));
        INVAR_TRY(check_pair(op, "w", &p->dy, &p->w));
        INVAR_TRY(invar_check_same_type(op, "dy", &p->dy, "dy of the first part", &parts[0].dy));
        INVAR_TRY(check_shards(op, k_shards, k_atom[i], chain_unit(p->dy.dtype)));
        // the chain continues into the next part, so this one must end on a full group
        unit = part_unit(p->dy.dtype);
        if (i + 1 < n_parts && width % unit != 0)
            return INVAR_REJECT(op,
                                "dy: part %d has %" PRId64 " outputs; a part that another"
                                " follows needs a multiple of %" PRId64,
                                i, width, unit);
    }
    return INVAR_OK;
}

invar_status invar_check_linear_dx(const invar_device *dev, invar_op op,
                                   const invar_linear_dx_args *a)
{
    (void)dev;
    INVAR_CHECK_2D(op, a, dx, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    return check_parts(op, &a->dx, a->parts, a->n_parts, a->k_shards, a->k_atom, 1);
}

invar_status invar_check_linear_dw(const invar_device *dev, invar_op op,
                                   const invar_linear_dw_args *a)
{
    INVAR_CHECK_2D(op, a, dy, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_CHECK_2D(op, a, x, INVAR_TYPES_STORAGE, a->dy.shape[0], INVAR_ANY);
    INVAR_TRY(invar_check_same_type(op, "dy", &a->dy, "x", &a->x));
    INVAR_CHECK_2D(op, a, dw, INVAR_TYPE(F32), a->dy.shape[1], a->x.shape[1]);
    INVAR_TRY(invar_check_segments(dev, op, "units", &a->units, a->dy.shape[0]));
    return invar_check_range(op, "fresh", (double)a->fresh, 0, 1);
}

invar_status invar_check_moe_linear_fwd(const invar_device *dev, invar_op op,
                                        const invar_moe_linear_fwd_args *a)
{
    INVAR_CHECK_2D(op, a, x, OPERAND_TYPES, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(invar_check_segments_within(dev, op, "experts", &a->experts, a->x.shape[0]));
    INVAR_CHECK_2D(op, a, y, INVAR_TYPES_STORAGE, a->x.shape[0], INVAR_ANY);
    INVAR_TRY(check_expert_rows(op, "w", a->experts.count, a->y.shape[1]));
    INVAR_CHECK_2D(op, a, w, OPERAND_TYPES, a->experts.count * a->y.shape[1], a->x.shape[1]);
    INVAR_TRY(check_expert_blocks(op, &a->w, a->y.shape[1]));
    return check_forward(op, &a->y, &a->x, &a->w, a->k_shards, a->k_atom);
}

invar_status invar_check_moe_linear_dx(const invar_device *dev, invar_op op,
                                       const invar_moe_linear_dx_args *a)
{
    INVAR_CHECK_2D(op, a, dx, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(invar_check_segments_within(dev, op, "experts", &a->experts, a->dx.shape[0]));
    return check_parts(op, &a->dx, a->parts, a->n_parts, a->k_shards, a->k_atom, a->experts.count);
}

invar_status invar_check_moe_linear_dw(const invar_device *dev, invar_op op,
                                       const invar_moe_linear_dw_args *a)
{
    const int32_t *token = a->row_token.data;
    int64_t tokens = !invar_device_unreadable(dev) && a->units.count > 0 && a->units.offsets
                         ? a->units.offsets[a->units.count]
                         : 0;

    INVAR_CHECK_2D(op, a, dy, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_CHECK_2D(op, a, x, INVAR_TYPES_STORAGE, a->dy.shape[0], INVAR_ANY);
    INVAR_TRY(invar_check_same_type(op, "dy", &a->dy, "x", &a->x));
    INVAR_TRY(invar_check_segments_within(dev, op, "experts", &a->experts, a->dy.shape[0]));
    INVAR_TRY(check_expert_rows(op, "dw", a->experts.count, a->dy.shape[1]));
    INVAR_CHECK_2D(op, a, dw, INVAR_TYPE(F32), a->experts.count * a->dy.shape[1], a->x.shape[1]);
    INVAR_CHECK_1D(op, a, row_token, INVAR_TYPE(I32), a->dy.shape[0]);
    INVAR_TRY(invar_check_segments(dev, op, "units", &a->units, tokens));
    INVAR_TRY(invar_check_range(op, "fresh", (double)a->fresh, 0, 1));
    INVAR_TRY(invar_check_indices(dev, op, "row_token", &a->row_token, tokens));
    for (int64_t e = 0; e < a->experts.count && !invar_device_unreadable(dev); e++)
        for (int64_t i = a->experts.offsets[e] + 1; i < a->experts.offsets[e + 1]; i++)
            if (token[i] <= token[i - 1])
                return INVAR_REJECT(
                    op, "row_token: row %" PRId64 ": the tokens of an expert must ascend", i);
    return INVAR_OK;
}
