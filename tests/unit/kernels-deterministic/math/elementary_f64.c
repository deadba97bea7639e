/*
 * elementary_f64.c - tests of the functions in double that compute the RoPE tables.
 *
 * The oracle is libm in long double: 113 bits on aarch64, 64 on x86-64.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "kernels-deterministic/math/elementary_f64.h"

/* Distance between both values, in ulp of the exact one. */
static double error_ulp(double got, long double exact)
{
    int exponent;

    if (exact == 0.0L)
        return got == 0.0 ? 0.0 : (double)INFINITY;
    (void)frexpl(exact, &exponent);
    if (exponent < DBL_MIN_EXP)
        exponent = DBL_MIN_EXP;
    double error = (double)ldexpl(fabsl((long double)got - exact), DBL_MANT_DIG - exponent);
    return isnan(error) ? (double)INFINITY : error;
}

static uint64_t random_u64(uint64_t seed, int64_t n)
{
    return (uint64_t)invar_test_random(seed, 2 * (uint64_t)n) << 32 |
           invar_test_random(seed, 2 * (uint64_t)n + 1);
}

/* Uniform in [low, high). */
static double random_f64(uint64_t seed, int64_t n, double low, double high)
{
    return low + (high - low) * ((double)(random_u64(seed, n) >> 11) * 0x1p-53);
}

static void check_worst(const char *name, double worst, double worst_x, double bound)
{
    print_message("%s: largest error %.4f ulp at %a\n", name, worst, worst_x);
    assert_true(worst <= bound);
}

/* Keeps the larger of two errors and its argument. */
static void update_worst(double *worst, double *worst_x, double error, double x)
{
    if (error > *worst) {
        *worst = error;
        *worst_x = x;
    }
}

static void test_math_elementary_f64__accuracy_of_exp(void **state)
{
    double worst = 0.0, worst_x = 0.0;

    (void)state;
    for (int64_t i = 0; i < invar_test_count(100000, 10000000); i++) {
        double x = random_f64(1, i, -745.0, 709.7);
        x = i % 2 ? x : x * 0x1p-9;
        update_worst(&worst, &worst_x, error_ulp(invar_exp_f64(x), expl((long double)x)), x);
    }
    check_worst("exp", worst, worst_x, 0.78);
}

static void test_math_elementary_f64__accuracy_of_log(void **state)
{
    double worst = 0.0, worst_x = 0.0;

    (void)state;
    for (int64_t i = 0; i < invar_test_count(100000, 10000000); i++) {
        // Alternately any positive finite double and a double near 1.
        double x = i % 2 ? invar_bits_f64(random_u64(2, i) % UINT64_C(0x7FF0000000000000))
                         : random_f64(2, i, 0.5, 2.0);
        if (x > 0.0)
            update_worst(&worst, &worst_x, error_ulp(invar_log_f64(x), logl((long double)x)), x);
    }
    check_worst("log", worst, worst_x, 0.58);
}

static void test_math_elementary_f64__accuracy_of_pow(void **state)
{
    static const double bases[] = {1e4, 1e5, 5e5, 1e6, 5e6, 1e7, 1e8, 2.0, 0.125};
    const int64_t base_count = sizeof bases / sizeof bases[0];
    double worst = 0.0, worst_x = 0.0;

    (void)state;
    for (int64_t i = 0; i < invar_test_count(100000, 10000000); i++) {
        double base = i % 2 ? bases[i / 2 % base_count] : random_f64(3, i, 1.5, 1e8);
        double x = random_f64(4, i, -1.0, 1.0);
        update_worst(&worst, &worst_x,
                     error_ulp(invar_pow_f64(base, x), powl((long double)base, (long double)x)), x);
    }
    // The exponents that RoPE uses.
    for (int64_t i = 0; i < base_count; i++) {
        for (int dim = 32; dim <= 512; dim += 32) {
            for (int j = 0; j < dim; j += 2) {
                double x = -(double)j / dim;
                long double exact = powl((long double)bases[i], (long double)x);
                update_worst(&worst, &worst_x, error_ulp(invar_pow_f64(bases[i], x), exact), x);
            }
        }
    }
    check_worst("pow", worst, worst_x, 0.68);
}

static void check_angle(double *worst, double *worst_x, double x)
{
    update_worst(worst, worst_x, error_ulp(invar_sin_f64(x), sinl((long double)x)), x);
    update_worst(worst, worst_x, error_ulp(invar_cos_f64(x), cosl((long double)x)), x);
}

