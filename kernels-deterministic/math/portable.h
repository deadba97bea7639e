/*
 * portable.h - the fp32 operations that C11 and CUDA share.
 *
 * Everything in math/ is a fixed sequence of IEEE-754 operations, compiled from one text by the C
 * compiler and by nvcc. This header supplies what the two languages spell differently: the function
 * qualifiers, fma, sqrt and access to the bits of a float. + - * / and comparisons are written
 * plainly, so the flags matter: no contraction (-ffp-contract=off, -fmad=false), no flush to zero,
 * IEEE division (-prec-div=true), no fast math.
 *
 * NaN: hardware disagrees about the bits (x86 0xFFC00000, Arm and x86 pass payloads on, NVIDIA
 * 0x7FFFFFFF). A function of math/ that yields fp32 yields one NaN, INVAR_NAN_BITS, unless its text
 * says otherwise; a plain operation in a caller's code gives no such promise.
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

/* The one NaN; NVIDIA's, because there it costs nothing. */
#define INVAR_NAN_BITS UINT32_C(0x7FFFFFFF)
#define INVAR_INF_BITS UINT32_C(0x7F800000)
#define INVAR_SIGN_BIT UINT32_C(0x80000000)

/* The bits of x. */
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

/* The float with these bits. */
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

/* a * b + c with one rounding. */
INVAR_FN float invar_fmaf(float a, float b, float c)
{
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#else
    return fmaf(a, b, c);
#endif
}

/* Correctly rounded. The bits of the NaN for x < 0 are the hardware's. */
INVAR_FN float invar_sqrtf(float x)
{
#if defined(__CUDA_ARCH__)
    return __fsqrt_rn(x);
#else
    return sqrtf(x);
#endif
}

/*
 * 1 / sqrt(mean + eps), the factor of a root mean square norm; the canonical NaN where the mean of
 * squares is not finite, or finite values whose squares overflow would end as a row of zeros.
 */
INVAR_FN float invar_inverse_rms(float mean, float eps)
{
    return mean < INFINITY ? 1.0f / invar_sqrtf(mean + eps) : invar_bits_f32(INVAR_NAN_BITS);
}

/* |x|; clears the sign of a NaN too. */
INVAR_FN float invar_abs_f32(float x)
{
    return invar_bits_f32(invar_f32_bits(x) & ~INVAR_SIGN_BIT);
}

/*
 * y, with a NaN replaced by the canonical one. y must be the result of an fp32 operation: on the
 * device those make no other NaN, and the test is left out.
 */
INVAR_FN float invar_canonical_f32(float y)
{
#if defined(__CUDA_ARCH__)
    return y;
#else
    return y == y ? y : invar_bits_f32(INVAR_NAN_BITS);
#endif
}

/* The larger operand; +0 is larger than -0; the canonical NaN if either operand is NaN. */
INVAR_FN float invar_max_f32(float a, float b)
{
    float larger = a > b ? a : b;
    float same = invar_bits_f32(invar_f32_bits(a) & invar_f32_bits(b)); // -0 only from two of them
    float y = a == b ? same : larger;
    return a == a && b == b ? y : invar_bits_f32(INVAR_NAN_BITS);
}

/* The smaller operand; -0 is smaller than +0; the canonical NaN if either operand is NaN. */
INVAR_FN float invar_min_f32(float a, float b)
{
    float smaller = a < b ? a : b;
    float same = invar_bits_f32(invar_f32_bits(a) | invar_f32_bits(b)); // +0 only from two of them
    float y = a == b ? same : smaller;
    return a == a && b == b ? y : invar_bits_f32(INVAR_NAN_BITS);
}

#endif
