/*
 * module.c - tests of the remedy in the message about a missing module: build, set up or install.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/process/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support.h"

#define FOLDER INVAR_TEST_WORK "/modules of a build"

typedef struct expected {
    const char *name;
    const char *target;  /* CMake target that makes the module */
    const char *package; /* package that contains the module */
    const char *setup;   /* command that installs what the build needs */
    const char *option;  /* CMake option that adds the target; empty if it is always made */
} expected;

static const expected expected_remedies[] = {
    {INVAR_MODULE_CUDA, "invar_cuda", "invar-cuda", "scripts/setup build cuda", "-DINVAR_CUDA=ON "},
    {INVAR_MODULE_MPI, "invar_mpi", "invar-mpi", "scripts/setup mpi", "-DINVAR_MPI=ON "},
    {INVAR_MODULE_NCCL, "invar_nccl", "invar-nccl", "apt-get install libnccl-dev",
     "-DINVAR_CUDA=ON -DINVAR_NCCL=ON "},
    {INVAR_MODULE_HTTP, "invar_http", "invar", "scripts/setup build", ""},
    {INVAR_MODULE_SERVE, "invar_serve", "invar", "scripts/setup build", ""},
};

/* Makes a folder with a CMakeCache.txt, which marks it as a build folder. */
static void make_build(void)
{
    FILE *cache;

    (void)mkdir(FOLDER, 0777);
    cache = fopen(FOLDER "/CMakeCache.txt", "w");
    assert_non_null(cache);
    assert_int_equal(fclose(cache), 0);
}

static void assert_remedy(const char *name, const char *folder, bool can_build, const char *text)
{
    char remedy[2048];

    invar_module_remedy(remedy, sizeof remedy, folder, name, can_build);
    assert_string_equal(remedy, text);
}

static void test_base_module__remedy_of_every_module(void **state)
{
    char text[2048];
    size_t count = 0;

    (void)state;
    make_build();
    for (const expected *e = expected_remedies;
         e < expected_remedies + sizeof expected_remedies / sizeof *expected_remedies;
         e++, count++) {
        assert_string_equal(e->name, invar_module_names[count]);
        (void)snprintf(text, sizeof text, "run cmake --build '%s' --target %s", FOLDER, e->target);
        assert_remedy(e->name, FOLDER, true, text);
        (void)snprintf(text, sizeof text,
                       "run %s && cmake %s'%s' && cmake --build '%s' --target invar", e->setup,
                       e->option, FOLDER, FOLDER);
        assert_remedy(e->name, FOLDER, false, text);
        (void)snprintf(text, sizeof text, "install the package %s of the build of this program",
                       e->package);
        assert_remedy(e->name, "/usr/bin", true, text);
        (void)snprintf(text, sizeof text,
                       "this program was built without it: in Invar's source tree run %s && cmake "
                       "--preset cpu %s&& cmake --build --preset cpu, and install what that makes",
                       e->setup, e->option);
        assert_remedy(e->name, "/usr/bin", false, text);
    }
    assert_null(invar_module_names[count]);
}

static void test_base_module__accepts_a_long_folder(void **state)
{
    char folder[INVAR_PATH_SIZE], remedy[64];

    (void)state;
    memset(folder, 'a', sizeof folder - 1);
    folder[sizeof folder - 1] = '\0';
    invar_module_remedy(remedy, sizeof remedy, folder, INVAR_MODULE_MPI, true);
    assert_string_equal(remedy, "install the package invar-mpi of the build of this program");
}

/* If INVAR_MODULES names the folder, the remedy is to change or unset it, not to build. */
static void test_base_module__names_the_variable_that_hides_modules(void **state)
{
    char path[INVAR_PATH_SIZE];

    (void)state;
    setenv("INVAR_MODULES", "/nowhere", 1);
    for (const expected *e = expected_remedies;
         e < expected_remedies + sizeof expected_remedies / sizeof *expected_remedies; e++) {
        assert_fails(invar_module_path(path, e->name), INVAR_E_UNSUPPORTED, e->name);
        assert_fails(invar_module_path(path, e->name), INVAR_E_UNSUPPORTED,
                     "is not in the folder INVAR_MODULES; ");
        assert_fails(invar_module_path(path, e->name), INVAR_E_UNSUPPORTED,
                     ": unset INVAR_MODULES, or let it name a folder that has the module");
    }
    unsetenv("INVAR_MODULES");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_module__remedy_of_every_module),
        cmocka_unit_test(test_base_module__accepts_a_long_folder),
        cmocka_unit_test(test_base_module__names_the_variable_that_hides_modules),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
