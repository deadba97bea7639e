/*
 * swiglu.c - checks the arguments of swiglu.fwd and swiglu.bwd.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

invar_status invar_check_swiglu_fwd(const invar_device *dev, invar_op op,
                                    const invar_swiglu_fwd_args *a)
{
    (void)dev;
    INVAR_CHECK_2D(op, a, y, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(invar_check_like(op, "gate", &a->gate, "y", &a->y));
    INVAR_TRY(invar_check_like(op, "up", &a->up, "y", &a->y));
    if (invar_tensor_present(&a->y_q))
        INVAR_CHECK_2D(op, a, y_q, INVAR_TYPES_QUANTIZED, a->y.shape[0], a->y.shape[1]);
    return INVAR_OK;
}

static invar_status check_codes(invar_op op, const invar_swiglu_bwd_args *a)
{
    if (!invar_tensor_present(&a->dgate_q) && !invar_tensor_present(&a->dup_q))
        return INVAR_OK;
    INVAR_CHECK_2D(op, a, dgate_q, INVAR_TYPES_QUANTIZED, a->dy.shape[0], a->dy.shape[1]);
    INVAR_CHECK_2D(op, a, dup_q, INVAR_TYPES_QUANTIZED, a->dy.shape[0], a->dy.shape[1]);
    if (a->dup_q.dtype != a->dgate_q.dtype || a->dup_q.scale_rows != a->dgate_q.scale_rows)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: dgate_q and dup_q differ in their format",
                          invar_op_name(op));
    return INVAR_OK;
}

invar_status invar_check_swiglu_bwd(const invar_device *dev, invar_op op,
                                    const invar_swiglu_bwd_args *a)
{
    (void)dev;
    INVAR_CHECK_2D(op, a, dy, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(invar_check_like(op, "dgate", &a->dgate, "dy", &a->dy));
    INVAR_TRY(invar_check_like(op, "dup", &a->dup, "dy", &a->dy));
    INVAR_TRY(invar_check_like(op, "gate", &a->gate, "dy", &a->dy));
    INVAR_TRY(invar_check_like(op, "up", &a->up, "dy", &a->dy));
    return check_codes(op, a);
}
