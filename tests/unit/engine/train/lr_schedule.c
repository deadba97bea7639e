/*
 * lr_schedule.c - tests of learning-rate schedules against the formulas in long double.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/lr_schedule.h"

#include <math.h>

#include "tests/support.h"

static long double oracle(const invar_lr_schedule *s, int64_t step)
{
    long double ratio, factor, pi = acosl(-1.0L);

    if (s->warmup_steps > 0 && step <= s->warmup_steps)
        return s->warmup_init + ((long double)s->lr - s->warmup_init) * step / s->warmup_steps;
    if (s->style == INVAR_DECAY_CONSTANT)
        return s->lr;
    if (step > s->decay_steps)
        return s->min_lr;
    ratio = (long double)(step - s->warmup_steps) / (s->decay_steps - s->warmup_steps);
    factor = s->style == INVAR_DECAY_LINEAR ? 1 - ratio : (cosl(pi * ratio) + 1) / 2;
    return s->min_lr + ((long double)s->lr - s->min_lr) * factor;
}

static void test_lr_schedule__accuracy(void **state)
{
    static const invar_lr_schedule cases[] = {
        {INVAR_DECAY_CONSTANT, 1e-6, 0, 0, 0, 0},    {INVAR_DECAY_CONSTANT, 1e-6, 0, 1e-9, 17, 0},
        {INVAR_DECAY_LINEAR, 3e-4, 1e-5, 0, 0, 100}, {INVAR_DECAY_LINEAR, 3e-4, 0, 1e-6, 10, 101},
        {INVAR_DECAY_COSINE, 1e-3, 1e-4, 0, 7, 200}, {INVAR_DECAY_COSINE, 2e-5, 0, 0, 0, 1},
        {INVAR_DECAY_COSINE, 1, 1, 0, 3, 64},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int64_t step = 0; step < 260; step++) {
            float got = invar_lr_schedule_at(&cases[i], step);
            float expected = (float)oracle(&cases[i], step);
            float distance = fabsf(got - expected);

            // Near the end of a cosine cos + 1 cancels, so the error is absolute there, else
            // relative.
            assert_true(distance <= fabsf(expected) * 0x1p-23f ||
                        (double)distance <= cases[i].lr * 0x1p-52);
        }
    }
}

static void test_lr_schedule__known_values(void **state)
{
    const invar_lr_schedule cosine = {INVAR_DECAY_COSINE, 1, 0.5, 0.25, 4, 12};
    const float expected[] = {0.25f, 0.4375f, 0.625f, 0.8125f, 1.0f};
    float got[5];
    (void)state;

    for (int64_t step = 0; step < 5; step++)
        got[step] = invar_lr_schedule_at(&cosine, step);
    invar_assert_bits_f32(got, expected, 5, "warm-up");
    assert_true(invar_lr_schedule_at(&cosine, 8) == 0.75f);
    assert_true(invar_lr_schedule_at(&cosine, 12) == 0.5f);
    assert_true(invar_lr_schedule_at(&cosine, 13) == 0.5f);
    assert_true(invar_lr_schedule_at(&cosine, INT64_MAX) == 0.5f);
    assert_true(invar_lr_schedule_at(&cosine, 5) < 1.0f);
}

static void test_lr_schedule__falls_after_the_warmup(void **state)
{
    static const invar_decay styles[] = {INVAR_DECAY_LINEAR, INVAR_DECAY_COSINE};
    (void)state;

    for (size_t i = 0; i < 2; i++) {
        const invar_lr_schedule s = {styles[i], 1e-3, 1e-5, 0, 20, 300};
        for (int64_t step = 0; step < 300; step++) {
            float now = invar_lr_schedule_at(&s, step), next = invar_lr_schedule_at(&s, step + 1);
            assert_true(step < 20 ? next > now : next < now);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lr_schedule__accuracy),
        cmocka_unit_test(test_lr_schedule__known_values),
        cmocka_unit_test(test_lr_schedule__falls_after_the_warmup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
