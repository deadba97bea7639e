/*
 * reduce.c - tests of REDUCE against its definition, written as plain loops, and float64.
 *
 * Control: a plain sum in ascending order gives other bits for the same values.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/math/reduce.h"

/* The definition of REDUCE. Unlike the implementation, it stores the sums of all chunks. */
static float reduce_ref(const float *x, int64_t n)
{
    if (n > 4096) {
        int64_t chunks = (n + 4095) / 4096;
        float *sums = malloc((size_t)chunks * sizeof *sums);
        assert_non_null(sums);
        for (int64_t c = 0; c < chunks; c++)
            sums[c] = reduce_ref(x + 4096 * c, c < chunks - 1 ? 4096 : n - 4096 * c);
        float sum = reduce_ref(sums, chunks);
        free(sums);
        return sum;
    }
    float lane[256];
    for (int j = 0; j < 256; j++) {
        lane[j] = 0.0f;
        for (int64_t i = j; i < n; i += 256)
            lane[j] += x[i];
    }
    for (int half = 128; half >= 1; half /= 2) {
        for (int j = 0; j < half; j++)
            lane[j] = lane[j] + lane[j + half];
    }
    return lane[0];
}

static float *random_values(uint64_t seed, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);

    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = invar_test_normal(seed, (uint64_t)i, 1.0f);
    return x;
}

static void check(const float *x, int64_t n)
{
    float got = invar_reduce_f32(x, n), expected = reduce_ref(x, n);

    if (memcmp(&got, &expected, sizeof got) != 0)
        fail_msg("n = %lld: %a, expected %a", (long long)n, (double)got, (double)expected);
}

static void test_math_reduce__bits_follow_definition(void **state)
{
    const int64_t longest = 70000;
    float *x = random_values(1, longest);

    (void)state;
    for (int64_t n = 0; n <= 4100; n += n < 1100 ? 1 : 7)
        check(x, n);
    for (int64_t n = 4090; n <= 4100; n++)
        check(x, n);
    for (int64_t n = 4101; n <= longest; n += 997)
        check(x, n);
    check(x, 16 * 4096);
    check(x, 16 * 4096 + 1);
    free(x);
}

/* More than 4096 chunks need a third level. */
static void test_math_reduce__bits_follow_definition_when_long(void **state)
{
    const int64_t edge = (int64_t)4096 * 4096;
    const int64_t lengths[] = {edge - 1, edge, edge + 1, edge + 4096, edge + 4097, edge + 50000};
    float *x = malloc((size_t)(edge + 50000) * sizeof *x);

    (void)state;
    assert_non_null(x);
    for (int64_t i = 0; i < edge + 50000; i++)
        x[i] = (float)((i * 2654435761 >> 7) % 2000003) * 0x1p-20f - 0.9f;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        check(x, lengths[i]);
    free(x);
}

static void test_math_reduce__empty_and_negative_zero_give_plus_zero(void **state)
{
    const float zeros[3] = {-0.0f, -0.0f, -0.0f};
    const float plus = 0.0f;
    float empty = invar_reduce_f32(zeros, 0), three = invar_reduce_f32(zeros, 3);

    (void)state;
    assert_memory_equal(&empty, &plus, sizeof plus);
    assert_memory_equal(&three, &plus, sizeof plus);
}

/* Control: a plain loop over the same values gives other bits. */
static void test_math_reduce__another_order_differs(void **state)
{
    const int64_t n = 5000;
    float *x = random_values(2, n);
    float got = invar_reduce_f32(x, n), plain = 0.0f;

    (void)state;
    for (int64_t i = 0; i < n; i++)
        plain += x[i];
    assert_true(invar_bits_differ(&got, &plain, sizeof got));
    free(x);
}

static void test_math_reduce__accuracy_vs_f64(void **state)
{
    const int64_t n = 1000000;
    float *x = random_values(3, n);
    double exact = 0.0, magnitude = 0.0;

    (void)state;
    for (int64_t i = 0; i < n; i++) {
        exact += (double)x[i];
        magnitude += fabs((double)x[i]);
    }
    // At most 16 + 8 additions lie on any path through a level, and there are two levels.
    assert_true(fabs((double)invar_reduce_f32(x, n) - exact) <= 48.0 * 0x1p-24 * magnitude);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_reduce__bits_follow_definition),
        cmocka_unit_test(test_math_reduce__bits_follow_definition_when_long),
        cmocka_unit_test(test_math_reduce__empty_and_negative_zero_give_plus_zero),
        cmocka_unit_test(test_math_reduce__another_order_differs),
        cmocka_unit_test(test_math_reduce__accuracy_vs_f64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
