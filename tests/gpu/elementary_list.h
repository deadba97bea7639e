/*
 * elementary_list.h - every function of math/ as a map from 32 bits to 32 bits.
 *
 * Shared by elementary_sums.c and elementary_sums.cu, which print one checksum per entry over all
 * 2^32 inputs: equal lines mean equal bits on host and device. `w` is the input word and `x` the
 * float with these bits; second operands are derived from w. Entries whose last operation is a
 * plain one canonicalize its NaN.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_GPU_ELEMENTARY_LIST_H
#define INVAR_TESTS_GPU_ELEMENTARY_LIST_H

#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/int4.h"
#include "kernels-deterministic/math/mx.h"
#include "kernels-deterministic/math/philox.h"
#include "kernels-deterministic/math/sfu.h"

enum { INVAR_SUMS_CHUNKS = 4096, INVAR_SUMS_CHUNK = 1 << 20 };

INVAR_FN uint32_t canonical_bits(float y)
{
    return y == y ? invar_f32_bits(y) : INVAR_NAN_BITS;
}

/* Returns a second word, well distributed over the bits. */
INVAR_FN uint32_t other(uint32_t w)
{
    return (w ^ (w >> 15)) * UINT32_C(0x9E3779B1);
}

INVAR_FN float other_f32(uint32_t w)
{
    return invar_bits_f32(other(w));
}

/* Returns an integer from -300 to 300, like the reference of a row of attention. */
INVAR_FN float some_reference(uint32_t w)
{
    return (float)((int32_t)(other(w) % 601) - 300);
}

/* Returns a scale byte that invar_e8m0_from_amax can return. */
INVAR_FN uint8_t some_e8m0(uint32_t w)
{
    return (uint8_t)(other(w) % 238 == 237 ? INVAR_E8M0_NAN : 9 + other(w) % 238);
}

INVAR_FN uint32_t philox_of(uint32_t w)
{
    const uint32_t counter[4] = {w, ~w, other(w), 1};
    const uint32_t key[2] = {other(~w), 2};
    uint32_t out[4];

    invar_philox4x32(out, counter, key);
    return out[0] ^ (out[1] + UINT32_C(0x01010101)) ^ (out[2] << 1 | out[2] >> 31) ^ ~out[3];
}

/* The list: X(name, expression). */
#define INVAR_ELEMENTARY_LIST(X)                                                                   \
    X(exp, invar_f32_bits(invar_exp(x)))                                                           \
    X(exp2s, invar_f32_bits(invar_exp2s(x)))                                                       \
    X(exp2s_bf16, invar_f32_bits(invar_exp2s_bf16(x)))                                             \
    X(exp2d, invar_f32_bits(invar_exp2d(x, 0x1.715476p-3f, some_reference(w))))                    \
    X(exp2d_bf16, invar_f32_bits(invar_exp2d_bf16(x, 0x1.715476p-3f, some_reference(w))))          \
    X(softmax_reference, canonical_bits(invar_softmax_reference(x, other_f32(w))))                 \
    X(log, invar_f32_bits(invar_log(x)))                                                           \
    X(log1p, invar_f32_bits(invar_log1p(x)))                                                       \
    X(tanh, invar_f32_bits(invar_tanh(x)))                                                         \
    X(sigmoid, invar_f32_bits(invar_sigmoid(x)))                                                   \
    X(silu, invar_f32_bits(invar_silu(x)))                                                         \
    X(silu_grad, invar_f32_bits(invar_silu_grad(x)))                                               \
    X(sfu_ex2, invar_f32_bits(invar_sfu_ex2(x)))                                                   \
    X(sfu_rcp, invar_f32_bits(invar_sfu_rcp(x)))                                                   \
    X(add, canonical_bits(x + other_f32(w)))                                                       \
    X(mul, canonical_bits(x *other_f32(w)))                                                        \
    X(div, canonical_bits(x / other_f32(w)))                                                       \
    X(fma, canonical_bits(invar_fmaf(x, other_f32(w), other_f32(~w))))                             \
    X(sqrt, canonical_bits(invar_sqrtf(x)))                                                        \
    X(rsqrt, canonical_bits(1.0f / invar_sqrtf(x)))                                                \
    X(max, invar_f32_bits(invar_max_f32(x, other_f32(w))))                                         \
    X(max_zero, invar_f32_bits(invar_max_f32(x, -0.0f)))                                           \
    X(min, invar_f32_bits(invar_min_f32(x, other_f32(w))))                                         \
    X(min_zero, invar_f32_bits(invar_min_f32(x, 0.0f)))                                            \
    X(bf16_from_f32, invar_bf16_from_f32(x))                                                       \
    X(f32_from_bf16, invar_f32_bits(invar_f32_from_bf16((uint16_t)w)))                             \
    X(e4m3_from_f32, invar_e4m3_from_f32(x))                                                       \
    X(e5m2_from_f32, invar_e5m2_from_f32(x))                                                       \
    X(f32_from_e4m3, invar_f32_bits(invar_f32_from_e4m3((uint8_t)w)))                              \
    X(f32_from_e5m2, invar_f32_bits(invar_f32_from_e5m2((uint8_t)w)))                              \
    X(bf16_from_e4m3, invar_bf16_from_e4m3((uint8_t)w))                                            \
    X(fp8_block_scale, invar_f32_bits(invar_fp8_block_scale(x)))                                   \
    X(fp8_block_quantise, invar_fp8_block_quantize(x, other_f32(w)))                               \
    X(e8m0_from_amax, invar_e8m0_from_amax(x))                                                     \
    X(f32_from_e8m0, invar_f32_bits(invar_f32_from_e8m0((uint8_t)w)))                              \
    X(mx_quantise, invar_mx_quantize(x, some_e8m0(w)))                                             \
    X(mx_dequantise, invar_mx_dequantize((uint8_t)w, some_e8m0(w)))                                \
    X(int4_scale, invar_int4_scale(x))                                                             \
    X(int4_quantise, (uint32_t)invar_int4_quantize(x, (uint16_t)other(w)))                         \
    X(int4_dequantise, invar_int4_dequantize((int32_t)(w % 15) - 7, (uint16_t)other(w)))           \
    X(philox, philox_of(w))                                                                        \
    X(uniform, invar_f32_bits(invar_uniform_f32(w)))                                               \
    X(gumbel, invar_f32_bits(invar_gumbel_f32(w)))

#define INVAR_ELEMENTARY_WORD(name, expression)                                                    \
    INVAR_FN uint32_t word_##name(uint32_t w)                                                      \
    {                                                                                              \
        float x = invar_bits_f32(w);                                                               \
        (void)x;                                                                                   \
        return expression;                                                                         \
    }
INVAR_ELEMENTARY_LIST(INVAR_ELEMENTARY_WORD)
#undef INVAR_ELEMENTARY_WORD

/* Adds the sum of the next chunk to the checksum of a function. */
static inline uint64_t fold_chunk(uint64_t checksum, uint64_t chunk_sum)
{
    return checksum * UINT64_C(0x9E3779B97F4A7C15) + chunk_sum;
}

#endif
