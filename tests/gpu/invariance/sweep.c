/*
 * sweep.c - shared by the sweeps of tests/gpu: a device, tensors in its memory, comparison.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/gpu/invariance/sweep.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/math/bf16.h"
#include "tests/device/copying_backend.h"

/* ---- the device ------------------------------------------------------------------------------ */

invar_sweep *invar_sweep_begin(invar_numerics numerics)
{
    static invar_sweep sweeps[INVAR_NUMERICS_COUNT];
    invar_sweep *s = &sweeps[numerics];

    if (!s->dev.backend) {
        s->dev.backend = invar_test_ops_backend();
        assert_non_null(s->dev.backend);
        s->dev.numerics = numerics;
        s->large = s->dev.backend == invar_backend_cuda();
        if (!s->large)
            assert_ok(invar_pool_new(&s->dev.pool, 2));
        assert_ok(invar_device_open(&s->dev));
    }
    return s;
}

int invar_sweep_mark(const invar_sweep *s)
{
    return s->n_blocks;
}

void invar_sweep_release(invar_sweep *s, int mark)
{
    assert_ok(invar_device_synchronize(&s->dev));
    while (s->n_blocks > mark)
        invar_device_free(&s->dev, s->blocks[--s->n_blocks]);
}

int64_t invar_sweep_size(const invar_sweep *s, int64_t large, int64_t small)
{
    return s->large ? large : small;
}

static void *alloc_block(invar_sweep *s, size_t bytes)
{
    void *block = NULL;

    assert_true(s->n_blocks < INVAR_SWEEP_MAX_BLOCKS);
    assert_ok(invar_device_alloc(&s->dev, &block, bytes + !bytes, "a sweep"));
    assert_ok(invar_device_zero(&s->dev, block, bytes));
    s->blocks[s->n_blocks++] = block;
    return block;
}

void invar_sweep_run(invar_sweep *s, invar_op op, const void *args)
{
    size_t bytes;

    assert_ok(invar_op_workspace(&bytes, &s->dev, op, args));
    if (bytes > s->scratch_bytes) {
        invar_device_free(&s->dev, s->scratch);
        s->scratch_bytes = bytes + bytes / 2;
        assert_ok(invar_device_alloc(&s->dev, &s->scratch, s->scratch_bytes, "scratch of a sweep"));
    }
    assert_ok(s->dev.backend->ops[op].run(&s->dev, args, bytes > 0 ? s->scratch : NULL));
}

/* ---- tensors --------------------------------------------------------------------------------- */

static size_t tensor_bytes(const invar_tensor *t)
{
    return (size_t)(t->shape[0] * t->row_stride * invar_dtype_bits(t->dtype) / 8);
}

static size_t row_bytes(const invar_tensor *t)
{
    return (size_t)(t->row_stride * invar_dtype_bits(t->dtype) / 8);
}

invar_tensor invar_sweep_tensor(invar_sweep *s, invar_tensor view)
{
    view.data = alloc_block(s, tensor_bytes(&view));
    if (invar_tensor_scale_bytes(&view) > 0)
        view.scale = alloc_block(s, invar_tensor_scale_bytes(&view));
    return view;
}

invar_tensor invar_sweep_2d(invar_sweep *s, invar_dtype dtype, int64_t rows, int64_t cols)
{
    return invar_sweep_tensor(s, invar_tensor_2d(NULL, dtype, rows, cols));
}

/*
 * Returns an approximately normal number: the sum of four uniforms from splitmix64, with all bits
 * of an f32.
 */
static float next_normal(uint64_t *state, float scale)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    int32_t sum = 0;

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31;
    for (int i = 0; i < 4; i++)
        sum += (int32_t)(z >> (16 * i) & 0xFFFF) - 0x8000;
    return (float)sum * 0x1.bb67aep-16f * scale;
}

#define PERIOD 1048583 // a prime, so that rows of common lengths differ

