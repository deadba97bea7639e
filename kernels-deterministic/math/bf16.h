/*
 * bf16.h - conversions between fp32 and bfloat16.
 *
 * Numerics contract (rev 1):
 *   fp32 to bf16: round to nearest, ties to even; overflow to infinity; subnormals and the sign of
 *   zero are kept; every NaN becomes 0x7FFF (as PTX cvt.rn.bf16.f32 does).
 *   bf16 to fp32: exact; the bits, also those of a NaN, become the upper half.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_BF16_H
#define INVAR_KERNELS_MATH_BF16_H

#include "kernels-deterministic/math/portable.h"

#define INVAR_BF16_NAN UINT16_C(0x7FFF)

INVAR_FN uint16_t invar_bf16_from_f32(float x)
{
    uint32_t bits = invar_f32_bits(x);
    uint32_t rounded = (bits + UINT32_C(0x7FFF) + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)(x == x ? rounded : INVAR_BF16_NAN);
}

INVAR_FN float invar_f32_from_bf16(uint16_t x)
{
    return invar_bits_f32((uint32_t)x << 16);
}

/* Returns x rounded to bf16, as fp32. */
INVAR_FN float invar_round_bf16(float x)
{
    return invar_f32_from_bf16(invar_bf16_from_f32(x));
}

#endif
