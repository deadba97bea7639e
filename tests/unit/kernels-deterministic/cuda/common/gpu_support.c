/*
 * gpu_support.c - tests that unsupported drivers and GPUs are rejected with a remedy.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/common/gpu_support.h"
#include "tests/support.h"

static void test_gpu_support__checks_drivers(void **state)
{
    (void)state;
    assert_fails(invar_gpu_check_driver(0, 13000), INVAR_E_NODEVICE,
                 "no NVIDIA driver here (libcuda.so.1): install one for CUDA 13.0");
    assert_fails(invar_gpu_check_driver(12040, 13000), INVAR_E_NODEVICE,
                 "driver is for CUDA 12.4, this build needs CUDA 13.0: install a newer driver");
    assert_fails(invar_gpu_check_driver(11080, 12090), INVAR_E_NODEVICE, "CUDA 11.8");
    assert_ok(invar_gpu_check_driver(13000, 13000));
    assert_ok(invar_gpu_check_driver(13000, 13020));
    assert_ok(invar_gpu_check_driver(14010, 13000));
}

static void test_gpu_support__checks_capabilities(void **state)
{
    static const int others[][2] = {{7, 0}, {8, 0}, {8, 6}, {8, 9}, {9, 1}, {10, 0}, {12, 0}};

    (void)state;
    assert_ok(invar_gpu_check_capability(0, "NVIDIA H200", 9, 0));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_fails(invar_gpu_check_capability(1, "A100", others[i][0], others[i][1]),
                     INVAR_E_NODEVICE, "GPU 1 is a A100 of compute capability");
    assert_fails(invar_gpu_check_capability(0, "A100", 8, 0), INVAR_E_NODEVICE,
                 "8.0; this build runs on 9.0 (H100, H200): choose device = cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu_support__checks_drivers),
        cmocka_unit_test(test_gpu_support__checks_capabilities),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
