/*
 * sample_schedule.c - tests of weight versions under lag: simulated ticks give the formula of
 * docs/async.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/sample_schedule.h"

#include "tests/support.h"

enum { ROLLOUTS = 12, TOKENS = 40 };

/* Returns the version that samples token t of rollout r, as in docs/async.md. */
static int64_t version_of(int64_t lag, int64_t segment, int64_t r, int64_t t)
{
    int64_t begin = r > lag ? r - lag : 0, v = segment ? begin + t / segment : begin;

    return v < r ? v : r;
}

/*
 * Samples a response of `length` tokens tick by tick. Returns the number of tokens with another
 * version than the formula's. The control counts each tick as tick + `off`.
 */
static int count_other_versions(const invar_sample_schedule *schedule, int64_t r, int64_t length,
                                int64_t off)
{
    int64_t n_sampled = 0;
    int n_differ = 0;

    for (int64_t tick = 0; tick <= r; tick++) {
        int64_t n_goal = invar_sample_schedule_goal(schedule, r, tick);

        if (tick < invar_sample_schedule_begin(schedule, r))
            assert_int_equal(n_goal, 0);
        else
            assert_true(n_goal > n_sampled);
        for (; n_sampled < n_goal && n_sampled < length; n_sampled++)
            n_differ += version_of(schedule->lag, schedule->segment, r, n_sampled) != tick + off;
    }
    assert_int_equal(n_sampled, length); // all tokens are sampled before the rollout is trained on
    return n_differ;
}

static void test_sample_schedule__ticks_give_the_formula(void **state)
{
    int late = 0;

    (void)state;
    for (int64_t rollouts = 0; rollouts <= 5; rollouts++)
        for (int64_t segment = 0; segment <= (rollouts ? 9 : 0); segment++)
            for (int64_t r = 0; r < ROLLOUTS; r++) {
                const invar_sample_schedule schedule = {.lag = rollouts, .segment = segment};

                for (int64_t length = 1; length <= TOKENS; length++) {
                    assert_int_equal(count_other_versions(&schedule, r, length, 0), 0);
                    late += count_other_versions(&schedule, r, length, 1) > 0;
                }
            }
    assert_true(late > 0); // control: versions that are one tick late differ
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_schedule__ticks_give_the_formula)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
