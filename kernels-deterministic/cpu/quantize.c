/*
 * quantize.c - quantization to fp8, mxfp8 and int4, and back.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 7. amax is the largest magnitude of a scale
 * block; the last block of a row or column may be short:
 *   fp8    blocks 1x128 or 128x128: s = max(amax, 2^-96) / 448, q = e4m3(x / s); back: q * s
 *   mxfp8  blocks 1x32: s = the smallest power of two with 448 s >= amax; q = e4m3(x / s), rounded
 *          once; back: q * s, exact in bf16
 *   int4   blocks 1x32: s = bf16(max(amax / 7, 2^-24)), q = clamp(rne(x / s), -7, 7); back:
 *          bf16(q * s)
 * A NaN or an infinity makes its block's scale NaN or infinite, so no value of the block comes back
 * finite. A block depends on its own values only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/elementwise.h"
#include "kernels-deterministic/cpu/row_parallel.h"
#include "kernels-deterministic/math/fp8.h"
#include "kernels-deterministic/math/int4.h"
#include "kernels-deterministic/math/mx.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

/* ---- to low precision ------------------------------------------------------------------------ */

/*
 * Returns the largest magnitude of the block and `amax`, or a NaN if there is one: its bits are the
 * largest.
 */
static float block_amax(const float *x, int64_t count, float amax)
{
    uint32_t largest = invar_f32_bits(amax);

    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = invar_f32_bits(x[i]) & ~INVAR_SIGN_BIT;
        largest = bits > largest ? bits : largest;
    }
    return invar_bits_f32(largest);
}

/* The scale block of `cols` columns from `first` on, with its scale at index `at`. */
typedef struct block {
    invar_band rows;
    int64_t first, cols;
    int64_t at;
} block;

static void quantize_fp8(const invar_quantize_args *a, const block *b)
{
    float x[INVAR_FP8_BLOCK], amax = 0.0f, s;

    for (int64_t r = b->rows.first; r < b->rows.first + b->rows.rows; r++) {
        invar_tensor_row_load(x, &a->x, r, b->first, b->cols);
        amax = block_amax(x, b->cols, amax);
    }
    s = ((float *)a->q.scale)[b->at] = invar_fp8_block_scale(amax);
    for (int64_t r = b->rows.first; r < b->rows.first + b->rows.rows; r++) {
        uint8_t *q = (uint8_t *)a->q.data + r * a->q.row_stride + b->first;
        invar_tensor_row_load(x, &a->x, r, b->first, b->cols);
        for (int64_t i = 0; i < b->cols; i++)
            q[i] = invar_fp8_block_quantize(x[i], s);
    }
}

static void quantize_mxfp8(const invar_quantize_args *a, const block *b)
{
    uint8_t *q = (uint8_t *)a->q.data + b->rows.first * a->q.row_stride + b->first, s;
    float x[INVAR_MX_BLOCK];

    invar_tensor_row_load(x, &a->x, b->rows.first, b->first, b->cols);
    s = ((uint8_t *)a->q.scale)[b->at] = invar_e8m0_from_amax(block_amax(x, b->cols, 0.0f));
    for (int64_t i = 0; i < b->cols; i++)
        q[i] = invar_mx_quantize(x[i], s);
}

static void quantize_int4(const invar_quantize_args *a, const block *b)
{
    uint8_t *packed = (uint8_t *)a->q.data + (b->rows.first * a->q.row_stride + b->first) / 2;
    float x[INVAR_INT4_BLOCK];
    uint16_t s;

    invar_tensor_row_load(x, &a->x, b->rows.first, b->first, b->cols);
    s = ((uint16_t *)a->q.scale)[b->at] = invar_int4_scale(block_amax(x, b->cols, 0.0f));
    for (int64_t i = 0; i < b->cols; i += 2)
        packed[i / 2] =
            invar_int4_pack(invar_int4_quantize(x[i], s), invar_int4_quantize(x[i + 1], s));
}

typedef void (*block_fn)(const invar_quantize_args *a, const block *b);

static const block_fn formats[INVAR_DTYPE_COUNT] = {
    [INVAR_DTYPE_FP8] = quantize_fp8,
    [INVAR_DTYPE_MXFP8] = quantize_mxfp8,
    [INVAR_DTYPE_INT4] = quantize_int4,
};

static void round_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_quantize_args *a = payload;

    invar_tensor_row_store(&a->q, row, first, count,
                           (const float *)a->x.data + row * a->x.row_stride + first);
}

/* Quantizes all scale blocks of one band. */
static void quantize_band(const void *payload, int64_t band, void *scratch)
{
    const invar_quantize_args *a = payload;
    int64_t width = invar_dtype_scale_block(a->q.dtype), cols = a->q.shape[1];
    block b = {.rows = invar_tensor_band(&a->q, band),
               .at = band * invar_tensor_scale_blocks(&a->q)};

    (void)scratch;
    for (; b.first < cols; b.first += width, b.at++) {
        b.cols = cols - b.first < width ? cols - b.first : width;
        formats[a->q.dtype](a, &b);
    }
}

INVAR_NO_WORKSPACE(cpu, quantize)

invar_status invar_cpu_quantize(const invar_device *dev, const invar_quantize_args *a,
                                void *workspace)
{
    invar_row_parallel_job bands = {0, 1, 0, quantize_band, a};

    if (a->q.dtype == INVAR_DTYPE_BF16)
        return invar_elementwise_run(dev, a->q.shape[0], a->q.shape[1], round_piece, a);
    bands.rows = invar_tensor_bands(&a->q);
    return invar_row_parallel_run(dev, &bands, workspace);
}

/* ---- back ------------------------------------------------------------------------------------ */

static void dequantize_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_dequantize_args *a = payload;
    float x[INVAR_PIECE];

    invar_tensor_row_load(x, &a->q, row, first, count);
    if (a->q.dtype == INVAR_DTYPE_FP8) {
        for (int64_t at = 0; at < count; at += INVAR_FP8_BLOCK) {
            float scale = invar_tensor_row_fp8_scale(&a->q, row, first + at);
            for (int64_t i = at; i < at + INVAR_FP8_BLOCK && i < count; i++)
                x[i] *= scale;
        }
    }
    invar_tensor_row_store(&a->x, row, first, count, x);
}

INVAR_ELEMENTWISE_OP(dequantize, x, dequantize_piece)
