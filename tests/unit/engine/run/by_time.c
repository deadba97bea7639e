/*
 * by_time.c - checkpoints by the clock: the run is the one without them, killed or not.
 *
 * The clock is the test's: it says how late it is, and it may be the moment of a kill. Renames are
 * the test's, too: a disk is full where it says so.
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

enum { HOUR = 3600000, ROLLOUTS = 5, KILLED = 9 };

/* ---- a disk that is full --------------------------------------------------------------------- */

static const char *full; /* renames to a name whose end has this pattern fail; NULL: none */

int rename(const char *from, const char *to)
{
    char pattern[100];

    (void)snprintf(pattern, sizeof pattern, "*/%s", full ? full : "");
    if (full && fnmatch(pattern, to, 0) == 0) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

static int64_t room = -1; /* free bytes; -1: without end */

int statvfs(const char *path, struct statvfs *info)
{
    (void)path;
    memset(info, 0, sizeof *info);
    info->f_frsize = 1;
    info->f_blocks = 1;
    info->f_bavail = (fsblkcnt_t)(room < 0 ? INT64_MAX : room);
    return 0;
}

/* ---- runs by a clock ------------------------------------------------------------------------- */

static struct {
    int64_t now, step; /* milliseconds that go by between two questions */
    int calls, kill_at;
    pthread_t who;
    bool several; /* threads have asked */
    char said[2048];
} the_clock;

static int64_t ask_clock(void *payload)
{
    (void)payload;
    the_clock.several |= the_clock.calls > 0 && !pthread_equal(the_clock.who, pthread_self());
    the_clock.who = pthread_self();
    if (++the_clock.calls == the_clock.kill_at)
        _exit(KILLED);
    return the_clock.now += the_clock.step;
}

static void hear(void *payload, const char *line)
{
    size_t length = strlen(the_clock.said);

    (void)payload;
    (void)snprintf(the_clock.said + length, sizeof the_clock.said - length, "%s\n", line);
}

static const run_pair usual[] = {{"num-rollout", "5"}, {"keep-checkpoints", "1"}, {NULL, NULL}};

static int64_t until = -1; /* the step after which the next runs end; -1: when all is done */

static invar_status train(invar_train_summary *summary, const char *name, int ranks,
                          const run_pair *more)
{
    invar_recipe *recipe = run_recipe(run_below(name), usual, more);
    invar_launch launch;
    invar_status status;

    the_clock.said[0] = '\0';
    assert_ok(invar_launch_open(&launch, invar_launch_timeout(recipe), ranks));
    status = invar_launch_train(
        summary, &launch, recipe,
        &(invar_train_options){.until = until, .clock_ms = ask_clock, .say = hear});
    status = invar_launch_end(&launch, status);
    invar_launch_close(&launch); // after a failure, the launch is still open for its message
    invar_recipe_free(recipe);
    return status;
}

/* A new run by a clock that goes `step` milliseconds from one question to the next. */
static invar_status begin(const char *name, int64_t step, int ranks, const run_pair *more)
{
    invar_train_summary summary;

    memset(&the_clock, 0, sizeof the_clock);
    the_clock.step = step;
    return train(&summary, name, ranks, more);
}

static void assert_checkpoints(const char *name, int64_t by_time, int64_t others)
{
    int64_t have, beside;
    char save[500];

    (void)snprintf(save, sizeof save, "%s/checkpoints", run_below(name));
    assert_ok(invar_checkpoint_count(&have, &beside, save));
    assert_int_equal(have, by_time);
    assert_int_equal(beside, others);
}

/* The run has done all of its rollouts; bit S of `steps`: a checkpoint of step S was saved. */
static void assert_saved(const char *name, int64_t others, unsigned steps)
{
    assert_checkpoints(name, 0, others);
    assert_int_equal((unsigned)run_asked(name, "SELECT sum(1 << step) FROM (SELECT DISTINCT step "
                                               "FROM checkpoint WHERE state = 'complete')"),
                     steps);
}

/* The tensors of the last checkpoint, whose other files have the run's own name. */
static invar_digest tensors_of(const char *name)
{
    static const char *const sets[] = {"model", "model.exp_avg", "model.exp_avg_sq"};
    invar_digest all[3], out;
    int64_t bytes;
    char path[600];

    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/checkpoints/iter_%07d/%s.safetensors",
                       run_below(name), ROLLOUTS - 1, sets[i]);
        assert_ok(invar_file_hash(&all[i], &bytes, path));
    }
    invar_hash_bytes(&out, all, sizeof all);
    return out;
}

