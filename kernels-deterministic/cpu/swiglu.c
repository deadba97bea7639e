/*
 * swiglu.c - the gated activation, forward and backward.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 7; in f32, each line rounded to storage
 * once:
 *   y     = silu(gate) * up
 *   dup   = dy * silu(gate)
 *   dgate = (dy * up) * silu'(gate)
 * Quantized outputs are quantized from the stored values.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/elementwise.h"
#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

/* Quantizes x to q, if q is present. */
static invar_status quantize_stored(const invar_device *dev, const invar_tensor *q,
                                    const invar_tensor *x)
{
    if (!invar_tensor_present(q))
        return INVAR_OK;
    return invar_cpu_quantize(dev, &(invar_quantize_args){*q, *x}, NULL); // needs no workspace
}

static void forward_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_swiglu_fwd_args *a = payload;
    float gate[INVAR_PIECE], up[INVAR_PIECE];

    invar_tensor_row_load(gate, &a->gate, row, first, count);
    invar_tensor_row_load(up, &a->up, row, first, count);
    for (int64_t i = 0; i < count; i++)
        up[i] = invar_silu(gate[i]) * up[i];
    invar_tensor_row_store(&a->y, row, first, count, up);
}

INVAR_NO_WORKSPACE(cpu, swiglu_fwd)

invar_status invar_cpu_swiglu_fwd(const invar_device *dev, const invar_swiglu_fwd_args *a,
                                  void *workspace)
{
    (void)workspace;
    INVAR_TRY(invar_elementwise_run(dev, a->y.shape[0], a->y.shape[1], forward_piece, a));
    return quantize_stored(dev, &a->y_q, &a->y);
}

static void backward_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_swiglu_bwd_args *a = payload;
    float dy[INVAR_PIECE], gate[INVAR_PIECE], up[INVAR_PIECE];
    float silu[INVAR_PIECE], slope[INVAR_PIECE];

    invar_tensor_row_load(dy, &a->dy, row, first, count);
    invar_tensor_row_load(gate, &a->gate, row, first, count);
    invar_tensor_row_load(up, &a->up, row, first, count);
    // one function per loop, because gcc 13 for x86-64 does not vectorize both together
    for (int64_t i = 0; i < count; i++)
        slope[i] = invar_silu_grad(gate[i]);
    for (int64_t i = 0; i < count; i++)
        silu[i] = invar_silu(gate[i]);
    for (int64_t i = 0; i < count; i++) {
        gate[i] = dy[i] * up[i] * slope[i];
        up[i] = dy[i] * silu[i];
    }
    invar_tensor_row_store(&a->dgate, row, first, count, gate);
    invar_tensor_row_store(&a->dup, row, first, count, up);
}

INVAR_NO_WORKSPACE(cpu, swiglu_bwd)

invar_status invar_cpu_swiglu_bwd(const invar_device *dev, const invar_swiglu_bwd_args *a,
                                  void *workspace)
{
    (void)workspace;
    INVAR_TRY(invar_elementwise_run(dev, a->dy.shape[0], a->dy.shape[1], backward_piece, a));
    INVAR_TRY(quantize_stored(dev, &a->dgate_q, &a->dgate));
    return quantize_stored(dev, &a->dup_q, &a->dup);
}
