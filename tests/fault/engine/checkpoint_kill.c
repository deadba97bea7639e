/*
 * checkpoint_kill.c - the writer of checkpoints is killed at random moments and at system calls.
 *
 * Random moments: a child writes steps to a ledger and a checkpoint after each, reports each
 * acknowledged step through a pipe, and is killed (SIGKILL). The next child resumes from what it
 * finds. System calls: a child writes one checkpoint under ptrace and is killed before its n-th
 * stop, for n = 1, 2, ... (every n under full, else every 11th to 17th). After each kill the latest
 * checkpoint is the previous one or the new one, complete, bit for bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

#include "base/file.h"
#include "tests/fault/engine/checkpoint_scenario.h"

enum { ROWS = 1500, KEEP = 2 };

static char folder[] = INVAR_TEST_WORK "/checkpoint_kill-XXXXXX";
static ckpt_data data;
static bool by_time; /* a traced child writes a checkpoint that is saved by time */

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : -1;
}

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Returns the step of the latest checkpoint, after checking all its bits; -1 if there is none. */
static int64_t check_latest(const char *save)
{
    invar_checkpoint *c;
    int64_t step;

    if (invar_checkpoint_latest(&step, save) == INVAR_E_NOTFOUND)
        return -1;
    assert_ok(invar_checkpoint_open(&c, save, NULL));
    assert_int_equal(invar_checkpoint_state_of(c)->step, step);
    ckpt_check(c, step, ROWS);
    invar_checkpoint_close(c);
    return step;
}

/* Returns true if `name` is the mark of a checkpoint that was saved by time and still exists. */
static bool is_mark(const char *save, const char *name)
{
    const char *end = strstr(name, ".by-time");
    char path[1200];

    if (!end || end[8])
        return false;
    (void)snprintf(path, sizeof path, "%s/%.*s", save, (int)(end - name), name);
    return invar_path_exists(path);
}

/*
 * Checks a folder after a writer that was not killed: it has only checkpoints, their marks and the
 * file that names the latest one. Returns the number of checkpoints.
 */
static int count_clean(const char *save)
{
    DIR *stream = opendir(save);
    struct dirent *entry;
    int count = 0;

    assert_non_null(stream);
    while ((entry = readdir(stream)) != NULL) {
        const char *name = entry->d_name;
        if (name[0] == '.' || strcmp(name, "latest_checkpointed_iteration.txt") == 0 ||
            is_mark(save, name))
            continue;
        if (strncmp(name, "iter_", 5) != 0 || strspn(name + 5, "0123456789") != strlen(name + 5))
            fail_msg("%s was left behind", name);
        count++;
    }
    closedir(stream);
    return count;
}

/* ---- random moments -------------------------------------------------------------------------- */

/* Writes the checkpoint twice: the second write, in a thread, replaces the first. */
static int save_twice(const char *save, invar_ledger *ledger, int64_t step)
{
    const invar_checkpoint_options options = {.ledger = ledger, .keep = KEEP};

    ckpt_make(&data, step, ROWS);
    for (int i = 0; i < 2; i++)
        if (ckpt_write(NULL, save, &data, &options, i == 1) != INVAR_OK)
            return -1;
    return 0;
}

/* Resumes after step `after`, or begins the run. Returns 0, or the exit code for the child. */
static int resume_or_begin(invar_ledger *ledger, const char *save, int64_t after)
{
    invar_ledger_summary summary;
    invar_checkpoint *c;
    invar_status status;

    if (invar_ledger_find(&summary, ledger, NULL) != INVAR_OK)
        return scenario_begin(ledger) == INVAR_OK ? 0 : 3;
    if (scenario_resume(ledger, after) != INVAR_OK)
        return 4;
    if (after < 0)
        return 0;
    if (invar_checkpoint_open(&c, save, NULL) != INVAR_OK)
        return 5;
    status = invar_checkpoint_finish_pending(c, ledger);
    invar_checkpoint_close(c);
    return status == INVAR_OK ? 0 : 6;
}

static int write_until_killed(const char *save, const char *path, int64_t after, int pipe_out)
{
    invar_ledger *ledger;
    int code;

    if (invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}) != INVAR_OK)
        return 2;
    code = resume_or_begin(ledger, save, after);
    if (code != 0)
        return code;
    if (scenario_define(ledger) != INVAR_OK)
        return 7;
    for (int64_t step = after + 1;; step++) {
        if (scenario_append(ledger, step) != INVAR_OK)
            return 8;
        if (save_twice(save, ledger, step) != 0)
            return 9;
        if (write(pipe_out, &step, sizeof step) != sizeof step)
            return 10;
    }
}

/*
 * Runs a writer for `us` microseconds and kills it. Returns the last step that it reported, or
 * `after`.
 */
static int64_t run_and_kill(const char *save, const char *path, int64_t after, int64_t us)
{
    int64_t end = now_us() + us, acknowledged = after, step;
    int ends[2], status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        _exit(write_until_killed(save, path, after, ends[1]));
    }
    close(ends[1]);
    while (now_us() < end) {
        struct pollfd no_event = {.fd = -1};
        poll(&no_event, 1, 1);
    }
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    while (read(ends[0], &step, sizeof step) == sizeof step)
        acknowledged = step;
    close(ends[0]);
    if (!WIFSIGNALED(status))
        fail_msg("the writer ended by itself with %d", WEXITSTATUS(status));
    return acknowledged;
}

