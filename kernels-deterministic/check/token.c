/*
 * token.c - checks the arguments of token sums, shards.fold, embedding, add and scale.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>

#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

invar_status invar_check_token_sum(const invar_device *dev, invar_op op,
                                   const invar_token_sum_args *a)
{
    INVAR_CHECK_2D(op, a, x, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_CHECK_1D(op, a, out, INVAR_TYPE(F32), a->x.shape[1]);
    return invar_check_segments(dev, op, "units", &a->units, a->x.shape[0]);
}

invar_status invar_check_token_fold(const invar_device *dev, invar_op op,
                                    const invar_token_fold_args *a)
{
    INVAR_TRY(invar_check_range(op, "tokens", (double)a->tokens, 0, (double)INT64_MAX));
    INVAR_CHECK_2D(op, a, sums, INVAR_TYPE(F32), invar_token_blocks_max(&a->units, a->tokens),
                   INVAR_ANY);
    INVAR_CHECK_1D(op, a, out, INVAR_TYPE(F32), a->sums.shape[1]);
    return invar_check_segments(dev, op, "units", &a->units, a->tokens);
}

invar_status invar_check_shards_fold(const invar_device *dev, invar_op op,
                                     const invar_shards_fold_args *a)
{
    (void)dev;
    INVAR_CHECK_2D(op, a, y, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(invar_check_shards(op, "shards", a->shards, INVAR_LINEAR_MAX_SHARDS));
    INVAR_CHECK_2D(op, a, x, INVAR_TYPE(F32), a->shards * a->y.shape[0], a->y.shape[1]);
    if (invar_tensor_present(&a->residual))
        INVAR_TRY(invar_check_like(op, "residual", &a->residual, "y", &a->y));
    return INVAR_OK;
}

invar_status invar_check_embedding_fwd(const invar_device *dev, invar_op op,
                                       const invar_embedding_fwd_args *a)
{
    INVAR_CHECK_2D(op, a, out, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_CHECK_2D(op, a, table, INVAR_TYPES_STORAGE, INVAR_ANY, a->out.shape[1]);
    INVAR_TRY(invar_check_same_type(op, "table", &a->table, "out", &a->out));
    INVAR_CHECK_1D(op, a, ids, INVAR_TYPE(I32), a->out.shape[0]);
    return invar_check_indices(dev, op, "ids", &a->ids, a->table.shape[0]);
}

invar_status invar_check_embedding_bwd(const invar_device *dev, invar_op op,
                                       const invar_embedding_bwd_args *a)
{
    INVAR_CHECK_2D(op, a, dout, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_CHECK_2D(op, a, dtable, INVAR_TYPE(F32), INVAR_ANY, a->dout.shape[1]);
    INVAR_CHECK_1D(op, a, ids, INVAR_TYPE(I32), a->dout.shape[0]);
    INVAR_TRY(invar_check_indices(dev, op, "ids", &a->ids, a->dtable.shape[0]));
    return invar_check_segments(dev, op, "units", &a->units, a->dout.shape[0]);
}

invar_status invar_check_add(const invar_device *dev, invar_op op, const invar_add_args *a)
{
    (void)dev;
    INVAR_CHECK_2D(op, a, out, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(invar_check_like(op, "a", &a->a, "out", &a->out));
    return invar_check_like(op, "b", &a->b, "out", &a->out);
}

invar_status invar_check_scale(const invar_device *dev, invar_op op, const invar_scale_args *a)
{
    (void)dev;
    INVAR_CHECK_2D(op, a, y, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_CHECK_2D(op, a, x, INVAR_TYPE(F32), a->y.shape[0], a->y.shape[1]);
    return invar_check_range(op, "factor", (double)a->factor, -FLT_MAX, FLT_MAX);
}
