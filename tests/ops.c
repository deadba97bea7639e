/*
 * ops.c - shared by tests of ops: devices, tensors on the heap, their elements, comparisons.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/ops.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/math/bf16.h"
#include "tests/device/copying_backend.h"

// an upper bound: the debug arena allocates only what is pushed
#define SCRATCH_BYTES ((size_t)1 << 32)

void invar_test_device_init(invar_device *dev, invar_numerics numerics, invar_cpu_path path,
                            int threads)
{
    memset(dev, 0, sizeof *dev);
    dev->backend = invar_test_heap_backend();
    assert_non_null(dev->backend);
    dev->numerics = numerics;
    dev->cpu_path = path;
    if (threads > 1)
        assert_ok(invar_pool_new(&dev->pool, threads));
    assert_ok(invar_arena_new_debug(&dev->scratch, "test scratch"));
    assert_ok(invar_arena_plan_scratch(dev->scratch, SCRATCH_BYTES));
    assert_ok(invar_arena_reserve(dev->scratch));
}

void invar_test_device_release(invar_device *dev)
{
    assert_int_equal(invar_arena_mark(dev->scratch), 0); // every op has released its scratch
    invar_arena_free(dev->scratch);
    invar_pool_free(dev->pool);
    memset(dev, 0, sizeof *dev);
}

int invar_test_devices_setup(void **state)
{
    static const int threads[INVAR_TEST_DEVICES] = {2, 1, 3, 8};
    static invar_device devices[INVAR_TEST_DEVICES];

    for (int i = 0; i < INVAR_TEST_DEVICES; i++)
        invar_test_device_init(&devices[i], i & 1 ? INVAR_NUMERICS_SM90 : INVAR_NUMERICS_IEEE,
                               i & 2 ? INVAR_CPU_PATH_PORTABLE : INVAR_CPU_PATH_SIMD, threads[i]);
    *state = devices;
    return 0;
}

int invar_test_devices_teardown(void **state)
{
    invar_device *devices = *state;

    for (int i = 0; i < INVAR_TEST_DEVICES; i++)
        invar_test_device_release(&devices[i]);
    return 0;
}

void *invar_test_device_alloc(const invar_device *dev, size_t bytes, const char *what)
{
    void *block = NULL;

    assert_ok(invar_device_alloc(dev, &block, bytes, what));
    return block;
}

const invar_dtype invar_test_storage[2] = {INVAR_DTYPE_F32, INVAR_DTYPE_BF16};

/* ---- tensors --------------------------------------------------------------------------------- */

static void *alloc_filled(size_t bytes)
{
    void *block = malloc(bytes + !bytes);

    assert_non_null(block);
    memset(block, 0xFF, bytes);
    return block;
}

static size_t row_bytes(const invar_tensor *t)
{
    return (size_t)(invar_tensor_row_elements(t) * invar_dtype_bits(t->dtype) / 8);
}

static size_t stride_bytes(const invar_tensor *t)
{
    return (size_t)(t->row_stride * invar_dtype_bits(t->dtype) / 8);
}

invar_tensor invar_test_tensor(invar_tensor view)
{
    // no byte after the last row, so that a sanitizer sees the end
    size_t rows = (size_t)view.shape[0];

    view.data = alloc_filled(rows ? (rows - 1) * stride_bytes(&view) + row_bytes(&view) : 0);
    view.scale =
        invar_tensor_scale_bytes(&view) ? alloc_filled(invar_tensor_scale_bytes(&view)) : NULL;
    return view;
}

invar_tensor invar_test_strided(invar_tensor view, int64_t gap)
{
    view.row_stride += gap;
    return invar_test_tensor(view);
}

void invar_test_free_all(invar_tensor *const *tensors)
{
    for (; *tensors; tensors++) {
        free((*tensors)->data);
        free((*tensors)->scale);
        memset(*tensors, 0, sizeof **tensors);
    }
}

static char *row_at(const invar_tensor *t, int64_t row)
{
    return (char *)t->data + (size_t)row * stride_bytes(t);
}

invar_tensor invar_test_copy(const invar_tensor *t)
{
    invar_tensor copy = *t;

    copy.row_stride = invar_tensor_row_elements(t);
    copy = invar_test_tensor(copy);
    for (int64_t i = 0; i < t->shape[0]; i++)
        memcpy(row_at(&copy, i), row_at(t, i), row_bytes(t));
    if (copy.scale)
        memcpy(copy.scale, t->scale, invar_tensor_scale_bytes(t));
    return copy;
}

void invar_test_copy_rows(const invar_tensor *dst, int64_t dst_row, const invar_tensor *src,
                          int64_t src_row, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++) {
        invar_tensor to = invar_tensor_rows(dst, dst_row + i, 1);
        invar_tensor from = invar_tensor_rows(src, src_row + i, 1);
        memcpy(to.data, from.data, row_bytes(src));
        if (src->scale && src->scale_rows == 1)
            memcpy(to.scale, from.scale, invar_tensor_scale_bytes(&from));
    }
}

/* ---- elements -------------------------------------------------------------------------------- */

