/*
 * operands.c - operands of the cases of invar bench, in the memory of any device.
 *
 * Tensors are filled from one block of noise, whose length is no power of two, so that rows do not
 * repeat. The first failure is kept in the benchmark, so that a case can be written down as one
 * struct of arguments.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/alloc.h"
#include "cli/bench/bench.h"
#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/op_fields.h"

#include "base/invar_banned.h"

enum { NOISE = (1 << 22) - 997 };         /* bf16 values */
#define CACHE_BYTES ((double)(120 << 20)) /* twice the size of the L2 cache of a GPU */

static void note_status(invar_bench *b, invar_status status)
{
    if (b->status == INVAR_OK)
        b->status = status;
}

void *invar_bench_alloc(invar_bench *b, size_t bytes)
{
    void *out = NULL;

    INVAR_CHECK(b->n_blocks < INVAR_BENCH_BLOCKS);
    if (b->status == INVAR_OK)
        note_status(b, invar_device_alloc(&b->dev, &out, bytes, "operands of a benchmark"));
    if (out)
        b->blocks[b->n_blocks++] = out;
    return out;
}

void invar_bench_free_operands(invar_bench *b)
{
    while (b->n_blocks > 0)
        invar_device_free(&b->dev, b->blocks[--b->n_blocks]);
}

void *invar_bench_array(invar_bench *b, const void *from, size_t bytes)
{
    void *out = invar_bench_alloc(b, bytes);

    if (out)
        note_status(b, invar_device_upload(&b->dev, out, from, bytes));
    return out;
}

static invar_status make_noise(invar_bench *b)
{
    uint64_t state = 1;

    INVAR_TRY(INVAR_ALLOC(b->noise, NOISE, "noise"));
    for (int64_t i = 0; i < NOISE; i++) {
        float value = invar_bench_noise(&state);
        // a zero as the high half of an f32 would make a slow subnormal number
        b->noise[i] = invar_bf16_from_f32(value == 0.0f ? 0x1p-9f : value);
    }
    return INVAR_OK;
}

/* Fills memory with noise: as bf16, as f32 (bf16 in the high halves), or as bytes. */
static void fill_with_noise(invar_bench *b, void *to, size_t bytes)
{
    const size_t period = NOISE * sizeof *b->noise;

    if (b->status == INVAR_OK && !b->noise)
        note_status(b, make_noise(b));
    for (size_t at = 0; at < bytes && b->status == INVAR_OK; at += period)
        note_status(b, invar_device_upload(&b->dev, (char *)to + at, b->noise,
                                           bytes - at < period ? bytes - at : period));
}

static size_t bytes_of(invar_dtype dtype, int64_t rows, int64_t cols)
{
    return (size_t)(rows * cols) * (size_t)invar_dtype_bits(dtype) / 8;
}

invar_tensor invar_bench_make(invar_bench *b, invar_dtype dtype, int64_t rows, int64_t cols)
{
    void *data = invar_bench_alloc(b, bytes_of(dtype, rows, cols));

    fill_with_noise(b, data, bytes_of(dtype, rows, cols));
    return invar_tensor_2d(data, dtype, rows, cols);
}

invar_tensor invar_bench_zero(invar_bench *b, invar_dtype dtype, int64_t rows, int64_t cols)
{
    void *data = invar_bench_alloc(b, bytes_of(dtype, rows, cols));

    if (data)
        note_status(b, invar_device_zero(&b->dev, data, bytes_of(dtype, rows, cols)));
    return invar_tensor_2d(data, dtype, rows, cols);
}

invar_tensor invar_bench_vector(invar_bench *b, invar_dtype dtype, int64_t n)
{
    return invar_tensor_1d(invar_bench_make(b, dtype, 1, n).data, dtype, n);
}

invar_tensor invar_bench_heads(invar_bench *b, int64_t rows, int64_t heads, int64_t dim)
{
    invar_tensor t = invar_bench_make(b, INVAR_DTYPE_BF16, rows, heads * dim);

    return invar_tensor_3d(t.data, t.dtype, rows, heads, dim);
}

invar_tensor invar_bench_quantized_output(invar_bench *b, invar_dtype dtype, bool weight,
                                          int64_t rows, int64_t cols)
{
    invar_tensor q = invar_bench_make(b, dtype, rows, cols);

    q.scale_rows = dtype == INVAR_DTYPE_FP8 && weight ? INVAR_FP8_BLOCK : 1;
    q.scale = invar_bench_alloc(b, invar_tensor_scale_bytes(&q));
    return q;
}