static void check_ledger(const char *path, int64_t step)
{
    invar_ledger_verify_result verdict;
    invar_ledger_summary summary;
    invar_digest chain, expected;
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_verify(&verdict, ledger, NULL, NULL));
    if (verdict.problems != 0)
        fail_msg("%s", verdict.first_problem);
    if (step >= 0) { // every step of a checkpoint is in the ledger
        expected = scenario_chain(step);
        assert_ok(invar_ledger_find(&summary, ledger, NULL));
        assert_ok(invar_ledger_chain_at(&chain, ledger, summary.run, step));
        assert_memory_equal(&chain, &expected, sizeof chain);
    }
    invar_ledger_close(ledger);
}

/* Kills the writer 10 times by default, 200 times under full. */
static void test_checkpoint_kill__the_old_or_the_new_one_is_whole(void **state)
{
    uint64_t seed = (uint64_t)now_us();
    char save[600], path[600];
    int64_t after = -1, kills = invar_test_count(10, 200), unacknowledged = 0;

    (void)state;
    print_message("seed %" PRIu64 "\n", seed);
    snprintf(save, sizeof save, "%s/save", folder);
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    for (int64_t i = 0; i < kills; i++) {
        int64_t us = invar_test_random(seed, (uint64_t)i) % 300000;
        int64_t acknowledged = run_and_kill(save, path, after, us), found = check_latest(save);
        assert_in_range(found - acknowledged, 0, 1);
        unacknowledged += found - acknowledged;
        check_ledger(path, found);
        after = found;
    }
    ckpt_make(&data, after + 1, ROWS);
    assert_ok(invar_checkpoint_write(NULL, save, &data.content,
                                     &(invar_checkpoint_options){.keep = KEEP}));
    assert_in_range(count_clean(save), 1, KEEP);
    print_message("%d kills, %d checkpoints, %d of them not told\n", (int)kills, (int)after + 1,
                  (int)unacknowledged);
}

/* ---- every system call ----------------------------------------------------------------------- */

/* Child: writes the checkpoint while the parent traces it. */
static void write_traced(const char *save, int64_t step)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(77);
    raise(SIGSTOP);
    ckpt_make(&data, step, ROWS);
    _exit(invar_checkpoint_write(NULL, save, &data.content,
                                 &(invar_checkpoint_options){.keep = KEEP, .by_time = by_time}) !=
          INVAR_OK);
}

typedef enum trace_result { KILLED, ENDED, UNTRACED } trace_result;

/*
 * Kills a traced child at its n-th stop. Each system call stops it twice: before and after the
 * call.
 */
static trace_result kill_at(const char *save, int64_t step, int64_t n)
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0)
        write_traced(save, step);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status))
        return UNTRACED;
    for (int64_t stop = 0; stop < n; stop++) {
        if (ptrace(PTRACE_SYSCALL, child, NULL, NULL) != 0)
            break;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            return ENDED;
        }
        if (WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP)
            fail_msg("the writer got signal %d", WSTOPSIG(status));
    }
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return KILLED;
}

/*
 * Writes checkpoint after checkpoint (`again`: the same step each time), killing the writer at the
 * n-th stop, until n is beyond the last one.
 */
static void sweep_stops(const char *name, bool again, int64_t stride)
{
    char save[600];
    int64_t n = 1, last = 0, advanced = 0;
    trace_result end = KILLED;

    snprintf(save, sizeof save, "%s/%s", folder, name);
    ckpt_make(&data, last, ROWS);
    assert_ok(invar_checkpoint_write(NULL, save, &data.content,
                                     &(invar_checkpoint_options){.by_time = by_time}));
    for (; end == KILLED; n += stride) {
        int64_t next = last + !again, found;
        end = kill_at(save, next, n);
        if (end == UNTRACED) {
            print_message("ptrace is not allowed here\n");
            skip();
        }
        found = check_latest(save);
        assert_in_range(found, last, next);
        advanced += found != last;
        last = found;
    }
    assert_in_range(count_clean(save), 1, KEEP);
    assert_true(again || advanced > 0);
    assert_true(n > 100); // Control: the writer made system calls to interrupt.
    print_message("%s: killed at %d moments\n", name, (int)(n / stride));
}

static void test_checkpoint_kill__at_every_system_call(void **state)
{
    (void)state;
    sweep_stops("next", false, invar_test_count(13, 1));
    sweep_stops("again", true, invar_test_count(13, 1));
}

/*
 * Like the previous test, for checkpoints saved by time: the kills include the moments before and
 * after the mark, the renames and the removal of an older checkpoint.
 */
static void test_checkpoint_kill__by_time_at_every_system_call(void **state)
{
    (void)state;
    assert_int_equal(INVAR_CHECKPOINT_KEPT_BY_TIME, KEEP);
    by_time = true;
    sweep_stops("by-time", false, invar_test_count(11, 1));
    sweep_stops("by-time-again", true, invar_test_count(17, 1));
    by_time = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_kill__the_old_or_the_new_one_is_whole),
        cmocka_unit_test(test_checkpoint_kill__at_every_system_call),
        cmocka_unit_test(test_checkpoint_kill__by_time_at_every_system_call),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
