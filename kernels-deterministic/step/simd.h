/*
 * simd.h - vector operations of the chain kernels, on NEON, AVX2 and AVX-512.
 *
 * invar_vf holds INVAR_VF_WIDTH floats, invar_vi as many int32, and invar_vb four times as many
 * int8, so one invar_vb describes four invar_vf. Each operation is one IEEE or integer operation
 * per lane, so the width never changes a result. They are vectors of the compiler: *, &, | and >
 * work on them lane by lane. The functions of this file are what those operators cannot express.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_STEP_SIMD_H
#define INVAR_KERNELS_STEP_SIMD_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#define INVAR_VF_WIDTH 4
#elif defined(__x86_64__)
#include <immintrin.h>
#if defined(__AVX512BW__)
#define INVAR_VF_WIDTH 16
#define INVAR_X86(operation) _mm512_##operation
#else
#define INVAR_VF_WIDTH 8
#define INVAR_X86(operation) _mm256_##operation
#endif
#else
#error "no vector operations for this architecture"
#endif

/* ---- every width ----------------------------------------------------------------------------- */

#define INVAR_VECTOR_BYTES (4 * INVAR_VF_WIDTH)
typedef float invar_vf __attribute__((vector_size(INVAR_VECTOR_BYTES)));
typedef int32_t invar_vi __attribute__((vector_size(INVAR_VECTOR_BYTES)));
typedef int8_t invar_vb __attribute__((vector_size(INVAR_VECTOR_BYTES)));

/* Types of vectors in memory, at any address. */
typedef invar_vf invar_vf_anywhere __attribute__((aligned(4), may_alias));
typedef invar_vb invar_vb_anywhere __attribute__((aligned(1), may_alias));

static inline invar_vf invar_vf_load(const float *p)
{
    return *(const invar_vf_anywhere *)p;
}
static inline void invar_vf_store(float *p, invar_vf v)
{
    *(invar_vf_anywhere *)p = v;
}
static inline invar_vb invar_vb_load(const int8_t *p)
{
    return *(const invar_vb_anywhere *)p;
}
static inline invar_vi invar_vi_set1(int32_t x)
{
    invar_vi zero = {0};

    return x - zero;
}
/* Addition and subtraction wrap: lanes that are discarded later may overflow. */
static inline invar_vi invar_vi_add(invar_vi a, invar_vi b)
{
    typedef uint32_t bits __attribute__((vector_size(INVAR_VECTOR_BYTES)));

    return (invar_vi)((bits)a + (bits)b);
}
static inline invar_vi invar_vi_sub(invar_vi a, invar_vi b)
{
    typedef uint32_t bits __attribute__((vector_size(INVAR_VECTOR_BYTES)));

    return (invar_vi)((bits)a - (bits)b);
}

#if defined(__aarch64__)

/* ---- NEON ------------------------------------------------------------------------------------ */

/* Returns acc + b * s, rounded once. */
static inline invar_vf invar_vf_fma(invar_vf acc, invar_vf b, float s)
{
    return vfmaq_n_f32(acc, b, s);
}
/* Like invar_vf_fma, with s in a lane of a vector. */
#define invar_vf_fma_lane(acc, b, s, lane) vfmaq_laneq_f32((acc), (b), (s), (lane))
static inline invar_vf invar_vf_convert(invar_vi v)
{
    return vcvtq_f32_s32(v);
}
static inline invar_vi invar_vi_truncate(invar_vf v)
{
    return vcvtq_s32_f32(v);
}
static inline invar_vi invar_vi_abs(invar_vi a)
{
    return vabsq_s32(a);
}
static inline invar_vi invar_vi_max(invar_vi a, invar_vi b)
{
    return vmaxq_s32(a, b);
}
static inline invar_vi invar_vi_min(invar_vi a, invar_vi b)
{
    return vminq_s32(a, b);
}
static inline bool invar_vi_any(invar_vi v)
{
    return vmaxvq_u32(vreinterpretq_u32_s32(v)) != 0;
}
static inline invar_vb invar_vb_set1(int8_t x)
{
    return vdupq_n_s8(x);
}
/* Saturates: a sum outside of int8 becomes the nearest int8. */
static inline invar_vb invar_vb_add(invar_vb a, invar_vb b)
{
    return vqaddq_s8(a, b);
}
static inline invar_vb invar_vb_max(invar_vb a, invar_vb b)
{
    return vmaxq_s8(a, b);
}
/* out = (value + 127) * 2^23: exponents in the exponent field of a float. */
static inline void invar_vb_fields(invar_vi out[4], invar_vb v)
{
    int16x8_t zero = vdupq_n_s16(0), bias = vdupq_n_s16(127 << 7);
    int16x8_t low = vaddq_s16(vshll_n_s8(vget_low_s8(v), 7), bias);
    int16x8_t high = vaddq_s16(vshll_high_n_s8(v, 7), bias);

    out[0] = vreinterpretq_s32_s16(vzip1q_s16(zero, low));
    out[1] = vreinterpretq_s32_s16(vzip2q_s16(zero, low));
    out[2] = vreinterpretq_s32_s16(vzip1q_s16(zero, high));
    out[3] = vreinterpretq_s32_s16(vzip2q_s16(zero, high));
}

