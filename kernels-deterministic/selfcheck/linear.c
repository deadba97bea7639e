/*
 * linear.c - linear layers and norms of the self-check, forward and backward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/selfcheck/layer.h"

#include <string.h>

#include "base/invar_banned.h"

invar_status invar_selfcheck_linear(invar_selfcheck *r, invar_tensor *y, const invar_tensor *x,
                                    const invar_tensor *w, const invar_tensor *bias,
                                    int32_t k_shards, invar_dtype out_type)
{
    invar_linear_fwd_args args = {
        .x = *x, .w = *w, .k_shards = k_shards, .k_atom = x->shape[1] / k_shards};

    INVAR_TRY(invar_selfcheck_make(y, r, out_type, x->shape[0], w->shape[0]));
    args.y = *y;
    if (bias)
        args.bias = *bias;
    return invar_linear_fwd(r->dev, &args);
}

invar_status invar_selfcheck_weight_grad(invar_selfcheck *r, invar_tensor *dw,
                                         const invar_tensor *dy, const invar_tensor *x)
{
    INVAR_TRY(invar_selfcheck_make(dw, r, INVAR_DTYPE_F32, dy->shape[1], x->shape[1]));
    return invar_linear_dw(
        r->dev, &(invar_linear_dw_args){.dw = *dw, .dy = *dy, .x = *x, .units = r->samples});
}

invar_status invar_selfcheck_input_grad(invar_selfcheck *r, invar_tensor *dx,
                                        const invar_linear_part *parts, int n)
{
    invar_linear_dx_args args = {.n_parts = n, .k_shards = 1};

    INVAR_TRY(invar_selfcheck_make(dx, r, r->storage, parts[0].dy.shape[0], parts[0].w.shape[1]));
    args.dx = *dx;
    memcpy(args.parts, parts, (size_t)n * sizeof *parts);
    return invar_linear_dx(r->dev, &args);
}

invar_status invar_selfcheck_norm(invar_selfcheck *r, invar_tensor *y, const invar_tensor *x,
                                  const invar_tensor *weight, int64_t heads)
{
    int64_t dim = x->shape[1] / heads;

    INVAR_TRY(invar_selfcheck_make(y, r, r->storage, x->shape[0], x->shape[1]));
    return invar_rmsnorm_fwd(r->dev,
                             &(invar_rmsnorm_fwd_args){.y = invar_selfcheck_as_3d(y, heads, dim),
                                                       .x = invar_selfcheck_as_3d(x, heads, dim),
                                                       .weight = invar_selfcheck_as_1d(weight),
                                                       .eps = 1e-6f});
}

invar_status invar_selfcheck_norm_grad(invar_selfcheck *r, invar_tensor *dx, invar_tensor *dweight,
                                       const invar_tensor *dy, const invar_tensor *x,
                                       const invar_tensor *weight, int64_t heads)
{
    int64_t dim = x->shape[1] / heads;

    INVAR_TRY(invar_selfcheck_make(dx, r, r->storage, x->shape[0], x->shape[1]));
    INVAR_TRY(invar_selfcheck_make(dweight, r, INVAR_DTYPE_F32, 1, dim));
    return invar_rmsnorm_bwd(r->dev,
                             &(invar_rmsnorm_bwd_args){.dx = invar_selfcheck_as_3d(dx, heads, dim),
                                                       .dweight = invar_selfcheck_as_1d(dweight),
                                                       .dy = invar_selfcheck_as_3d(dy, heads, dim),
                                                       .x = invar_selfcheck_as_3d(x, heads, dim),
                                                       .weight = invar_selfcheck_as_1d(weight),
                                                       .units = r->samples,
                                                       .eps = 1e-6f});
}
