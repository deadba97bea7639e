/*
 * by_time.c - tests of checkpoints by time: the run has the bits of a run without them.
 *
 * The test replaces the clock, which may also kill the process at a reading, and rename and
 * statvfs, which simulate a full disk. Runs that were killed, or whose saves failed, are compared
 * with a reference run without checkpoints by time ("never").
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE // renameat

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "engine/files/checkpoint/checkpoint.h"
#include "engine/run/launch/launch.h"
#include "engine/run/train_loop.h"
#include "tests/run.h"
#include "tests/unit/engine/config/config_of.h"

enum { HOUR = 3600000, ROLLOUTS = 5, KILLED = 9 };

/* ---- simulated disk -------------------------------------------------------------------------- */

static const char
    *full_pattern; /* renames to a path that ends like this pattern fail; NULL for none */

int rename(const char *from, const char *to)
{
    char pattern[100];

    (void)snprintf(pattern, sizeof pattern, "*/%s", full_pattern ? full_pattern : "");
    if (full_pattern && fnmatch(pattern, to, 0) == 0) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

static int64_t free_bytes = -1; /* free bytes; -1 for no limit */

int statvfs(const char *path, struct statvfs *info)
{
    (void)path;
    memset(info, 0, sizeof *info);
    info->f_frsize = 1;
    info->f_blocks = 1;
    info->f_bavail = (fsblkcnt_t)(free_bytes < 0 ? INT64_MAX : free_bytes);
    return 0;
}

/* ---- runs with a simulated clock ------------------------------------------------------------- */

static struct {
    int64_t now, step;  /* time, and its advance per reading, in milliseconds */
    int calls, kill_at; /* number of readings; the reading at which the process exits, 0 for none */
    pthread_t last_thread; /* thread of the last reading */
    bool several_threads;  /* more than one thread has read the clock */
    char output[2048];     /* lines printed by the run */
} the_clock;

static int64_t read_clock(void *payload)
{
    (void)payload;
    the_clock.several_threads |=
        the_clock.calls > 0 && !pthread_equal(the_clock.last_thread, pthread_self());
    the_clock.last_thread = pthread_self();
    if (++the_clock.calls == the_clock.kill_at)
        _exit(KILLED);
    return the_clock.now += the_clock.step;
}

static void store_line(void *payload, const char *line)
{
    size_t length = strlen(the_clock.output);

    (void)payload;
    (void)snprintf(the_clock.output + length, sizeof the_clock.output - length, "%s\n", line);
}

static const run_pair base_recipe[] = {
    {"num-rollout", "5"}, {"keep-checkpoints", "1"}, {NULL, NULL}};

static int64_t until = -1; /* step after which the next runs end; -1 for no limit */

static invar_status train(invar_train_summary *summary, const char *name, int ranks,
                          const run_pair *overrides)
{
    invar_recipe *recipe = run_recipe(run_path(name), base_recipe, overrides);
    invar_launch launch;
    invar_status status;

    the_clock.output[0] = '\0';
    assert_ok(invar_launch_open(&launch, invar_launch_timeout(config_of(recipe)), ranks));
    status = invar_launch_train(
        summary, &launch, config_of(recipe),
        &(invar_train_options){.until = until, .clock_ms = read_clock, .say = store_line});
    status = invar_launch_end(&launch, status);
    invar_launch_close(&launch); // a failed launch is still open for its message
    invar_recipe_free(recipe);
    return status;
}

/* Starts a run with a clock that advances by `step` milliseconds per reading. */
static invar_status train_new(const char *name, int64_t step, int ranks, const run_pair *overrides)
{
    invar_train_summary summary;

    memset(&the_clock, 0, sizeof the_clock);
    the_clock.step = step;
    return train(&summary, name, ranks, overrides);
}

static void assert_checkpoints(const char *name, int64_t by_time, int64_t others)
{
    int64_t n_by_time, n_others;
    char save[500];

    (void)snprintf(save, sizeof save, "%s/checkpoints", run_path(name));
    assert_ok(invar_checkpoint_count(&n_by_time, &n_others, save));
    assert_int_equal(n_by_time, by_time);
    assert_int_equal(n_others, others);
}

/*
 * Checks a finished run: no checkpoint by time is left, and the steps of all saved checkpoints are
 * the bits of `steps`.
 */
static void assert_saved(const char *name, int64_t others, unsigned steps)
{
    assert_checkpoints(name, 0, others);
    assert_int_equal((unsigned)run_query_number(name,
                                                "SELECT sum(1 << step) FROM (SELECT DISTINCT step "
                                                "FROM checkpoint WHERE state = 'complete')"),
                     steps);
}

/* Returns the digest of the tensors in the last checkpoint; other files contain the run's name. */
static invar_digest tensors_of(const char *name)
{
    static const char *const sets[] = {"model", "model.exp_avg", "model.exp_avg_sq"};
    invar_digest all[3], out;
    int64_t bytes;
    char path[600];

    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/checkpoints/iter_%07d/%s.safetensors", run_path(name),
                       ROLLOUTS - 1, sets[i]);
        assert_ok(invar_file_hash(&all[i], &bytes, path));
    }
    invar_hash_bytes(&out, all, sizeof all);
    return out;
}

