/*
 * fp8.h - conversions between fp32 and the 8-bit floats e4m3 and e5m2, and the FP8 block scale.
 *
 * Numerics contract (rev 1):
 *   e4m3 (the "fn" form): bias 7, subnormals down to 2^-9, largest 448, no infinity, NaN 0x7F and
 *   0xFF. e5m2: bias 15, subnormals down to 2^-16, largest 57344, infinities, NaNs.
 *   From fp32: round to nearest, ties to even, gradual underflow; values that are too large, also
 *   infinity, become the largest finite value of their sign; the sign of zero, and of values that
 *   round to zero, is kept (0x80); every NaN becomes 0x7F.
 *   To fp32: exact; every NaN becomes the canonical one; e5m2 infinities stay infinities.
 *   Block scale: s = max(amax, 2^-96) / 448, q = e4m3(x / s), both in fp32. A NaN amax makes s and
 *   every q NaN; an infinite one makes s infinite, so that no product with it is finite.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_FP8_H
#define INVAR_KERNELS_MATH_FP8_H

#include "kernels-deterministic/math/portable.h"

#define INVAR_FP8_NAN UINT8_C(0x7F)
#define INVAR_E4M3_MAX 448.0f
#define INVAR_E5M2_MAX 57344.0f

/*
 * Rounds x to a format with `fraction` fraction bits, exponent bias `bias` and the largest code
 * `largest`. `unit` is 2^23 times the smallest subnormal: adding it to a value below the smallest
 * normal number rounds that value to a multiple of the smallest subnormal.
 */
INVAR_FN uint8_t invar_fp8_round(float x, uint32_t fraction, uint32_t bias, float unit,
                                 uint32_t largest)
{
    uint32_t bits = invar_f32_bits(x) & ~INVAR_SIGN_BIT;
    uint32_t sign = (invar_f32_bits(x) & INVAR_SIGN_BIT) >> 24;
    uint32_t drop = 23 - fraction;
    uint32_t half = (UINT32_C(1) << (drop - 1)) - 1 + ((bits >> drop) & 1);
    uint32_t normal = ((bits + half) >> drop) - ((127 - bias) << fraction);
    uint32_t subnormal = invar_f32_bits(invar_bits_f32(bits) + unit) - invar_f32_bits(unit);
    uint32_t code = bits < (128 - bias) << 23 ? subnormal : normal;
    code = code > largest ? largest : code;
    return (uint8_t)(bits > INVAR_INF_BITS ? INVAR_FP8_NAN : code | sign);
}

INVAR_FN uint8_t invar_e4m3_from_f32(float x)
{
    return invar_fp8_round(x, 3, 7, 0x1p14f, 0x7E);
}

INVAR_FN uint8_t invar_e5m2_from_f32(float x)
{
    return invar_fp8_round(x, 2, 15, 0x1p7f, 0x7B);
}

INVAR_FN float invar_f32_from_e4m3(uint8_t x)
{
    uint32_t code = x & 0x7Fu;
    uint32_t sign = (x & 0x80u) << 24;
    uint32_t normal = (code << 20) + (UINT32_C(120) << 23);
    uint32_t subnormal = invar_f32_bits((float)(int32_t)code * 0x1p-9f);
    uint32_t bits = (code < 8 ? subnormal : normal) | sign;
    return invar_bits_f32(code == 0x7F ? INVAR_NAN_BITS : bits);
}

INVAR_FN float invar_f32_from_e5m2(uint8_t x)
{
    uint32_t code = x & 0x7Fu;
    uint32_t sign = (x & 0x80u) << 24;
    uint32_t normal = (code << 21) + (UINT32_C(112) << 23);
    uint32_t subnormal = invar_f32_bits((float)(int32_t)code * 0x1p-16f);
    uint32_t bits = code < 4 ? subnormal : normal;
    bits = (code == 0x7C ? INVAR_INF_BITS : bits) | sign;
    return invar_bits_f32(code > 0x7C ? INVAR_NAN_BITS : bits);
}

/* Exact: bf16 has more exponent and fraction bits. NaN becomes 0x7FFF. */
INVAR_FN uint16_t invar_bf16_from_e4m3(uint8_t x)
{
    return (uint16_t)(invar_f32_bits(invar_f32_from_e4m3(x)) >> 16);
}

/* Returns the scale of a block whose largest magnitude is amax. */
INVAR_FN float invar_fp8_block_scale(float amax)
{
    return invar_canonical_f32(invar_max_f32(amax, 0x1p-96f) / INVAR_E4M3_MAX);
}

INVAR_FN uint8_t invar_fp8_block_quantize(float x, float scale)
{
    return invar_e4m3_from_f32(x / scale);
}

#endif