static void assert_same(const char *name, const char *as)
{
    run_memory a = run_memory_of(name), b = run_memory_of(as);
    invar_digest mine = tensors_of(name), other = tensors_of(as);

    assert_true(run_same(&a, &b));
    assert_true(invar_digest_equal(&a.identity, &b.identity));
    assert_true(invar_digest_equal(&mine, &other));
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const run_pair never[] = {{"save-interval-minutes", "0"}, {NULL, NULL}};
static const run_pair half[] = {{"save-interval-minutes", "90"}, {NULL, NULL}};
static const run_pair stages[] = {
    {"pipeline-model-parallel-size", "2"}, {"num-layers", "2"}, {NULL, NULL}};

static int reference(void **state)
{
    (void)state;
    assert_ok(begin("never", HOUR, 1, never));
    assert_int_equal(the_clock.calls, 0);
    assert_checkpoints("never", 0, 1);
    return 0;
}

static void test_by_time__changes_no_bit(void **state)
{
    (void)state;
    assert_ok(begin("still", 0, 1, NULL)); // no time goes by
    assert_checkpoints("still", 0, 1);
    assert_same("still", "never");
    for (int ranks = 1; ranks <= 2; ranks++) {
        const char *name = ranks == 1 ? "often" : "often-2";
        assert_ok(begin(name, HOUR, ranks, NULL));
        assert_int_equal(the_clock.calls, 1 + 2 * (ROLLOUTS - 1) + 1);
        assert_false(the_clock.several);
        assert_saved(name, 1, 0x1F);
        assert_same(name, "never");
    }
}

/* Each save starts the interval anew, one of save-interval as well. */
static void test_by_time__only_when_the_time_is_up(void **state)
{
    const run_pair also[] = {{"save-interval-minutes", "90"}, {"save-interval", "1"}, {NULL, NULL}};
    const run_pair none[] = {{"save", "none"}, {"keep-checkpoints", "0"}, {NULL, NULL}};

    (void)state;
    // an hour and two hours after the start; then after the save, at three; the fifth is the last
    assert_ok(begin("half", HOUR, 1, half));
    assert_saved("half", 1, 1 << 1 | 1 << 3 | 1 << 4);
    assert_ok(begin("also", HOUR, 1, also));
    assert_checkpoints("also", 0, 1);
    assert_ok(begin("none", HOUR, 1, none));
    assert_int_equal(the_clock.calls, 0);
}

/* In a child, which the clock kills when it is asked after rollout `last`. */
static void kill_after(const char *name, int last, int ranks, const run_pair *more)
{
    pid_t child = fork();
    int code;

    assert_true(child >= 0);
    if (child == 0) {
        invar_train_summary summary;
        memset(&the_clock, 0, sizeof the_clock);
        the_clock.step = HOUR;
        the_clock.kill_at = last;
        _exit(train(&summary, name, ranks, more) == INVAR_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code));
    assert_int_equal(WEXITSTATUS(code), KILLED);
}

/* Killed before the second, and before the fourth save: the rollout before it is lost, no more. */
static void test_by_time__a_kill_costs_one_interval(void **state)
{
    invar_train_summary summary;

    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        const char *name = ranks == 1 ? "killed" : "killed-2";
        kill_after(name, 4, ranks, NULL); // the start; the save of rollout 0: twice; now
        assert_checkpoints(name, 1, 0);
        kill_after(name, 6, 3 - ranks, NULL); // of rollouts 1 and 2 again
        assert_checkpoints(name, 2, 0);
        memset(&the_clock, 0, sizeof the_clock);
        the_clock.step = HOUR;
        assert_ok(train(&summary, name, ranks, NULL));
        assert_int_equal(summary.resumed_after, 2);
        assert_saved(name, 1, 0x1F);
        assert_same(name, "never");
    }
}

