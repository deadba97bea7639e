/*
 * portable.h - fp32 operations that C11 and CUDA spell differently.
 *
 * Everything in math/ is a fixed sequence of IEEE 754 operations, compiled from one text by the C
 * compiler and by nvcc. This header has the differences: function qualifiers, fma, sqrt and access
 * to the bits of a float. + - * / and comparisons are plain operators, so the compiler flags
 * matter: no contraction (-ffp-contract=off, -fmad=false), no flush to zero, IEEE division
 * (-prec-div=true), no fast math.
 *
 * NaN: hardware differs in the bits (x86 0xFFC00000, Arm and x86 propagate payloads, NVIDIA
 * 0x7FFFFFFF). A function of math/ that returns fp32 returns one NaN, INVAR_NAN_BITS, unless its
 * comment says otherwise; a plain operation in a caller's code does not.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_PORTABLE_H
#define INVAR_KERNELS_MATH_PORTABLE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define INVAR_FN static __host__ __device__ __forceinline__
#else
#define INVAR_FN static inline
#endif

/* The canonical NaN; NVIDIA's, because it is free there. */
#define INVAR_NAN_BITS UINT32_C(0x7FFFFFFF)
#define INVAR_INF_BITS UINT32_C(0x7F800000)
#define INVAR_SIGN_BIT UINT32_C(0x80000000)

/* Returns the bits of x. */
INVAR_FN uint32_t invar_f32_bits(float x)
{
#if defined(__CUDA_ARCH__)
    return __float_as_uint(x);
#else
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

/* Returns the float with these bits. */
INVAR_FN float invar_bits_f32(uint32_t bits)
{
#if defined(__CUDA_ARCH__)
    return __uint_as_float(bits);
#else
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

/* Returns a * b + c with one rounding. */
INVAR_FN float invar_fmaf(float a, float b, float c)
{
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#else
    return fmaf(a, b, c);
#endif
}

/*
 * Returns the correctly rounded square root. The bits of the NaN for x < 0 are those of the
 * hardware.
 */
INVAR_FN float invar_sqrtf(float x)
{
#if defined(__CUDA_ARCH__)
    return __fsqrt_rn(x);
#else
    return sqrtf(x);
#endif
}

/*
 * Returns 1 / sqrt(mean + eps), the factor of a root mean square norm. If the mean of squares is
 * not finite, returns the canonical NaN: otherwise finite values whose squares overflow would give
 * a row of zeros.
 */
INVAR_FN float invar_inverse_rms(float mean, float eps)
{
    return mean < INFINITY ? 1.0f / invar_sqrtf(mean + eps) : invar_bits_f32(INVAR_NAN_BITS);
}

/* Returns |x|; clears the sign of a NaN, too. */
INVAR_FN float invar_abs_f32(float x)
{
    return invar_bits_f32(invar_f32_bits(x) & ~INVAR_SIGN_BIT);
}

/*
 * Returns y, with a NaN replaced by the canonical one. y must be the result of an fp32 operation:
 * GPUs produce no other NaN, so the test is omitted there.
 */
INVAR_FN float invar_canonical_f32(float y)
{
#if defined(__CUDA_ARCH__)
    return y;
#else
    return y == y ? y : invar_bits_f32(INVAR_NAN_BITS);
#endif
}

/* Returns the larger operand; +0 is larger than -0; the canonical NaN if either operand is NaN. */
INVAR_FN float invar_max_f32(float a, float b)
{
    float larger = a > b ? a : b;
    float same = invar_bits_f32(invar_f32_bits(a) & invar_f32_bits(b)); // -0 only if both are -0
    float y = a == b ? same : larger;
    return a == a && b == b ? y : invar_bits_f32(INVAR_NAN_BITS);
}

/*
 * Returns the smaller operand; -0 is smaller than +0; the canonical NaN if either operand is NaN.
 */
INVAR_FN float invar_min_f32(float a, float b)
{
    float smaller = a < b ? a : b;
    float same = invar_bits_f32(invar_f32_bits(a) | invar_f32_bits(b)); // +0 only if both are +0
    float y = a == b ? same : smaller;
    return a == a && b == b ? y : invar_bits_f32(INVAR_NAN_BITS);
}

#endif
