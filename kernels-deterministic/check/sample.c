/*
 * sample.c - checks the arguments of the op sample.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>

#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

#define LEAST_TOP_P 0x1p-40 // a smaller top_p is 0 in fixed point, and no token would be kept

static invar_status check_hidden(const invar_device *dev, const invar_sample_args *a)
{
    invar_op op = INVAR_OP_SAMPLE;

    if (!invar_tensor_present(&a->hidden) && !invar_tensor_present(&a->hides))
        return INVAR_OK;
    INVAR_CHECK_1D(op, a, hidden, INVAR_TYPE(I32), INVAR_ANY);
    INVAR_CHECK_1D(op, a, hides, INVAR_TYPE(I32), a->logits.shape[0]);
    return invar_check_indices(dev, op, "hidden", &a->hidden, a->logits.shape[1]);
}

invar_status invar_check_sample(const invar_device *dev, invar_op op, const invar_sample_args *a)
{
    INVAR_CHECK_2D(op, a, logits, INVAR_TYPE(F32), INVAR_ANY, INVAR_ANY);
    INVAR_TRY(invar_check_range(op, "vocabulary", (double)a->logits.shape[1], 1, INT32_MAX));
    INVAR_CHECK_1D(op, a, tokens, INVAR_TYPE(I32), a->logits.shape[0]);
    INVAR_TRY(invar_check_range(op, "top_k", a->top_k, 0, INT32_MAX));
    INVAR_TRY(invar_check_range(op, "top_p", a->top_p, LEAST_TOP_P, 1));
    INVAR_TRY(invar_check_range(op, "min_p", a->min_p, 0, 1));
    INVAR_TRY(check_hidden(dev, a));
    if (a->temperature == 0.0f)
        return INVAR_OK;
    INVAR_TRY(invar_check_range(op, "temperature", a->temperature, FLT_MIN, FLT_MAX));
    if (!a->coords && a->logits.shape[0] > 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: coords: missing", invar_op_name(op));
    return INVAR_OK;
}
