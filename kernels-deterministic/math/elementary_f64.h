/*
 * elementary_f64.h - exp, log, pow, sin and cos in double, for tables.
 *
 * RoPE tables need angles position * theta^(-2i/d) with their sine and cosine, with the same bits
 * on every machine. These are fixed sequences of IEEE double operations, for C and CUDA alike;
 * tables are rounded to fp32. The code is scalar and has branches, because tables are computed
 * once.
 *
 * Numerics contract (rev 1). Largest error observed in 10^7 arguments each, against 113-bit
 * arithmetic, in ulp of the result: exp 0.77 (a subnormal), log 0.57, pow 0.67 if 2^-3 <= base <=
 * 10^8 and |x| <= 1, sin and cos 0.78 for |x| <= 2^21. Outside its domain a function returns the
 * NaN 0x7FFFFFFFFFFFFFFF.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_ELEMENTARY_F64_H
#define INVAR_KERNELS_MATH_ELEMENTARY_F64_H

#include "kernels-deterministic/math/portable.h"

/* Adding it to |t| < 2^51 rounds t to an integer, ties to even, in the low bits of the sum. */
#define INVAR_ROUNDER_F64 0x1.8p52
#define INVAR_ROUNDER_F64_BITS UINT64_C(0x4338000000000000)

/* An unevaluated sum; |lo| is at most about one ulp of hi. */
typedef struct invar_pair_f64 {
    double hi;
    double lo;
} invar_pair_f64;

