/*
 * int4.h - symmetric int4 weights in groups that share a bf16 scale.
 *
 * Numerics contract (rev 1):
 *   scale       s = bf16(max(amax / 7, 2^-24)), division in fp32
 *   code        q = clamp(rne(w / s), -7, 7), division in fp32, ties to even
 *   dequantize  bf16(q * s); q * s itself is exact in fp32
 *   A NaN or infinite amax makes s NaN or infinite, every q of the group 0 and every dequantized
 *   weight NaN: the fault stays visible.
 *   Packed: q + 8 in a nibble, the even index in the low one. Four bytes read as a little-endian
 *   word are one int32 of compressed-tensors' "pack-quantized" format.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_INT4_H
#define INVAR_KERNELS_MATH_INT4_H

#include "kernels-deterministic/math/bf16.h"

/* Returns the bf16 scale of a group whose largest magnitude is amax. */
INVAR_FN uint16_t invar_int4_scale(float amax)
{
    return invar_bf16_from_f32(invar_max_f32(amax / 7.0f, 0x1p-24f));
}

/* Returns the code of a weight, -7 to 7. */
INVAR_FN int32_t invar_int4_quantize(float w, uint16_t scale)
{
    const float rounder = 0x1.8p23f; // rounds by addition, ties to even
    float t = w / invar_f32_from_bf16(scale);
    t = t < -7.0f ? -7.0f : t;
    t = t > 7.0f ? 7.0f : t;
    t = t == t ? t : 0.0f;
    return (int32_t)(invar_f32_bits(t + rounder) - invar_f32_bits(rounder));
}

/* Returns the weight as bf16. */
INVAR_FN uint16_t invar_int4_dequantize(int32_t q, uint16_t scale)
{
    return invar_bf16_from_f32((float)q * invar_f32_from_bf16(scale));
}

/* Packs two codes, -8 to 7 each, into a byte. */
INVAR_FN uint8_t invar_int4_pack(int32_t even, int32_t odd)
{
    return (uint8_t)((uint32_t)(even + 8) | (uint32_t)(odd + 8) << 4);
}

/* Returns the code at the odd index of a packed byte, or at the even index if `high` is 0. */
INVAR_FN int32_t invar_int4_unpack(uint8_t byte, int32_t high)
{
    return (int32_t)((uint32_t)byte >> (high ? 4 : 0) & 0xF) - 8;
}

#endif