/* A run that ends before it is done goes on later: until then those by time stay. */
static void test_by_time__the_end_removes_them(void **state)
{
    const run_pair longer[] = {{"num-rollout", "7"}, {NULL, NULL}};
    invar_train_summary summary;

    (void)state;
    until = 2;
    assert_ok(begin("paused", HOUR, 1, NULL));
    assert_checkpoints("paused", 2, 1);
    until = -1;
    full = "iter_0000004";
    assert_fails(train(&summary, "paused", 1, NULL), INVAR_E_IO, "No space left on device");
    assert_checkpoints("paused", 2, 1); // of steps 1 and 3; the last one is missing
    full = NULL;
    assert_ok(train(&summary, "paused", 1, NULL));
    assert_saved("paused", 1, 0x1F);
    assert_same("paused", "never");
    assert_ok(train(&summary, "paused", 1, longer));
    assert_int_equal(summary.resumed_after, ROLLOUTS - 1);
    assert_saved("paused", 1, 0x7F);
}

static double warnings(const char *name)
{
    return run_asked(name, "SELECT count(*) FROM event WHERE level = 'warning' AND kind = 'save'");
}

/* Early, in the middle of what other ranks give, and with all files written. */
static void test_by_time__a_full_disk_is_no_end(void **state)
{
    static const struct {
        const char *name, *full;
        int ranks;
        const run_pair *more;
    } runs[] = {{"full", "iter_0000002.tmp/model.safetensors", 1, NULL},
                {"full-name", "iter_0000002", 1, NULL},
                {"full-2", "iter_0000002.tmp/model.exp_avg.safetensors", 2, NULL},
                {"full-stages", "iter_0000002.tmp/model.exp_avg.safetensors", 2, stages}};

    (void)state;
    assert_ok(begin("stages", 0, 2, stages));
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        full = runs[i].full;
        assert_ok(begin(runs[i].name, HOUR, runs[i].ranks, runs[i].more));
        full = NULL;
        assert_non_null(strstr(the_clock.said, "warning: step 2: no checkpoint after 15 minutes"));
        assert_non_null(strstr(the_clock.said, "No space left on device"));
        assert_true(warnings(runs[i].name) == 1.0);
        assert_saved(runs[i].name, 1, 0x1B); // all but that of step 2
        assert_same(runs[i].name, runs[i].more ? "stages" : "never");
    }
}

/* A third failure for the same reason is not reported, unless one has succeeded before it. */
static void test_by_time__a_success_makes_the_next_failure_news(void **state)
{
    static const struct {
        const char *name, *full;
        double warnings;
        unsigned saved;
    } runs[] = {{"three-fail", "iter_000000[012]", 2.0, 1 << 3 | 1 << 4},
                {"third-works", "iter_000000[013]", 3.0, 1 << 2 | 1 << 4}};

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        full = runs[i].full;
        assert_ok(begin(runs[i].name, HOUR, 1, NULL));
        full = NULL;
        assert_true(warnings(runs[i].name) == runs[i].warnings);
        assert_saved(runs[i].name, 1, runs[i].saved);
    }
}

/* What was asked for by rollouts is an error as ever, and the run continues from what there is. */
static void test_by_time__other_saves_fail_as_ever(void **state)
{
    const run_pair each[] = {{"save-interval", "2"}, {NULL, NULL}};

    (void)state;
    full = "iter_0000003";
    assert_fails(begin("due", HOUR, 1, each), INVAR_E_IO, "No space left on device");
    full = NULL;
    assert_checkpoints("due", 2, 1); // of steps 0 and 2, and of step 1
    assert_ok(begin("due", HOUR, 1, each));
    assert_same("due", "never");
}

