/*
 * kl.c - tests of the KL estimators: accurate near 0 (against float64), exactly 0, and clamped.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/kl.h"

#include <math.h>

#include "tests/support.h"

/* k3 and its slope against float64, for differences of any size. */
static void test_rl_kl__accuracy_vs_f64(void **state)
{
    int naive_errors = 0;

    (void)state;
    for (int i = 0; i < invar_test_count(20000, 2000000); i++) {
        float scale = powf(10.0f, (float)(i % 7) - 5.0f);
        float base = -2.0f, logp = base + invar_test_normal(1, (uint64_t)i, scale);
        double y = (double)base - (double)logp, value = expm1(y) - y, slope = -expm1(y);
        invar_kl_term term;
        if (!(fabs(y) < 19.0))
            continue;
        term = invar_kl_at(INVAR_KL_K3, logp, base);
        assert_true(term.value >= 0.0f);
        assert_true(fabs((double)term.value - value) <= 1e-6 * value + 1e-37);
        assert_true(fabs((double)term.slope - slope) <= 1e-6 * fabs(slope));
        // control: the textbook formula in fp32 is wrong in many of these cases
        naive_errors += fabs((double)(expf((float)y) - 1.0f - (float)y) - value) > 1e-3 * value;
    }
    assert_true(naive_errors > 1000);
}

static void test_rl_kl__equal_is_zero(void **state)
{
    (void)state;
    for (int i = 0; i < 1000; i++) {
        float x = -fabsf(invar_test_normal(2, (uint64_t)i, 10.0f));
        for (int kind = INVAR_KL_K1; kind <= INVAR_KL_LOW_VAR; kind++) {
            invar_kl_term plain = invar_kl_at((invar_kl)kind, x, x);
            invar_kl_term unbiased = invar_kl_unbiased((invar_kl)kind, x, x, x + 0.5f);
            assert_true(plain.value == 0.0f && unbiased.value == 0.0f);
            assert_true(kind == INVAR_KL_K1 || (plain.slope == 0.0f && unbiased.slope == 0.0f));
        }
    }
}

static void test_rl_kl__limits_of_low_var(void **state)
{
    invar_kl_term term;

    (void)state;
    term = invar_kl_at(INVAR_KL_LOW_VAR, -1.0f, -9.0f); // e^-8 - 1 + 8
    assert_true(fabs((double)term.value - 7.000335) < 1e-5 && term.slope > 0.99f);
    term = invar_kl_at(INVAR_KL_LOW_VAR, -1.0f, -13.0f);
    assert_true(term.value == 10.0f && term.slope == 0.0f);
    term = invar_kl_at(INVAR_KL_LOW_VAR, -13.0f, -1.0f);
    assert_true(term.value == 10.0f && term.slope == 0.0f);

    // the log-ratio is cut at 20 and the ratio scales the value below 10: only the ratio has a
    // slope
    term = invar_kl_unbiased(INVAR_KL_LOW_VAR, -1.0f, -31.0f, 2.0f);
    assert_true(fabs((double)term.value - 19 * exp(-3)) < 1e-5);
    assert_true(fabs((double)term.slope - 19 * exp(-3)) < 1e-5);

    // beyond a log-ratio of 20, the ratio is constant
    term = invar_kl_unbiased(INVAR_KL_K2, -1.0f, -2.0f, -25.0f);
    assert_true(fabs((double)term.slope - exp(20)) < 1e-6 * exp(20));
}

static void test_rl_kl__ratio(void **state)
{
    (void)state;
    assert_true(invar_ratio_of(0.0f).value == 1.0f && invar_ratio_of(-0.0f).value == 1.0f);
    assert_false(invar_ratio_of(20.0f).cut);
    assert_true(invar_ratio_of(nextafterf(20.0f, 30.0f)).cut);
    assert_true(invar_ratio_of(-1e30f).value == invar_ratio_of(-20.0f).value);
    assert_true(invar_ratio_of(NAN).cut);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rl_kl__accuracy_vs_f64),
        cmocka_unit_test(test_rl_kl__equal_is_zero),
        cmocka_unit_test(test_rl_kl__limits_of_low_var),
        cmocka_unit_test(test_rl_kl__ratio),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