/*
 * Makes PERIOD elements with `next` on the heap and uploads them repeatedly until the tensor is
 * full.
 */
static void fill_with(const invar_sweep *s, const invar_tensor *t,
                      float (*next)(uint64_t *state, float scale), uint64_t state, float scale)
{
    int64_t count = t->shape[0] * t->row_stride;
    size_t bytes = tensor_bytes(t), period_bytes = PERIOD * (size_t)invar_dtype_bits(t->dtype) / 8;
    char *host = malloc(bytes + 1);

    assert_non_null(host);
    assert_true(t->dtype == INVAR_DTYPE_F32 || t->dtype == INVAR_DTYPE_BF16);
    for (int64_t i = 0; i < count && i < PERIOD; i++) {
        float value = next(&state, scale);
        uint16_t narrow = invar_bf16_from_f32(value);
        if (t->dtype == INVAR_DTYPE_F32)
            memcpy(host + i * 4, &value, 4);
        else
            memcpy(host + i * 2, &narrow, 2);
    }
    for (size_t at = period_bytes; at < bytes; at += period_bytes)
        memcpy(host + at, host, bytes - at < period_bytes ? bytes - at : period_bytes);
    invar_sweep_upload(s, t, host);
    free(host);
}

void invar_sweep_fill_normal(const invar_sweep *s, const invar_tensor *t, uint64_t seed,
                             float scale)
{
    fill_with(s, t, next_normal, seed * UINT64_C(0xD1342543DE82EF95), scale);
}

static float next_same(uint64_t *state, float scale)
{
    (void)state;
    return scale;
}

void invar_sweep_fill(const invar_sweep *s, const invar_tensor *t, float value)
{
    fill_with(s, t, next_same, 0, value);
}

void invar_sweep_fill_index(const invar_sweep *s, const invar_tensor *t, uint64_t seed,
                            int32_t bound)
{
    int64_t count = t->shape[0] * t->row_stride;
    int32_t *host = malloc(tensor_bytes(t) + 1);

    assert_non_null(host);
    for (int64_t i = 0; i < count; i++)
        host[i] = (int32_t)(invar_test_random(seed, (uint64_t)i) % (uint32_t)bound);
    invar_sweep_upload(s, t, host);
    free(host);
}

invar_tensor invar_sweep_normal(invar_sweep *s, invar_dtype dtype, int64_t rows, int64_t cols,
                                uint64_t seed)
{
    invar_tensor t = invar_sweep_2d(s, dtype, rows, cols);

    invar_sweep_fill_normal(s, &t, seed, 1.0f);
    return t;
}

invar_tensor invar_sweep_quantized(invar_sweep *s, const invar_tensor *plain, invar_dtype dtype,
                                   bool weight)
{
    invar_quantize_args args = {.x = *plain};

    if (dtype == plain->dtype)
        return *plain;
    args.q = invar_sweep_tensor(
        s, invar_tensor_quantized(NULL, NULL, dtype,
                                  weight && dtype == INVAR_DTYPE_FP8 ? INVAR_FP8_BLOCK : 1,
                                  plain->shape[0], plain->shape[1]));
    invar_sweep_run(s, INVAR_OP_QUANTIZE, &args);
    return args.q;
}

const int64_t *invar_sweep_numbers(invar_sweep *s, const int64_t *values, int64_t count)
{
    void *block = alloc_block(s, (size_t)count * sizeof *values);

    assert_ok(invar_device_upload(&s->dev, block, values, (size_t)count * sizeof *values));
    return block;
}

void invar_sweep_upload(const invar_sweep *s, const invar_tensor *t, const void *host)
{
    assert_ok(invar_device_upload(&s->dev, t->data, host, tensor_bytes(t)));
}

void invar_sweep_copy_rows(const invar_sweep *s, const invar_tensor *to, int64_t to_row,
                           const invar_tensor *from, int64_t from_row, int64_t rows)
{
    invar_tensor target = invar_tensor_rows(to, to_row, rows);
    invar_tensor source = invar_tensor_rows(from, from_row, rows);

    assert_true(row_bytes(to) == row_bytes(from));
    assert_ok(invar_device_copy(&s->dev, target.data, source.data, tensor_bytes(&source)));
}

