/*
 * swiglu.c - arguments of the gated activation.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

invar_status invar_check_swiglu_fwd(const invar_device *dev, const invar_swiglu_fwd_args *a)
{
    invar_op op = INVAR_OP_SWIGLU_FWD;

    (void)dev;
    INVAR_CHECK_2D(op, a, y, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(invar_check_like(op, "gate", &a->gate, "y", &a->y));
    INVAR_TRY(invar_check_like(op, "up", &a->up, "y", &a->y));
    INVAR_TRY(invar_check_in_place(op, "y", &a->y, "gate", &a->gate));
    return invar_check_in_place(op, "y", &a->y, "up", &a->up);
}

invar_status invar_check_swiglu_bwd(const invar_device *dev, const invar_swiglu_bwd_args *a)
{
    invar_op op = INVAR_OP_SWIGLU_BWD;

    (void)dev;
    INVAR_CHECK_2D(op, a, dy, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(invar_check_like(op, "dgate", &a->dgate, "dy", &a->dy));
    INVAR_TRY(invar_check_like(op, "dup", &a->dup, "dy", &a->dy));
    INVAR_TRY(invar_check_like(op, "gate", &a->gate, "dy", &a->dy));
    INVAR_TRY(invar_check_like(op, "up", &a->up, "dy", &a->dy));
    for (int i = 0; i < 2; i++) {
        invar_check_arg out = i ? INVAR_ARG(a, dup) : INVAR_ARG(a, dgate);
        INVAR_TRY(invar_check_in_place(op, out.name, out.tensor, "dy", &a->dy));
        INVAR_TRY(invar_check_in_place(op, out.name, out.tensor, "gate", &a->gate));
        INVAR_TRY(invar_check_in_place(op, out.name, out.tensor, "up", &a->up));
    }
    return invar_check_apart(op, "dgate", &a->dgate, "dup", &a->dup);
}
