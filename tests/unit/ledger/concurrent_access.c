/*
 * concurrent_access.c - tests of a ledger with one writer, several readers, and killed writers.
 *
 * A second writer of the same or another process is rejected with the name of the first. Readers
 * see only complete steps while a child process appends. A log truncated at any frame gives a
 * prefix of the run, checked against the chains of the intact run; the untruncated log is the
 * control.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "tests/unit/ledger/raw_ledger.h"

static const invar_test_ledger small = {.steps = 3};

/* ---- one writer ------------------------------------------------------------------------------ */

typedef struct writer_request {
    const char *path, *name;
} writer_request;

static bool open_writer(const void *payload)
{
    const writer_request *w = payload;
    invar_ledger *ledger;

    return invar_ledger_open(&ledger, w->path,
                             &(invar_ledger_options){.create = true, .writer = w->name}) ==
           INVAR_OK;
}

/* "pid 7 on HOST since 20...: NAME" */
static void assert_holder(const char *text, pid_t pid, const char *writer)
{
    char expected[64], host[65] = "";

    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    (void)snprintf(expected, sizeof expected, "pid %ld on ", (long)pid);
    assert_non_null(strstr(text, expected));
    assert_non_null(strstr(text, host));
    assert_non_null(strstr(text, " since 20"));
    assert_non_null(strstr(text, writer));
}

static void test_ledger_live__second_writer_of_a_process(void **state)
{
    const invar_ledger_options first = {.create = true, .writer = "train --recipe a"};
    const char *path = raw_path("one.db");
    char writer[INVAR_LEDGER_WRITER_SIZE];
    invar_ledger *ledger, *second = NULL;

    (void)state;
    assert_ok(invar_ledger_writer(writer, path));
    assert_string_equal(writer, ""); // neither ledger nor lock file exists
    assert_ok(invar_ledger_open(&ledger, path, &first));
    assert_fails(invar_ledger_open(&second, path, &raw_write_options), INVAR_E_BUSY,
                 "it has a writer already: pid ");
    assert_holder(invar_error_last()->message, getpid(), "train --recipe a");
    assert_ok(invar_ledger_writer(writer, path));
    assert_holder(writer, getpid(), ": train --recipe a");
    assert_ok(invar_test_ledger_begin(ledger, &small)); // the first writer still works
    assert_fails(invar_ledger_open(&second, path, &raw_create_options), INVAR_E_BUSY, "pid ");
    invar_ledger_close(raw_reader(path)); // closing a reader must not release the writer's lock
    assert_fails(invar_ledger_open(&second, path, &raw_create_options), INVAR_E_BUSY, "pid ");
    assert_null(second);
    invar_ledger_close(ledger);
    assert_ok(invar_ledger_writer(writer, path));
    assert_string_equal(writer, "");
    invar_ledger_close(raw_writer(path));
}

/* A symbolic link is another name for the same ledger, so it shares the lock. */
static void test_ledger_live__second_writer_by_a_link(void **state)
{
    const char *path = raw_path("target.db"), *link = raw_path("link.db");
    char writer[INVAR_LEDGER_WRITER_SIZE];
    invar_ledger *ledger, *second = NULL;

    (void)state;
    assert_int_equal(symlink("target.db", link), 0);
    ledger = raw_writer(path);
    assert_ok(invar_test_ledger_begin(ledger, &small));
    assert_fails(invar_ledger_open(&second, link, &raw_write_options), INVAR_E_BUSY, "pid ");
    assert_ok(invar_ledger_writer(writer, link));
    assert_holder(writer, getpid(), "a process");
    raw_assert_clean(link);
    invar_ledger_close(ledger);
    invar_ledger_close(raw_writer(link));
    assert_int_not_equal(access(raw_path("link.db-lock"), F_OK), 0);
    assert_int_equal(unlink(path), 0);
    assert_fails(invar_ledger_open(&second, link, &raw_create_options), INVAR_E_IO,
                 "the link cannot be followed");
}

static invar_status try_writer(int64_t *out, const char *path)
{
    invar_ledger *ledger;

    *out = 0;
    INVAR_TRY(invar_ledger_open(&ledger, path, &raw_write_options));
    invar_ledger_close(ledger);
    return INVAR_OK;
}

