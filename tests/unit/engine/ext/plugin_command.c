/*
 * plugin_command.c - tests of commands: which files are a plug-in's own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/plugin_command.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/support.h"

static char folder[] = INVAR_TEST_WORK "/command-XXXXXX";

static void put(const char *name, const char *text)
{
    assert_ok(invar_file_write(name, text, strlen(text)));
}

/* Two commands have the same files, or not. */
static void expect(const char *a, const char *b, bool same)
{
    invar_digest x, y;
    bool found;

    assert_ok(invar_plugin_argv_hash(&found, &x, "judge", a));
    assert_true(found);
    assert_ok(invar_plugin_argv_hash(&found, &y, "judge", b));
    assert_true(found);
    assert_int_equal(invar_digest_equal(&x, &y), same);
}

static void test_ext_command__hashes_its_own_files(void **state)
{
    (void)state;
    put("a.py", "print(1)");
    put("b.py", "print(2)");
    put("copy of a.py", "print(1)");
    put("a.so", "object");
    put("b.so", "other");
    put("log", "yesterday");
    expect("python3 a.py", "python3 -u 'copy of a.py'", true);
    expect("python3 a.py", "no-such-program a.py log", true);
    expect("python3 a.py", "python3 b.py", false);
    expect("python3 a.py", "./a.py a.py", false);
    expect("./a.py", "./b.py --option", false);
    expect("a.so", "b.so", false);
    expect("a.so", "./a.so", true);
}

/* Only where the command names nothing else. */
static void test_ext_command__looks_into_path(void **state)
{
    const char *before = getenv("PATH");
    char *kept = strdup(before ? before : "");
    invar_digest digest;
    bool found;

    (void)state;
    put("judge", "one");
    put("other", "two");
    assert_ok(invar_held_folder_make("bin"));
    put("bin/judge", "two");
    assert_int_equal(setenv("PATH", "/no/such:bin::.", 1), 0);
    expect("judge --option", "./other", true);
    expect("judge", "./judge", false);
    assert_int_equal(setenv("PATH", kept, 1), 0);
    free(kept);
    assert_ok(invar_plugin_argv_hash(&found, &digest, "judge", "no-such-program -x"));
    assert_false(found);
    assert_ok(invar_plugin_argv_hash(&found, &digest, "judge", "no-such.so"));
    assert_false(found);
    assert_fails(invar_plugin_argv_hash(&found, &digest, "judge", "a 'b"), INVAR_E_INVALID,
                 "plug-in judge: the command has a quote without its end");
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ext_command__hashes_its_own_files),
        cmocka_unit_test(test_ext_command__looks_into_path),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