float invar_test_get(const invar_tensor *t, int64_t row, int64_t col)
{
    int64_t at = row * t->row_stride + col;

    switch (t->dtype) {
    case INVAR_DTYPE_F32: return ((const float *)t->data)[at];
    case INVAR_DTYPE_BF16: return invar_f32_from_bf16(((const uint16_t *)t->data)[at]);
    case INVAR_DTYPE_I32: return (float)((const int32_t *)t->data)[at];
    default: fail_msg("no elements of type %s", invar_dtype_name(t->dtype)); return 0.0f;
    }
}

void invar_test_set(const invar_tensor *t, int64_t row, int64_t col, float value)
{
    int64_t at = row * t->row_stride + col;

    switch (t->dtype) {
    case INVAR_DTYPE_F32: ((float *)t->data)[at] = value; return;
    case INVAR_DTYPE_BF16: ((uint16_t *)t->data)[at] = invar_bf16_from_f32(value); return;
    case INVAR_DTYPE_I32: ((int32_t *)t->data)[at] = (int32_t)value; return;
    default: fail_msg("no elements of type %s", invar_dtype_name(t->dtype));
    }
}

void invar_test_fill(const invar_tensor *t, float value)
{
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < invar_tensor_row_elements(t); j++)
            invar_test_set(t, i, j, value);
}

void invar_test_fill_normal(const invar_tensor *t, uint64_t seed, float scale)
{
    uint64_t n = 0;

    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < invar_tensor_row_elements(t); j++)
            invar_test_set(t, i, j, invar_test_normal(seed, n++, scale));
}

void invar_test_fill_index(const invar_tensor *t, uint64_t seed, int32_t bound)
{
    uint64_t n = 0;

    assert_int_equal(t->dtype, INVAR_DTYPE_I32);
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < invar_tensor_row_elements(t); j++)
            ((int32_t *)t->data)[i * t->row_stride + j] =
                (int32_t)(invar_test_random(seed, n++) % (uint32_t)bound);
}

static float reduce_lanes(const float *x, int64_t n)
{
    float lane[256] = {0};

    for (int64_t i = 0; i < n; i++)
        lane[i % 256] += x[i];
    for (int half = 128; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

float invar_test_reduce(const float *x, int64_t n)
{
    int64_t chunks = (n + 4095) / 4096;
    float *sums, sum;

    if (n <= 4096)
        return reduce_lanes(x, n);
    sums = malloc((size_t)chunks * sizeof *sums);
    assert_non_null(sums);
    for (int64_t c = 0; c < chunks; c++)
        sums[c] = reduce_lanes(x + 4096 * c, n - 4096 * c < 4096 ? n - 4096 * c : 4096);
    sum = invar_test_reduce(sums, chunks);
    free(sums);
    return sum;
}

/* ---- comparison ------------------------------------------------------------------------------ */

static void assert_bytes(const void *got, const void *expected, size_t bytes, const char *what)
{
    const uint8_t *a = got, *b = expected;

    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s: first difference in byte %zu of %zu: got %02x, expected %02x", what, i,
                     bytes, a[i], b[i]);
}

void invar_assert_bits_tensor(const invar_tensor *got, const invar_tensor *expected,
                              const char *what)
{
    invar_tensor a = invar_test_copy(got), b = invar_test_copy(expected);
    int64_t count = a.shape[0] * invar_tensor_row_elements(&a);

    assert_int_equal(a.dtype, b.dtype);
    assert_int_equal(a.rank, b.rank);
    assert_memory_equal(a.shape, b.shape, sizeof a.shape);
    switch (a.dtype) {
    case INVAR_DTYPE_F32: invar_assert_bits_f32(a.data, b.data, count, what); break;
    case INVAR_DTYPE_BF16: invar_assert_bits_u16(a.data, b.data, count, what); break;
    default: assert_bytes(a.data, b.data, (size_t)a.shape[0] * row_bytes(&a), what);
    }
    if (a.scale)
        assert_bytes(a.scale, b.scale, invar_tensor_scale_bytes(&a), what);
    invar_test_free(&a, &b);
}

bool invar_tensors_differ(const invar_tensor *a, const invar_tensor *b)
{
    bool differ = a->scale && invar_bits_differ(a->scale, b->scale, invar_tensor_scale_bytes(a));

    for (int64_t i = 0; i < a->shape[0] && !differ; i++)
        differ = invar_bits_differ(row_at(a, i), row_at(b, i), row_bytes(a));
    return differ;
}

void invar_test_fold(float *out, const float *shards, int64_t count, int64_t n)
{
    float lane[INVAR_LINEAR_MAX_SHARDS];

    assert_true(count <= INVAR_LINEAR_MAX_SHARDS);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t v = 0; v < count; v++)
            lane[v] = shards[v * n + i];
        for (int64_t apart = 1; apart < count; apart *= 2)
            for (int64_t v = 0; v < count; v += 2 * apart)
                lane[v] += lane[v + apart];
        out[i] = lane[0];
    }
}

void invar_assert_close(const invar_tensor *got, const double *expected, double relative,
                        double absolute, const char *what)
{
    int64_t cols = invar_tensor_row_elements(got);

    for (int64_t i = 0; i < got->shape[0]; i++) {
        for (int64_t j = 0; j < cols; j++) {
            double value = invar_test_get(got, i, j), exact = expected[i * cols + j];
            // this form fails for NaN
            if (!(fabs(value - exact) <= absolute + relative * fabs(exact)))
                fail_msg("%s: (%" PRId64 ", %" PRId64 "): got %.9g, expected %.9g", what, i, j,
                         value, exact);
        }
    }
}