static void test_ledger_live__second_writer_of_another_process(void **state)
{
    const char *path = raw_path("two.db");
    char writer[INVAR_LEDGER_WRITER_SIZE];
    invar_ledger *ledger = NULL;
    raw_outcome out;
    pid_t child = invar_test_holder_start(
        open_writer, &(writer_request){path, "j\xC3\xBCrgen\x1b[31m\nsecond line"});

    (void)state;
    assert_fails(invar_ledger_open(&ledger, path, &raw_write_options), INVAR_E_BUSY,
                 "it has a writer already");
    assert_holder(invar_error_last()->message, child, "j\xC3\xBCrgen?[31m"); // on one line
    assert_null(strstr(invar_error_last()->message, "second"));
    assert_ok(invar_ledger_writer(writer, path));
    assert_holder(writer, child, "j\xC3\xBCrgen");
    out = raw_child(0, try_writer, path);
    raw_assert_outcome(&out, INVAR_E_BUSY, "it has a writer already");
    invar_test_holder_kill(child);
    assert_ok(invar_ledger_writer(writer, path)); // reading the writer's name takes no lock
    assert_string_equal(writer, "");
    out = raw_child(0, try_writer, path);
    raw_assert_outcome(&out, INVAR_OK, "");
}

static bool lock_file(const void *payload)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(payload, O_RDWR | O_CREAT, 0600);

    return fd >= 0 && fcntl(fd, F_SETLK, &whole) == 0;
}

/* A process that locks the lock file without writing a name blocks writers, too. */
static void test_ledger_live__lock_of_a_stranger(void **state)
{
    const char *path = raw_path("stranger.db"), *lock = raw_path("stranger.db-lock");
    invar_ledger *ledger = NULL;
    pid_t child = invar_test_holder_start(lock_file, lock);

    (void)state;
    assert_fails(invar_ledger_open(&ledger, path, &raw_create_options), INVAR_E_BUSY,
                 "a process that did not say who it is");
    assert_int_not_equal(access(path, F_OK), 0);
    invar_test_holder_kill(child);
    invar_ledger_close(raw_writer(path));
}

/* ---- readers and a live writer --------------------------------------------------------------- */

enum { LIVE_STEPS = 300, LIVE_CHANGES = 30 };

/* Appends steps until the file `stop` exists. Returns the exit code of the child. */
static int write_live(const char *path, const char *stop)
{
    const invar_test_ledger spec = {.steps = 1};
    invar_ledger *ledger;

    if (invar_ledger_open(&ledger, path, &raw_create_options) != INVAR_OK ||
        invar_test_ledger_begin(ledger, &spec) != INVAR_OK)
        return 1;
    for (int64_t step = 0; access(stop, F_OK) != 0; step++)
        if (invar_test_ledger_step(ledger, &spec, 0, step) != INVAR_OK)
            return 2;
    invar_ledger_close(ledger);
    return 0;
}

/* Row counts of one snapshot, which show if every step up to the last has all its rows. */
typedef struct snapshot {
    int64_t steps, last, metrics, samples, digests, entries;
} snapshot;

static invar_status read_snapshot_row(void *payload, const char *const *columns,
                                      const invar_ledger_value *values, int count)
{
    snapshot *s = payload;

    (void)columns;
    assert_int_equal(count, 6);
    if (values)
        *s = (snapshot){values[0].integer, values[1].integer, values[2].integer,
                        values[3].integer, values[4].integer, values[5].integer};
    return INVAR_OK;
}

static void read_snapshot(snapshot *out, invar_ledger *ledger)
{
    assert_ok(invar_ledger_select(
        ledger, &(invar_ledger_select_request){
                    .sql = "SELECT (SELECT count(*) FROM step), (SELECT coalesce(max(step), -1) "
                           "FROM step), (SELECT count(*) FROM metric), (SELECT count(*) FROM "
                           "sample), (SELECT count(*) FROM digest), (SELECT count(*) FROM entry "
                           "WHERE kind = 'step')",
                    .row = read_snapshot_row,
                    .payload = out}));
}

