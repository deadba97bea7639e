/*
 * elementary.h - fp32 exp, EXP2S, EXP2D, log, log1p, tanh, sigmoid, silu and its derivative.
 *
 * Each function is one fixed sequence of fp32 operations, listed in docs/arithmetic.md: the bits
 * are equal wherever those operations follow IEEE 754. There is no table, no libm and no branch:
 * both sides of a case are computed and one is selected, so that loops vectorize and warps do not
 * diverge.
 *
 * Numerics contract (rev 1). Largest error over all 2^32 inputs, in ulp of the result, and special
 * arguments:
 *
 *   exp        0.775    -inf -> +0, +inf -> +inf, gradual underflow
 *   log        0.882    +-0 -> -inf, below -> NaN, +inf -> +inf
 *   log1p      0.957    +-0 -> +-0, -1 -> -inf, below -> NaN, +inf -> +inf
 *   tanh       0.958    +-0 -> +-0, +-inf -> +-1
 *   sigmoid    1.476    -inf -> +0, +inf -> 1, gradual underflow
 *   silu       1.484    +-0 -> +-0, -inf -> -0, +inf -> +inf, gradual underflow
 *   silu_grad  2.77     -inf -> -0, +inf -> 1, gradual underflow; in (-1.5, -1), around its zero,
 *                       1.05 * 2^-26 absolute instead
 *   exp2s      0.875    for x <= 128.5; see there
 *   exp2s_bf16          as exp2s, with a relative error of up to 1.0137e-4 = 2^-13.27
 *   exp2d      0.938    2^(s c - m); see there
 *   exp2d_bf16          as exp2d, with the relative error of exp2s_bf16
 *
 * A NaN argument gives the canonical NaN. Subnormal arguments and results are treated like any
 * others.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_ELEMENTARY_H
#define INVAR_KERNELS_MATH_ELEMENTARY_H

#include "kernels-deterministic/math/portable.h"

/* Adding it to |t| < 2^22 rounds t to an integer, ties to even, in the low bits of the sum. */
#define INVAR_ROUNDER 0x1.8p23f
#define INVAR_ROUNDER_BITS UINT32_C(0x4B400000)

/* exp(x) = (sum + small) * 2^n, where sum + small is about 0.707 to 1.415. */
typedef struct invar_exp_reduced {
    float sum, small;
    float rounded; /* INVAR_ROUNDER + n */
} invar_exp_reduced;

/*
 * Reduces exp(x) for |x| <= 150 or NaN: x = n ln 2 + r with |r| <= ln(2)/2; a polynomial of degree
 * 6 for exp(r).
 */
INVAR_FN invar_exp_reduced invar_exp_reduce(float x)
{
    float t = invar_fmaf(x, 0x1.715476p0f, INVAR_ROUNDER);
    float n = t - INVAR_ROUNDER;
    float r0 = invar_fmaf(n, -0x1.62e43p-1f, x); // exact
    float r = invar_fmaf(n, 0x1.05c61p-29f, r0);

    float q = 0x1.694cd2p-10f;
    q = invar_fmaf(q, r, 0x1.123988p-7f);
    q = invar_fmaf(q, r, 0x1.555a26p-5f);
    q = invar_fmaf(q, r, 0x1.555492p-3f);
    q = invar_fmaf(q, r, 0x1.fffffap-2f);

    // 1 + r + r^2 q with an exact 1 + r0: the rounding error of the sum is added to the small part.
    float sum = 1.0f + r0;
    float lost = r0 - (sum - 1.0f);
    invar_exp_reduced e;
    e.sum = sum;
    e.small = invar_fmaf(q, r * r, invar_fmaf(n, 0x1.05c61p-29f, lost));
    e.rounded = t;
    return e;
}

/* exp(x) = mantissa * scale0 * scale1. The product of the first two is exact and normal. */
typedef struct invar_exp_parts {
    float mantissa;
    float scale0; /* a power of two */
    float scale1; /* a power of two */
} invar_exp_parts;

/* Splits exp(x) for |x| <= 150 or NaN. */
INVAR_FN invar_exp_parts invar_exp_split(float x)
{
    invar_exp_reduced e = invar_exp_reduce(x);

    // Two factors, because 2^n itself may be out of range; n + 254 > 0 is split into two exponents.
    uint32_t exponent = invar_f32_bits(e.rounded) - INVAR_ROUNDER_BITS + 254;
    uint32_t half = exponent >> 1;
    invar_exp_parts parts;
    parts.mantissa = e.sum + e.small;
    parts.scale0 = invar_bits_f32(half << 23);
    parts.scale1 = invar_bits_f32((exponent - half) << 23);
    return parts;
}

