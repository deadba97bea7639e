/*
 * checkpoint_kill.c - the writer of checkpoints is killed: at random moments, at every system call.
 *
 * Random: a child writes steps to a ledger and a checkpoint after each, tells each one that was
 * acknowledged, and is killed (SIGKILL); the next child goes on from what it finds. System calls: a
 * child writes one checkpoint under ptrace and is killed before its n-th call, for n = 1, 2, ...
 * Each time the latest checkpoint is the one before or the new one, whole, bit for bit.
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
static bool by_time; /* what a traced child writes */

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

/* The step of the latest checkpoint, all of whose bits are right; -1: there is none. */
static int64_t latest(const char *save)
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

/* The mark of a checkpoint that was saved by time, and that exists. */
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
 * After a writer that lived: checkpoints, their marks, `latest`, nothing else. Yields how many
 * checkpoints.
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

/* The checkpoint is written twice: the second time it replaces the first, and a thread does it. */
static int save_twice(const char *save, invar_ledger *ledger, int64_t step)
{
    const invar_checkpoint_options options = {.ledger = ledger, .keep = KEEP};

    ckpt_make(&data, step, ROWS);
    for (int i = 0; i < 2; i++)
        if (ckpt_write(NULL, save, &data, &options, i == 1) != INVAR_OK)
            return -1;
    return 0;
}

/* Goes on where the checkpoint is. Any failure is one of the test: the exit code tells. */
static int begin(invar_ledger *ledger, const char *save, int64_t after)
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
    code = begin(ledger, save, after);
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

/* One life of `us` microseconds; yields the last step that was told, or `after`. */
static int64_t live(const char *save, const char *path, int64_t after, int64_t us)
{
    int64_t end = now_us() + us, told = after, step;
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
        struct pollfd none = {.fd = -1};
        poll(&none, 1, 1);
    }
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    while (read(ends[0], &step, sizeof step) == sizeof step)
        told = step;
    close(ends[0]);
    if (!WIFSIGNALED(status))
        fail_msg("the writer ended by itself with %d", WEXITSTATUS(status));
    return told;
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
    if (step >= 0) { // what is in a checkpoint is in the ledger
        expected = scenario_chain(step);
        assert_ok(invar_ledger_find(&summary, ledger, NULL));
        assert_ok(invar_ledger_chain_at(&chain, ledger, summary.run, step));
        assert_memory_equal(&chain, &expected, sizeof chain);
    }
    invar_ledger_close(ledger);
}

/* 10 kills by default, 200 under `full`. */
static void test_checkpoint_kill__the_old_or_the_new_one_is_whole(void **state)
{
    uint64_t seed = (uint64_t)now_us();
    char save[600], path[600];
    int64_t after = -1, kills = invar_test_count(10, 200), untold = 0;

    (void)state;
    print_message("seed %" PRIu64 "\n", seed);
    snprintf(save, sizeof save, "%s/save", folder);
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    for (int64_t i = 0; i < kills; i++) {
        int64_t us = invar_test_random(seed, (uint64_t)i) % 300000;
        int64_t told = live(save, path, after, us), found = latest(save);
        assert_in_range(found - told, 0, 1);
        untold += found - told;
        check_ledger(path, found);
        after = found;
    }
    ckpt_make(&data, after + 1, ROWS);
    assert_ok(invar_checkpoint_write(NULL, save, &data.content,
                                     &(invar_checkpoint_options){.keep = KEEP}));
    assert_in_range(count_clean(save), 1, KEEP);
    print_message("%d kills, %d checkpoints, %d of them not told\n", (int)kills, (int)after + 1,
                  (int)untold);
}

/* ---- every system call ----------------------------------------------------------------------- */

/* Writes the checkpoint under the eyes of its parent. */
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

typedef enum fate { KILLED, ENDED, UNTRACED } fate;

/* Each system call stops a traced child twice: before and after it. */
static fate kill_at(const char *save, int64_t step, int64_t n)
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

/* From one whole checkpoint to the next, or to itself (`again`), killed at the n-th stop. */
static void sweep(const char *name, bool again, int64_t stride)
{
    char save[600];
    int64_t n = 1, last = 0, advanced = 0;
    fate end = KILLED;

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
        found = latest(save);
        assert_in_range(found, last, next);
        advanced += found != last;
        last = found;
    }
    assert_in_range(count_clean(save), 1, KEEP);
    assert_true(again || advanced > 0);
    assert_true(n > 100); // there was something to interrupt
    print_message("%s: killed at %d moments\n", name, (int)(n / stride));
}

static void test_checkpoint_kill__at_every_system_call(void **state)
{
    (void)state;
    sweep("next", false, invar_test_count(13, 1));
    sweep("again", true, invar_test_count(13, 1));
}

/* Before and after the mark, the names and the removal of an older one. */
static void test_checkpoint_kill__by_time_at_every_system_call(void **state)
{
    (void)state;
    assert_int_equal(INVAR_CHECKPOINT_KEPT_BY_TIME, KEEP);
    by_time = true;
    sweep("by-time", false, invar_test_count(11, 1));
    sweep("by-time-again", true, invar_test_count(17, 1));
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
