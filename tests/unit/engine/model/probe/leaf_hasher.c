/*
 * leaf_hasher.c - tests of hashing rows in device memory.
 *
 * Rows on a device whose memory the host cannot access (tests/device/fake_gpu.h) must have the
 * digests of their copies in host memory, with the expected number of waits per step. Allocations
 * that fail must release everything.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/leaf_hasher.h"

#include <string.h>

#include "engine/model/probe/probe.h"
#include "tests/device/fake_gpu.h"
#include "tests/ops.h"

/* Rows of a micro-batch and their sample offsets, in host memory and copied to the device. */
typedef struct batch {
    invar_tensor host, device;
    invar_row_offsets samples, device_samples;
} batch;

/* Opens the device; its fail_at-th allocation fails, 0 for none. */
static invar_device open_fake_gpu(int fail_at)
{
    invar_device dev = {.backend = invar_fake_gpu_backend(), .numerics = INVAR_NUMERICS_IEEE};

    invar_fake_gpu_begin(fail_at);
    assert_ok(invar_device_open(&dev));
    return dev;
}

/* Copies bytes to new device memory. */
static void *copy_to_device(const invar_device *dev, const void *data, size_t bytes)
{
    void *device_samples = invar_test_device_alloc(dev, bytes + 1, "a test");

    assert_ok(invar_device_upload(dev, device_samples, data, bytes));
    return device_samples;
}

/* Returns random rows; `start` (count + 1), the offsets, is borrowed. */
static batch make_batch(const invar_device *dev, invar_tensor view, const int64_t *start,
                        int64_t count)
{
    batch b = {.samples = {start, count}, .device_samples = {NULL, count}};
    size_t scales, bytes;

    b.host = b.device = invar_test_strided(view, 8);
    bytes = invar_host_staging_span(&b.host);
    scales = invar_tensor_scale_bytes(&b.host);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)b.host.data)[i] = (uint8_t)invar_test_random(1, i);
    for (size_t i = 0; i < scales; i++)
        ((uint8_t *)b.host.scale)[i] = (uint8_t)invar_test_random(2, i);
    b.device.data = copy_to_device(dev, b.host.data, bytes);
    if (scales > 0)
        b.device.scale = copy_to_device(dev, b.host.scale, scales);
    b.device_samples.offsets = copy_to_device(dev, start, (size_t)(count + 1) * sizeof *start);
    return b;
}

static void free_batch(const invar_device *dev, batch *b)
{
    invar_device_free(dev, b->device.data);
    invar_device_free(dev, b->device.scale);
    invar_device_free(dev, (void *)(uintptr_t)b->device_samples.offsets);
    invar_test_free(&b->host);
}

/* Defines a point with rows like `like` and returns its number. */
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

/*
 * Runs two steps of a probe on the host and of one on the device, and compares digests and leaves.
 * Every batch is a point and comes twice per step. `waits` is the expected number per step.
 */
static void compare(const invar_device *dev, const batch *batches, int count, int64_t waits)
{
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    invar_probe *host, *device;

    assert_ok(invar_probe_new(&host, &(invar_probe_options){.stats = false}));
    assert_ok(invar_probe_new(&device, &(invar_probe_options){.dev = dev}));
    for (int step = 0; step < 2; step++) {
        invar_probe_result expected, got;
        int64_t before = invar_fake_gpu_counted().waits;

        invar_probe_begin(host, NULL);
        invar_probe_begin(device, NULL);
        for (int i = 0; i < 2 * count; i++) {
            const batch *b = &batches[i % count];
            int64_t point = define(host, names[i % count], &b->host);
            assert_ok(invar_probe_rows(host, point, &b->host, &b->samples));
            assert_int_equal(define(device, names[i % count], &b->host), point);
            assert_ok(invar_probe_device_rows(device, point, &b->device, &b->samples,
                                              &b->device_samples));
        }
        assert_ok(invar_probe_finish(&expected, host));
        assert_ok(invar_probe_finish(&got, device));
        assert_int_equal(invar_fake_gpu_counted().waits - before, waits);
        for (int i = 0; i < count; i++) {
            const invar_digest *a, *b;
            int64_t n_a, n_b;
            assert_true(invar_digest_equal(&got.digests[i], &expected.digests[i]));
            assert_ok(invar_probe_leaves(&a, &n_a, host, i));
            assert_ok(invar_probe_leaves(&b, &n_b, device, i));
            assert_true(n_a == n_b && (n_a == 0 || memcmp(a, b, (size_t)n_a * sizeof *a) == 0));
        }
    }
    invar_probe_free(host);
    invar_probe_free(device);
}