/* exp(x), with exp(-inf) = +0, exp(+inf) = +inf, exp(+-0) = 1. */
INVAR_FN float invar_exp(float x)
{
    float y = x < -104.0f ? -104.0f : x; // exp(-104) < 2^-150: rounds to +0
    y = y > 89.0f ? 89.0f : y;           // exp(89) > 2^128: rounds to +inf
    invar_exp_parts e = invar_exp_split(y);
    return invar_canonical_f32(e.mantissa * e.scale0 * e.scale1);
}

/* ---- powers of two for the softmax of attention ---------------------------------------------- */

/*
 * 2^f for |f| <= 0.5 by a polynomial, exactly 1 at 0. Degree 6 (error below 0.76 ulp) is for
 * weights that stay f32; degree 3 (relative error below 2^-13.26) for weights that are rounded to
 * bf16, by up to 2^-8. Twice the value at -0.5 is not less than the value at 0.5.
 */
INVAR_FN float invar_exp2_fraction(float f)
{
    float p = 0x1.470a6ep-13f;
    p = invar_fmaf(p, f, 0x1.5f7272p-10f);
    p = invar_fmaf(p, f, 0x1.3b2722p-7f);
    p = invar_fmaf(p, f, 0x1.c6ae94p-5f);
    p = invar_fmaf(p, f, 0x1.ebfbdcp-3f);
    p = invar_fmaf(p, f, 0x1.62e43p-1f);
    return invar_fmaf(p, f, 1.0f);
}

INVAR_FN float invar_exp2_fraction_bf16(float f)
{
    float p = 0x1.c2a0bep-5f;
    p = invar_fmaf(p, f, 0x1.f00c5ap-3f);
    p = invar_fmaf(p, f, 0x1.62f5fep-1f);
    return invar_fmaf(p, f, 1.0f);
}

/*
 * Returns 2^n from t = INVAR_ROUNDER + n for -126 <= n <= 127; +0 for n = -127, +inf for n = 128.
 */
INVAR_FN float invar_exp2_whole(float t)
{
    // the integer is in the low bits of t; all other bits are shifted out
    return invar_bits_f32((invar_f32_bits(t) << 23) + UINT32_C(0x3F800000));
}

/* x = whole + fraction with |fraction| <= 0.5. x < -127 counts as -127. */
typedef struct invar_exp2_parts {
    float rounded; /* INVAR_ROUNDER + whole */
    float fraction;
} invar_exp2_parts;

INVAR_FN invar_exp2_parts invar_exp2_split(float x)
{
    float y = x < -127.0f ? -127.0f : x;
    invar_exp2_parts parts;
    parts.rounded = y + INVAR_ROUNDER;
    parts.fraction = y - (parts.rounded - INVAR_ROUNDER);
    return parts;
}

/*
 * EXP2S(x) = 2^x in few instructions, for a limited range. EXP2S(0) = 1. x < -126.5, including
 * -inf, gives +0; from there to -126 the underflow is gradual; 127.5 <= x <= 128.5 gives +inf. From
 * one float to the next the result never decreases by more than one ulp. Integers from -126 to 127
 * give an exact power of two with either polynomial. For larger x the result is meaningless, but
 * the same everywhere.
 */
INVAR_FN float invar_exp2s(float x)
{
    invar_exp2_parts e = invar_exp2_split(x);
    return invar_canonical_f32(invar_exp2_fraction(e.fraction) * invar_exp2_whole(e.rounded));
}

INVAR_FN float invar_exp2s_bf16(float x)
{
    invar_exp2_parts e = invar_exp2_split(x);
    return invar_canonical_f32(invar_exp2_fraction_bf16(e.fraction) * invar_exp2_whole(e.rounded));
}

/*
 * Returns the new reference of a row's softmax after a block whose largest scaled score is `top`.
 * It is an integer, or -inf before the first block, and rises only if the block exceeds it by more
 * than 8: most blocks need no rescaling, and weights stay at most 2^8, apart from rounding. A NaN
 * in top or m gives ceil(top) or NaN, and the row becomes NaN by the factor EXP2S(m - m') or by its
 * weights.
 */
INVAR_FN float invar_softmax_reference(float m, float top)
{
    return top <= m + 8.0f ? m : ceilf(top);
}

/* s c - m = whole + fraction with |fraction| <= 0.5, in two fused operations and a subtraction. */
INVAR_FN invar_exp2_parts invar_exp2d_split(float s, float c, float m)
{
    float origin = INVAR_ROUNDER - m; // exact for an integer |m| < 2^22
    invar_exp2_parts parts;
    parts.rounded = invar_fmaf(s, c, origin);
    parts.fraction = invar_fmaf(s, c, origin - parts.rounded);
    return parts;
}

