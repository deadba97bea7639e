/*
 * temp_name.c - tests of temporary names next to a path, with the process id as suffix.
 *
 * A new name removes files that dead processes left under their names. It keeps those of live
 * processes, other names, and the targets of symbolic links.
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
    static int buffer_index;

    buffer_index = !buffer_index;
    (void)snprintf(path[buffer_index], sizeof path[0], pid ? "%s/%s%ld" : "%s/%s", folder, name,
                   pid);
    return path[buffer_index];
}

static void write_half(const char *path)
{
    assert_ok(invar_file_write(path, "half", 4));
}

/* Returns the process id of a child that has ended. */
static long dead_process(void)
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

static void test_temp_name__removes_files_of_dead_processes(void **state)
{
    char out[INVAR_PATH_SIZE], target[INVAR_PATH_SIZE];
    long dead_pid = dead_process();

    (void)state;
    write_half(in_folder("page.new-", dead_pid));
    write_half(in_folder("page.new-", (long)getppid()));
    write_half(in_folder("page.new-x", 0));
    write_half(in_folder("page.new-0", 0));
    write_half(in_folder("other.new-", dead_pid));
    assert_ok(invar_held_folder_make(in_folder("page.new-", (long)getpid())));
    (void)snprintf(target, sizeof target, "%s", in_folder("page", 0));
    assert_ok(invar_temp_name(out, target, "new"));
    assert_string_equal(out, in_folder("page.new-", (long)getpid()));
    assert_false(invar_path_exists(in_folder("page.new-", dead_pid)));
    assert_false(invar_path_exists(out)); // left by an earlier process with this one's id
    assert_true(invar_path_exists(in_folder("page.new-", (long)getppid())));
    assert_true(invar_path_exists(in_folder("page.new-x", 0)));
    assert_true(invar_path_exists(in_folder("page.new-0", 0)));
    assert_true(invar_path_exists(in_folder("other.new-", dead_pid)));
}

static void test_temp_name__follows_no_link(void **state)
{
    char out[INVAR_PATH_SIZE], target[INVAR_PATH_SIZE];
    long dead_pid = dead_process();

    (void)state;
    assert_ok(invar_held_folder_make(in_folder("kept", 0)));
    write_half(in_folder("kept/file", 0));
    assert_int_equal(symlink(in_folder("kept", 0), in_folder("copy.partial-", dead_pid)), 0);
    (void)snprintf(target, sizeof target, "%s", in_folder("copy", 0));
    assert_ok(invar_temp_name(out, target, "partial"));
    assert_false(invar_path_exists(in_folder("copy.partial-", dead_pid)));
    assert_true(invar_path_exists(in_folder("kept/file", 0)));
}

static void test_temp_name__long_and_bare_paths(void **state)
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
        cmocka_unit_test(test_temp_name__removes_files_of_dead_processes),
        cmocka_unit_test(test_temp_name__follows_no_link),
        cmocka_unit_test(test_temp_name__long_and_bare_paths),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
