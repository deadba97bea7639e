/*
 * kept_samples.c - tests of which steps samples are kept of: few bytes, all; many bytes, up to the
 * end.
 *
 * What is kept is tested with whole runs (tests/e2e/kept_samples/kept.sh).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/kept_samples.h"

#include "tests/support.h"

/* So many steps of which each keeps as many bytes: how many are kept, and the last. */
typedef struct course {
    int64_t kept, last, widest; /* widest: steps between two that are */
    uint64_t bytes;
} course;

static course follow(int64_t steps, uint64_t each)
{
    course c = {.last = -1};

    for (int64_t step = 0; step < steps; step++) {
        if (!invar_kept_samples_wants(step, c.bytes))
            continue;
        c.widest = step - c.last > c.widest ? step - c.last : c.widest;
        c.last = step;
        c.bytes += each;
        c.kept++;
    }
    return c;
}

static void test_engine_kept__wants(void **state)
{
    const uint64_t sizes[] = {1, 1000, 4000, 40000, 400000, (uint64_t)3 << 20};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t share = (int64_t)(INVAR_KEPT_SAMPLES_BYTES / 16 / sizes[i]);
        course brief = follow(share > 1000 ? 1000 : share, sizes[i]);
        course far = follow(300000, sizes[i]);

        assert_int_equal(brief.kept, share > 1000 ? 1000 : share); // every step
        assert_true(far.bytes <= INVAR_KEPT_SAMPLES_BYTES + sizes[i]);
        if (sizes[i] <= 4000) { // the end of a long run is there, too
            assert_true(far.last >= 300000 - far.widest);
            assert_true(far.widest <= 256);
        }
    }
    for (int64_t step = 0; step < 100; step++)
        assert_false(invar_kept_samples_wants(step, INVAR_KEPT_SAMPLES_BYTES)); // full
    assert_true(invar_kept_samples_wants(1 << 15, INVAR_KEPT_SAMPLES_BYTES - 1));
    assert_false(invar_kept_samples_wants((1 << 15) - 1, INVAR_KEPT_SAMPLES_BYTES - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_engine_kept__wants)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