invar_tensor invar_bench_quantized(invar_bench *b, invar_dtype dtype, bool weight, int64_t rows,
                                   int64_t cols)
{
    invar_quantize_args args;

    if (dtype == INVAR_DTYPE_F32 || dtype == INVAR_DTYPE_BF16)
        return invar_bench_make(b, dtype, rows, cols);
    if (dtype == INVAR_DTYPE_INT4 && !weight)
        return invar_bench_make(b, INVAR_DTYPE_BF16, rows, cols);
    args = (invar_quantize_args){.q = invar_bench_quantized_output(b, dtype, weight, rows, cols),
                                 .x = invar_bench_make(b, INVAR_DTYPE_BF16, rows, cols)};
    invar_bench_prepare(b, INVAR_OP_QUANTIZE, &args);
    return args.q;
}

invar_tensor invar_bench_indices(invar_bench *b, int64_t rows, int64_t cols, int64_t bound,
                                 int64_t step)
{
    int64_t count = rows * cols;
    int32_t *values = NULL;
    void *data = NULL;

    note_status(b, INVAR_ALLOC(values, (size_t)count, "indices"));
    for (int64_t i = 0; i < count && values; i++)
        values[i] = (int32_t)(i * step % bound);
    if (values)
        data = invar_bench_array(b, values, (size_t)count * sizeof *values);
    invar_free(values);
    return cols > 1 ? invar_tensor_2d(data, INVAR_DTYPE_I32, rows, cols)
                    : invar_tensor_1d(data, INVAR_DTYPE_I32, rows);
}

invar_row_offsets invar_bench_offsets(invar_bench *b, int64_t rows, int64_t count)
{
    int64_t start[512];

    INVAR_CHECK(count < (int64_t)(sizeof start / sizeof *start));
    for (int64_t i = 0; i <= count; i++)
        start[i] = rows / count * i;
    return (invar_row_offsets){invar_bench_array(b, start, (size_t)(count + 1) * sizeof *start),
                               count};
}

void invar_bench_prepare(invar_bench *b, invar_op op, const void *args)
{
    if (b->status == INVAR_OK)
        note_status(b, invar_bench_run_once(&b->dev, op, args));
}

/* ---- bytes and sets -------------------------------------------------------------------------- */

static double tensor_bytes(const invar_tensor *t)
{
    return (double)bytes_of(t->dtype, t->shape[0], invar_tensor_row_elements(t)) +
           (double)invar_tensor_scale_bytes(t);
}

double invar_bench_bytes(invar_op op, const void *args)
{
    int count;
    const invar_field *f = invar_op_fields(&count, op), *end = f + count;
    double bytes = 0.0;

    for (; f < end; f++) {
        const void *in = invar_field_in(f, args);
        if (!invar_field_present(f, args))
            continue;
        if (f->kind == INVAR_FIELD_TENSOR)
            bytes += tensor_bytes(in) * (f->role == INVAR_FIELD_UPDATE ? 2.0 : 1.0);
        if (f->kind == INVAR_FIELD_TENSORS)
            bytes += tensor_bytes(*(const invar_tensor *const *)in);
    }
    return bytes;
}

/* Replaces the tensors in the arguments by copies. */
static void copy_operands(invar_bench *b, invar_op op, void *args)
{
    int count;
    const invar_field *f = invar_op_fields(&count, op), *end = f + count;

    for (; f < end; f++) {
        invar_tensor *t = (invar_tensor *)(void *)((char *)args + f->offset);
        size_t bytes;
        void *copy;
        if (f->kind != INVAR_FIELD_TENSOR || !invar_field_present(f, args))
            continue;
        bytes = bytes_of(t->dtype, t->shape[0], invar_tensor_row_elements(t));
        copy = invar_bench_alloc(b, bytes);
        if (copy)
            note_status(b, invar_device_copy(&b->dev, copy, t->data, bytes));
        t->data = copy;
    }
}

void invar_bench_make_sets(invar_bench *b, invar_bench_case *c,
                           invar_op_args copies[INVAR_BENCH_SETS])
{
    double sets = CACHE_BYTES / invar_bench_bytes(c->op, c->args[0]) + 1.0;

    for (; c->sets < INVAR_BENCH_SETS && c->sets + 1 <= sets; c->sets++) {
        (void)invar_op_args_copy(&copies[c->sets], c->op, c->args[0]);
        copy_operands(b, c->op, &copies[c->sets]);
        c->args[c->sets] = &copies[c->sets];
    }
}
