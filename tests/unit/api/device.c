/*
 * device.c - tests of device names and of the check where the memory of a tensor lies.
 *
 * The fake GPU stands in for "cuda". Each valid call has its control: the same call with one tensor
 * declared in the other memory fails.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "api/device.h"
#include "tests/device/fake_gpu.h"
#include "tests/support.h"

static const int64_t shape[] = {2, 4};

static invar_api_argument matrix(const char *name, void *data, int32_t place)
{
    return (invar_api_argument){
        .name = name, .tensor = {data, shape, NULL, 2, 2, 32, place}, .kind = INVAR_API_TENSOR};
}

static void test_api_device__opens_by_name(void **state)
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

/* An op accepts tensors in the memory of its device only: host memory on "cpu", else the GPU's. */
static void test_api_call__rejects_memory_of_another_device(void **state)
{
    float host_x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, sum[8] = {0};
    invar_api_device *cpu, *gpu;
    void *x, *y;

    (void)state;
    assert_ok(invar_api_device_open(&cpu, "cpu", "ieee", 1));
    assert_ok(invar_api_device_open(&gpu, "cuda", "ieee", 1));
    assert_ok(invar_device_alloc(&gpu->dev, &x, sizeof host_x, "x"));
    assert_ok(invar_device_alloc(&gpu->dev, &y, sizeof host_x, "y"));
    assert_ok(invar_device_upload(&gpu->dev, x, host_x, sizeof host_x));
    for (int32_t on_gpu = 0; on_gpu < 2; on_gpu++) {
        invar_api_argument add[] = {matrix("out", on_gpu ? y : sum, on_gpu),
                                    matrix("a", on_gpu ? x : host_x, on_gpu),
                                    matrix("b", on_gpu ? x : host_x, on_gpu)};
        assert_ok(invar_api_call(on_gpu ? gpu : cpu, "add", add, 3));
        if (on_gpu)
            assert_ok(invar_device_download(&gpu->dev, sum, y, sizeof sum));
        for (int i = 0; i < 8; i++) {
            assert_true(sum[i] == 2 * host_x[i]);
            sum[i] = 0;
        }
        for (int i = 0; i < 3; i++) {
            add[i].tensor.place = !on_gpu;
            assert_fails(invar_api_call(on_gpu ? gpu : cpu, "add", add, 3), INVAR_E_INVALID,
                         on_gpu ? "lies in the host's memory" : "lies in a GPU's memory");
            add[i].tensor.place = 2;
            assert_fails(invar_api_call(on_gpu ? gpu : cpu, "add", add, 3), INVAR_E_INVALID,
                         "neither the host nor the device");
            add[i].tensor.place = on_gpu;
        }
    }
    invar_device_free(&gpu->dev, x);
    invar_device_free(&gpu->dev, y);
    invar_api_device_close(gpu);
    invar_api_device_close(cpu);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
}

static void test_api_hash__rejects_device_memory(void **state)
{
    float x[8] = {0};
    invar_api_tensor tensor = {x, shape, NULL, 2, 2, 32, INVAR_API_DEVICE};
    uint8_t digest[INVAR_API_DIGEST_BYTES];

    (void)state;
    assert_fails(invar_api_hash_tensors(digest, &tensor, 1, 1), INVAR_E_INVALID, "host's memory");
    tensor.place = INVAR_API_HOST;
    assert_ok(invar_api_hash_tensors(digest, &tensor, 1, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_api_device__opens_by_name),
        cmocka_unit_test(test_api_call__rejects_memory_of_another_device),
        cmocka_unit_test(test_api_hash__rejects_device_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
