/*
 * tensor_row.c - rows of any float tensor as f32, and back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/tensor_row.h"

#include <string.h>

#include "base/status.h"
#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/math/fp8.h"
#include "kernels-deterministic/math/int4.h"
#include "kernels-deterministic/math/mx.h"

#include "base/invar_banned.h"

static void load_bf16(float *dst, const uint16_t *src, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dst[i] = invar_f32_from_bf16(src[i]);
}

static void load_e4m3(float *dst, const uint8_t *src, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dst[i] = invar_f32_from_e4m3(src[i]);
}

static void load_mxfp8(float *dst, const invar_tensor *t, int64_t row, int64_t first, int64_t count)
{
    const uint8_t *q = (const uint8_t *)t->data + row * t->row_stride;
    const uint8_t *scale = (const uint8_t *)t->scale + row * invar_tensor_scale_blocks(t);

    for (int64_t i = 0; i < count; i++)
        dst[i] = invar_f32_from_bf16(
            invar_mx_dequantize(q[first + i], scale[(first + i) / INVAR_MX_BLOCK]));
}

static void load_int4(float *dst, const invar_tensor *t, int64_t row, int64_t first, int64_t count)
{
    const uint8_t *packed = (const uint8_t *)t->data + row * t->row_stride / 2;
    const uint16_t *scale = (const uint16_t *)t->scale + row * invar_tensor_scale_blocks(t);

    for (int64_t i = 0; i < count; i++)
        dst[i] = invar_f32_from_bf16(
            invar_int4_dequantize(invar_int4_unpack(packed[(first + i) / 2], (first + i) & 1),
                                  scale[(first + i) / INVAR_INT4_BLOCK]));
}

void invar_tensor_row_load(float *dst, const invar_tensor *t, int64_t row, int64_t first,
                           int64_t count)
{
    int64_t at = row * t->row_stride + first;

    switch (t->dtype) {
    case INVAR_DTYPE_F32:
        memcpy(dst, (const float *)t->data + at, (size_t)count * sizeof(float));
        return;
    case INVAR_DTYPE_BF16: load_bf16(dst, (const uint16_t *)t->data + at, count); return;
    case INVAR_DTYPE_FP8: load_e4m3(dst, (const uint8_t *)t->data + at, count); return;
    case INVAR_DTYPE_MXFP8: load_mxfp8(dst, t, row, first, count); return;
    default: break;
    }
    INVAR_CHECK(t->dtype == INVAR_DTYPE_INT4); // the last of the float types
    load_int4(dst, t, row, first, count);
}

void invar_tensor_row_store(const invar_tensor *t, int64_t row, int64_t first, int64_t count,
                            const float *src)
{
    int64_t at = row * t->row_stride + first;
    uint16_t *dst;

    if (t->dtype == INVAR_DTYPE_F32) {
        memcpy((float *)t->data + at, src, (size_t)count * sizeof(float));
        return;
    }
    INVAR_CHECK(t->dtype == INVAR_DTYPE_BF16);
    dst = (uint16_t *)t->data + at;
    for (int64_t i = 0; i < count; i++)
        dst[i] = invar_bf16_from_f32(src[i]);
}

float invar_tensor_row_fp8_scale(const invar_tensor *t, int64_t row, int64_t col)
{
    const float *scale = t->scale;

    return scale[invar_tensor_band_index(t, row) * invar_tensor_scale_blocks(t) +
                 col / INVAR_FP8_BLOCK];
}