static void test_ledger_live__reader_sees_whole_steps(void **state)
{
    const char *path = raw_path("busy.db"), *stop = raw_path("stop");
    invar_ledger_verify_result verdict;
    int64_t n_snapshots = 0, changes = 0, previous = -1;
    invar_ledger *ledger = NULL;
    snapshot s = {.last = -1};
    int status;
    pid_t writer = fork();

    (void)state;
    assert_true(writer >= 0);
    if (writer == 0) {
        (void)alarm(INVAR_TEST_CHILD_SECONDS);
        _exit(write_live(path, stop));
    }
    for (bool done = false; !done;) {
        done = waitpid(writer, &status, WNOHANG) == writer;
        if (!ledger && invar_ledger_open(&ledger, path, NULL) != INVAR_OK)
            continue; // the writer has not created it yet
        read_snapshot(&s, ledger);
        assert_int_equal(s.last, s.steps - 1);
        assert_int_equal(s.entries, s.steps);
        assert_int_equal(s.metrics, 20 * s.steps);
        assert_int_equal(s.samples, INVAR_TEST_LEDGER_SAMPLES * s.steps);
        assert_int_equal(s.digests, 3 * s.steps);
        assert_true(s.last >= previous);
        changes += s.last != previous;
        previous = s.last;
        if (s.last >= LIVE_STEPS && changes >= LIVE_CHANGES)
            raw_write(stop, "", 0); // enough different snapshots were read
        if (++n_snapshots % 32 == 0) {
            assert_ok(invar_ledger_verify(&verdict, ledger, NULL, NULL));
            if (verdict.problems > 0)
                fail_msg("at step %d: %s", (int)s.last, verdict.first_problem);
        }
    }
    assert_int_equal(status, 0);
    assert_true(changes >= LIVE_CHANGES);
    invar_ledger_close(ledger);
    raw_assert_clean(path);
}

/*
 * The sqlite3 shell in read-only mode, as the manual recommends it, reads and keeps the log as it
 * is.
 */
static void test_ledger_live__plain_shell(void **state)
{
    static const char query[] = "SELECT count(*) FROM timeline";
    const char *path = raw_path("shell.db"), *log = raw_path("shell.db-wal");
    char command[1024], line[64] = "";
    struct stat before, after;
    invar_ledger *ledger = raw_writer(path);
    FILE *stream;

    (void)state;
    assert_ok(invar_test_ledger_begin(ledger, &small));
    for (int64_t step = 0; step < 3; step++) {
        assert_ok(invar_test_ledger_step(ledger, &small, 0, step));
        assert_int_equal(stat(log, &before), 0);
        (void)snprintf(command, sizeof command, "sqlite3 -readonly '%s' '%s'", path, query);
        stream = popen(command, "r");
        assert_non_null(stream);
        if (!fgets(line, sizeof line, stream))
            fail_msg("%s: no answer; apt-get install sqlite3", command);
        assert_int_equal(pclose(stream), 0);
        assert_int_equal(strtol(line, NULL, 10), step + 1);
        assert_int_equal(stat(log, &after), 0);
        assert_int_equal(after.st_size, before.st_size);
    }
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
    invar_ledger_close(ledger);
    raw_assert_clean(path);
}

/* ---- files of a killed writer ---------------------------------------------------------------- */

enum { KILLED_STEPS = 5 };

/* Reads the database and log of a writer with KILLED_STEPS steps, as if it had been killed then. */
static void make_killed_writer(raw_bytes *file, raw_bytes *log)
{
    const invar_test_ledger spec = {.steps = KILLED_STEPS};
    invar_ledger *ledger;

    raw_remove(raw_path("dead.db"));
    ledger = raw_writer(raw_path("dead.db"));
    assert_ok(invar_test_ledger_begin(ledger, &spec));
    for (int64_t step = 0; step < KILLED_STEPS; step++)
        assert_ok(invar_test_ledger_step(ledger, &spec, 0, step));
    *file = raw_read(raw_path("dead.db"));
    *log = raw_read(raw_path("dead.db-wal"));
    invar_ledger_close(ledger);
}

