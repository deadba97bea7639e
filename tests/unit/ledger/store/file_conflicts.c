/*
 * file_conflicts.c - tests of other files at the paths of a ledger, its lock or its copy.
 *
 * The library must not write to links and other files there, wait for a pipe, or let two writers
 * open one ledger.
 * Control: the same call succeeds after the obstacle is removed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <sys/stat.h>

#include "ledger/store/ledger_file.h"
#include "tests/unit/ledger/raw_ledger.h"

static const invar_ledger_options writer = {.write = true};
static const invar_test_ledger small = {.steps = 3};

static const char *new_ledger(const char *name)
{
    const char *path = raw_path(name);

    raw_remove(path);
    assert_ok(invar_test_ledger_write(path, &small));
    return path;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
}

static void assert_holds(const char *path, const char *text)
{
    raw_bytes found = raw_read(path);

    assert_int_equal(found.count, strlen(text));
    assert_memory_equal(found.data, text, found.count);
    free(found.data);
}

/* ---- the lock -------------------------------------------------------------------------------- */

static void test_ledger_file_conflicts__lock_is_a_link(void **state)
{
    const char *path = new_ledger("link.db"), *lock = raw_path("link.db-lock");
    const char *victim = raw_path("victim");
    invar_ledger *ledger = NULL;
    char holder[INVAR_LEDGER_WRITER_SIZE];

    (void)state;
    write_text(victim, "precious");
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(symlink(victim, lock), 0);
    assert_fails(invar_ledger_open(&ledger, path, &writer), INVAR_E_IO, "-lock");
    assert_fails(invar_ledger_writer(holder, path), INVAR_E_IO, "lock");
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(link(victim, lock), 0); // a hard link must be rejected, too
    assert_fails(invar_ledger_open(&ledger, path, &writer), INVAR_E_IO, "-lock");
    assert_holds(victim, "precious");
    assert_int_equal(unlink(lock), 0);
    assert_ok(invar_ledger_open(&ledger, path, &writer)); // control: no lock file
    invar_ledger_close(ledger);
}

static void test_ledger_file_conflicts__lock_is_a_pipe(void **state)
{
    const char *path = new_ledger("pipe.db"), *lock = raw_path("pipe.db-lock");
    invar_ledger *ledger = NULL;
    char holder[INVAR_LEDGER_WRITER_SIZE];

    (void)state;
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(mkfifo(lock, 0644), 0);
    (void)alarm(20); // kills the test if a call waits for the other end of the pipe
    assert_fails(invar_ledger_open(&ledger, path, &writer), INVAR_E_IO, "-lock");
    assert_fails(invar_ledger_writer(holder, path), INVAR_E_IO, "lock");
    assert_ok(invar_ledger_open(&ledger, path, NULL)); // a reader needs no lock
    invar_ledger_close(ledger);
    (void)alarm(0);
}

/* A writer whose lock file was removed must stop, so that two writers never exist. */
static void test_ledger_file_conflicts__lock_removed(void **state)
{
    const char *path = new_ledger("removed.db");
    const invar_ledger_event event = {-1, "info", "test", "still here", NULL};
    invar_ledger *first = NULL, *second = NULL;

    (void)state;
    assert_ok(invar_ledger_open(&first, path, &writer));
    assert_ok(invar_test_ledger_resume(first, &small, 3));
    assert_ok(invar_ledger_log_event(first, &event)); // control: the lock file exists
    assert_int_equal(unlink(raw_path("removed.db-lock")), 0);
    assert_fails(invar_ledger_log_event(first, &event), INVAR_E_STATE, "its lock");
    assert_ok(invar_ledger_open(&second, path, &writer));
    assert_fails(invar_ledger_log_event(first, &event), INVAR_E_STATE, "its lock");
    assert_ok(invar_test_ledger_resume(second, &small, 3));
    assert_ok(invar_ledger_log_event(second, &event));
    invar_ledger_close(first);
    invar_ledger_close(second);
    raw_assert_clean(path);
}

static void test_ledger_file_conflicts__second_name(void **state)
{
    const char *path = new_ledger("name.db"), *other = raw_path("other-name.db");
    invar_ledger *ledger = NULL;

    (void)state;
    assert_int_equal(link(path, other), 0);
    assert_fails(invar_ledger_open(&ledger, other, &writer), INVAR_E_UNSUPPORTED, "hard link");
    assert_fails(invar_ledger_open(&ledger, path, &writer), INVAR_E_UNSUPPORTED, "hard link");
    assert_ok(invar_ledger_open(&ledger, other, NULL)); // readers are allowed
    invar_ledger_close(ledger);
    assert_int_equal(unlink(other), 0);
    assert_ok(invar_ledger_open(&ledger, path, &writer));
    invar_ledger_close(ledger);
}

/* ---- closing a writer ------------------------------------------------------------------------ */

