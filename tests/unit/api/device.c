/*
 * device.c - tests of devices by name, and of a GPU's memory: on one that only looks like it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "api/device.h"
#include "tests/device/fake_gpu.h"
#include "tests/support.h"

static const int64_t size[] = {2, 4};

static invar_api_argument matrix(const char *name, void *data, int32_t place)
{
    return (invar_api_argument){
        .name = name, .tensor = {data, size, NULL, 2, 2, 32, place}, .kind = INVAR_API_TENSOR};
}

static void test_api_device__has_a_name(void **state)
{
    static const char *const wrong[] = {"",        "tpu",     "cpu:0",   "cuda:",      "cuda:x",
                                        "cuda:1x", "cuda:-1", "cuda:1:", "cuda:12345", "cuda 0"};
    static const char *const right[] = {"cpu", "cuda", "cuda:0", "cuda:7"};
    invar_api_device *device;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_fails(invar_api_device_open(&device, wrong[i], "ieee", 1), INVAR_E_INVALID,
                     "does not exist");
        assert_null(device);
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        assert_ok(invar_api_device_open(&device, right[i], "sm90", 1));
        assert_int_equal(device->dev.ordinal, i == 3 ? 7 : 0);
        invar_api_device_close(device);
    }
    assert_fails(invar_api_device_open(&device, "cpu", "fast", 1), INVAR_E_INVALID, "numerics");
}

/* Every tensor of an op lies where the device has its memory. */
static void test_api_call__takes_memory_where_it_is(void **state)
{
    float near[8] = {1, 2, 3, 4, 5, 6, 7, 8}, sum[8] = {0};
    invar_api_device *cpu, *gpu;
    void *x, *y;

    (void)state;
    assert_ok(invar_api_device_open(&cpu, "cpu", "ieee", 1));
    assert_ok(invar_api_device_open(&gpu, "cuda", "ieee", 1));
    assert_ok(invar_device_alloc(&gpu->dev, &x, sizeof near, "x"));
    assert_ok(invar_device_alloc(&gpu->dev, &y, sizeof near, "y"));
    assert_ok(invar_device_upload(&gpu->dev, x, near, sizeof near));
    for (int32_t far = 0; far < 2; far++) {
        invar_api_argument add[] = {matrix("out", far ? y : sum, far),
                                    matrix("a", far ? x : near, far),
                                    matrix("b", far ? x : near, far)};
        assert_ok(invar_api_call(far ? gpu : cpu, "add", add, 3));
        if (far)
            assert_ok(invar_device_download(&gpu->dev, sum, y, sizeof sum));
        for (int i = 0; i < 8; i++) {
            assert_true(sum[i] == 2 * near[i]);
            sum[i] = 0;
        }
        for (int i = 0; i < 3; i++) {
            add[i].tensor.place = !far;
            assert_fails(invar_api_call(far ? gpu : cpu, "add", add, 3), INVAR_E_INVALID,
                         far ? "lies in the host's memory" : "lies in a GPU's memory");
            add[i].tensor.place = 2;
            assert_fails(invar_api_call(far ? gpu : cpu, "add", add, 3), INVAR_E_INVALID,
                         "neither the host nor the device");
            add[i].tensor.place = far;
        }
    }
    invar_device_free(&gpu->dev, x);
    invar_device_free(&gpu->dev, y);
    invar_api_device_close(gpu);
    invar_api_device_close(cpu);
    assert_int_equal(invar_far_counted().live, 0);
}

static void test_api_hash__is_of_the_hosts_memory(void **state)
{
    float x[8] = {0};
    invar_api_tensor tensor = {x, size, NULL, 2, 2, 32, INVAR_API_DEVICE};
    uint8_t digest[INVAR_API_DIGEST_BYTES];

    (void)state;
    assert_fails(invar_api_hash_tensors(digest, &tensor, 1, 1), INVAR_E_INVALID, "host's memory");
    tensor.place = INVAR_API_HOST;
    assert_ok(invar_api_hash_tensors(digest, &tensor, 1, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_api_device__has_a_name),
        cmocka_unit_test(test_api_call__takes_memory_where_it_is),
        cmocka_unit_test(test_api_hash__is_of_the_hosts_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