/* Loads four bf16 values as floats, exact. */
static inline invar_vf invar_vf_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

/* Transposes: row[p][r] = row[r][p] for p, r < INVAR_VF_WIDTH. */
static inline void invar_vf_transpose(invar_vf row[INVAR_VF_WIDTH])
{
    float32x4x2_t even = vtrnq_f32(row[0], row[1]);
    float32x4x2_t odd = vtrnq_f32(row[2], row[3]);

    for (int h = 0; h < 2; h++) {
        row[h] = vcombine_f32(vget_low_f32(even.val[h]), vget_low_f32(odd.val[h]));
        row[h + 2] = vcombine_f32(vget_high_f32(even.val[h]), vget_high_f32(odd.val[h]));
    }
}

/*
 * Sets the rounding mode of this thread toward zero. Returns the old mode for
 * invar_rounding_restore.
 */
static inline uint64_t invar_rounding_toward_zero(void)
{
    uint64_t old;

    __asm__ volatile("mrs %0, fpcr" : "=r"(old)::"memory");
    __asm__ volatile("msr fpcr, %0" ::"r"(old | UINT64_C(3) << 22) : "memory");
    return old;
}
static inline void invar_rounding_restore(uint64_t old)
{
    __asm__ volatile("msr fpcr, %0" ::"r"(old) : "memory");
}

/*
 * Returns whether the thread rounds to nearest and keeps subnormals, as the C compiler and the
 * arithmetic contract assume.
 */
static inline bool invar_rounding_is_default(void)
{
    uint64_t now;

    __asm__ volatile("mrs %0, fpcr" : "=r"(now)::"memory");
    return (now & (UINT64_C(3) << 22 | UINT64_C(1) << 24)) == 0; // RMode, FZ
}

#else

/* ---- AVX2 and AVX-512 ------------------------------------------------------------------------ */

/* Integers as the instructions of this width take them. */
#if INVAR_VF_WIDTH == 16
typedef __m512i invar_x86_integers;
#else
typedef __m256i invar_x86_integers;
#endif
#define INVAR_X86_INTEGERS(operation, a, b)                                                        \
    INVAR_X86(operation)((invar_x86_integers)(a), (invar_x86_integers)(b))

