/*
 * rmsnorm.c - checks the arguments of rmsnorm.fwd and rmsnorm.bwd.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>
#include <inttypes.h>

#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

/* Checks what forward and backward share. The lower bound of eps keeps rstd finite. */
static invar_status check_norm(invar_op op, const invar_tensor *x, const invar_tensor *weight,
                               float eps)
{
    const int64_t any[3] = {INVAR_ANY, INVAR_ANY, INVAR_ANY};

    INVAR_TRY(invar_check_tensor(op, "x", x, INVAR_TYPES_STORAGE, 3, any));
    if (x->shape[2] < 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: x: nothing to normalise over",
                          invar_op_name(op));
    INVAR_TRY(invar_check_tensor(op, "weight", weight, INVAR_TYPE(F32) | 1u << x->dtype, 1,
                                 &x->shape[2]));
    return invar_check_range(op, "eps", eps, FLT_MIN, 1.0);
}

/* Rejects a rotation of which only some tensors are present. */
static invar_status check_rotation(const invar_device *dev, invar_op op, const invar_rope_args *r,
                                   const invar_tensor *x)
{
    if (!invar_tensor_present(&r->positions)) {
        if (invar_tensor_present(&r->cosine) || invar_tensor_present(&r->sine))
            return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: a rotation without positions",
                              invar_op_name(op));
        return INVAR_OK;
    }
    if (x->shape[2] % 2 != 0)
        return INVAR_REJECT(op, "x: %" PRId64 " values a head; they form pairs", x->shape[2]);
    INVAR_CHECK_2D(op, r, cosine, INVAR_TYPE(F32), INVAR_ANY, x->shape[2] / 2);
    INVAR_TRY(invar_check_like(op, "sine", &r->sine, "cosine", &r->cosine));
    INVAR_CHECK_1D(op, r, positions, INVAR_TYPE(I32), x->shape[0]);
    return invar_check_indices(dev, op, "positions", &r->positions, r->cosine.shape[0]);
}

invar_status invar_check_rmsnorm_fwd(const invar_device *dev, invar_op op,
                                     const invar_rmsnorm_fwd_args *a)
{
    const invar_rope_args *r = &a->rotation;

    INVAR_TRY(check_norm(op, &a->x, &a->weight, a->eps));
    INVAR_TRY(check_rotation(dev, op, r, &a->x));
    return invar_check_like(op, "y", &a->y, "x", &a->x);
}

invar_status invar_check_rmsnorm_bwd(const invar_device *dev, invar_op op,
                                     const invar_rmsnorm_bwd_args *a)
{
    const invar_rope_args *r = &a->rotation;

    INVAR_TRY(check_norm(op, &a->x, &a->weight, a->eps));
    INVAR_TRY(check_rotation(dev, op, r, &a->x));
    INVAR_TRY(invar_check_head_shards(op, a->head_shards, a->head_atom));
    INVAR_TRY(invar_check_like(op, "dx", &a->dx, "x", &a->x));
    INVAR_TRY(invar_check_like(op, "dy", &a->dy, "x", &a->x));
    if (invar_tensor_present(&a->dweight)) {
        INVAR_CHECK_1D(op, a, dweight, INVAR_TYPE(F32), a->x.shape[2]);
        INVAR_TRY(invar_check_segments(dev, op, "units", &a->units, a->x.shape[0]));
    }
    if (invar_tensor_present(&a->block_sums)) {
        INVAR_TRY(invar_check_segments(dev, op, "units", &a->units, a->x.shape[0]));
        INVAR_CHECK_2D(op, a, block_sums, INVAR_TYPE(F32),
                       invar_token_blocks_max(&a->units, a->x.shape[0]), a->x.shape[2]);
        if (invar_tensor_present(&a->dweight))
            return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: block_sums: not beside dweight",
                              invar_op_name(op));
    }
    if (invar_tensor_present(&a->residual))
        INVAR_TRY(invar_check_like(op, "residual", &a->residual, "x", &a->x));
    // dx must not be dy or x (op_fields.def): dweight reads both again
    return INVAR_OK;
}
