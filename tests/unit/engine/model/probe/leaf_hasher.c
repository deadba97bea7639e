/*
 * leaf_hasher.c - tests of rows in far memory: hashed there, they have the digests of rows that are
 * near, and the device is waited for once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/leaf_hasher.h"

#include <string.h>

#include "engine/model/probe/probe.h"
#include "tests/device/fake_gpu.h"
#include "tests/ops.h"

/* Rows of a micro-batch: near, and a copy in far memory. */
typedef struct batch {
    invar_tensor near, far;
    invar_row_offsets samples, there;
} batch;

/* Of its takes the fail_at-th fails; 0: none. */
static invar_device far_device(int fail_at)
{
    invar_device dev = {.backend = invar_far_backend(), .numerics = INVAR_NUMERICS_IEEE};

    invar_far_begin(fail_at);
    assert_ok(invar_device_open(&dev));
    return dev;
}

static void *send(const invar_device *dev, const void *data, size_t bytes)
{
    void *there = invar_test_take(dev, bytes + 1, "a test");

    assert_ok(invar_device_upload(dev, there, data, bytes));
    return there;
}

/* Random bytes; `start` stays with the caller. */
static batch make_batch(const invar_device *dev, invar_tensor view, const int64_t *start,
                        int64_t count)
{
    batch b = {.samples = {start, count}, .there = {NULL, count}};
    size_t scales, bytes;

    b.near = b.far = invar_test_strided(view, 8);
    bytes = invar_host_staging_span(&b.near);
    scales = invar_tensor_scale_bytes(&b.near);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)b.near.data)[i] = (uint8_t)invar_test_random(1, i);
    for (size_t i = 0; i < scales; i++)
        ((uint8_t *)b.near.scale)[i] = (uint8_t)invar_test_random(2, i);
    b.far.data = send(dev, b.near.data, bytes);
    if (scales > 0)
        b.far.scale = send(dev, b.near.scale, scales);
    b.there.offsets = send(dev, start, (size_t)(count + 1) * sizeof *start);
    return b;
}

static void free_batch(const invar_device *dev, batch *b)
{
    invar_device_free(dev, b->far.data);
    invar_device_free(dev, b->far.scale);
    invar_device_free(dev, (void *)(uintptr_t)b->there.offsets);
    invar_test_free(&b->near);
}

static int64_t define(invar_probe *probe, const char *name, const invar_tensor *like)
{
    int64_t shape[INVAR_MAX_RANK] = {-1, like->shape[1]}, number;

    assert_ok(invar_probe_define(&number, probe,
                                 &(invar_ledger_point){.name = name,
                                                       .phase = "forward",
                                                       .op = "add",
                                                       .kind = "act",
                                                       .dtype = invar_dtype_name(like->dtype),
                                                       .shape = shape,
                                                       .dims = (size_t)like->rank,
                                                       .shards = 1}));
    return number;
}

/* Two steps of both probes over all batches, each of them a point and each twice. */
static void compare(const invar_device *dev, const batch *batches, int count, int64_t waits)
{
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    invar_probe *near, *far;

    assert_ok(invar_probe_new(&near, &(invar_probe_options){.stats = false}));
    assert_ok(invar_probe_new(&far, &(invar_probe_options){.dev = dev}));
    for (int step = 0; step < 2; step++) {
        invar_probe_result expected, got;
        int64_t before = invar_far_counted().waits;

        invar_probe_begin(near, NULL);
        invar_probe_begin(far, NULL);
        for (int i = 0; i < 2 * count; i++) {
            const batch *b = &batches[i % count];
            int64_t of = define(near, names[i % count], &b->near);
            assert_ok(invar_probe_rows(near, of, &b->near, &b->samples));
            assert_int_equal(define(far, names[i % count], &b->near), of);
            assert_ok(invar_probe_device_rows(far, of, &b->far, &b->samples, &b->there));
        }
        assert_ok(invar_probe_finish(&expected, near));
        assert_ok(invar_probe_finish(&got, far));
        assert_int_equal(invar_far_counted().waits - before, waits);
        for (int i = 0; i < count; i++) {
            const invar_digest *a, *b;
            int64_t n_a, n_b;
            assert_true(invar_digest_equal(&got.digests[i], &expected.digests[i]));
            assert_ok(invar_probe_leaves(&a, &n_a, near, i));
            assert_ok(invar_probe_leaves(&b, &n_b, far, i));
            assert_true(n_a == n_b && (n_a == 0 || memcmp(a, b, (size_t)n_a * sizeof *a) == 0));
        }
    }
    invar_probe_free(near);
    invar_probe_free(far);
}