/* A closed writer leaves a complete database file, even if a reader is still open. */
static void test_ledger_file_conflicts__file_is_complete(void **state)
{
    const char *path = new_ledger("whole.db"), *copy = raw_path("whole-copy.db");
    invar_ledger *ledger = NULL, *reader = NULL;
    invar_ledger_summary run;
    raw_bytes bytes;
    FILE *file;

    (void)state;
    assert_ok(invar_ledger_open(&ledger, path, &writer));
    assert_ok(invar_ledger_open(&reader, path, NULL));
    assert_ok(invar_ledger_find(&run, reader, NULL));
    assert_ok(invar_test_ledger_resume(ledger, &small, 3));
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
    invar_ledger_close(ledger);
    bytes = raw_read(path);
    file = fopen(copy, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes.data, 1, bytes.count, file), bytes.count);
    assert_int_equal(fclose(file), 0);
    free(bytes.data);
    invar_ledger_close(reader);
    assert_ok(invar_ledger_open(&reader, copy, NULL));
    assert_ok(invar_ledger_find(&run, reader, NULL));
    assert_int_equal(run.segments, 2);
    assert_true(run.finished);
    invar_ledger_close(reader);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void test_ledger_file_conflicts__backup_spares_others(void **state)
{
    const char *path = new_ledger("source.db"), *notes = raw_path("copy.db.partial");
    const invar_ledger_retention keep = {1, 0};
    invar_ledger *ledger = NULL;

    (void)state;
    write_text(notes, "my notes");
    assert_ok(invar_ledger_open(&ledger, path, NULL));
    assert_ok(invar_ledger_backup(ledger, raw_path("copy.db"), NULL));
    assert_ok(invar_ledger_backup(ledger, raw_path("short.db"), &keep));
    assert_fails(invar_ledger_backup(ledger, raw_path("copy.db"), &keep), INVAR_E_INVALID,
                 "already");
    invar_ledger_close(ledger);
    assert_holds(notes, "my notes");
    raw_assert_clean(raw_path("copy.db"));
    raw_assert_clean(raw_path("short.db"));
}

/* Six processes back up to one path: exactly one succeeds, and the copy is complete. */
static void test_ledger_file_conflicts__backups_at_once(void **state)
{
    const char *path = new_ledger("busy.db"), *to = raw_path("at-once.db");
    const invar_ledger_retention keep = {1, 0};
    invar_ledger_summary run;
    invar_ledger *ledger = NULL;
    int successes = 0, code;

    (void)state;
    for (int i = 0; i < 6; i++)
        if (fork() == 0) {
            invar_status status = invar_ledger_open(&ledger, path, NULL);
            if (status == INVAR_OK)
                status = invar_ledger_backup(ledger, to, i % 2 ? &keep : NULL);
            _exit(status != INVAR_OK);
        }
    for (int i = 0; i < 6; i++) {
        assert_true(wait(&code) > 0);
        assert_true(WIFEXITED(code));
        successes += WEXITSTATUS(code) == 0;
    }
    assert_int_equal(successes, 1);
    raw_assert_clean(to);
    assert_ok(invar_ledger_open(&ledger, to, NULL));
    assert_ok(invar_ledger_find(&run, ledger, NULL));
    assert_int_equal(run.last_step, 2);
    invar_ledger_close(ledger);
}

/* A missing series leaves values without a name, so backup and import must fail. */
static void test_ledger_file_conflicts__backup_of_damage(void **state)
{
    const char *path = new_ledger("damaged.db"), *to = raw_path("of-damaged.db");
    const invar_ledger_retention keep = {1, 0};
    invar_ledger *ledger = NULL, *into = NULL;

    (void)state;
    raw_tamper(path, "DELETE FROM series WHERE series = 2");
    assert_ok(invar_ledger_open(&ledger, path, NULL));
    assert_fails(invar_ledger_backup(ledger, to, &keep), INVAR_E_CORRUPT, "it is damaged");
    assert_int_equal(access(to, F_OK), -1);
    assert_ok(invar_ledger_open(&into, to, &(invar_ledger_options){.create = true}));
    assert_fails(invar_ledger_import_run(into, ledger, 1), INVAR_E_CORRUPT, "has no name");
    invar_ledger_close(into);
    invar_ledger_close(ledger);
}

/* ---- file systems ---------------------------------------------------------------------------- */

static void test_ledger_file_conflicts__fuse(void **state)
{
    static const char mounts[] =
        "21 20 0:5 / /proc rw - proc proc rw\n"
        "36 35 0:98 / / rw,noatime master:1 - fuse.fuse-overlayfs fuse-overlayfs rw\n"
        "37 36 0:99 / /home rw shared:2 - fuse.sshfs me@there:/ rw\n"
        "38 36 8:17 / /win rw - fuseblk /dev/sdb1 rw";

    (void)state;
    assert_true(invar_ledger_file_fuse_local(mounts, 0, 98));
    assert_true(invar_ledger_file_fuse_local(mounts, 8, 17));
    assert_false(invar_ledger_file_fuse_local(mounts, 0, 99));
    assert_false(invar_ledger_file_fuse_local(mounts, 0, 9));
    assert_false(invar_ledger_file_fuse_local(mounts, 8, 1));
    assert_false(invar_ledger_file_fuse_local("", 0, 98));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_file_conflicts__lock_is_a_link),
        cmocka_unit_test(test_ledger_file_conflicts__lock_is_a_pipe),
        cmocka_unit_test(test_ledger_file_conflicts__lock_removed),
        cmocka_unit_test(test_ledger_file_conflicts__second_name),
        cmocka_unit_test(test_ledger_file_conflicts__file_is_complete),
        cmocka_unit_test(test_ledger_file_conflicts__backup_spares_others),
        cmocka_unit_test(test_ledger_file_conflicts__backups_at_once),
        cmocka_unit_test(test_ledger_file_conflicts__backup_of_damage),
        cmocka_unit_test(test_ledger_file_conflicts__fuse),
    };

    return cmocka_run_group_tests(tests, raw_setup, raw_teardown);
}
