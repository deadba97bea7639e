/*
 * quantize.c - checks the arguments of the ops quantise and dequantise.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

invar_status invar_check_quantize(const invar_device *dev, invar_op op,
                                  const invar_quantize_args *a)
{
    (void)dev;
    INVAR_CHECK_2D(op, a, x, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_CHECK_2D(op, a, q,
                   INVAR_TYPES_QUANTIZED | (a->x.dtype == INVAR_DTYPE_F32 ? INVAR_TYPE(BF16) : 0),
                   a->x.shape[0], a->x.shape[1]);
    return INVAR_OK;
}

invar_status invar_check_dequantize(const invar_device *dev, invar_op op,
                                    const invar_dequantize_args *a)
{
    (void)dev;
    INVAR_CHECK_2D(op, a, q, INVAR_TYPES_QUANTIZED, INVAR_ANY, INVAR_ANY);
    INVAR_CHECK_2D(op, a, x, INVAR_TYPES_STORAGE, a->q.shape[0], a->q.shape[1]);
    return INVAR_OK;
}
