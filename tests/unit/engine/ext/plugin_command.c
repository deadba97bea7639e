/*
 * plugin_command.c - tests of which files of a plug-in's command are hashed to identify it.
 *
 * Commands with equal files must have equal digests. Control: another script, another program or
 * another object must give another digest.
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

static void write_file(const char *name, const char *text)
{
    assert_ok(invar_file_write(name, text, strlen(text)));
}

/* Asserts that the files of two commands have the same digest, or different ones. */
static void compare_commands(const char *a, const char *b, bool same)
{
    invar_digest a_hash, b_hash;
    bool found;

    assert_ok(invar_plugin_argv_hash(&found, &a_hash, "judge", a));
    assert_true(found);
    assert_ok(invar_plugin_argv_hash(&found, &b_hash, "judge", b));
    assert_true(found);
    assert_int_equal(invar_digest_equal(&a_hash, &b_hash), same);
}

static void test_ext_command__hashes_its_own_files(void **state)
{
    (void)state;
    write_file("a.py", "print(1)");
    write_file("b.py", "print(2)");
    write_file("copy of a.py", "print(1)");
    write_file("a.so", "object");
    write_file("b.so", "other");
    write_file("log", "yesterday");
    compare_commands("python3 a.py", "python3 -u 'copy of a.py'", true);
    compare_commands("python3 a.py", "no-such-program a.py log", true);
    compare_commands("python3 a.py", "python3 b.py", false);
    compare_commands("python3 a.py", "./a.py a.py", false);
    compare_commands("./a.py", "./b.py --option", false);
    compare_commands("a.so", "b.so", false);
    compare_commands("a.so", "./a.so", true);
}

/* PATH is searched only if the command names no file. */
static void test_ext_command__looks_into_path(void **state)
{
    const char *path = getenv("PATH");
    char *saved_path = strdup(path ? path : "");
    invar_digest digest;
    bool found;

    (void)state;
    write_file("judge", "one");
    write_file("other", "two");
    assert_ok(invar_held_folder_make("bin"));
    write_file("bin/judge", "two");
    assert_int_equal(setenv("PATH", "/no/such:bin::.", 1), 0);
    compare_commands("judge --option", "./other", true);
    compare_commands("judge", "./judge", false);
    assert_int_equal(setenv("PATH", saved_path, 1), 0);
    free(saved_path);
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
