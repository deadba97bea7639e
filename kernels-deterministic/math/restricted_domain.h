/*
 * restricted_domain.h - functions of math/ for restricted arguments, in fewer instructions.
 *
 * Within the domain that its comment gives, each function has the bits of the general one; a full
 * run of tests/unit/kernels-deterministic/math/restricted_domain.c compares all arguments. For
 * kernels that are bound by arithmetic and know their arguments.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_RESTRICTED_DOMAIN_H
#define INVAR_KERNELS_MATH_RESTRICTED_DOMAIN_H

#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/philox.h"

/* Returns the larger of x and `low`; a NaN x stays NaN. */
INVAR_FN float invar_max_nan_f32(float x, float low)
{
#if defined(__CUDA_ARCH__)
    float y;

    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(low));
    return y;
#else
    return x < low ? low : x;
#endif
}

/*
 * invar_exp(x) for x <= 0 and NaN. One factor 2^(n + 64) is in range there, its product with the
 * mantissa is exact and normal, and only the multiplication by 2^-64 rounds.
 */
INVAR_FN float invar_exp_nonpositive(float x)
{
    invar_exp_reduced e = invar_exp_reduce(invar_max_nan_f32(x, -104.0f));
    float mantissa = e.sum + e.small;
    float scale = invar_bits_f32((invar_f32_bits(e.rounded) << 23) + UINT32_C(0x5F800000));

    return invar_canonical_f32(mantissa * scale * 0x1p-64f);
}

/*
 * invar_exp(x) for INVAR_EXP_NEAR <= x <= 0 and NaN: the result and 2^n are normal. If no value of
 * a set is positive, all are in this domain exactly if the largest of their bits, as unsigned
 * numbers, is at most INVAR_EXP_NEAR_BITS.
 */
#define INVAR_EXP_NEAR (-87.0f)
#define INVAR_EXP_NEAR_BITS UINT32_C(0xC2AE0000)

INVAR_FN float invar_exp_nonpositive_normal(float x)
{
    invar_exp_reduced e = invar_exp_reduce(x);
    float mantissa = e.sum + e.small;
    float scale = invar_bits_f32((invar_f32_bits(e.rounded) << 23) + UINT32_C(0x3F800000));

    return invar_canonical_f32(mantissa * scale);
}

/*
 * Returns 1 / d, correctly rounded, for d in [1, 2], without the branches of a division. A parabola
 * has an error of 1.1 %, two Newton steps reach an ulp, and the third rounds correctly. The only d
 * that would end in a tie is 2 - 2^-23; the last bit of a factor resolves it.
 */
INVAR_FN float invar_inverse_of_1_to_2(float d)
{
    float r = invar_fmaf(invar_fmaf(0x1.4afd6ap-2f, d, -0x1.745d18p0f), d, 0x1.0f83ep1f);

    r = invar_fmaf(r, invar_fmaf(-d, r, 1.0f), r);
    r = invar_fmaf(r, invar_fmaf(-d, r, 1.0f), r);
    return invar_fmaf(invar_fmaf(-d, r, 1.0f), r + 0x1p-24f, r);
}

/*
 * invar_sigmoid_split(x) with scale = 1, for abs(x) <= INVAR_SIGMOID_MODERATE_MAX: all intermediate
 * results are normal, so the power of two need not be kept apart.
 */
#define INVAR_SIGMOID_MODERATE_MAX 40.0f

INVAR_FN invar_sigmoid_parts invar_sigmoid_moderate(float x)
{
    float a = invar_abs_f32(x);
    invar_exp_reduced exp = invar_exp_reduce(-a);
    float e = (exp.sum + exp.small) *
              invar_bits_f32((invar_f32_bits(exp.rounded) << 23) + UINT32_C(0x3F800000));

    float d = 1.0f + e;
    float d_lost = e - (d - 1.0f);
    float inverse = invar_inverse_of_1_to_2(d);
    invar_sigmoid_parts s;
    float top = x < 0.0f ? e : 1.0f;
    s.scale = 1.0f;
    s.rest = x < 0.0f ? inverse : e * inverse;
    s.correction = invar_fmaf(-inverse, d_lost, invar_fmaf(-inverse, d, 1.0f));
    s.hi = top * inverse;
    s.lo = invar_fmaf(s.hi, s.correction, invar_fmaf(top, inverse, -s.hi));
    return s;
}

/* invar_silu(x) and invar_silu_grad(x) from the parts of invar_sigmoid_moderate(x). */
INVAR_FN float invar_silu_near(float x, invar_sigmoid_parts s)
{
    return invar_fmaf(x, s.hi, x * s.lo);
}

INVAR_FN float invar_silu_grad_near(float x, invar_sigmoid_parts s)
{
    float w = invar_fmaf(x * s.rest, s.correction, invar_fmaf(x, s.rest, 1.0f));

    return invar_fmaf(s.hi, w, s.lo * w);
}

/* Converts an integer below 2^23 to float without the slow instruction. */
INVAR_FN float invar_small_integer(uint32_t i)
{
    return invar_bits_f32(i | UINT32_C(0x4B000000)) - 0x1p23f;
}

/* invar_log(x) for normal x > 0. */
INVAR_FN float invar_log_normal(float x)
{
    uint32_t bits = invar_f32_bits(x) + (UINT32_C(0x3F800000) - UINT32_C(0x3F2AAAAB));
    // exponent - 127, exact in one subtraction
    float k = invar_bits_f32(bits >> 23 | UINT32_C(0x4B000000)) - (0x1p23f + 127.0f);
    float m = invar_bits_f32((bits & UINT32_C(0x007FFFFF)) + UINT32_C(0x3F2AAAAB));

    return invar_log_sum(k, m - 1.0f, 0.0f);
}

/* invar_gumbel_f32(word) for every word, because u and -log(u) are normal. */
INVAR_FN float invar_gumbel_normal(uint32_t word)
{
    // (word >> 9) + 0.5, exact in one subtraction
    float u = invar_bits_f32(word >> 9 | UINT32_C(0x4B000000)) - (0x1p23f - 0.5f);

    return -invar_log_normal(-invar_log_normal(u * 0x1p-23f));
}

/* An upper bound of invar_gumbel_f32. */
#define INVAR_GUMBEL_MAX 16.7f

/*
 * Returns an upper bound of invar_gumbel_f32(word) in a few instructions. It is at most 0.07 too
 * high if the value exceeds 4: -log(-log(u)) <= -log(1 - u), and log2 of a float is at least the
 * value of its bits read as a fixed-point number.
 */
INVAR_FN float invar_gumbel_bound(uint32_t word)
{
    // (1 - u) 2^23
    float rest = invar_bits_f32(~word >> 9 | UINT32_C(0x4B000000)) - (0x1p23f - 0.5f);
    float log2_rest = invar_small_integer(invar_f32_bits(rest) >> 8); // (log2 + 127) 2^15

    return invar_fmaf(log2_rest, -0x1.62e42ep-1f * 0x1p-15f, 150.0f * 0x1.62e43p-1f + 0x1p-10f);
}

#endif
