/*
 * kept_samples.c - tests of the choice of steps whose samples are kept.
 *
 * Small runs keep every step. Long runs keep fewer and fewer, within the byte limit, but still some
 * near the end. Complete runs are tested by tests/e2e/kept_samples/kept.sh.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/kept_samples.h"

#include "tests/support.h"

/* Result of a simulated run. */
typedef struct kept_steps {
    int64_t kept, last, widest; /* number of kept steps; the last one, -1 if there is none; largest
                                   distance between two of them */
    uint64_t bytes;             /* sum over the kept steps */
} kept_steps;

/* Simulates a run whose steps have `step_bytes` bytes of samples. */
static kept_steps simulate_run(int64_t steps, uint64_t step_bytes)
{
    kept_steps c = {.last = -1};

    for (int64_t step = 0; step < steps; step++) {
        if (!invar_kept_samples_wants(step, c.bytes))
            continue;
        c.widest = step - c.last > c.widest ? step - c.last : c.widest;
        c.last = step;
        c.bytes += step_bytes;
        c.kept++;
    }
    return c;
}

static void test_kept_samples__wants(void **state)
{
    const uint64_t sizes[] = {1, 1000, 4000, 40000, 400000, (uint64_t)3 << 20};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t max_steps = (int64_t)(INVAR_KEPT_SAMPLES_BYTES / 16 / sizes[i]);
        kept_steps short_run = simulate_run(max_steps > 1000 ? 1000 : max_steps, sizes[i]);
        kept_steps long_run = simulate_run(300000, sizes[i]);

        assert_int_equal(short_run.kept, max_steps > 1000 ? 1000 : max_steps); // every step
        assert_true(long_run.bytes <= INVAR_KEPT_SAMPLES_BYTES + sizes[i]);
        if (sizes[i] <= 4000) { // a long run keeps steps near its end, too
            assert_true(long_run.last >= 300000 - long_run.widest);
            assert_true(long_run.widest <= 256);
        }
    }
    for (int64_t step = 0; step < 100; step++)
        assert_false(invar_kept_samples_wants(step, INVAR_KEPT_SAMPLES_BYTES)); // full
    assert_true(invar_kept_samples_wants(1 << 15, INVAR_KEPT_SAMPLES_BYTES - 1));
    assert_false(invar_kept_samples_wants((1 << 15) - 1, INVAR_KEPT_SAMPLES_BYTES - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kept_samples__wants)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
