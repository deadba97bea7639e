/*
 * mx.h - MXFP8: e4m3 elements with a shared power-of-two scale.
 *
 * Numerics contract (rev 1):
 *   E8M0 is an exponent with bias 127; 0xFF is NaN. The scale of a block is the smallest 2^E with
 *   448 * 2^E >= amax, decided on the bits of amax without rounding, E clamped to [-118, 118]:
 *   bytes 9 to 245. Zero and subnormal amax give -118; infinity and NaN give 0xFF; the sign of amax
 *   is ignored. Elements saturate only if E was clamped.
 *   Element: q = e4m3(x * 2^-E). The product is exact, or so small that q is zero, or so large that
 *   q saturates: q is the exact quotient rounded once.
 *   Dequantize: q * 2^E is exact in bf16 for every e4m3 and every E of the clamp range.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_MX_H
#define INVAR_KERNELS_MATH_MX_H

#include "kernels-deterministic/math/fp8.h"

#define INVAR_E8M0_NAN UINT8_C(0xFF)

INVAR_FN uint8_t invar_e8m0_from_amax(float amax)
{
    uint32_t bits = invar_f32_bits(amax) & ~INVAR_SIGN_BIT;
    // 448 = 1.75 * 2^8: the exponent minus 8, plus one if the significand exceeds 1.75
    int32_t exponent = (int32_t)((bits + UINT32_C(0x1FFFFF)) >> 23) - 8;
    exponent = exponent < 127 - 118 ? 127 - 118 : exponent;
    exponent = exponent > 127 + 118 ? 127 + 118 : exponent;
    return (uint8_t)(bits < INVAR_INF_BITS ? exponent : INVAR_E8M0_NAN);
}

/* Returns 2^(x - 127), exact; the canonical NaN for 0xFF. */
INVAR_FN float invar_f32_from_e8m0(uint8_t x)
{
    uint32_t bits = x == 0 ? UINT32_C(0x00400000) : (uint32_t)x << 23;
    return invar_bits_f32(x == INVAR_E8M0_NAN ? INVAR_NAN_BITS : bits);
}

/*
 * Returns the code of an element; `scale` is from invar_e8m0_from_amax. A NaN scale makes it NaN.
 */
INVAR_FN uint8_t invar_mx_quantize(float x, uint8_t scale)
{
    // 254 - scale is the byte of the reciprocal; 254 - 0xFF wraps to NaN
    return invar_e4m3_from_f32(x * invar_f32_from_e8m0((uint8_t)(254u - scale)));
}

/* Returns the element as bf16; `scale` is from invar_e8m0_from_amax. */
INVAR_FN uint16_t invar_mx_dequantize(uint8_t q, uint8_t scale)
{
    // the product is exact, so the low half is zero; a NaN is the canonical one and becomes 0x7FFF
    return (uint16_t)(invar_f32_bits(invar_f32_from_e4m3(q) * invar_f32_from_e8m0(scale)) >> 16);
}

#endif