static void test_math_elementary_f64__accuracy_of_sin_and_cos(void **state)
{
    const long double half_pi = 1.570796326794896619231321691639751442L;
    double worst = 0.0, worst_x = 0.0;

    (void)state;
    for (int64_t i = 0; i < invar_test_count(50000, 5000000); i++) {
        check_angle(&worst, &worst_x, random_f64(5, i, -0x1p21, 0x1p21));
        check_angle(&worst, &worst_x, random_f64(6, i, -8.0, 8.0));
        check_angle(&worst, &worst_x, ldexp(random_f64(7, i, -1.0, 1.0), -(int)(i % 60)));
        // Positions of a long context at frequency 1, which need the largest reduction.
        check_angle(&worst, &worst_x, (double)(random_u64(8, i) % 0x200000));
        // The doubles nearest to multiples of pi/4: cancellation, and the edge between kernels.
        check_angle(&worst, &worst_x, (double)((long double)(i % 0x280000) * half_pi / 2.0L));
    }
    check_worst("sin, cos", worst, worst_x, 0.80);
}

static void test_math_elementary_f64__reduction_survives_cancellation(void **state)
{
    const long double half_pi = 1.570796326794896619231321691639751442L;
    double worst = 0.0, worst_x = 0.0, closest = 1.0;

    (void)state;
    // The doubles nearest to odd multiples of pi/2. If one is exceptionally near, most bits of the
    // cosine come from the second and third part of pi/2.
    for (int64_t n = 1; n < 1335088; n += 2) {
        double x = (double)((long double)n * half_pi);
        double c = fabs(invar_cos_f64(x));
        closest = c < closest ? c : closest;
        if (c < 0x1p-48)
            update_worst(&worst, &worst_x, error_ulp(invar_cos_f64(x), cosl((long double)x)), x);
    }
    assert_true(closest < 0x1p-48);
    check_worst("cos near its zeros", worst, worst_x, 0.80);
}

static void test_math_elementary_f64__special_values(void **state)
{
    const uint64_t nan = UINT64_C(0x7FFFFFFFFFFFFFFF), inf = UINT64_C(0x7FF0000000000000);
    const double infinity = (double)INFINITY;

    (void)state;
    assert_true(invar_f64_bits(invar_exp_f64(0.0)) == invar_f64_bits(1.0));
    assert_true(invar_f64_bits(invar_exp_f64(-infinity)) == 0);
    assert_true(invar_f64_bits(invar_exp_f64(infinity)) == inf);
    assert_true(invar_f64_bits(invar_exp_f64(-(double)NAN)) == nan);
    assert_true(invar_f64_bits(invar_log_f64(1.0)) == 0);
    assert_true(invar_f64_bits(invar_log_f64(0.0)) == nan);
    assert_true(invar_f64_bits(invar_log_f64(-1.0)) == nan);
    assert_true(invar_f64_bits(invar_log_f64(infinity)) == nan);
    assert_true(invar_f64_bits(invar_pow_f64(1e6, 0.0)) == invar_f64_bits(1.0));
    assert_true(invar_f64_bits(invar_pow_f64(1e6, 1.0)) == invar_f64_bits(1e6));
    assert_true(invar_f64_bits(invar_pow_f64(-2.0, 1.0)) == nan);
    assert_true(invar_f64_bits(invar_pow_f64(2.0, infinity)) == nan);
    assert_true(invar_f64_bits(invar_sin_f64(-0.0)) == invar_f64_bits(-0.0));
    assert_true(invar_f64_bits(invar_cos_f64(0.0)) == invar_f64_bits(1.0));
    assert_true(invar_f64_bits(invar_sin_f64(0x1.0000000000001p21)) == nan);
    assert_true(invar_f64_bits(invar_cos_f64(-infinity)) == nan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_elementary_f64__accuracy_of_exp),
        cmocka_unit_test(test_math_elementary_f64__accuracy_of_log),
        cmocka_unit_test(test_math_elementary_f64__accuracy_of_pow),
        cmocka_unit_test(test_math_elementary_f64__accuracy_of_sin_and_cos),
        cmocka_unit_test(test_math_elementary_f64__reduction_survives_cancellation),
        cmocka_unit_test(test_math_elementary_f64__special_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
