/*
 * data.c - test tensors on the device, and digests of results.
 *
 * The number of a random tensor selects its Philox stream. New random tensors must therefore be
 * made last, or every recorded digest after them changes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/selfcheck/layer.h"

#include <stdio.h>

#include "base/alloc.h"
#include "kernels-deterministic/math/philox.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

const int64_t invar_selfcheck_sample_start[SAMPLES + 1] = {0, 5, 24, 37};

invar_status invar_selfcheck_make_raw(void **out, invar_selfcheck *r, size_t bytes)
{
    INVAR_TRY(invar_arena_push(out, r->dev->scratch, bytes, "selfcheck"));
    return invar_device_zero(r->dev, *out, bytes);
}

invar_status invar_selfcheck_make_copy(void **out, invar_selfcheck *r, const void *from,
                                       size_t bytes)
{
    INVAR_TRY(invar_arena_push(out, r->dev->scratch, bytes, "selfcheck"));
    return invar_device_upload(r->dev, *out, from, bytes);
}

invar_status invar_selfcheck_make_segments(invar_row_offsets *out, invar_selfcheck *r,
                                           const int64_t *start, int64_t count)
{
    void *data;

    INVAR_TRY(invar_selfcheck_make_copy(&data, r, start, (size_t)(count + 1) * sizeof *start));
    *out = (invar_row_offsets){data, count};
    return INVAR_OK;
}

static size_t tensor_bytes(invar_dtype dtype, int64_t rows, int64_t cols)
{
    return (size_t)(rows * cols * invar_dtype_bits(dtype) / 8);
}

invar_status invar_selfcheck_make(invar_tensor *out, invar_selfcheck *r, invar_dtype dtype,
                                  int64_t rows, int64_t cols)
{
    void *data;

    INVAR_TRY(invar_selfcheck_make_raw(&data, r, tensor_bytes(dtype, rows, cols)));
    *out = invar_tensor_2d(data, dtype, rows, cols);
    return INVAR_OK;
}

invar_status invar_selfcheck_make_indices(invar_tensor *out, invar_selfcheck *r,
                                          const int32_t *values, int64_t count)
{
    void *data;

    INVAR_TRY(invar_selfcheck_make_copy(&data, r, values, (size_t)count * sizeof *values));
    *out = invar_tensor_1d(data, INVAR_DTYPE_I32, count);
    return INVAR_OK;
}

/* Fills a tensor in host memory with values from [-range, range), rounded to its type. */
static void fill_random(const invar_tensor *out, uint32_t stream, float range)
{
    uint32_t key[2] = {0x496E7661u, stream};

    for (int64_t i = 0; i < out->shape[0]; i++)
        for (int64_t j = 0; j < out->shape[1]; j++) {
            uint32_t counter[4] = {(uint32_t)(i * out->shape[1] + j), 0, 0, 0}, word[4];
            float value;
            invar_philox4x32(word, counter, key);
            value = ((float)(word[0] >> 8) * 0x1p-23f - 1.0f) * range;
            invar_tensor_row_store(out, i, j, 1, &value);
        }
}

invar_status invar_selfcheck_make_random(invar_tensor *out, invar_selfcheck *r, invar_dtype dtype,
                                         int64_t rows, int64_t cols, float range)
{
    size_t bytes = tensor_bytes(dtype, rows, cols);
    void *near, *data = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc(&near, 1, bytes, "selfcheck"));
    *out = invar_tensor_2d(near, dtype, rows, cols);
    fill_random(out, r->tensors++, range);
    status = invar_selfcheck_make_copy(&data, r, near, bytes);
    invar_free(near);
    out->data = data;
    return status;
}

invar_tensor invar_selfcheck_as_3d(const invar_tensor *t, int64_t n1, int64_t n2)
{
    return invar_tensor_3d(t->data, t->dtype, t->shape[0], n1, n2);
}

invar_tensor invar_selfcheck_as_1d(const invar_tensor *t)
{
    return invar_tensor_1d(t->data, t->dtype, t->shape[0] * t->shape[1]);
}

invar_status invar_selfcheck_make_quantized(invar_tensor *out, invar_selfcheck *r,
                                            const invar_tensor *x, invar_dtype dtype,
                                            int32_t scale_rows)
{
    INVAR_TRY(invar_selfcheck_make(out, r, dtype, x->shape[0], x->shape[1]));
    out->scale_rows = scale_rows;
    INVAR_TRY(invar_selfcheck_make_raw(&out->scale, r, invar_tensor_scale_bytes(out)));
    return invar_quantize(r->dev, &(invar_quantize_args){.q = *out, .x = *x});
}

invar_status invar_selfcheck_quantize_operands(invar_selfcheck_operands *out, invar_selfcheck *r,
                                               const invar_selfcheck_operands *plain,
                                               invar_dtype format)
{
    *out = *plain;
    INVAR_TRY(invar_selfcheck_make_quantized(&out->w, r, &plain->w, format,
                                             format == INVAR_DTYPE_FP8 ? INVAR_FP8_BLOCK : 1));
    if (format == INVAR_DTYPE_INT4)
        return INVAR_OK;
    INVAR_TRY(invar_selfcheck_make_quantized(&out->x, r, &plain->x, format, 1));
    return invar_selfcheck_make_quantized(&out->dy, r, &plain->dy, format, 1);
}

bool invar_selfcheck_has_product(const invar_selfcheck *r, invar_dtype format)
{
    return format != INVAR_DTYPE_INT4 || r->storage == INVAR_DTYPE_BF16;
}

invar_status invar_selfcheck_emit_tensor(invar_selfcheck *r, invar_op op, const char *what,
                                         const invar_tensor *t)
{
    invar_digest digest;
    invar_hash_tree_args args = {.digest = r->digest, .x = t, .count = 1, .shards = 1};

    INVAR_TRY(invar_hash_tree(r->dev, &args));
    INVAR_TRY(invar_device_download(r->dev, &digest, r->digest, sizeof digest));
    return r->emit(r->payload, op, what, &digest);
}

invar_status invar_selfcheck_emit_after(invar_selfcheck *r, invar_op source, invar_op op,
                                        const char *what, const invar_tensor *t)
{
    char name[64];

    snprintf(name, sizeof name, "%s after %s %d", what, invar_op_name(source),
             invar_op_revision(source));
    return invar_selfcheck_emit_tensor(r, op, name, t);
}
