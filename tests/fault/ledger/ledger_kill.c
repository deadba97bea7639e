/*
 * ledger_kill.c - the writer is killed at random moments.
 *
 * A child writes as fast as it can and reports the chain of each acknowledged step through a pipe.
 * It is killed (SIGKILL) at a random moment after its start, and the next child resumes the same
 * run, again and again. No step that was reported may be missing afterwards, and at most one step
 * may be stored beyond those.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/fault/ledger/ledger_scenario.h"

static char folder[] = INVAR_TEST_WORK "/ledger_kill-XXXXXX";

/* ---- the child ------------------------------------------------------------------------------- */

typedef struct step_report {
    int64_t step;
    invar_digest chain;
} step_report;

/*
 * Writes steps until it is killed. It returns only after a failure, with an exit code for the child
 * that names the failing call.
 */
static int write_until_killed(const char *path, int64_t after, int pipe_out)
{
    invar_ledger *ledger;
    invar_ledger_summary summary;
    bool resumed;
    step_report t;

    if (invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}) != INVAR_OK)
        return 2;
    resumed = invar_ledger_find(&summary, ledger, NULL) == INVAR_OK;
    if ((resumed ? scenario_resume(ledger, after) : scenario_begin(ledger)) != INVAR_OK)
        return 3;
    if (scenario_define(ledger) != INVAR_OK)
        return 4;
    for (int64_t step = after + 1;; step++) {
        invar_ledger_checkpoint made = {step, "a.ckpt", 1, {{0}}, {{0}}};
        if (scenario_append(ledger, step) != INVAR_OK ||
            invar_ledger_chain(&t.step, &t.chain, ledger) != INVAR_OK)
            return 5;
        if (write(pipe_out, &t, sizeof t) != sizeof t)
            return 6;
        made.chain = t.chain;
        if (step % 16 == 0 && (invar_ledger_checkpoint_intent(ledger, &made) != INVAR_OK ||
                               invar_ledger_checkpoint_complete(ledger, &made) != INVAR_OK))
            return 7;
        if (step % 32 == 0 && scenario_evaluate(ledger, step) != INVAR_OK)
            return 8;
    }
}

/* ---- the parent ------------------------------------------------------------------------------ */

typedef struct progress {
    int64_t steps; /* acknowledged steps */
    invar_digest chain;
} progress;

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/*
 * Reads the reports of the child until `end_us`; if `end_us` is 0, until the pipe is closed and
 * empty.
 */
static void read_reports(progress *r, int pipe_in, int64_t end_us)
{
    for (;;) {
        struct pollfd ready = {.fd = pipe_in, .events = POLLIN};
        int64_t left_us = end_us ? end_us - now_us() : 1000000;
        step_report t;
        if (left_us <= 0 || poll(&ready, 1, (int)(left_us / 1000) + 1) <= 0)
            return;
        // A read is never partial, because a report is smaller than PIPE_BUF.
        if (read(pipe_in, &t, sizeof t) != sizeof t)
            return;
        assert_int_equal(t.step, r->steps);
        r->steps++;
        r->chain = t.chain;
    }
}

/* Runs a writer for `us` microseconds, kills it and reads its reports. */
static void run_and_kill(progress *r, const char *path, int64_t us)
{
    int ends[2], status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        _exit(write_until_killed(path, r->steps - 1, ends[1]));
    }
    close(ends[1]);
    read_reports(r, ends[0], now_us() + us);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    read_reports(r, ends[0], 0); // reports from before its death
    close(ends[0]);
    if (!WIFSIGNALED(status))
        fail_msg("the writer ended by itself with %d", WEXITSTATUS(status));
}

/*
 * Checks the ledger. Returns the number of steps that it holds beyond the reported ones: at most
 * the one whose report was interrupted.
 */
static int64_t check_ledger(const progress *r, const char *path)
{
    invar_ledger_verify_result verdict;
    invar_ledger_summary summary;
    invar_ledger *ledger;
    invar_digest chain, expected = scenario_chain(r->steps - 1);
    int64_t more = 0;

    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_verify(&verdict, ledger, NULL, NULL));
    if (verdict.problems != 0)
        fail_msg("%s", verdict.first_problem);
    if (invar_ledger_find(&summary, ledger, NULL) == INVAR_OK) {
        more = summary.last_step - (r->steps - 1);
        if (r->steps > 0) {
            assert_ok(invar_ledger_chain_at(&chain, ledger, summary.run, r->steps - 1));
            assert_memory_equal(&chain, &r->chain, sizeof chain);
            assert_memory_equal(&chain, &expected, sizeof chain);
        }
    } else {
        assert_int_equal(r->steps, 0);
    }
    invar_ledger_close(ledger);
    assert_in_range(more, 0, 1);
    return more;
}

/* Runs `kills` writers of one ledger, each killed after less than `longest_us` microseconds. */
static void kill_often(const char *name, int64_t kills, uint64_t longest_us, uint64_t seed)
{
    char path[600];
    progress r = {0, {{0}}};
    int64_t unreported = 0, empty = 0;

    (void)snprintf(path, sizeof path, "%s/%s.db", folder, name);
    for (int64_t i = 0; i < kills; i++) {
        run_and_kill(&r, path, (int64_t)(invar_test_random(seed, (uint64_t)i) % longest_us));
        unreported += check_ledger(&r, path);
        empty += r.steps == 0;
    }
    print_message("%s: %d kills, %d steps acknowledged, none lost; %d were stored and not told, "
                  "%d kills before the first\n",
                  name, (int)kills, (int)r.steps, (int)unreported, (int)empty);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : 1;
}

/* Kills the writer 10 times by default, 200 times under full. */
static void test_ledger_kill__loses_nothing(void **state)
{
    uint64_t seed = (uint64_t)now_us();
    char name[32];

    (void)state;
    print_message("seed %" PRIu64 "\n", seed);
    for (int64_t i = 0; i < invar_test_count(1, 20); i++) {
        (void)snprintf(name, sizeof name, "long%d", (int)i);
        kill_often(name, 7, 200000, seed++);
    }
    // Short runs are killed while the file of a new ledger is made.
    for (int64_t i = 0; i < invar_test_count(3, 60); i++) {
        (void)snprintf(name, sizeof name, "short%d", (int)i);
        kill_often(name, 1, 20000, seed++);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ledger_kill__loses_nothing)};

    return cmocka_run_group_tests(tests, set_up, NULL);
}
