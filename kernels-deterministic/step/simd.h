/*
 * simd.h - vector operations of the chain kernels, on NEON, AVX2 and AVX-512.
 *
 * invar_vf holds INVAR_VF_WIDTH floats, invar_vi as many int32, and invar_vb four times as many
 * int8, so one invar_vb describes four invar_vf. Each operation is one IEEE or integer operation
 * per lane, so the width never changes a result.
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
typedef float32x4_t invar_vf;
typedef int32x4_t invar_vi;
typedef int8x16_t invar_vb;

static inline invar_vf invar_vf_load(const float *p)
{
    return vld1q_f32(p);
}
static inline void invar_vf_store(float *p, invar_vf v)
{
    vst1q_f32(p, v);
}
static inline invar_vf invar_vf_mul(invar_vf a, invar_vf b)
{
    return vmulq_f32(a, b);
}
static inline invar_vf invar_vf_scale(invar_vf a, float s)
{
    return vmulq_n_f32(a, s);
}
/* Returns acc + b * s, rounded once. */
static inline invar_vf invar_vf_fma(invar_vf acc, invar_vf b, float s)
{
    return vfmaq_n_f32(acc, b, s);
}
/* Like invar_vf_fma, with s in a lane of a vector. */
#define invar_vf_fma_lane(acc, b, s, lane) vfmaq_laneq_f32((acc), (b), (s), (lane))
static inline invar_vf invar_vf_from_bits(invar_vi v)
{
    return vreinterpretq_f32_s32(v);
}
static inline invar_vi invar_vi_from_bits(invar_vf v)
{
    return vreinterpretq_s32_f32(v);
}
static inline invar_vf invar_vf_convert(invar_vi v)
{
    return vcvtq_f32_s32(v);
}
static inline invar_vi invar_vi_truncate(invar_vf v)
{
    return vcvtq_s32_f32(v);
}
static inline invar_vi invar_vi_set1(int32_t x)
{
    return vdupq_n_s32(x);
}
/* Addition and subtraction wrap: lanes that are discarded later may overflow. */
static inline invar_vi invar_vi_add(invar_vi a, invar_vi b)
{
    return vreinterpretq_s32_u32(vaddq_u32(vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b)));
}
static inline invar_vi invar_vi_sub(invar_vi a, invar_vi b)
{
    return vreinterpretq_s32_u32(vsubq_u32(vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b)));
}
static inline invar_vi invar_vi_and(invar_vi a, invar_vi b)
{
    return vandq_s32(a, b);
}
static inline invar_vi invar_vi_or(invar_vi a, invar_vi b)
{
    return vorrq_s32(a, b);
}
static inline invar_vi invar_vi_xor(invar_vi a, invar_vi b)
{
    return veorq_s32(a, b);
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
static inline invar_vi invar_vi_greater(invar_vi a, invar_vi b)
{
    return vreinterpretq_s32_u32(vcgtq_s32(a, b));
}
#define invar_vi_shift_left(v, n) vshlq_n_s32((v), (n))
static inline bool invar_vi_any(invar_vi v)
{
    return vmaxvq_u32(vreinterpretq_u32_s32(v)) != 0;
}

static inline invar_vb invar_vb_load(const int8_t *p)
{
    return vld1q_s8(p);
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

#elif defined(__x86_64__)

#include <immintrin.h>

#if defined(__AVX512BW__)

#define INVAR_VF_WIDTH 16
typedef __m512 invar_vf;
typedef __m512i invar_vi;
typedef __m512i invar_vb;

static inline invar_vf invar_vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void invar_vf_store(float *p, invar_vf v)
{
    _mm512_storeu_ps(p, v);
}
static inline invar_vf invar_vf_mul(invar_vf a, invar_vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline invar_vf invar_vf_scale(invar_vf a, float s)
{
    return _mm512_mul_ps(a, _mm512_set1_ps(s));
}
/* Returns acc + b * s, rounded once. */
static inline invar_vf invar_vf_fma(invar_vf acc, invar_vf b, float s)
{
    return _mm512_fmadd_ps(b, _mm512_set1_ps(s), acc);
}
static inline invar_vf invar_vf_from_bits(invar_vi v)
{
    return _mm512_castsi512_ps(v);
}
static inline invar_vi invar_vi_from_bits(invar_vf v)
{
    return _mm512_castps_si512(v);
}
static inline invar_vf invar_vf_convert(invar_vi v)
{
    return _mm512_cvtepi32_ps(v);
}
static inline invar_vi invar_vi_truncate(invar_vf v)
{
    return _mm512_cvttps_epi32(v);
}
static inline invar_vi invar_vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
static inline invar_vi invar_vi_add(invar_vi a, invar_vi b)
{
    return _mm512_add_epi32(a, b);
}
static inline invar_vi invar_vi_sub(invar_vi a, invar_vi b)
{
    return _mm512_sub_epi32(a, b);
}
static inline invar_vi invar_vi_and(invar_vi a, invar_vi b)
{
    return _mm512_and_si512(a, b);
}
static inline invar_vi invar_vi_or(invar_vi a, invar_vi b)
{
    return _mm512_or_si512(a, b);
}
static inline invar_vi invar_vi_xor(invar_vi a, invar_vi b)
{
    return _mm512_xor_si512(a, b);
}
static inline invar_vi invar_vi_abs(invar_vi a)
{
    return _mm512_abs_epi32(a);
}
static inline invar_vi invar_vi_max(invar_vi a, invar_vi b)
{
    return _mm512_max_epi32(a, b);
}
static inline invar_vi invar_vi_min(invar_vi a, invar_vi b)
{
    return _mm512_min_epi32(a, b);
}
static inline invar_vi invar_vi_greater(invar_vi a, invar_vi b)
{
    return _mm512_movm_epi32(_mm512_cmpgt_epi32_mask(a, b));
}
#define invar_vi_shift_left(v, n) _mm512_slli_epi32((v), (n))
static inline bool invar_vi_any(invar_vi v)
{
    return _mm512_test_epi32_mask(v, v) != 0;
}

static inline invar_vb invar_vb_load(const int8_t *p)
{
    return _mm512_loadu_si512(p);
}
static inline invar_vb invar_vb_set1(int8_t x)
{
    return _mm512_set1_epi8(x);
}
/* Saturates: a sum outside of int8 becomes the nearest int8. */
static inline invar_vb invar_vb_add(invar_vb a, invar_vb b)
{
    return _mm512_adds_epi8(a, b);
}
static inline invar_vb invar_vb_max(invar_vb a, invar_vb b)
{
    return _mm512_max_epi8(a, b);
}
/* out = (value + 127) * 2^23: exponents in the exponent field of a float. */
static inline __m512i invar_vi_field(__m128i v)
{
    __m512i biased = _mm512_add_epi32(_mm512_cvtepi8_epi32(v), _mm512_set1_epi32(127));

    return _mm512_slli_epi32(biased, 23);
}
static inline void invar_vb_fields(invar_vi out[4], invar_vb v)
{
    out[0] = invar_vi_field(_mm512_castsi512_si128(v));
    out[1] = invar_vi_field(_mm512_extracti32x4_epi32(v, 1));
    out[2] = invar_vi_field(_mm512_extracti32x4_epi32(v, 2));
    out[3] = invar_vi_field(_mm512_extracti32x4_epi32(v, 3));
}

#else

#define INVAR_VF_WIDTH 8
typedef __m256 invar_vf;
typedef __m256i invar_vi;
typedef __m256i invar_vb;

static inline invar_vf invar_vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void invar_vf_store(float *p, invar_vf v)
{
    _mm256_storeu_ps(p, v);
}
static inline invar_vf invar_vf_mul(invar_vf a, invar_vf b)
{
    return _mm256_mul_ps(a, b);
}
static inline invar_vf invar_vf_scale(invar_vf a, float s)
{
    return _mm256_mul_ps(a, _mm256_set1_ps(s));
}
/* Returns acc + b * s, rounded once. */
static inline invar_vf invar_vf_fma(invar_vf acc, invar_vf b, float s)
{
    return _mm256_fmadd_ps(b, _mm256_set1_ps(s), acc);
}
static inline invar_vf invar_vf_from_bits(invar_vi v)
{
    return _mm256_castsi256_ps(v);
}
static inline invar_vi invar_vi_from_bits(invar_vf v)
{
    return _mm256_castps_si256(v);
}
static inline invar_vf invar_vf_convert(invar_vi v)
{
    return _mm256_cvtepi32_ps(v);
}
static inline invar_vi invar_vi_truncate(invar_vf v)
{
    return _mm256_cvttps_epi32(v);
}
static inline invar_vi invar_vi_set1(int32_t x)
{
    return _mm256_set1_epi32(x);
}
static inline invar_vi invar_vi_add(invar_vi a, invar_vi b)
{
    return _mm256_add_epi32(a, b);
}
static inline invar_vi invar_vi_sub(invar_vi a, invar_vi b)
{
    return _mm256_sub_epi32(a, b);
}
static inline invar_vi invar_vi_and(invar_vi a, invar_vi b)
{
    return _mm256_and_si256(a, b);
}
static inline invar_vi invar_vi_or(invar_vi a, invar_vi b)
{
    return _mm256_or_si256(a, b);
}
static inline invar_vi invar_vi_xor(invar_vi a, invar_vi b)
{
    return _mm256_xor_si256(a, b);
}
static inline invar_vi invar_vi_abs(invar_vi a)
{
    return _mm256_abs_epi32(a);
}
static inline invar_vi invar_vi_max(invar_vi a, invar_vi b)
{
    return _mm256_max_epi32(a, b);
}
static inline invar_vi invar_vi_min(invar_vi a, invar_vi b)
{
    return _mm256_min_epi32(a, b);
}
static inline invar_vi invar_vi_greater(invar_vi a, invar_vi b)
{
    return _mm256_cmpgt_epi32(a, b);
}
#define invar_vi_shift_left(v, n) _mm256_slli_epi32((v), (n))
static inline bool invar_vi_any(invar_vi v)
{
    return !_mm256_testz_si256(v, v);
}

static inline invar_vb invar_vb_load(const int8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
static inline invar_vb invar_vb_set1(int8_t x)
{
    return _mm256_set1_epi8(x);
}
/* Saturates: a sum outside of int8 becomes the nearest int8. */
static inline invar_vb invar_vb_add(invar_vb a, invar_vb b)
{
    return _mm256_adds_epi8(a, b);
}
static inline invar_vb invar_vb_max(invar_vb a, invar_vb b)
{
    return _mm256_max_epi8(a, b);
}
/* out = (value + 127) * 2^23: exponents in the exponent field of a float. */
static inline __m256i invar_vi_field(__m128i v)
{
    __m256i biased = _mm256_add_epi32(_mm256_cvtepi8_epi32(v), _mm256_set1_epi32(127));

    return _mm256_slli_epi32(biased, 23);
}
static inline void invar_vb_fields(invar_vi out[4], invar_vb v)
{
    __m128i low = _mm256_castsi256_si128(v), high = _mm256_extracti128_si256(v, 1);

    out[0] = invar_vi_field(low);
    out[1] = invar_vi_field(_mm_unpackhi_epi64(low, low));
    out[2] = invar_vi_field(high);
    out[3] = invar_vi_field(_mm_unpackhi_epi64(high, high));
}

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

#else
#error "no vector operations for this architecture"
#endif

#endif