INVAR_FN uint64_t invar_f64_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INVAR_FN double invar_bits_f64(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INVAR_FN double invar_nan_f64(void)
{
    return invar_bits_f64(UINT64_C(0x7FFFFFFFFFFFFFFF));
}

/* exp(x + tail) for |tail| < 2^-40. Overflows to +inf, underflows gradually. */
INVAR_FN double invar_exp_sum_f64(double x, double tail)
{
    if (x != x)
        return invar_nan_f64();
    x = x < -746.0 ? -746.0 : x; // exp(-746) < 2^-1075
    x = x > 710.0 ? 710.0 : x;   // exp(710) > 2^1024

    double t = fma(x, 0x1.71547652b82fep0, INVAR_ROUNDER_F64);
    double n = t - INVAR_ROUNDER_F64;
    double r0 = fma(n, -0x1.62e42fefa39efp-1, x); // exact
    double r1 = fma(n, -0x1.abc9e3b39803fp-56, tail);
    double r = r0 + r1;

    double q = 0x1.ad92e88f87de4p-26;
    q = fma(q, r, 0x1.28adfccab85d4p-22);
    q = fma(q, r, 0x1.71df18ef7a9d3p-19);
    q = fma(q, r, 0x1.a019995efb56cp-16);
    q = fma(q, r, 0x1.a01a012fee98bp-13);
    q = fma(q, r, 0x1.6c16c18477082p-10);
    q = fma(q, r, 0x1.1111111126b36p-7);
    q = fma(q, r, 0x1.55555555506bcp-5);
    q = fma(q, r, 0x1.55555555554fep-3);
    q = fma(q, r, 0x1.000000000000ap-1);

    double sum = 1.0 + r0;
    double lost = r0 - (sum - 1.0);
    double mantissa = sum + fma(q, r * r, lost + r1);

    uint64_t exponent = invar_f64_bits(t) - INVAR_ROUNDER_F64_BITS + 2046;
    uint64_t half = exponent >> 1;
    return mantissa * invar_bits_f64(half << 52) * invar_bits_f64((exponent - half) << 52);
}

/* log(x) for finite x > 0, as a pair; hi is the rounded value. */
INVAR_FN invar_pair_f64 invar_log_pair_f64(double x)
{
    // x = 2^k m with sqrt(1/2) <= m < sqrt(2), m = (1 + s) / (1 - s), log m = 2 s + s^3 R(s^2).
    double lifted = x < 0x1p-1022 ? x * 0x1p52 : x;
    uint64_t bits =
        invar_f64_bits(lifted) + (UINT64_C(0x3FF0000000000000) - UINT64_C(0x3FE6A09E667F3BCD));
    double k = (double)(int64_t)(bits >> 52) - (x < 0x1p-1022 ? 1075.0 : 1023.0);
    bits = (bits & UINT64_C(0x000FFFFFFFFFFFFF)) + UINT64_C(0x3FE6A09E667F3BCD);
    double f = invar_bits_f64(bits) - 1.0;

    double d = 2.0 + f;
    double d_lost = f - (d - 2.0);
    double s = f / d;
    double s_lost = fma(-s, d_lost, fma(-s, d, f)) / d;
    double z = s * s;

    double p = 0x1.2b66b9bf905d5p-3;
    p = fma(p, z, 0x1.39fd3c2dfa5d3p-3);
    p = fma(p, z, 0x1.7462bd218b35ap-3);
    p = fma(p, z, 0x1.c71c62c9cb7eap-3);
    p = fma(p, z, 0x1.2492492e03d5p-2);
    p = fma(p, z, 0x1.9999999995284p-2);
    p = fma(p, z, 0x1.5555555555558p-1);

    double big = k * 0x1.62e42fefa38p-1; // exact: 42 bits
    double sum = big + 2.0 * s;
    double lost = 2.0 * s - (sum - big);
    double small = fma(k, 0x1.ef35793c7673p-45, fma(s * z, p, 2.0 * s_lost));
    invar_pair_f64 y;
    y.hi = sum + (lost + small);
    y.lo = (lost + small) - (y.hi - sum);
    return y;
}

/* exp(x), with exp(-inf) = +0, exp(+inf) = +inf. */
INVAR_FN double invar_exp_f64(double x)
{
    return invar_exp_sum_f64(x, 0.0);
}

/* log(x) for finite x > 0. */
INVAR_FN double invar_log_f64(double x)
{
    if (!(x > 0.0 && x < (double)INFINITY))
        return invar_nan_f64();
    return invar_log_pair_f64(x).hi;
}

/* base^x for finite base > 0 and finite x. */
INVAR_FN double invar_pow_f64(double base, double x)
{
    if (!(base > 0.0 && base < (double)INFINITY && x - x == 0.0))
        return invar_nan_f64();
    invar_pair_f64 log = invar_log_pair_f64(base);
    double y = x * log.hi;
    return invar_exp_sum_f64(y, fma(x, log.lo, fma(x, log.hi, -y)));
}

/* sin and cos of an angle in [-pi/4, pi/4], as a pair. */
INVAR_FN double invar_sin_kernel_f64(invar_pair_f64 a)
{
    double z = a.hi * a.hi;
    double p = 0x1.5d8e53c53415cp-33;
    p = fma(p, z, -0x1.ae5e54d23935dp-26);
    p = fma(p, z, 0x1.71de355f70d63p-19);
    p = fma(p, z, -0x1.a01a019bf286dp-13);
    p = fma(p, z, 0x1.111111110f75fp-7);
    p = fma(p, z, -0x1.5555555555548p-3);
    return a.hi + fma(a.hi * z, p, fma(-0.5 * z, a.lo, a.lo));
}

INVAR_FN double invar_cos_kernel_f64(invar_pair_f64 a)
{
    double z = a.hi * a.hi;
    double p = -0x1.8fb15228ae9b5p-37;
    p = fma(p, z, 0x1.1ee9f192814b8p-29);
    p = fma(p, z, -0x1.27e4f813107d4p-22);
    p = fma(p, z, 0x1.a01a019cbfcffp-16);
    p = fma(p, z, -0x1.6c16c16c15222p-10);
    p = fma(p, z, 0x1.555555555554cp-5);

    double half = 0.5 * z;
    double sum = 1.0 - half;
    double lost = (1.0 - sum) - half;
    return sum + fma(z * z, p, fma(-a.hi, a.lo, lost));
}

/* x = quadrant * pi/2 + a for |x| <= 2^21; only the two low bits of quadrant matter. */
INVAR_FN invar_pair_f64 invar_reduce_angle_f64(double x, uint64_t *quadrant_out)
{
    double t = fma(x, 0x1.45f306dc9c883p-1, INVAR_ROUNDER_F64);
    double n = t - INVAR_ROUNDER_F64;
    double r = fma(n, -0x1.921fb54442d18p0, x); // exact
    double b = n * -0x1.1a62633145c07p-54;
    double b_lost = fma(n, -0x1.1a62633145c07p-54, -b);

    // r + b as a pair, with the larger term first; then the third part of pi/2
    invar_pair_f64 a;
    a.hi = r + b;
    double r_part = a.hi - b;
    double lost = (r - r_part) + (b - (a.hi - r_part));
    a.lo = fma(n, 0x1.f1976b7ed8fbcp-110, lost + b_lost);
    *quadrant_out = invar_f64_bits(t);
    return a;
}

/* sin(x) for |x| <= 2^21, with sin(+-0) = +-0. */
INVAR_FN double invar_sin_f64(double x)
{
    uint64_t quadrant;

    if (!(x >= -0x1p21 && x <= 0x1p21))
        return invar_nan_f64();
    if (x == 0.0)
        return x;
    invar_pair_f64 a = invar_reduce_angle_f64(x, &quadrant);
    double y = quadrant & 1 ? invar_cos_kernel_f64(a) : invar_sin_kernel_f64(a);
    return quadrant & 2 ? -y : y;
}

/* cos(x) for |x| <= 2^21. */
INVAR_FN double invar_cos_f64(double x)
{
    uint64_t quadrant;

    if (!(x >= -0x1p21 && x <= 0x1p21))
        return invar_nan_f64();
    invar_pair_f64 a = invar_reduce_angle_f64(x, &quadrant);
    double y = quadrant & 1 ? invar_sin_kernel_f64(a) : invar_cos_kernel_f64(a);
    return (quadrant + 1) & 2 ? -y : y;
}

#endif