/* Returns acc + b * s, rounded once. */
static inline invar_vf invar_vf_fma(invar_vf acc, invar_vf b, float s)
{
    return INVAR_X86(fmadd_ps)(b, INVAR_X86(set1_ps)(s), acc);
}
static inline invar_vf invar_vf_convert(invar_vi v)
{
    return INVAR_X86(cvtepi32_ps)((invar_x86_integers)v);
}
static inline invar_vi invar_vi_truncate(invar_vf v)
{
    return (invar_vi)INVAR_X86(cvttps_epi32)(v);
}
static inline invar_vi invar_vi_abs(invar_vi a)
{
    return (invar_vi)INVAR_X86(abs_epi32)((invar_x86_integers)a);
}
static inline invar_vi invar_vi_max(invar_vi a, invar_vi b)
{
    return (invar_vi)INVAR_X86_INTEGERS(max_epi32, a, b);
}
static inline invar_vi invar_vi_min(invar_vi a, invar_vi b)
{
    return (invar_vi)INVAR_X86_INTEGERS(min_epi32, a, b);
}
static inline bool invar_vi_any(invar_vi v)
{
#if INVAR_VF_WIDTH == 16
    return INVAR_X86_INTEGERS(test_epi32_mask, v, v) != 0;
#else
    return !INVAR_X86_INTEGERS(testz_si256, v, v);
#endif
}
static inline invar_vb invar_vb_set1(int8_t x)
{
    return (invar_vb)INVAR_X86(set1_epi8)(x);
}
/* Saturates: a sum outside of int8 becomes the nearest int8. */
static inline invar_vb invar_vb_add(invar_vb a, invar_vb b)
{
    return (invar_vb)INVAR_X86_INTEGERS(adds_epi8, a, b);
}
static inline invar_vb invar_vb_max(invar_vb a, invar_vb b)
{
    return (invar_vb)INVAR_X86_INTEGERS(max_epi8, a, b);
}
/* Returns (value + 127) * 2^23: exponents in the exponent field of a float. */
static inline invar_vi invar_vi_field(__m128i v)
{
    return (invar_vi)INVAR_X86(slli_epi32)(
        INVAR_X86(add_epi32)(INVAR_X86(cvtepi8_epi32)(v), INVAR_X86(set1_epi32)(127)), 23);
}
static inline void invar_vb_fields(invar_vi out[4], invar_vb v)
{
#if INVAR_VF_WIDTH == 16
    out[0] = invar_vi_field(_mm512_castsi512_si128((__m512i)v));
    out[1] = invar_vi_field(_mm512_extracti32x4_epi32((__m512i)v, 1));
    out[2] = invar_vi_field(_mm512_extracti32x4_epi32((__m512i)v, 2));
    out[3] = invar_vi_field(_mm512_extracti32x4_epi32((__m512i)v, 3));
#else
    __m128i low = _mm256_castsi256_si128((__m256i)v);
    __m128i high = _mm256_extracti128_si256((__m256i)v, 1);

    out[0] = invar_vi_field(low);
    out[1] = invar_vi_field(_mm_unpackhi_epi64(low, low));
    out[2] = invar_vi_field(high);
    out[3] = invar_vi_field(_mm_unpackhi_epi64(high, high));
#endif
}

#if INVAR_VF_WIDTH == 8

/* Loads eight bf16 values as floats, exact. */
static inline invar_vf invar_vf_load_bf16(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));

    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* Transposes: row[p][r] = row[r][p] for p, r < INVAR_VF_WIDTH. */
static inline void invar_vf_transpose(invar_vf row[INVAR_VF_WIDTH])
{
    __m256 pair[8], quad[8];

    // interleaves rows 2i and 2i+1, then groups of four, then the 128-bit halves
    for (int i = 0; i < 4; i++) {
        pair[2 * i] = _mm256_unpacklo_ps(row[2 * i], row[2 * i + 1]);
        pair[2 * i + 1] = _mm256_unpackhi_ps(row[2 * i], row[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int h = 0; h < 2; h++) {
            __m256 a = pair[4 * i + h], b = pair[4 * i + h + 2];
            quad[4 * i + 2 * h] = _mm256_shuffle_ps(a, b, 0x44);
            quad[4 * i + 2 * h + 1] = _mm256_shuffle_ps(a, b, 0xEE);
        }
    for (int p = 0; p < 4; p++) {
        row[p] = _mm256_permute2f128_ps(quad[p], quad[p + 4], 0x20);
        row[p + 4] = _mm256_permute2f128_ps(quad[p], quad[p + 4], 0x31);
    }
}

#endif

/*
 * Sets the rounding mode of this thread toward zero. Returns the old mode for
 * invar_rounding_restore.
 */
static inline uint64_t invar_rounding_toward_zero(void)
{
    uint32_t old = _mm_getcsr();

    _mm_setcsr(old | 0x6000u);
    return old;
}
static inline void invar_rounding_restore(uint64_t old)
{
    _mm_setcsr((uint32_t)old);
}

/*
 * Returns whether the thread rounds to nearest and keeps subnormals, as the C compiler and the
 * arithmetic contract assume.
 */
static inline bool invar_rounding_is_default(void)
{
    return (_mm_getcsr() & 0xE040u) == 0; // rounding control, FTZ, DAZ
}

#endif

#endif
