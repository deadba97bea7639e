/*
 * rope.c - checks the arguments of rope.table, rope.fwd and rope.bwd.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

/*
 * Frequencies are at most 1, so angles up to here are in the domain of invar_sin_f64 and
 * invar_cos_f64.
 */
#define MAX_POSITIONS (INT64_C(1) << 21)

/* Domain in which the accuracy of invar_pow_f64 is known. */
#define MAX_THETA 7e13

invar_status invar_check_rope_table(const invar_device *dev, invar_op op,
                                    const invar_rope_table_args *a)
{
    (void)dev;
    INVAR_CHECK_2D(op, a, cosine, INVAR_TYPE(F32), INVAR_ANY, INVAR_ANY);
    INVAR_TRY(invar_check_like(op, "sine", &a->sine, "cosine", &a->cosine));
    if (a->cosine.shape[0] > MAX_POSITIONS)
        return INVAR_REJECT(op, "cosine: %" PRId64 " positions; at most %" PRId64,
                            a->cosine.shape[0], MAX_POSITIONS);
    INVAR_TRY(invar_check_range(op, "theta", a->theta, 1.0, MAX_THETA));
    switch (a->scaling) {
    case INVAR_ROPE_DEFAULT: return INVAR_OK;
    case INVAR_ROPE_LLAMA3: break;
    default: return INVAR_REJECT(op, "scaling: %d does not exist", (int)a->scaling);
    }
    INVAR_TRY(invar_check_range(op, "factor", a->factor, 1.0, 1e6));
    INVAR_TRY(invar_check_range(op, "low_freq_factor", a->low_freq_factor, 1e-6, 1e6));
    INVAR_TRY(invar_check_range(op, "high_freq_factor", a->high_freq_factor, 1e-6, 1e6));
    if (a->high_freq_factor <= a->low_freq_factor)
        return INVAR_REJECT(op, "high_freq_factor: %g; expected more than low_freq_factor, %g",
                            a->high_freq_factor, a->low_freq_factor);
    return invar_check_range(op, "original_context", a->original_context, 1.0, 1e9);
}

static invar_status check_rotation(const invar_device *dev, invar_op op,
                                   const invar_rope_fwd_args *a)
{
    INVAR_CHECK_3D(op, a, x, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY, INVAR_ANY);
    if (a->x.shape[2] % 2 != 0)
        return INVAR_REJECT(op, "x: %" PRId64 " values a head; they form pairs", a->x.shape[2]);
    INVAR_TRY(invar_check_like(op, "y", &a->y, "x", &a->x));
    INVAR_CHECK_2D(op, a, cosine, INVAR_TYPE(F32), INVAR_ANY, a->x.shape[2] / 2);
    INVAR_TRY(invar_check_like(op, "sine", &a->sine, "cosine", &a->cosine));
    INVAR_CHECK_1D(op, a, positions, INVAR_TYPE(I32), a->x.shape[0]);
    return invar_check_indices(dev, op, "positions", &a->positions, a->cosine.shape[0]);
}

invar_status invar_check_rope_fwd(const invar_device *dev, invar_op op,
                                  const invar_rope_fwd_args *a)
{
    return check_rotation(dev, op, a);
}

invar_status invar_check_rope_bwd(const invar_device *dev, invar_op op,
                                  const invar_rope_bwd_args *a)
{
    return check_rotation(dev, op, a);
}