INVAR_FN float invar_exp2d_scale(invar_exp2_parts e, float p)
{
    float y = invar_canonical_f32(p * invar_exp2_whole(e.rounded));
    return e.rounded < INVAR_ROUNDER - 126.0f ? 0.0f : y;
}

/*
 * EXP2D(s, c, m) = 2^(s c - m) for an integer |m| < 2^22, |s c| < 2^22 and c > 0, with s c not
 * rounded and s c - m < 127.5. The result is +0 if the exponent rounds to less than -126, also for
 * s = -inf; at -126 underflow may be gradual. It is NaN for s = NaN or +inf and for m = NaN or
 * -inf, and +0 for m = +inf with a finite s c. Beyond that range it is meaningless, but the same
 * everywhere.
 */
INVAR_FN float invar_exp2d(float s, float c, float m)
{
    invar_exp2_parts e = invar_exp2d_split(s, c, m);
    return invar_exp2d_scale(e, invar_exp2_fraction(e.fraction));
}

INVAR_FN float invar_exp2d_bf16(float s, float c, float m)
{
    invar_exp2_parts e = invar_exp2d_split(s, c, m);
    return invar_exp2d_scale(e, invar_exp2_fraction_bf16(e.fraction));
}

/* ---- logarithms, tanh, sigmoid --------------------------------------------------------------- */

/*
 * k ln 2 + log(1 + f) + tail, for |f| <= 1/3, an integer |k| < 256 and a tail of the size of a
 * rounding error.
 */
INVAR_FN float invar_log_sum(float k, float f, float tail)
{
    float p = 0x1.01732cp-3f;
    p = invar_fmaf(p, f, -0x1.0a4b1ap-3f);
    p = invar_fmaf(p, f, 0x1.b2075p-4f);
    p = invar_fmaf(p, f, -0x1.f1fe1cp-4f);
    p = invar_fmaf(p, f, 0x1.254546p-3f);
    p = invar_fmaf(p, f, -0x1.55a80ep-3f);
    p = invar_fmaf(p, f, 0x1.999456p-3f);
    p = invar_fmaf(p, f, -0x1.fffeb4p-3f);
    p = invar_fmaf(p, f, 0x1.55555cp-2f);
    p = invar_fmaf(p, f, -0.5f);

    // log(1 + f) = f + f^2 p. The rounding error of k ln 2 + f is added to the small part.
    float big = k * 0x1.62e4p-1f; // exact: 15 bits
    float sum = big + f;
    float lost = f - (sum - big);
    float small = invar_fmaf(k, 0x1.7f7d1cp-20f, invar_fmaf(f * f, p, tail));
    return sum + (lost + small);
}

/* log(x), with log(1) = +0, log(+-0) = -inf, log(+inf) = +inf, and NaN for x < 0. */
INVAR_FN float invar_log(float x)
{
    // A subnormal is multiplied by 2^23 first. Then x = 2^k m with 2/3 <= m < 4/3.
    float lifted = x < 0x1p-126f ? x * 0x1p23f : x;
    uint32_t bits = invar_f32_bits(lifted) + (UINT32_C(0x3F800000) - UINT32_C(0x3F2AAAAB));
    float k = (float)(int32_t)(bits >> 23) - (x < 0x1p-126f ? 150.0f : 127.0f);
    float m = invar_bits_f32((bits & UINT32_C(0x007FFFFF)) + UINT32_C(0x3F2AAAAB));

    const float inf = invar_bits_f32(INVAR_INF_BITS);
    float pole = x == 0.0f ? -inf : invar_bits_f32(INVAR_NAN_BITS);
    float y = x > 0.0f ? invar_log_sum(k, m - 1.0f, 0.0f) : pole;
    return x == inf ? inf : y;
}

/* log(1 + x), with log1p(+-0) = +-0, log1p(-1) = -inf, log1p(+inf) = +inf, and NaN for x < -1. */
INVAR_FN float invar_log1p(float x)
{
    // k as for log, from the rounded 1 + x. That rounding does no harm: x 2^-k and 2^-k - 1 are
    // exact, only their sum f is rounded, and its rounding error is added as lost / (1 + f).
    uint32_t shift = (invar_f32_bits(1.0f + x) - UINT32_C(0x3F2AAAAB)) & UINT32_C(0xFF800000);
    float scaled = invar_bits_f32(invar_f32_bits(x) - shift);
    float four = invar_bits_f32(UINT32_C(0x40800000) - shift); // 4 * 2^-k: 2^-128 is subnormal
    float offset = invar_fmaf(four, 0.25f, -1.0f);
    float f = scaled + offset;
    float lost = scaled - (f - offset);
    float tail = invar_fmaf(-lost, f, lost);
    float k = (float)(int32_t)shift * 0x1p-23f;

    const float inf = invar_bits_f32(INVAR_INF_BITS);
    float pole = x == -1.0f ? -inf : invar_bits_f32(INVAR_NAN_BITS);
    float y = x > -1.0f ? invar_log_sum(k, f, tail) : pole;
    y = x == 0.0f ? x : y;
    return x == inf ? inf : y;
}