static void test_probe_leaves__device_rows_have_the_digests_of_host_rows(void **state)
{
    static const int64_t start[] = {0, 3, 3, 40, 61, 61};
    const invar_tensor views[] = {
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, 61, 500),
        invar_tensor_2d(NULL, INVAR_DTYPE_BF16, 64, 33), // three rows belong to no sample
        invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_FP8, 1, 61, 1024),
        invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_MXFP8, 1, 61, 64),
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, 61, 0)};
    enum { COUNT = sizeof views / sizeof *views };
    invar_device dev = open_fake_gpu(0);
    batch batches[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++)
        batches[i] = make_batch(&dev, views[i], start, 5);
    compare(&dev, batches, COUNT, 1);
    for (int i = 0; i < COUNT; i++)
        free_batch(&dev, &batches[i]);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_device_close(&dev);
}

/* Samples of one row each, more than the memory for digests holds at first and at most. */
static void test_probe_leaves__many_samples(void **state)
{
    enum { SOME = 150000, MANY = 300000 };
    static int64_t start[MANY + 1];
    invar_device dev = open_fake_gpu(0);
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
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_device_close(&dev);
}

/* Rows hashed on the host in between keep their order; unread rows of a step are discarded. */
static void test_probe_leaves__host_rows_between(void **state)
{
    static const int64_t start[] = {0, 7, 20};
    invar_device dev = open_fake_gpu(0);
    batch b = make_batch(&dev, invar_tensor_2d(NULL, INVAR_DTYPE_F32, 20, 700), start, 2);
    invar_probe *host, *device;
    invar_probe_result expected, got;

    (void)state;
    assert_ok(invar_probe_new(&host, &(invar_probe_options){.stats = true}));
    assert_ok(invar_probe_new(&device, &(invar_probe_options){.dev = &dev, .stats = true}));
    invar_probe_begin(device, NULL);
    assert_ok(invar_probe_device_rows(
        device, define(device, "a", &b.host), &b.device, &(invar_row_offsets){start, 1},
        &(invar_row_offsets){b.device_samples.offsets, 1})); // step without finish
    invar_probe_begin(host, NULL);
    invar_probe_begin(device, NULL);
    for (int i = 0; i < 4; i++) {
        int64_t point = define(host, "a", &b.host);
        assert_ok(invar_probe_rows(host, point, &b.host, &b.samples));
        assert_int_equal(define(device, "a", &b.host), point);
        assert_ok(i % 2 ? invar_probe_rows(device, point, &b.host, &b.samples)
                        : invar_probe_device_rows(device, point, &b.device, &b.samples,
                                                  &b.device_samples));
    }
    assert_ok(invar_probe_finish(&expected, host));
    assert_ok(invar_probe_finish(&got, device));
    assert_true(invar_digest_equal(&got.digests[0], &expected.digests[0]));
    assert_int_equal(got.n_stats, 1); // computed from downloaded rows
    assert_memory_equal(got.stats, expected.stats, sizeof *got.stats);
    invar_probe_free(host);
    invar_probe_free(device);
    free_batch(&dev, &b);
    invar_device_close(&dev);
}

/* A failed allocation on the device is an error, and all memory is freed. */
static void test_probe_leaves__failed_allocations(void **state)
{
    enum { BATCH_BLOCKS = 2 }; // allocations of the batch
    static const int64_t start[] = {0, 7, 20};
    invar_status status = INVAR_E_NOMEM;
    int failed = 0;

    (void)state;
    for (; status != INVAR_OK; failed += status != INVAR_OK) {
        invar_device dev = open_fake_gpu(BATCH_BLOCKS + 1 + failed);
        batch b = make_batch(&dev, invar_tensor_2d(NULL, INVAR_DTYPE_F32, 20, 700), start, 2);
        invar_leaf_hasher leaves;

        invar_leaf_hasher_init(&leaves, &dev);
        status = invar_leaf_hasher_add(&leaves, &b.device, &b.device_samples,
                                       invar_hash_leaf_count(&b.host, &b.samples));
        assert_true(status == INVAR_OK || status == INVAR_E_NOMEM);
        invar_leaf_hasher_release(&leaves);
        assert_int_equal(invar_fake_gpu_counted().live, BATCH_BLOCKS);
        free_batch(&dev, &b);
        invar_device_close(&dev);
    }
    assert_int_equal(failed, 2); // the allocations of digests and of scratch
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_leaves__device_rows_have_the_digests_of_host_rows),
        cmocka_unit_test(test_probe_leaves__many_samples),
        cmocka_unit_test(test_probe_leaves__host_rows_between),
        cmocka_unit_test(test_probe_leaves__failed_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
