/*
 * quantize.cuh - low-precision formats: scale of a block, codes of values, values of codes.
 *
 * The numerics contract is in quantize.cu. A format is a struct with the members scale, encode and
 * values, so that one kernel serves all formats.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_QUANTIZE_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_QUANTIZE_CUH

#include "kernels-deterministic/cuda/sm90/vector.cuh"
#include "kernels-deterministic/math/fp8.h"
#include "kernels-deterministic/math/int4.h"
#include "kernels-deterministic/math/mx.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * Loads BYTES bytes, a multiple of 2, into words, from any address or, if ALIGNED, from a multiple
 * of BYTES. Only the first `there` of them are in memory, all or none if ALIGNED; the others become
 * zero. put_bytes stores them.
 */
template <int BYTES, bool ALIGNED>
__device__ __forceinline__ void get_bytes(uint32_t *word, const uint8_t *from, int there = BYTES)
{
    if (!ALIGNED || there <= 0) {
#pragma unroll
        for (int i = 0; i < (BYTES + 3) / 4; i++)
            word[i] = 0;
    }
    if (there <= 0)
        return;
    if constexpr (!ALIGNED) {
#pragma unroll
        for (int i = 0; i < BYTES; i++)
            word[i / 4] |= i < there ? (uint32_t)from[i] << (8 * (i % 4)) : 0u;
    } else if constexpr (BYTES == 16) {
        uint4 raw = *(const uint4 *)from;
        word[0] = raw.x, word[1] = raw.y, word[2] = raw.z, word[3] = raw.w;
    } else if constexpr (BYTES == 8) {
        uint2 raw = *(const uint2 *)from;
        word[0] = raw.x, word[1] = raw.y;
    } else if constexpr (BYTES == 4) {
        word[0] = *(const uint32_t *)from;
    } else {
        word[0] = *(const uint16_t *)from;
    }
}

template <int BYTES, bool ALIGNED>
__device__ __forceinline__ void put_bytes(uint8_t *to, const uint32_t *word, int there = BYTES)
{
    if (there <= 0)
        return;
    if constexpr (!ALIGNED) {
#pragma unroll
        for (int i = 0; i < BYTES; i++)
            if (i < there)
                to[i] = (uint8_t)(word[i / 4] >> (8 * (i % 4)));
    } else if constexpr (BYTES == 16) {
        *(uint4 *)to = make_uint4(word[0], word[1], word[2], word[3]);
    } else if constexpr (BYTES == 8) {
        *(uint2 *)to = make_uint2(word[0], word[1]);
    } else if constexpr (BYTES == 4) {
        *(uint32_t *)to = word[0];
    } else {
        *(uint16_t *)to = (uint16_t)word[0];
    }
}

/* ---- formats --------------------------------------------------------------------------------- */

/*
 * Returns two codes. cvt.rn.satfinite.e4m3x2.f32 equals invar_e4m3_from_f32 on every input
 * (docs/arithmetic.md, section 6).
 */
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high)
{
    uint16_t codes;

    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
}

__device__ __forceinline__ uint32_t e4m3_four(float x0, float x1, float x2, float x3)
{
    return e4m3_pair(x0, x1) | e4m3_pair(x2, x3) << 16;
}

/*
 * Division of many values by one scale. x / s is computed from inverse = 1 / s, rounded, by two
 * corrections with exact remainders: the first leaves an error below one ulp, and the second then
 * rounds correctly. Remainders are exact if nothing underflows: for quotients from 2^-33 on, with s
 * >= 2^-70. Smaller quotients may be off, and are zero in every format here; -0 may become +0.
 */
struct reciprocal_division {
    float scale, inverse;

    __device__ __forceinline__ explicit reciprocal_division(float s) : scale(s), inverse(1.0f / s)
    {
    }
    static __device__ __forceinline__ bool takes(float s)
    {
        return s >= 0x1p-70f && s <= 0x1p120f;
    }
    __device__ __forceinline__ float operator()(float x) const
    {
        float q = x * inverse;
        q = invar_fmaf(invar_fmaf(-q, scale, x), inverse, q);
        q = invar_fmaf(invar_fmaf(-q, scale, x), inverse, q);
        return q;
    }
};

struct ieee_division {
    float scale;

    __device__ __forceinline__ explicit ieee_division(float s) : scale(s)
    {
    }
    __device__ __forceinline__ float operator()(float x) const
    {
        return x / scale;
    }
};

/* Calls f with the fastest division by s that is exact. */
template <typename F> __device__ __forceinline__ void by_division(float s, F f)
{
    if (reciprocal_division::takes(s))
        f(reciprocal_division(s));
    else
        f(ieee_division(s));
}

/*
 * A format. encode(s, f) calls f with a function from four values to their codes under the scale s,
 * side by side in a word; values() converts codes to values.
 */
