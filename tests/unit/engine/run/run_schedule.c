/*
 * run_schedule.c - tests of the run schedule: actions after each rollout, and the last step.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/run_schedule.h"

#include <stdio.h>

#include "tests/support.h"

static void test_run_schedule__ends_when_all_is_done(void **state)
{
    const invar_run_schedule unlimited = {.rollouts = 4, .until = -1};
    const invar_run_schedule until = {.rollouts = 4, .until = 5};
    const invar_run_schedule limited = {.rollouts = 4, .until = -1, .max_rollouts = 2};

    (void)state;
    assert_false(invar_run_schedule_ended(&unlimited, &(invar_run_progress){3, 6, 3}));
    assert_true(invar_run_schedule_ended(&unlimited, &(invar_run_progress){4, 8, 1}));
    // the run ends after the rollout that contains step 5
    assert_false(invar_run_schedule_ended(&until, &(invar_run_progress){2, 5, 2}));
    assert_true(invar_run_schedule_ended(&until, &(invar_run_progress){3, 6, 3}));
    // max_rollouts counts rollouts of this process
    assert_false(invar_run_schedule_ended(&limited, &(invar_run_progress){3, 6, 1}));
    assert_true(invar_run_schedule_ended(&limited, &(invar_run_progress){2, 4, 2}));
}

static void test_run_schedule__has_intervals(void **state)
{
    const invar_run_schedule schedule = {
        .rollouts = 7, .until = -1, .ref_interval = 2, .eval_interval = 3, .save_interval = 4};
    const char *expected = "..;r.;.e;r.s;..;re;..sL";
    char actions[64];
    size_t n = 0;

    (void)state;
    for (int64_t rollout = 1; rollout <= 7; rollout++) {
        invar_run_actions t = invar_run_schedule_after(
            &schedule, &(invar_run_progress){rollout, rollout, rollout}, 0);
        n += (size_t)snprintf(actions + n, sizeof actions - n, "%s%s%s%s%s", rollout > 1 ? ";" : "",
                              t.move_reference ? "r" : ".", t.evaluate ? "e" : ".",
                              t.save ? "s" : "", t.last ? "L" : "");
        assert_int_equal(t.stopped, 0);
    }
    assert_string_equal(actions, expected);
}

static void test_run_schedule__a_signal_saves_and_ends(void **state)
{
    const invar_run_schedule schedule = {.rollouts = 7, .until = -1};
    invar_run_actions t = invar_run_schedule_after(&schedule, &(invar_run_progress){3, 3, 3}, 15);

    (void)state;
    assert_true(t.last && t.save && !t.evaluate && !t.move_reference);
    assert_int_equal(t.stopped, 15);
    // a signal after the last rollout does not count as a stop
    t = invar_run_schedule_after(&schedule, &(invar_run_progress){7, 7, 7}, 15);
    assert_true(t.last && t.save);
    assert_int_equal(t.stopped, 0);
}

/* The last step, compared with a count rollout by rollout, for many starts and limits. */
static void test_run_schedule__knows_its_last_step(void **state)
{
    const int64_t sizes[] = {1, 3};

    (void)state;
    for (int i = 0; i < 2 * 6 * 4 * 5; i++) {
        const int64_t per = sizes[i % 2], first = i / 2 % 6;
        const invar_run_schedule schedule = {.rollouts = 7,
                                             .max_rollouts = i / 12 % 4,
                                             .until = i / 48 ? (i / 48 - 1) * per + 2 : -1};
        const invar_run_progress start = {first, first * per, 0};
        invar_run_progress progress = start;

        if (invar_run_schedule_ended(&schedule, &start))
            continue;
        while (!invar_run_schedule_ended(&schedule, &progress))
            progress =
                (invar_run_progress){progress.rollout + 1, progress.step + per, progress.done + 1};
        assert_int_equal(invar_run_schedule_steps(&schedule, &start, per), progress.step);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_schedule__ends_when_all_is_done),
        cmocka_unit_test(test_run_schedule__has_intervals),
        cmocka_unit_test(test_run_schedule__a_signal_saves_and_ends),
        cmocka_unit_test(test_run_schedule__knows_its_last_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
