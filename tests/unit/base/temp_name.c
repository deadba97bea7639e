/*
 * temp_name.c - names beside a place, and what killed processes left under them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/temp_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support.h"

static char folder[] = "/tmp/invar-beside-XXXXXX";

static const char *in_folder(const char *name, long pid)
{
    static char path[2][INVAR_PATH_SIZE];
    static int turn;

    turn = !turn;
    (void)snprintf(path[turn], sizeof path[0], pid ? "%s/%s%ld" : "%s/%s", folder, name, pid);
    return path[turn];
}

static void put(const char *path)
{
    assert_ok(invar_file_write(path, "half", 4));
}

/* The number of a process that was there. */
static long dead(void)
{
    pid_t pid = fork();

    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : -1;
}

static void test_base_beside__removes_what_is_nobodys(void **state)
{
    char out[INVAR_PATH_SIZE], place[INVAR_PATH_SIZE];
    long gone = dead();

    (void)state;
    put(in_folder("page.new-", gone));
    put(in_folder("page.new-", (long)getppid()));
    put(in_folder("page.new-x", 0));
    put(in_folder("page.new-0", 0));
    put(in_folder("other.new-", gone));
    assert_ok(invar_held_folder_make(in_folder("page.new-", (long)getpid())));
    (void)snprintf(place, sizeof place, "%s", in_folder("page", 0));
    assert_ok(invar_temp_name(out, place, "new"));
    assert_string_equal(out, in_folder("page.new-", (long)getpid()));
    assert_false(invar_path_exists(in_folder("page.new-", gone)));
    assert_false(invar_path_exists(out)); // a folder, of a process that had our number
    assert_true(invar_path_exists(in_folder("page.new-", (long)getppid())));
    assert_true(invar_path_exists(in_folder("page.new-x", 0)));
    assert_true(invar_path_exists(in_folder("page.new-0", 0)));
    assert_true(invar_path_exists(in_folder("other.new-", gone)));
}

static void test_base_beside__follows_no_link(void **state)
{
    char out[INVAR_PATH_SIZE], place[INVAR_PATH_SIZE];
    long gone = dead();

    (void)state;
    assert_ok(invar_held_folder_make(in_folder("kept", 0)));
    put(in_folder("kept/file", 0));
    assert_int_equal(symlink(in_folder("kept", 0), in_folder("copy.partial-", gone)), 0);
    (void)snprintf(place, sizeof place, "%s", in_folder("copy", 0));
    assert_ok(invar_temp_name(out, place, "partial"));
    assert_false(invar_path_exists(in_folder("copy.partial-", gone)));
    assert_true(invar_path_exists(in_folder("kept/file", 0)));
}

static void test_base_beside__long_and_bare_paths(void **state)
{
    char out[INVAR_PATH_SIZE], path[INVAR_PATH_SIZE];

    (void)state;
    memset(path, 'x', sizeof path);
    path[sizeof path - 20] = '\0';
    assert_fails(invar_temp_name(out, path, "new"), INVAR_E_INVALID, "longer than");
    assert_ok(invar_temp_name(out, "bare", "new"));
    assert_memory_equal(out, "bare.new-", 9);
    assert_ok(invar_temp_name(out, "no/such/folder/x", "new"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_beside__removes_what_is_nobodys),
        cmocka_unit_test(test_base_beside__follows_no_link),
        cmocka_unit_test(test_base_beside__long_and_bare_paths),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