struct fp8_format {
    static constexpr int block = INVAR_FP8_BLOCK, bits = 8;
    using scale_type = float;

    static __device__ __forceinline__ float scale(float amax)
    {
        // invar_fp8_block_scale, with the maximum by one instruction
        return invar_max_nan(amax, 0x1p-96f) / INVAR_E4M3_MAX;
    }
    template <typename F> static __device__ __forceinline__ void encode(float s, F f)
    {
        by_division(s, [&](auto divide) {
            auto quotient = [&](float x) { return copysignf(divide(x), x); };
            f([&](const float *x) {
                return e4m3_four(quotient(x[0]), quotient(x[1]), quotient(x[2]), quotient(x[3]));
            });
        });
    }
    static __device__ __forceinline__ void values(float (&x)[4], uint32_t codes, float s)
    {
        invar_e4m3_values(x, codes);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = x[i] * s;
    }
};

struct mxfp8_format {
    static constexpr int block = INVAR_MX_BLOCK, bits = 8;
    using scale_type = uint8_t;

    static __device__ __forceinline__ uint8_t scale(float amax)
    {
        return invar_e8m0_from_amax(amax);
    }
    template <typename F> static __device__ __forceinline__ void encode(uint8_t s, F f)
    {
        // reciprocal of the scale, as in invar_mx_quantize
        float inverse = invar_f32_from_e8m0((uint8_t)(254u - s));
        f([&](const float *x) {
            return e4m3_four(x[0] * inverse, x[1] * inverse, x[2] * inverse, x[3] * inverse);
        });
    }
    static __device__ __forceinline__ void values(float (&x)[4], uint32_t codes, uint8_t s)
    {
        float scale = invar_f32_from_e8m0(s);

        invar_e4m3_values(x, codes);
#pragma unroll
        for (int i = 0; i < 4; i++) // a bf16, the result of invar_mx_dequantize
            x[i] = invar_bits_f32(invar_f32_bits(x[i] * scale) & 0xFFFF0000u);
    }
};

struct int4_format {
    static constexpr int block = INVAR_INT4_BLOCK, bits = 4;
    using scale_type = uint16_t;

    static __device__ __forceinline__ uint16_t scale(float amax)
    {
        return invar_int4_scale(amax);
    }
    template <typename F> static __device__ __forceinline__ void encode(uint16_t s, F f)
    {
        by_division(invar_f32_from_bf16(s), [&](auto divide) {
            f([&](const float *x) {
                return code(divide(x[0])) | code(divide(x[1])) << 4 | code(divide(x[2])) << 8 |
                       code(divide(x[3])) << 12;
            });
        });
    }
    static __device__ __forceinline__ void values(float (&x)[4], uint32_t codes, uint16_t s)
    {
        float scale = invar_f32_from_bf16(s);
#pragma unroll
        for (int i = 0; i < 4; i++) // 2^23 + code has the code as its lowest bits; exact
            x[i] = invar_bits_f32(0x4B000000u | (codes >> (4 * i) & 0xFu)) - 0x1.00001p23f;
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            uint32_t pair = invar_bf16x2_bits(x[i] * scale, x[i + 1] * scale);
            x[i] = invar_bits_f32(pair << 16);
            x[i + 1] = invar_bits_f32(pair & 0xFFFF0000u);
        }
    }

  private:
    /* Returns q + 8 of a quotient: invar_int4_quantize after its division. */
    static __device__ __forceinline__ uint32_t code(float t)
    {
        t = t < -7.0f ? -7.0f : t;
        t = t > 7.0f ? 7.0f : t;
        t = t == t ? t : 0.0f;
        return (invar_f32_bits(t + 0x1.8p23f) + 8u) & 0xFu;
    }
};

/* A quantized matrix; strides in bytes. */
template <typename F> struct codes_view {
    uint8_t *data;
    int64_t stride;
    typename F::scale_type *scale;

    __device__ __forceinline__ uint8_t *at(int64_t row, int64_t col) const
    {
        return data + row * stride + col * F::bits / 8;
    }
};

/* Stores the codes of the values of one access, only the first `there` of them. */
template <typename F, bool ALIGNED, int COUNT, typename C>
__device__ __forceinline__ void put_codes(uint8_t *to, const float (&x)[COUNT], const C &four,
                                          int there = COUNT)
{
    uint32_t word[2] = {0, 0};

#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
        word[i * F::bits / 32] |= four(x + i) << (i * F::bits % 32);
    put_bytes<COUNT * F::bits / 8, ALIGNED>(to, word, there * F::bits / 8);
}

template <typename F> codes_view<F> codes_of(const invar_tensor *q)
{
    return {(uint8_t *)q->data, q->row_stride * F::bits / 8, (typename F::scale_type *)q->scale};
}

#endif