/* Returns the number of steps. Asserts that all are complete and are a prefix of the run. */
static int64_t count_steps(const char *path, const invar_digest *chains)
{
    invar_ledger *ledger = raw_reader(path);
    invar_ledger_verify_result verdict;
    invar_digest chain;
    snapshot s;

    assert_ok(invar_ledger_verify(&verdict, ledger, NULL, NULL));
    if (verdict.problems > 0)
        fail_msg("%s", verdict.first_problem);
    read_snapshot(&s, ledger);
    assert_int_equal(s.last, s.steps - 1);
    assert_int_equal(s.metrics, 20 * s.steps);
    for (int64_t step = 0; step < s.steps; step++) {
        assert_ok(invar_ledger_chain_at(&chain, ledger, 1, step));
        raw_assert_digest(&chain, &chains[step]);
    }
    invar_ledger_close(ledger);
    return s.steps;
}

static void test_ledger_live__truncated_log(void **state)
{
    const char *path = raw_path("cut.db"), *log = raw_path("cut.db-wal");
    const size_t header = 32, frame = 24 + 4096;
    invar_digest chains[KILLED_STEPS];
    raw_bytes file, whole;
    invar_ledger *ledger;
    int64_t before = KILLED_STEPS;

    (void)state;
    make_killed_writer(&file, &whole);
    assert_true((whole.count - header) % frame == 0 && whole.count > 20 * frame);
    ledger = raw_reader(raw_path("dead.db"));
    for (int64_t step = 0; step < KILLED_STEPS; step++)
        assert_ok(invar_ledger_chain_at(&chains[step], ledger, 1, step));
    invar_ledger_close(ledger);
    for (size_t i = 0; i < 60; i++) { // ever shorter logs, cut between and inside of frames
        const size_t inside[] = {0, 1, 23, 24, 25, 24 + 2048, frame - 1, 12};
        size_t left = whole.count - header, frames = left / frame * (59 - i) / 59;
        size_t length = header + frames * frame + (i > 0 ? inside[i % 8] : 0);
        int64_t steps;
        if (i >= 57)
            length = (size_t[]){header, 16, 0}[i - 57];
        raw_remove(path);
        raw_write(path, file.data, file.count);
        raw_write(log, whole.data, length);
        steps = count_steps(path, chains);
        assert_true(steps <= before); // a shorter log loses the newest steps
        if (i == 0)
            assert_int_equal(steps, KILLED_STEPS);
        before = steps;
    }
    assert_int_equal(before, 0);
    free(file.data);
    free(whole.data);
}

static void test_ledger_live__lost_shared_memory(void **state)
{
    const char *path = raw_path("shm.db"), *memory = raw_path("shm.db-shm");
    raw_bytes file, log;
    invar_ledger *ledger;

    (void)state;
    make_killed_writer(&file, &log);
    for (int i = 0; i < 2; i++) {
        raw_remove(path);
        raw_write(path, file.data, file.count);
        raw_write(raw_path("shm.db-wal"), log.data, log.count);
        if (i == 1) { // shared memory with invalid contents
            char nonsense[32768];
            memset(nonsense, 0x5A, sizeof nonsense);
            raw_write(memory, nonsense, sizeof nonsense);
        }
        raw_assert_clean(path);
        (void)unlink(memory); // the reader above created it
        raw_assert_clean(path);
        ledger = raw_writer(path);
        assert_ok(invar_test_ledger_resume(ledger, &small, KILLED_STEPS));
        assert_ok(invar_test_ledger_step(ledger, &small, 1, KILLED_STEPS));
        invar_ledger_close(ledger);
        assert_int_equal(raw_summary(path, NULL).last_step, KILLED_STEPS);
        raw_assert_clean(path);
    }
    free(file.data);
    free(log.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_live__second_writer_of_a_process),
        cmocka_unit_test(test_ledger_live__second_writer_by_a_link),
        cmocka_unit_test(test_ledger_live__second_writer_of_another_process),
        cmocka_unit_test(test_ledger_live__lock_of_a_stranger),
        cmocka_unit_test(test_ledger_live__reader_sees_whole_steps),
        cmocka_unit_test(test_ledger_live__plain_shell),
        cmocka_unit_test(test_ledger_live__truncated_log),
        cmocka_unit_test(test_ledger_live__lost_shared_memory),
    };

    return cmocka_run_group_tests(tests, raw_setup, raw_teardown);
}