/* tanh(x), with tanh(+-0) = +-0, tanh(+-inf) = +-1. */
INVAR_FN float invar_tanh(float x)
{
    float a = invar_abs_f32(x);
    float z = a * a;

    float p = -0x1.7806d8p-12f;
    p = invar_fmaf(p, z, 0x1.2db79ep-9f);
    p = invar_fmaf(p, z, -0x1.04675p-7f);
    p = invar_fmaf(p, z, 0x1.600bd6p-6f);
    p = invar_fmaf(p, z, -0x1.b96288p-5f);
    p = invar_fmaf(p, z, 0x1.110be6p-3f);
    p = invar_fmaf(p, z, -0x1.55553cp-2f);
    float near = invar_fmaf(a * z, p, a);

    float b = a > 10.0f ? 10.0f : a; // 1 - tanh(10) < 2^-27
    invar_exp_parts e = invar_exp_split(b + b);
    float far = 1.0f - 2.0f / (e.mantissa * e.scale0 * e.scale1 + 1.0f);

    float y = a < 1.0f ? near : far;
    y = invar_bits_f32(invar_f32_bits(y) | (invar_f32_bits(x) & INVAR_SIGN_BIT));
    return x == x ? y : invar_bits_f32(INVAR_NAN_BITS);
}

/*
 * sigmoid(x) = (hi + lo) * scale. With e = exp(-|x|) it is 1 / (1 + e), or e / (1 + e) for x < 0;
 * for x < 0 `scale` holds the small power of two, so that a product with x underflows only once, at
 * the end.
 */
typedef struct invar_sigmoid_parts {
    float hi;
    float lo;
    float scale;
    float rest;       /* 1 - sigmoid(x) = rest * (1 + correction) */
    float correction; /* size of a rounding error */
} invar_sigmoid_parts;

INVAR_FN invar_sigmoid_parts invar_sigmoid_split(float x)
{
    float a = invar_abs_f32(x);
    a = a > 112.0f ? 112.0f : a; // 112 exp(-112) < 2^-150
    invar_exp_parts parts = invar_exp_split(-a);
    float e0 = parts.mantissa * parts.scale0;
    float e = e0 * parts.scale1;
    float d = 1.0f + e;
    float d_lost = e - (d - 1.0f);
    float r = 1.0f / d;

    invar_sigmoid_parts s;
    float top = x < 0.0f ? e0 : 1.0f;
    s.scale = x < 0.0f ? parts.scale1 : 1.0f;
    s.rest = x < 0.0f ? r : e * r;
    s.correction = invar_fmaf(-r, d_lost, invar_fmaf(-r, d, 1.0f));
    s.hi = top * r;
    s.lo = invar_fmaf(s.hi, s.correction, invar_fmaf(top, r, -s.hi));
    return s;
}

/* sigmoid(x), with sigmoid(+-0) = 0.5, sigmoid(-inf) = +0, sigmoid(+inf) = 1. */
INVAR_FN float invar_sigmoid(float x)
{
    invar_sigmoid_parts s = invar_sigmoid_split(x);
    return invar_canonical_f32((s.hi + s.lo) * s.scale);
}

/* x * sigmoid(x). silu(+-0) = +-0, silu(-inf) = -0, silu(+inf) = +inf. */
INVAR_FN float invar_silu(float x)
{
    invar_sigmoid_parts s = invar_sigmoid_split(x);
    float y = x < -112.0f ? -112.0f : x;
    // above 112, lo is 0 and must not be multiplied by infinity
    float bounded = y > 112.0f ? 112.0f : y;
    return invar_canonical_f32(invar_fmaf(y, s.hi, bounded * s.lo) * s.scale);
}

/* d silu / dx = sigmoid(x) (1 + x (1 - sigmoid(x))); -0 at -inf and 1 at +inf. */
INVAR_FN float invar_silu_grad(float x)
{
    invar_sigmoid_parts s = invar_sigmoid_split(x);
    float y = x < -112.0f ? -112.0f : x;
    y = y > 112.0f ? 112.0f : y;
    float w = invar_fmaf(y * s.rest, s.correction, invar_fmaf(y, s.rest, 1.0f));
    return invar_canonical_f32(invar_fmaf(s.hi, w, s.lo * w) * s.scale);
}

#endif