/* Those that are sure to come go first; without room for them the run does not begin. */
static void test_by_time__leaves_room_for_the_others(void **state)
{
    const int64_t one = (int64_t)run_asked("never", "SELECT max(bytes) FROM checkpoint");
    const run_pair each[] = {{"save-interval", "2"}, {"keep-checkpoints", "0"}, {NULL, NULL}};

    (void)state;
    assert_true(one > 1000);
    room = 2 * one - 600;
    assert_ok(begin("little", HOUR, 1, NULL));
    assert_non_null(strstr(the_clock.said, "the disk has room for the 1 that are sure to come"));
    assert_true(warnings("little") == 3.0); // the third of four is no news
    assert_checkpoints("little", 0, 1);
    assert_same("little", "never");
    room = 2 * one + 600;
    assert_ok(begin("enough", HOUR, 2, NULL));
    assert_saved("enough", 1, 0x1F);
    room = 3 * one + 600; // those of save-interval count, too
    assert_ok(begin("three", HOUR, 1, each));
    assert_saved("three", 3, 0x1E);
    room = one - 3000;
    for (int ranks = 1; ranks <= 2; ranks++)
        assert_fails(begin("small", HOUR, ranks, NULL), INVAR_E_IO,
                     "the run will add 1 checkpoint of");
    assert_false(invar_path_exists(run_below("small")));
    room = -1;
}

/* A run with more checkpoints than the disk has room for begins, since somebody may move them. */
static void test_by_time__warns_of_all_that_will_come(void **state)
{
    const int64_t one = (int64_t)run_asked("never", "SELECT max(bytes) FROM checkpoint");
    const run_pair all[] = {{"save-interval", "1"}, {"keep-checkpoints", "0"}, {NULL, NULL}};
    const run_pair two[] = {{"save-interval", "1"}, {"keep-checkpoints", "2"}, {NULL, NULL}};

    (void)state;
    room = one;
    assert_ok(begin("all", 0, 1, all));
    assert_non_null(strstr(the_clock.said, "and the run will add 5 checkpoints of"));
    assert_non_null(strstr(the_clock.said, "keep-checkpoints removes old ones"));
    assert_checkpoints("all", 0, 5);
    assert_fails(begin("two", 0, 1, two), INVAR_E_IO,
                 "the run will add 3 checkpoints of"); // one more while the third is written
    room = 3 * one;
    assert_ok(begin("two", 0, 1, two));
    assert_null(strstr(the_clock.said, "the run will add"));
    room = -1;
}

static void test_by_time__copies_into_half_of_the_memory(void **state)
{
    const size_t memory = (size_t)128 << 30;

    (void)state;
    assert_true(invar_train_loop_may_copy(0, memory));
    assert_true(invar_train_loop_may_copy(INT64_C(64) << 30, memory));
    assert_false(invar_train_loop_may_copy((INT64_C(64) << 30) + 1, memory));
    assert_false(invar_train_loop_may_copy(INT64_MAX, memory));
    assert_true(invar_memory_planning_host() > (size_t)1 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_time__changes_no_bit),
        cmocka_unit_test(test_by_time__only_when_the_time_is_up),
        cmocka_unit_test(test_by_time__a_kill_costs_one_interval),
        cmocka_unit_test(test_by_time__the_end_removes_them),
        cmocka_unit_test(test_by_time__a_full_disk_is_no_end),
        cmocka_unit_test(test_by_time__a_success_makes_the_next_failure_news),
        cmocka_unit_test(test_by_time__other_saves_fail_as_ever),
        cmocka_unit_test(test_by_time__leaves_room_for_the_others),
        cmocka_unit_test(test_by_time__warns_of_all_that_will_come),
        cmocka_unit_test(test_by_time__copies_into_half_of_the_memory),
    };

    if (run_setup(INVAR_TEST_WORK "/by_time"))
        return 1;
    return cmocka_run_group_tests(tests, reference, run_teardown);
}
