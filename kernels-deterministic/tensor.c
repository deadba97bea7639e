/*
 * tensor.c - tensor views: slices of rows and columns, bands and sizes of scales.
 *
 * Scales are stored band by band. A band never extends over the end of a period (the rows of one
 * expert), so the first scale of a slice of rows is found by counting the bands before it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/tensor.h"

#include "base/status.h"

#include "base/invar_banned.h"

static const struct {
    const char *name;
    int bits;
    int64_t scale_block;
    size_t scale_bytes; /* size of one scale */
} types[INVAR_DTYPE_COUNT] = {
    [INVAR_DTYPE_NONE] = {"none", 0, 0, 0},
    [INVAR_DTYPE_F32] = {"f32", 32, 0, 0},
    [INVAR_DTYPE_BF16] = {"bf16", 16, 0, 0},
    [INVAR_DTYPE_FP8] = {"fp8", 8, INVAR_FP8_BLOCK, sizeof(float)},
    [INVAR_DTYPE_MXFP8] = {"mxfp8", 8, INVAR_MX_BLOCK, sizeof(uint8_t)},
    [INVAR_DTYPE_INT4] = {"int4", 4, INVAR_INT4_BLOCK, sizeof(uint16_t)},
    [INVAR_DTYPE_I32] = {"i32", 32, 0, 0},
    [INVAR_DTYPE_I64] = {"i64", 64, 0, 0},
};

const char *invar_dtype_name(invar_dtype dtype)
{
    return dtype >= 0 && dtype < INVAR_DTYPE_COUNT ? types[dtype].name : "unknown";
}

int invar_dtype_bits(invar_dtype dtype)
{
    return dtype >= 0 && dtype < INVAR_DTYPE_COUNT ? types[dtype].bits : 0;
}

int64_t invar_dtype_scale_block(invar_dtype dtype)
{
    return dtype >= 0 && dtype < INVAR_DTYPE_COUNT ? types[dtype].scale_block : 0;
}

static int64_t ceil_div(int64_t n, int64_t by)
{
    return n / by + (n % by != 0);
}

/* Counts the bands of complete periods, then those of the remaining rows. */
int64_t invar_tensor_bands(const invar_tensor *t)
{
    int64_t rows = t->shape[0], period = t->scale_period ? t->scale_period : rows;

    if (rows == 0)
        return 0;
    return rows / period * ceil_div(period, t->scale_rows) + ceil_div(rows % period, t->scale_rows);
}

int64_t invar_tensor_band_index(const invar_tensor *t, int64_t row)
{
    if (!t->scale_period)
        return row / t->scale_rows;
    return row / t->scale_period * ceil_div(t->scale_period, t->scale_rows) +
           row % t->scale_period / t->scale_rows;
}

invar_band invar_tensor_band(const invar_tensor *t, int64_t number)
{
    int64_t period = t->scale_period ? t->scale_period : t->shape[0];
    int64_t each = ceil_div(period, t->scale_rows), begin = number / each * period;
    int64_t end = begin + period < t->shape[0] ? begin + period : t->shape[0];
    invar_band band = {begin + number % each * t->scale_rows, t->scale_rows};

    if (band.rows > end - band.first)
        band.rows = end - band.first;
    return band;
}

int64_t invar_tensor_scale_blocks(const invar_tensor *t)
{
    return ceil_div(t->shape[1], invar_dtype_scale_block(t->dtype));
}

size_t invar_tensor_scale_bytes(const invar_tensor *t)
{
    if (invar_dtype_scale_block(t->dtype) == 0)
        return 0;
    return (size_t)(invar_tensor_bands(t) * invar_tensor_scale_blocks(t)) *
           types[t->dtype].scale_bytes;
}

int64_t invar_tensor_row_elements(const invar_tensor *t)
{
    int64_t n = 1;

    for (int i = 1; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

invar_tensor invar_tensor_4d(void *data, invar_dtype dtype, int64_t n0, int64_t n1, int64_t n2,
                             int64_t n3)
{
    invar_tensor t = {.data = data,
                      .dtype = dtype,
                      .rank = 4,
                      .scale_rows = 1,
                      .shape = {n0, n1, n2, n3},
                      .row_stride = n1 * n2 * n3};
    return t;
}

invar_tensor invar_tensor_3d(void *data, invar_dtype dtype, int64_t n0, int64_t n1, int64_t n2)
{
    invar_tensor t = invar_tensor_4d(data, dtype, n0, n1, n2, 1);

    t.rank = 3;
    return t;
}

invar_tensor invar_tensor_2d(void *data, invar_dtype dtype, int64_t rows, int64_t cols)
{
    invar_tensor t = invar_tensor_4d(data, dtype, rows, cols, 1, 1);

    t.rank = 2;
    return t;
}

invar_tensor invar_tensor_1d(void *data, invar_dtype dtype, int64_t n)
{
    invar_tensor t = invar_tensor_4d(data, dtype, n, 1, 1, 1);

    t.rank = 1;
    return t;
}

invar_tensor invar_tensor_quantized(void *data, void *scale, invar_dtype dtype, int32_t scale_rows,
                                    int64_t rows, int64_t cols)
{
    invar_tensor t = invar_tensor_2d(data, dtype, rows, cols);

    t.scale = scale;
    t.scale_rows = scale_rows;
    return t;
}

invar_tensor invar_tensor_columns(const invar_tensor *t, int64_t first, int64_t cols)
{
    invar_tensor view = *t;

    INVAR_CHECK(t->rank == 2 && !t->scale && first >= 0 && cols >= 0 &&
                first + cols <= t->shape[1]);
    if (t->data) // an empty tensor may have no address
        view.data = (char *)t->data + first * invar_dtype_bits(t->dtype) / 8;
    view.shape[1] = cols;
    return view;
}

invar_tensor invar_tensor_rows(const invar_tensor *t, int64_t first, int64_t rows)
{
    invar_tensor view = *t;

    INVAR_CHECK(first >= 0 && rows >= 0 && first + rows <= t->shape[0]);
    if (t->data) // an empty tensor may have no address
        view.data = (char *)t->data + first * t->row_stride * invar_dtype_bits(t->dtype) / 8;
    if (t->scale) {
        view.shape[0] = first; // size of the scales before the slice
        view.scale = (char *)t->scale + invar_tensor_scale_bytes(&view);
        if (first > 0 && rows > 0)
            INVAR_CHECK(invar_tensor_band(t, invar_tensor_band_index(t, first)).first == first);
        // a slice from inside a period ends with it, so no further period starts in the slice
        if (t->scale_period && first % t->scale_period != 0) {
            INVAR_CHECK(first % t->scale_period + rows <= t->scale_period);
            view.scale_period = 0;
        }
    }
    view.shape[0] = rows;
    return view;
}