static void assert_same(const char *name, const char *as)
{
    run_digests a = run_digests_of(name), b = run_digests_of(as);
    invar_digest mine = tensors_of(name), other = tensors_of(as);

    assert_true(run_same(&a, &b));
    assert_true(invar_digest_equal(&a.identity, &b.identity));
    assert_true(invar_digest_equal(&mine, &other));
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const run_pair no_time[] = {{"save-interval-minutes", "0"}, {NULL, NULL}};
static const run_pair every_90_min[] = {{"save-interval-minutes", "90"}, {NULL, NULL}};
static const run_pair stages[] = {
    {"pipeline-model-parallel-size", "2"}, {"num-layers", "2"}, {NULL, NULL}};

static int train_reference(void **state)
{
    (void)state;
    assert_ok(train_new("never", HOUR, 1, no_time));
    assert_int_equal(the_clock.calls, 0);
    assert_checkpoints("never", 0, 1);
    return 0;
}

static void test_by_time__changes_no_bit(void **state)
{
    (void)state;
    assert_ok(train_new("still", 0, 1, NULL)); // the clock stands still
    assert_checkpoints("still", 0, 1);
    assert_same("still", "never");
    for (int ranks = 1; ranks <= 2; ranks++) {
        const char *name = ranks == 1 ? "often" : "often-2";
        assert_ok(train_new(name, HOUR, ranks, NULL));
        assert_int_equal(the_clock.calls, 1 + 2 * (ROLLOUTS - 1) + 1);
        assert_false(the_clock.several_threads);
        assert_saved(name, 1, 0x1F);
        assert_same(name, "never");
    }
}

/* Each save restarts the interval, also one of save-interval. */
static void test_by_time__saves_restart_the_interval(void **state)
{
    const run_pair time_and_steps[] = {
        {"save-interval-minutes", "90"}, {"save-interval", "1"}, {NULL, NULL}};
    const run_pair none[] = {{"save", "none"}, {"keep-checkpoints", "0"}, {NULL, NULL}};

    (void)state;
    // each reading advances the clock by an hour, and a save reads it again: due after rollouts 1
    // and 3; rollout 4 is the last one
    assert_ok(train_new("half", HOUR, 1, every_90_min));
    assert_saved("half", 1, 1 << 1 | 1 << 3 | 1 << 4);
    assert_ok(train_new("also", HOUR, 1, time_and_steps));
    assert_checkpoints("also", 0, 1);
    assert_ok(train_new("none", HOUR, 1, none));
    assert_int_equal(the_clock.calls, 0);
}

/* Trains in a child process, which exits at the last-th reading of the clock. */
static void kill_after(const char *name, int last_reading, int ranks, const run_pair *overrides)
{
    pid_t child = fork();
    int code;

    assert_true(child >= 0);
    if (child == 0) {
        invar_train_summary summary;
        memset(&the_clock, 0, sizeof the_clock);
        the_clock.step = HOUR;
        the_clock.kill_at = last_reading;
        _exit(train(&summary, name, ranks, overrides) == INVAR_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code));
    assert_int_equal(WEXITSTATUS(code), KILLED);
}

/* A run killed before its second and before its fourth save loses one rollout each time. */
static void test_by_time__a_kill_costs_one_interval(void **state)
{
    invar_train_summary summary;

    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        const char *name = ranks == 1 ? "killed" : "killed-2";
        kill_after(name, 4, ranks,
                   NULL); // readings: the start, two for the save of rollout 0, the kill
        assert_checkpoints(name, 1, 0);
        kill_after(name, 6, 3 - ranks,
                   NULL); // readings: the start, four for the saves of rollouts 1 and 2, the kill
        assert_checkpoints(name, 2, 0);
        memset(&the_clock, 0, sizeof the_clock);
        the_clock.step = HOUR;
        assert_ok(train(&summary, name, ranks, NULL));
        assert_int_equal(summary.resumed_after, 2);
        assert_saved(name, 1, 0x1F);
        assert_same(name, "never");
    }
}

