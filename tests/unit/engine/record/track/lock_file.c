/*
 * lock_file.c - tests of lock files: one writer at a time, also within a process and after a kill.
 *
 * The second process is a child that holds the lock until it is killed. A file of another kind
 * with the name of the lock file must be rejected and kept.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/track/lock_file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/lock_holder.h"

static char folder[] = INVAR_TEST_WORK "/hold-XXXXXX";
static char path[sizeof folder + 16], lock[sizeof folder + 16];

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    (void)snprintf(path, sizeof path, "%s/a.prom", folder);
    (void)snprintf(lock, sizeof lock, "%s/a.prom-lock", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder);
}

static void test_lock_file__one_at_a_time_also_in_one_process(void **state)
{
    invar_lock_file first, second;

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_ok(invar_lock_file_check(path));
        assert_false(invar_path_exists(lock)); // a check does not create the lock file
        assert_ok(invar_lock_file_acquire(&first, path));
        assert_fails(invar_lock_file_check(path), INVAR_E_BUSY, "another run writes it now");
        assert_fails(invar_lock_file_acquire(&second, path), INVAR_E_BUSY,
                     "another run writes it now");
        invar_lock_file_release(&second); // `second` holds no lock: no effect
        assert_fails(invar_lock_file_check(path), INVAR_E_BUSY, "another run writes it now");
        invar_lock_file_release(&first);
        assert_false(invar_path_exists(lock));
    }
}

static bool acquire_lock(const void *payload)
{
    invar_lock_file lock_held;

    return invar_lock_file_acquire(&lock_held, payload) == INVAR_OK;
}

static void test_lock_file__ends_with_the_process(void **state)
{
    invar_lock_file lock_held;
    pid_t child = invar_test_holder_start(acquire_lock, path);

    (void)state;
    assert_fails(invar_lock_file_acquire(&lock_held, path), INVAR_E_BUSY,
                 "a.prom: another run writes it now");
    invar_test_holder_kill(child);
    assert_true(invar_path_exists(lock));
    assert_ok(invar_lock_file_check(path));
    assert_ok(invar_lock_file_acquire(&lock_held, path));
    invar_lock_file_release(&lock_held);
    assert_false(invar_path_exists(lock));
}

static void check_rejected(void)
{
    invar_lock_file lock_held;

    assert_fails(invar_lock_file_check(path), INVAR_E_IO, "its lock");
    assert_fails(invar_lock_file_acquire(&lock_held, path), INVAR_E_IO, "a.prom-lock");
    assert_true(invar_path_exists(lock));
    assert_int_equal(remove(lock), 0);
}

static void test_lock_file__other_files_are_kept(void **state)
{
    char *text;
    size_t bytes;

    (void)state;
    assert_ok(invar_file_write(lock, "mine", 4));
    assert_fails(invar_lock_file_check(path), INVAR_E_IO, "a file of another kind lies there");
    assert_ok(invar_file_read(&text, &bytes, lock, 100));
    assert_string_equal(text, "mine");
    invar_free(text);
    check_rejected();
    assert_int_equal(symlink("elsewhere", lock), 0);
    check_rejected();
    assert_int_equal(mkfifo(lock, 0600), 0);
    check_rejected();
    assert_int_equal(mkdir(lock, 0700), 0);
    check_rejected();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock_file__one_at_a_time_also_in_one_process),
        cmocka_unit_test(test_lock_file__ends_with_the_process),
        cmocka_unit_test(test_lock_file__other_files_are_kept),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
