/*
 * number.c - tests of numbers as text: the shortest digits that read back, and rounded numbers.
 *
 * The expected text comes from the definition: printf with 1, 2, ... digits, until the C library's
 * parser returns the number.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/number.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

static double from_bits(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static void assert_formatted(double value, const char *expected)
{
    char text[INVAR_NUMBER_SIZE];
    double parsed;

    assert_ok(invar_number_format(text, value));
    assert_string_equal(text, expected);
    if (isnan(value))
        return;
    assert_ok(invar_number_parse(&parsed, text));
    assert_memory_equal(&parsed, &value, sizeof value);
}

static void test_base_number__known_texts(void **state)
{
    (void)state;
    assert_formatted(0.1, "0.1");
    assert_formatted(1e-6, "1e-06");
    assert_formatted(100, "1e+02");
    assert_formatted(1.0 / 3.0, "0.3333333333333333");
    assert_formatted(0.1 + 0.2, "0.30000000000000004");
    assert_formatted(0.0, "0");
    assert_formatted(-0.0, "-0");
    assert_formatted(DBL_MAX, "1.7976931348623157e+308");
    assert_formatted(-DBL_MIN, "-2.2250738585072014e-308");
    assert_formatted(5e-324, "5e-324");
    assert_formatted(HUGE_VAL, "inf");
    assert_formatted(-HUGE_VAL, "-inf");
    assert_formatted(from_bits(UINT64_C(0x7FF8000000000001)), "nan");
    assert_formatted(from_bits(UINT64_C(0xFFF8000000000001)), "nan");
}

/* Random bits, a quarter of them powers of two and a quarter subnormal. */
static void test_base_number__is_the_shortest(void **state)
{
    int64_t n = invar_test_count(20000, 500000);

    (void)state;
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = (uint64_t)invar_test_random(1, 2 * (uint64_t)i) << 32 |
                        invar_test_random(1, 2 * (uint64_t)i + 1);
        char expected[INVAR_NUMBER_SIZE];
        double value;

        if (i % 4 == 1)
            bits &= UINT64_C(0xFFF0000000000000); // a power of two: the lower neighbor is nearer
        if (i % 4 == 2)
            bits &= UINT64_C(0x800FFFFFFFFFFFFF) >> bits % 40; // subnormal
        value = from_bits(bits);
        if (i % 4 == 3)
            value = (double)(bits % 100000) / 1000; // few digits
        if (!isfinite(value))
            continue;
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(expected, sizeof expected, "%.*g", digits, value);
            if (strtod(expected, NULL) == value)
                break;
        }
        assert_formatted(value, expected);
    }
}

static void assert_formatted_f32(float value, const char *expected)
{
    char text[INVAR_NUMBER_SIZE];

    assert_ok(invar_number_format_f32(text, value));
    assert_string_equal(text, expected);
}

/* Shortest digits of a float, that also read back as a double that is rounded to float. */
static void test_base_number__floats_are_the_shortest(void **state)
{
    int64_t n = invar_test_count(20000, 2000000);

    (void)state;
    assert_formatted_f32(0.1f, "0.1");
    assert_formatted_f32(-0.0f, "-0");
    assert_formatted_f32(16777216.0f, "16777216");
    assert_formatted_f32(0x1p-149f, "1e-45");
    assert_formatted_f32(FLT_MAX, "3.4028235e+38");
    assert_formatted_f32(-HUGE_VALF, "-inf");
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = invar_test_random(2, (uint64_t)i);
        char expected[INVAR_NUMBER_SIZE];
        float value;

        if (i % 4 == 1)
            bits &= UINT32_C(0xFF800000); // a power of two: the lower neighbor is nearer
        if (i % 4 == 2)
            bits &= UINT32_C(0x807FFFFF); // subnormal
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        for (int digits = 1; digits <= 9; digits++) {
            snprintf(expected, sizeof expected, "%.*g", digits, (double)value);
            if (strtof(expected, NULL) == value && (float)strtod(expected, NULL) == value)
                break;
        }
        assert_true(strtof(expected, NULL) == value);
        assert_formatted_f32(value, expected);
    }
}

static void assert_plain(double value, const char *expected)
{
    char text[INVAR_NUMBER_SIZE];

    assert_ok(invar_number_format_plain(text, value));
    assert_string_equal(text, expected);
}

static void assert_rounded(double value, int digits, const char *expected)
{
    char text[INVAR_NUMBER_SIZE];

    invar_number_round(text, value, digits);
    assert_string_equal(text, expected);
}

/* Numbers for people: 10, not 1e+01. */
static void test_base_number__ordinary_numbers_have_no_exponent(void **state)
{
    (void)state;
    assert_plain(10, "10");
    assert_plain(-100000, "-100000");
    assert_plain(0x1p53, "9007199254740992");
    assert_plain(1e300, "1e+300");
    assert_plain(0.1, "0.1");
    assert_plain(-0.0, "-0");
    assert_plain((double)NAN, "nan");
    assert_rounded(10, 4, "10");
    assert_rounded(999999999, 4, "999999999");
    assert_rounded(12345.678, 4, "12346");
    assert_rounded(-56349.9, 4, "-56350");
    assert_rounded(1234.5, 3, "1234");
    assert_rounded(9.99999, 4, "10");
    assert_rounded(0.123456, 4, "0.1235");
    assert_rounded(0.0001, 4, "0.0001");
    assert_rounded(1e-6, 4, "1e-06");
    assert_rounded(12345678901.0, 4, "1.235e+10");
    assert_rounded(-(double)NAN, 4, "nan");
    assert_rounded(-HUGE_VAL, 4, "-inf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_number__known_texts),
        cmocka_unit_test(test_base_number__is_the_shortest),
        cmocka_unit_test(test_base_number__floats_are_the_shortest),
        cmocka_unit_test(test_base_number__ordinary_numbers_have_no_exponent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