static void test_probe_leaves__far_rows_have_the_digests_of_near_ones(void **state)
{
    static const int64_t start[] = {0, 3, 3, 40, 61, 61};
    const invar_tensor views[] = {
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, 61, 500),
        invar_tensor_2d(NULL, INVAR_DTYPE_BF16, 64, 33), // the last rows are nobody's
        invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_FP8, 1, 61, 1024),
        invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_MXFP8, 1, 61, 64),
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, 61, 0)};
    enum { COUNT = sizeof views / sizeof *views };
    invar_device dev = far_device(0);
    batch batches[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++)
        batches[i] = make_batch(&dev, views[i], start, 5);
    compare(&dev, batches, COUNT, 1);
    for (int i = 0; i < COUNT; i++)
        free_batch(&dev, &batches[i]);
    assert_int_equal(invar_far_counted().live, 0);
    invar_device_close(&dev);
}

/* Samples of a row, more than the memory for their digests has room for at first and at once. */
static void test_probe_leaves__as_many_as_there_are(void **state)
{
    enum { SOME = 150000, MANY = 300000 };
    static int64_t start[MANY + 1];
    invar_device dev = far_device(0);
    batch batches[2];

    (void)state;
    for (int64_t i = 0; i <= MANY; i++)
        start[i] = i;
    batches[0] = make_batch(&dev, invar_tensor_2d(NULL, INVAR_DTYPE_BF16, SOME, 1), start, SOME);
    batches[1] = make_batch(&dev, invar_tensor_2d(NULL, INVAR_DTYPE_BF16, MANY, 1), start, MANY);
    compare(&dev, batches, 1, 2);
    compare(&dev, batches, 2, 4);
    free_batch(&dev, &batches[0]);
    free_batch(&dev, &batches[1]);
    assert_int_equal(invar_far_counted().live, 0);
    invar_device_close(&dev);
}

/* Rows that are read back in between stay in their order; what a step left is forgotten. */
static void test_probe_leaves__near_rows_between(void **state)
{
    static const int64_t start[] = {0, 7, 20};
    invar_device dev = far_device(0);
    batch b = make_batch(&dev, invar_tensor_2d(NULL, INVAR_DTYPE_F32, 20, 700), start, 2);
    invar_probe *near, *far;
    invar_probe_result expected, got;

    (void)state;
    assert_ok(invar_probe_new(&near, &(invar_probe_options){.stats = true}));
    assert_ok(invar_probe_new(&far, &(invar_probe_options){.dev = &dev, .stats = true}));
    invar_probe_begin(far, NULL);
    assert_ok(invar_probe_device_rows(far, define(far, "a", &b.near), &b.far,
                                      &(invar_row_offsets){start, 1},
                                      &(invar_row_offsets){b.there.offsets, 1})); // never finished
    invar_probe_begin(near, NULL);
    invar_probe_begin(far, NULL);
    for (int i = 0; i < 4; i++) {
        int64_t of = define(near, "a", &b.near);
        assert_ok(invar_probe_rows(near, of, &b.near, &b.samples));
        assert_int_equal(define(far, "a", &b.near), of);
        assert_ok(i % 2 ? invar_probe_rows(far, of, &b.near, &b.samples)
                        : invar_probe_device_rows(far, of, &b.far, &b.samples, &b.there));
    }
    assert_ok(invar_probe_finish(&expected, near));
    assert_ok(invar_probe_finish(&got, far));
    assert_true(invar_digest_equal(&got.digests[0], &expected.digests[0]));
    assert_int_equal(got.n_stats, 1); // statistics read rows back
    assert_memory_equal(got.stats, expected.stats, sizeof *got.stats);
    invar_probe_free(near);
    invar_probe_free(far);
    free_batch(&dev, &b);
    invar_device_close(&dev);
}

/* Without room in the device's memory: an error, and everything is given back. */
static void test_probe_leaves__without_room(void **state)
{
    enum { BEFORE = 2 }; // blocks of the batch
    static const int64_t start[] = {0, 7, 20};
    invar_status status = INVAR_E_NOMEM;
    int failed = 0;

    (void)state;
    for (; status != INVAR_OK; failed += status != INVAR_OK) {
        invar_device dev = far_device(BEFORE + 1 + failed);
        batch b = make_batch(&dev, invar_tensor_2d(NULL, INVAR_DTYPE_F32, 20, 700), start, 2);
        invar_leaf_hasher leaves;

        invar_leaf_hasher_init(&leaves, &dev);
        status = invar_leaf_hasher_add(&leaves, &b.far, &b.there,
                                       invar_hash_leaf_count(&b.near, &b.samples));
        assert_true(status == INVAR_OK || status == INVAR_E_NOMEM);
        invar_leaf_hasher_release(&leaves);
        assert_int_equal(invar_far_counted().live, BEFORE);
        free_batch(&dev, &b);
        invar_device_close(&dev);
    }
    assert_int_equal(failed, 2); // digests, scratch
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_leaves__far_rows_have_the_digests_of_near_ones),
        cmocka_unit_test(test_probe_leaves__as_many_as_there_are),
        cmocka_unit_test(test_probe_leaves__near_rows_between),
        cmocka_unit_test(test_probe_leaves__without_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
