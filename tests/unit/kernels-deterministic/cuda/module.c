/*
 * module.c - tests of loading the CUDA backend as a module: valid, other build, damaged, missing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels-deterministic/cuda/module.h"
#include "tests/support.h"

#define PLUGINS INVAR_TEST_WORK "/plugin/"

static void test_module__returns_the_backend(void **state)
{
    const invar_backend *backend;

    (void)state;
    assert_ok(invar_cuda_module_load(&backend, PLUGINS "fake_cuda.so"));
    assert_string_equal(backend->name, "fake");
    assert_int_equal(backend->abi, INVAR_BACKEND_ABI);
}

static void test_module__rejects_another_build(void **state)
{
    const invar_backend *backend;

    (void)state;
    assert_fails(invar_cuda_module_load(&backend, PLUGINS "old_cuda.so"), INVAR_E_UNSUPPORTED,
                 "old_cuda.so is that of another build of the program");
    assert_null(backend);
}

static void test_module__rejects_what_is_not_a_module(void **state)
{
    const char *path = INVAR_TEST_WORK "/no_module.so";
    const invar_backend *backend;
    FILE *file = fopen(path, "w");

    (void)state;
    assert_non_null(file);
    assert_true(fputs("not a shared object", file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_fails(invar_cuda_module_load(&backend, path), INVAR_E_UNSUPPORTED, "cannot be loaded");
    assert_null(backend);
    assert_fails(invar_cuda_module_load(&backend, PLUGINS "not_a_plugin.so"), INVAR_E_UNSUPPORTED,
                 "invar_cuda_v1");
    assert_fails(invar_cuda_module_load(&backend, "/nowhere/invar-cuda.so"), INVAR_E_UNSUPPORTED,
                 "does not exist");
}

/* The first call decides for the process: unsetting INVAR_MODULES does not change the result. */
static void test_module__missing_module_names_the_remedy(void **state)
{
    const invar_backend *backend;

    (void)state;
    setenv("INVAR_MODULES", PLUGINS, 1);
    for (int i = 0; i < 2; i++) {
        assert_fails(invar_backend_find(&backend, INVAR_DEVICE_CUDA), INVAR_E_NODEVICE,
                     "no CUDA here: the module invar-cuda.so is not in the folder INVAR_MODULES; a "
                     "GPU needs it: unset INVAR_MODULES, or let it name a folder that has the "
                     "module; or choose device = cpu");
        unsetenv("INVAR_MODULES");
    }
    assert_ok(invar_backend_find(&backend, INVAR_DEVICE_CPU));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_module__returns_the_backend),
        cmocka_unit_test(test_module__rejects_another_build),
        cmocka_unit_test(test_module__rejects_what_is_not_a_module),
        cmocka_unit_test(test_module__missing_module_names_the_remedy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
