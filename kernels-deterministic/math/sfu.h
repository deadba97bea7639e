/*
 * sfu.h - Hopper's special function unit in integers: ex2.approx.ftz.f32 and rcp.approx.ftz.f32.
 *
 * NVIDIA specifies only a maximum error of these instructions, not their bits; but the unit is a
 * fixed circuit. Both instructions evaluate a quadratic in the low bits of the argument, with
 * coefficients from a table (sfu_tables.h) of 64 or 128 segments. All of it is exact, except the
 * square, whose small partial products are not formed, and one truncation at the end. The functions
 * here give the hardware's bits for all 2^32 arguments: golden.elementary_sums has checksums that
 * an H200 printed, and `invar doctor` compares them with the GPU.
 *
 * There is no branch and no integer above 32 bits, so loops vectorize. Attention uses ex2 with
 * storage bf16 under numerics sm90.
 *
 * Largest error: ex2 2.056 ulp (1.399 for positive arguments), rcp 0.975 ulp. Subnormal arguments
 * count as zeros of their sign, subnormal results become zeros. NaN gives INVAR_NAN_BITS.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_SFU_H
#define INVAR_KERNELS_MATH_SFU_H

#include "kernels-deterministic/math/portable.h"
#include "kernels-deterministic/math/sfu_tables.h"

#define INVAR_SFU_FRACTION UINT32_C(0x007FFFFF)

/* ---- the quadratics -------------------------------------------------------------------------- */

/* Returns bit i of x times the bits of `low`, as far as the squarer forms these products. */
INVAR_FN uint32_t invar_sfu_square_row(uint32_t x, uint32_t low, uint32_t i)
{
    uint32_t mask = 0 - (uint32_t)((x & UINT32_C(1) << i) != 0);

    return (mask & low) >> (18 - i);
}

/*
 * x^2 of a 17-bit number in units of 2^19, without most of the partial products below that: the
 * upper 8 bits are squared, the upper 7 bits are multiplied by the lower 9 with truncation, and
 * products among the lower 9 bits are not formed.
 */
INVAR_FN uint32_t invar_sfu_square(uint32_t x)
{
    uint32_t high = x >> 9, low = x & 0x1FF;

    return (high * high >> 1) + invar_sfu_square_row(x, low, 10) +
           invar_sfu_square_row(x, low, 11) + invar_sfu_square_row(x, low, 12) +
           invar_sfu_square_row(x, low, 13) + invar_sfu_square_row(x, low, 14) +
           invar_sfu_square_row(x, low, 15) + invar_sfu_square_row(x, low, 16);
}

/*
 * The coefficients of a segment: the constant; the linear and the square coefficient in one word.
 */
#define INVAR_SFU_CONSTANT(constant, linear, square) constant,
#define INVAR_SFU_SLOPES(constant, linear, square) UINT32_C(linear) << 16 | (square),

/*
 * 2^(k / 2^23) in units of 2^-23, for k < 2^23: floor((2^13 constant + 6114 + linear x + square
 * x^2) / 2^15). Only the low bits of the sum can carry.
 */
INVAR_FN uint32_t invar_sfu_ex2_fraction(uint32_t k)
{
    static const uint32_t constants[64] = {INVAR_SFU_EX2(INVAR_SFU_CONSTANT)};
    static const uint32_t others[64] = {INVAR_SFU_EX2(INVAR_SFU_SLOPES)};
    // slopes: linear and square coefficient
    uint32_t constant = constants[k >> 17], slopes = others[k >> 17];
    uint32_t x = k & 0x1FFFF;
    uint32_t half = (slopes >> 16) * (x >> 1); // linear term / 2, without the last bit of x
    uint32_t low = ((constant & 3) << 13) + 6114 + ((half & 0x3FFF) << 1) +
                   (slopes >> 16) * (x & 1) + (slopes & 0xFFFF) * invar_sfu_square(x);

    return (constant >> 2) + (half >> 14) + (low >> 15);
}

/*
 * 1 / (1 + k / 2^23) in units of 2^-24, for k < 2^23:
 * floor((2^13 constant + 2023 - linear x + square (2 x)^2) / 2^15).
 */
INVAR_FN uint32_t invar_sfu_rcp_fraction(uint32_t k)
{
    static const uint32_t constants[128] = {INVAR_SFU_RCP(INVAR_SFU_CONSTANT)};
    static const uint32_t others[128] = {INVAR_SFU_RCP(INVAR_SFU_SLOPES)};
    uint32_t constant = constants[k >> 16], slopes = others[k >> 16];
    uint32_t x = k & 0xFFFF;
    uint32_t linear = (slopes >> 16) * x;
    uint32_t low =
        ((constant & 3) << 13) + 2023 + (slopes & 0xFFFF) * invar_sfu_square(2 * x) + 0x8000;

    return (constant >> 2) - (linear >> 15) + ((low - (linear & 0x7FFF)) >> 15) - 1;
}

/* ---- the instructions ------------------------------------------------------------------------ */

/*
 * ex2.approx.ftz.f32. The argument is truncated to 23 fraction bits; a negative one with a fraction
 * other than zero is complemented instead of negated, as the hardware does. ex2(-inf) = +0,
 * ex2(+inf) = +inf, ex2(+-0) = 1; results below 2^-126 are +0.
 */
INVAR_FN float invar_sfu_ex2(float argument)
{
    const float most = 0x1.fffffep7f; // beyond it, the result is +0 or +inf
    uint32_t bits = invar_f32_bits(argument), negative = 0 - (bits >> 31);
    float size = invar_abs_f32(argument);
    uint32_t fixed = (uint32_t)(int32_t)((size < most ? size : most) * 0x1p23f);
    uint32_t whole = (fixed & INVAR_SFU_FRACTION) == 0;
    uint32_t turned = (fixed ^ negative) + (negative & whole);
    uint32_t power = (turned >> 23) + 127; // modulo 512: from 127 - 256 to 127 + 255
    uint32_t y =
        power << 23 | (invar_sfu_ex2_fraction(turned & INVAR_SFU_FRACTION) & INVAR_SFU_FRACTION);

    y = (power & 0x1FF) - 1 < 254 ? y : INVAR_INF_BITS & ~negative;
    y = (bits & ~INVAR_SIGN_BIT) > INVAR_INF_BITS ? INVAR_NAN_BITS : y;
    return invar_bits_f32(y);
}

/* rcp.approx.ftz.f32. rcp(+-inf) = +-0, rcp(+-0) = +-inf; powers of two are exact. */
INVAR_FN float invar_sfu_rcp(float argument)
{
    uint32_t bits = invar_f32_bits(argument), sign = bits & INVAR_SIGN_BIT;
    uint32_t exponent = bits >> 23 & 0xFF, fraction = bits & INVAR_SFU_FRACTION;
    uint32_t power = (fraction ? 253u : 254u) - exponent; // wraps if there is no reciprocal
    uint32_t y = power << 23 | (invar_sfu_rcp_fraction(fraction) & INVAR_SFU_FRACTION);

    y = power >= 1 && power <= 254 ? y : 0;
    y = exponent == 0 ? INVAR_INF_BITS : y;
    y = exponent == 0xFF && fraction ? INVAR_NAN_BITS : y | sign;
    return invar_bits_f32(y);
}

#endif