void invar_sweep_zero(const invar_sweep *s, const invar_tensor *t)
{
    assert_ok(invar_device_zero(&s->dev, t->data, tensor_bytes(t)));
}

invar_tensor invar_sweep_download(const invar_sweep *s, const invar_tensor *t)
{
    invar_tensor host = invar_test_tensor(*t);

    assert_ok(invar_device_download(&s->dev, host.data, t->data, tensor_bytes(t)));
    if (t->scale)
        assert_ok(
            invar_device_download(&s->dev, host.scale, t->scale, invar_tensor_scale_bytes(t)));
    return host;
}

/* ---- comparison ------------------------------------------------------------------------------ */

static int64_t compared, compared_bytes;

int invar_sweep_report(void **state)
{
    (void)state;
    print_message("%" PRId64 " results compared, %" PRId64 " MiB\n", compared,
                  compared_bytes >> 20);
    return 0;
}

/*
 * Returns the index of the first byte of all rows of `got` that differs, or -1. *have is its copy
 * on the heap.
 */
static int64_t first_difference(const invar_sweep *s, const invar_tensor *got,
                                const invar_tensor *expected, int64_t first,
                                const unsigned char **actual_out)
{
    static unsigned char *host;
    static size_t host_bytes;
    size_t bytes = tensor_bytes(got);
    const unsigned char *want =
        (const unsigned char *)expected->data + (size_t)first * row_bytes(expected);

    assert_true(row_bytes(got) == row_bytes(expected) && got->dtype == expected->dtype);
    assert_true(first >= 0 && first + got->shape[0] <= expected->shape[0]);
    compared++;
    compared_bytes += (int64_t)bytes;
    if (bytes == 0)
        return -1;
    if (bytes > host_bytes) {
        free(host);
        host = malloc(host_bytes = 2 * bytes);
        assert_non_null(host);
    }
    assert_ok(invar_device_download(&s->dev, host, got->data, bytes));
    *actual_out = host;
    if (memcmp(host, want, bytes) == 0)
        return -1;
    for (size_t i = 0; i < bytes; i++)
        if (host[i] != want[i])
            return (int64_t)i;
    return -1;
}

bool invar_sweep_equal(const invar_sweep *s, const invar_tensor *got, const invar_tensor *expected,
                       int64_t first)
{
    const unsigned char *actual_out;

    return first_difference(s, got, expected, first, &actual_out) < 0;
}

void invar_sweep_assert(const invar_sweep *s, const invar_tensor *got, const invar_tensor *expected,
                        int64_t first, const char *what, ...)
{
    const unsigned char *actual_out, *want = expected->data;
    int64_t at = first_difference(s, got, expected, first, &actual_out), row, element, bytes;
    uint32_t a = 0, b = 0;
    char text[200];
    va_list list;

    if (at < 0)
        return;
    va_start(list, what);
    (void)vsnprintf(text, sizeof text, what, list);
    va_end(list);
    bytes = invar_dtype_bits(got->dtype) >= 8 ? invar_dtype_bits(got->dtype) / 8 : 1;
    row = at / (int64_t)row_bytes(got);
    element = at % (int64_t)row_bytes(got) / bytes;
    memcpy(&a, actual_out + at / bytes * bytes, (size_t)(bytes < 4 ? bytes : 4));
    want += first * (int64_t)row_bytes(expected);
    memcpy(&b, want + at / bytes * bytes, (size_t)(bytes < 4 ? bytes : 4));
    fail_msg("%s %s: row %" PRId64 " of %" PRId64 ", element %" PRId64 ": %08x, expected %08x",
             text, invar_numerics_name(s->dev.numerics), row, got->shape[0], element, a, b);
}
