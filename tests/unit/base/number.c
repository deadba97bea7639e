/*
 * number.c - tests of doubles as text.
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

static void formats(double value, const char *expected)
{
    char text[INVAR_NUMBER_SIZE];
    double back;

    assert_ok(invar_number_format(text, value));
    assert_string_equal(text, expected);
    if (isnan(value))
        return;
    assert_ok(invar_number_parse(&back, text));
    assert_memory_equal(&back, &value, sizeof value);
}

static void test_base_number__known_texts(void **state)
{
    (void)state;
    formats(0.1, "0.1");
    formats(1e-6, "1e-06");
    formats(100, "1e+02");
    formats(1.0 / 3.0, "0.3333333333333333");
    formats(0.1 + 0.2, "0.30000000000000004");
    formats(0.0, "0");
    formats(-0.0, "-0");
    formats(DBL_MAX, "1.7976931348623157e+308");
    formats(-DBL_MIN, "-2.2250738585072014e-308");
    formats(5e-324, "5e-324");
    formats(HUGE_VAL, "inf");
    formats(-HUGE_VAL, "-inf");
    formats(from_bits(UINT64_C(0x7FF8000000000001)), "nan");
    formats(from_bits(UINT64_C(0xFFF8000000000001)), "nan");
}

/* Against the definition: the first number of digits, from 1, that reads back. */
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
            bits &= UINT64_C(0xFFF0000000000000); // powers of two: uneven neighbours
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
        formats(value, expected);
    }
}

static void formats_f32(float value, const char *expected)
{
    char text[INVAR_NUMBER_SIZE];

    assert_ok(invar_number_format_f32(text, value));
    assert_string_equal(text, expected);
}

/* Against the definition: a float by its own digits, also for who reads a double and rounds. */
static void test_base_number__floats_are_the_shortest(void **state)
{
    int64_t n = invar_test_count(20000, 2000000);

    (void)state;
    formats_f32(0.1f, "0.1");
    formats_f32(-0.0f, "-0");
    formats_f32(16777216.0f, "16777216");
    formats_f32(0x1p-149f, "1e-45");
    formats_f32(FLT_MAX, "3.4028235e+38");
    formats_f32(-HUGE_VALF, "-inf");
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = invar_test_random(2, (uint64_t)i);
        char expected[INVAR_NUMBER_SIZE];
        float value;

        if (i % 4 == 1)
            bits &= UINT32_C(0xFF800000); // powers of two: uneven neighbours
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
        formats_f32(value, expected);
    }
}

static void plain(double value, const char *expected)
{
    char text[INVAR_NUMBER_SIZE];

    assert_ok(invar_number_format_plain(text, value));
    assert_string_equal(text, expected);
}

static void rounded(double value, int digits, const char *expected)
{
    char text[INVAR_NUMBER_SIZE];

    invar_number_round(text, value, digits);
    assert_string_equal(text, expected);
}

/* People read 10, not 1e+01. */
static void test_base_number__ordinary_numbers_have_no_exponent(void **state)
{
    (void)state;
    plain(10, "10");
    plain(-100000, "-100000");
    plain(0x1p53, "9007199254740992");
    plain(1e300, "1e+300");
    plain(0.1, "0.1");
    plain(-0.0, "-0");
    plain((double)NAN, "nan");
    rounded(10, 4, "10");
    rounded(999999999, 4, "999999999");
    rounded(12345.678, 4, "12346");
    rounded(-56349.9, 4, "-56350");
    rounded(1234.5, 3, "1234");
    rounded(9.99999, 4, "10");
    rounded(0.123456, 4, "0.1235");
    rounded(0.0001, 4, "0.0001");
    rounded(1e-6, 4, "1e-06");
    rounded(12345678901.0, 4, "1.235e+10");
    rounded(-(double)NAN, 4, "nan");
    rounded(-HUGE_VAL, 4, "-inf");
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
