/*
 * quantise.c - to fp8, mxfp8 and int4, and back.
 *
 * Numerics contract (rev 1), docs/arithmetic.md; amax = the largest magnitude of a scale block:
 *   fp8    blocks 1x128 or 128x128: s = max(amax, 2^-96) / 448, q = e4m3(x / s); back: q * s
 *   mxfp8  blocks 1x32: s = the smallest power of two with 448 s >= amax; q = e4m3(x / s), rounded
 *          once; back: q * s, exact in bf16
 *   int4   blocks 1x32: s = bf16(max(amax / 7, 2^-24)), q = clamp(rne(x / s), -7, 7); back:
 *          bf16(q * s)
 * A NaN or an infinity makes its block's scale one: no value of the block comes back finite.
 * A block depends on its own values alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/pieces.h"
#include "kernels-deterministic/cpu/rows.h"
#include "kernels-deterministic/math/fp8.h"
#include "kernels-deterministic/math/int4.h"
#include "kernels-deterministic/math/mx.h"
#include "kernels-deterministic/row.h"

#include "base/invar_banned.h"

/* ---- to low precision ------------------------------------------------------------------------ */

/* The largest magnitude of the block, or a NaN of the block: NaN has the largest bits. */
static float block_amax(const float *x, int64_t count, float amax)
{
    uint32_t largest = invar_f32_bits(amax);

    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = invar_f32_bits(x[i]) & ~INVAR_SIGN_BIT;
        largest = bits > largest ? bits : largest;
    }
    return invar_bits_f32(largest);
}

static void quantise_fp8(const invar_quantise_args *a, int64_t row, int64_t first)
{
    float *scale = (float *)a->q.scale + row / a->q.scale_rows * (a->q.shape[1] / INVAR_FP8_BLOCK) +
                   first / INVAR_FP8_BLOCK;
    float x[INVAR_FP8_BLOCK], amax = 0.0f, s;

    for (int32_t r = 0; r < a->q.scale_rows; r++) {
        invar_row_load(x, &a->x, row + r, first, INVAR_FP8_BLOCK);
        amax = block_amax(x, INVAR_FP8_BLOCK, amax);
    }
    s = *scale = invar_fp8_block_scale(amax);
    for (int32_t r = 0; r < a->q.scale_rows; r++) {
        uint8_t *q = (uint8_t *)a->q.data + (row + r) * a->q.row_stride + first;
        invar_row_load(x, &a->x, row + r, first, INVAR_FP8_BLOCK);
        for (int i = 0; i < INVAR_FP8_BLOCK; i++)
            q[i] = invar_fp8_block_quantise(x[i], s);
    }
}

static void quantise_mxfp8(const invar_quantise_args *a, int64_t row, int64_t first)
{
    uint8_t *q = (uint8_t *)a->q.data + row * a->q.row_stride + first;
    uint8_t *scale = (uint8_t *)a->q.scale + (row * a->q.shape[1] + first) / INVAR_MX_BLOCK, s;
    float x[INVAR_MX_BLOCK];

    invar_row_load(x, &a->x, row, first, INVAR_MX_BLOCK);
    s = *scale = invar_e8m0_from_amax(block_amax(x, INVAR_MX_BLOCK, 0.0f));
    for (int i = 0; i < INVAR_MX_BLOCK; i++)
        q[i] = invar_mx_quantise(x[i], s);
}

static void quantise_int4(const invar_quantise_args *a, int64_t row, int64_t first)
{
    uint8_t *packed = (uint8_t *)a->q.data + (row * a->q.row_stride + first) / 2;
    uint16_t *scale = (uint16_t *)a->q.scale + (row * a->q.shape[1] + first) / INVAR_INT4_BLOCK, s;
    float x[INVAR_INT4_BLOCK];

    invar_row_load(x, &a->x, row, first, INVAR_INT4_BLOCK);
    s = *scale = invar_int4_scale(block_amax(x, INVAR_INT4_BLOCK, 0.0f));
    for (int i = 0; i < INVAR_INT4_BLOCK; i += 2)
        packed[i / 2] =
            invar_int4_pack(invar_int4_quantise(x[i], s), invar_int4_quantise(x[i + 1], s));
}

typedef void (*block_fn)(const invar_quantise_args *a, int64_t row, int64_t first);

static const block_fn formats[INVAR_DTYPE_COUNT] = {
    [INVAR_DTYPE_FP8] = quantise_fp8,
    [INVAR_DTYPE_MXFP8] = quantise_mxfp8,
    [INVAR_DTYPE_INT4] = quantise_int4,
};

static void round_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_quantise_args *a = payload;

    invar_row_store(&a->q, row, first, count,
                    (const float *)a->x.data + row * a->x.row_stride + first);
}

/* The rows that share scales. */
static void quantise_band(const void *payload, int64_t band, void *scratch)
{
    const invar_quantise_args *a = payload;
    int64_t block = invar_dtype_scale_block(a->q.dtype);

    (void)scratch;
    for (int64_t first = 0; first < a->q.shape[1]; first += block)
        formats[a->q.dtype](a, band * a->q.scale_rows, first);
}

size_t invar_cpu_quantise_workspace(const invar_device *dev, const invar_quantise_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cpu_quantise(const invar_device *dev, const invar_quantise_args *a,
                                void *workspace)
{
    invar_row_job bands = {0, 1, 0, quantise_band, a};

    if (a->q.dtype == INVAR_DTYPE_BF16)
        return invar_pieces_run(dev, a->q.shape[0], a->q.shape[1], round_piece, a);
    bands.rows = a->q.shape[0] / a->q.scale_rows;
    return invar_rows_run(dev, &bands, workspace);
}

/* ---- back ------------------------------------------------------------------------------------ */

static void dequantise_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_dequantise_args *a = payload;
    float x[INVAR_PIECE];

    invar_row_load(x, &a->q, row, first, count);
    if (a->q.dtype == INVAR_DTYPE_FP8) {
        for (int64_t block = 0; block < count; block += INVAR_FP8_BLOCK) {
            float scale = invar_row_fp8_scale(&a->q, row, first + block);
            for (int64_t i = block; i < block + INVAR_FP8_BLOCK; i++)
                x[i] *= scale;
        }
    }
    invar_row_store(&a->x, row, first, count, x);
}

size_t invar_cpu_dequantise_workspace(const invar_device *dev, const invar_dequantise_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cpu_dequantise(const invar_device *dev, const invar_dequantise_args *a,
                                  void *workspace)
{
    (void)workspace;
    return invar_pieces_run(dev, a->x.shape[0], a->x.shape[1], dequantise_piece, a);
}
