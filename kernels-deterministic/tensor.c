/*
 * tensor.c - the description of a tensor.
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
    size_t scale_bytes; /* of one scale */
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

size_t invar_tensor_scale_bytes(const invar_tensor *t)
{
    int64_t block = invar_dtype_scale_block(t->dtype);

    if (block == 0)
        return 0;
    return (size_t)(t->shape[0] / t->scale_rows * (t->shape[1] / block)) *
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

invar_tensor invar_tensor_quantised(void *data, void *scale, invar_dtype dtype, int32_t scale_rows,
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
    if (t->data) // else nothing is there to point at
        view.data = (char *)t->data + first * invar_dtype_bits(t->dtype) / 8;
    view.shape[1] = cols;
    return view;
}

invar_tensor invar_tensor_rows(const invar_tensor *t, int64_t first, int64_t rows)
{
    invar_tensor view = *t;

    INVAR_CHECK(first >= 0 && rows >= 0 && first + rows <= t->shape[0]);
    if (t->data) // else the rows are empty
        view.data = (char *)t->data + first * t->row_stride * invar_dtype_bits(t->dtype) / 8;
    if (t->scale) {
        INVAR_CHECK(first % t->scale_rows == 0);
        view.shape[0] = first; // the scales of the rows before
        view.scale = (char *)t->scale + invar_tensor_scale_bytes(&view);
    }
    view.shape[0] = rows;
    return view;
}
