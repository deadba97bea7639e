/*
 * lag.c - the schedule of versions: ticks that are played through give the formula of the document.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/lag.h"

#include "tests/support.h"

enum { ROLLOUTS = 12, TOKENS = 40 };

/* docs/async.md: the version that draws token t of rollout r. */
static int64_t version_of(int64_t lag, int64_t segment, int64_t r, int64_t t)
{
    int64_t begin = r > lag ? r - lag : 0, v = segment ? begin + t / segment : begin;

    return v < r ? v : r;
}

/* A response of `length` tokens, tick by tick: how many tokens have another version. */
static int play(const invar_lag *lag, int64_t r, int64_t length, int64_t off)
{
    int64_t drawn = 0;
    int differ = 0;

    for (int64_t tick = 0; tick <= r; tick++) {
        int64_t goal = invar_lag_goal(lag, r, tick);

        if (tick < invar_lag_begin(lag, r))
            assert_int_equal(goal, 0);
        else
            assert_true(goal > drawn);
        for (; drawn < goal && drawn < length; drawn++)
            differ += version_of(lag->rollouts, lag->segment, r, drawn) != tick + off;
    }
    assert_int_equal(drawn, length); // all are drawn before the rollout is trained on
    return differ;
}

static void test_lag__ticks_give_the_formula(void **state)
{
    int off = 0;

    (void)state;
    for (int64_t rollouts = 0; rollouts <= 5; rollouts++)
        for (int64_t segment = 0; segment <= (rollouts ? 9 : 0); segment++)
            for (int64_t r = 0; r < ROLLOUTS; r++) {
                const invar_lag lag = {rollouts, segment};

                for (int64_t length = 1; length <= TOKENS; length++) {
                    assert_int_equal(play(&lag, r, length, 0), 0);
                    off += play(&lag, r, length, 1) > 0;
                }
            }
    assert_true(off > 0); // a tick too late is seen
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lag__ticks_give_the_formula)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