/* Checkpoints by time are removed at the end of all rollouts, not when a run pauses or fails. */
static void test_by_time__the_end_removes_them(void **state)
{
    const run_pair longer[] = {{"num-rollout", "7"}, {NULL, NULL}};
    invar_train_summary summary;

    (void)state;
    until = 2;
    assert_ok(train_new("paused", HOUR, 1, NULL));
    assert_checkpoints("paused", 2, 1);
    until = -1;
    full_pattern = "iter_0000004";
    assert_fails(train(&summary, "paused", 1, NULL), INVAR_E_IO, "No space left on device");
    assert_checkpoints("paused", 2, 1); // the save of the last step failed
    full_pattern = NULL;
    assert_ok(train(&summary, "paused", 1, NULL));
    assert_saved("paused", 1, 0x1F);
    assert_same("paused", "never");
    assert_ok(train(&summary, "paused", 1, longer));
    assert_int_equal(summary.resumed_after, ROLLOUTS - 1);
    assert_saved("paused", 1, 0x7F);
}

static double warnings(const char *name)
{
    return run_query_number(name,
                            "SELECT count(*) FROM event WHERE level = 'warning' AND kind = 'save'");
}

/* The disk is full at the first file, while other ranks send tensors, or after the last file. */
static void test_by_time__a_full_disk_does_not_end_the_run(void **state)
{
    static const struct {
        const char *name, *full_pattern;
        int ranks;
        const run_pair *overrides;
    } runs[] = {{"full", "iter_0000002.tmp/model.safetensors", 1, NULL},
                {"full-name", "iter_0000002", 1, NULL},
                {"full-2", "iter_0000002.tmp/model.exp_avg.safetensors", 2, NULL},
                {"full-stages", "iter_0000002.tmp/model.exp_avg.safetensors", 2, stages}};

    (void)state;
    assert_ok(train_new("stages", 0, 2, stages));
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        full_pattern = runs[i].full_pattern;
        assert_ok(train_new(runs[i].name, HOUR, runs[i].ranks, runs[i].overrides));
        full_pattern = NULL;
        assert_non_null(
            strstr(the_clock.output, "warning: step 2: no checkpoint after 15 minutes"));
        assert_non_null(strstr(the_clock.output, "No space left on device"));
        assert_true(warnings(runs[i].name) == 1.0);
        assert_saved(runs[i].name, 1, 0x1B); // all steps except step 2
        assert_same(runs[i].name, runs[i].overrides ? "stages" : "never");
    }
}

/* A third failure with the same reason is reported only if a save has succeeded before it. */
static void test_by_time__a_success_resets_the_warnings(void **state)
{
    static const struct {
        const char *name, *full_pattern;
        double warnings;
        unsigned saved;
    } runs[] = {{"three-fail", "iter_000000[012]", 2.0, 1 << 3 | 1 << 4},
                {"third-works", "iter_000000[013]", 3.0, 1 << 2 | 1 << 4}};

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        full_pattern = runs[i].full_pattern;
        assert_ok(train_new(runs[i].name, HOUR, 1, NULL));
        full_pattern = NULL;
        assert_true(warnings(runs[i].name) == runs[i].warnings);
        assert_saved(runs[i].name, 1, runs[i].saved);
    }
}

/* A failed save of save-interval ends the run with an error; the next start resumes it. */
static void test_by_time__other_saves_fail_the_run(void **state)
{
    const run_pair every_2[] = {{"save-interval", "2"}, {NULL, NULL}};

    (void)state;
    full_pattern = "iter_0000003";
    assert_fails(train_new("due", HOUR, 1, every_2), INVAR_E_IO, "No space left on device");
    full_pattern = NULL;
    assert_checkpoints("due", 2, 1); // steps 0 and 2 were saved by time, step 1 by save-interval
    assert_ok(train_new("due", HOUR, 1, every_2));
    assert_same("due", "never");
}

/*
 * Disk space is reserved for required checkpoints; without space for them, the run does not start.
 */
static void test_by_time__reserves_space_for_required_saves(void **state)
{
    const int64_t checkpoint_bytes =
        (int64_t)run_query_number("never", "SELECT max(bytes) FROM checkpoint");
    const run_pair every_2[] = {{"save-interval", "2"}, {"keep-checkpoints", "0"}, {NULL, NULL}};

    (void)state;
    assert_true(checkpoint_bytes > 1000);
    free_bytes = 2 * checkpoint_bytes - 600;
    assert_ok(train_new("little", HOUR, 1, NULL));
    assert_non_null(strstr(the_clock.output, "the disk has room for the 1 that are sure to come"));
    assert_true(warnings("little") == 3.0); // the third failure of four is reported no more
    assert_checkpoints("little", 0, 1);
    assert_same("little", "never");
    free_bytes = 2 * checkpoint_bytes + 600;
    assert_ok(train_new("enough", HOUR, 2, NULL));
    assert_saved("enough", 1, 0x1F);
    free_bytes = 3 * checkpoint_bytes + 600; // checkpoints of save-interval are required as well
    assert_ok(train_new("three", HOUR, 1, every_2));
    assert_saved("three", 3, 0x1E);
    free_bytes = checkpoint_bytes - 3000;
    for (int ranks = 1; ranks <= 2; ranks++)
        assert_fails(train_new("small", HOUR, ranks, NULL), INVAR_E_IO,
                     "the run will add 1 checkpoint of");
    assert_false(invar_path_exists(run_path("small")));
    free_bytes = -1;
}

/*
 * A run with more checkpoints than fit on the disk starts with a warning; the user may move them.
 */
static void test_by_time__warns_of_all_that_will_come(void **state)
{
    const int64_t checkpoint_bytes =
        (int64_t)run_query_number("never", "SELECT max(bytes) FROM checkpoint");
    const run_pair all[] = {{"save-interval", "1"}, {"keep-checkpoints", "0"}, {NULL, NULL}};
    const run_pair two[] = {{"save-interval", "1"}, {"keep-checkpoints", "2"}, {NULL, NULL}};

    (void)state;
    free_bytes = checkpoint_bytes;
    assert_ok(train_new("all", 0, 1, all));
    assert_non_null(strstr(the_clock.output, "and the run will add 5 checkpoints of"));
    assert_non_null(strstr(the_clock.output, "keep-checkpoints removes old ones"));
    assert_checkpoints("all", 0, 5);
    // keep-checkpoints = 2 needs space for three, because old ones are removed after a save
    assert_fails(train_new("two", 0, 1, two), INVAR_E_IO, "the run will add 3 checkpoints of");
    free_bytes = 3 * checkpoint_bytes;
    assert_ok(train_new("two", 0, 1, two));
    assert_null(strstr(the_clock.output, "the run will add"));
    free_bytes = -1;
}

static void test_by_time__copies_into_half_of_the_memory(void **state)
{
    const size_t memory = (size_t)128 << 30;

    (void)state;
    assert_true(invar_run_may_copy(0, memory));
    assert_true(invar_run_may_copy(INT64_C(64) << 30, memory));
    assert_false(invar_run_may_copy((INT64_C(64) << 30) + 1, memory));
    assert_false(invar_run_may_copy(INT64_MAX, memory));
    assert_true(invar_memory_planning_host() > (size_t)1 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_time__changes_no_bit),
        cmocka_unit_test(test_by_time__saves_restart_the_interval),
        cmocka_unit_test(test_by_time__a_kill_costs_one_interval),
        cmocka_unit_test(test_by_time__the_end_removes_them),
        cmocka_unit_test(test_by_time__a_full_disk_does_not_end_the_run),
        cmocka_unit_test(test_by_time__a_success_resets_the_warnings),
        cmocka_unit_test(test_by_time__other_saves_fail_the_run),
        cmocka_unit_test(test_by_time__reserves_space_for_required_saves),
        cmocka_unit_test(test_by_time__warns_of_all_that_will_come),
        cmocka_unit_test(test_by_time__copies_into_half_of_the_memory),
    };

    if (run_setup(INVAR_TEST_WORK "/by_time"))
        return 1;
    return cmocka_run_group_tests(tests, train_reference, run_teardown);
}
