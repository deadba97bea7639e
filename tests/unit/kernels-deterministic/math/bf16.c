/*
 * bf16.c - tests of the bf16 conversions against a search for the nearest value (nearest.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support.h"

#include "kernels-deterministic/math/bf16.h"
#include "tests/unit/kernels-deterministic/math/bf16_values.h"

static uint32_t convert(float x)
{
    return invar_bf16_from_f32(x);
}

static void test_math_bf16__from_f32_is_nearest(void **state)
{
    uint64_t step = (uint64_t)invar_test_count(509, 1);

    (void)state;
    assert_int_equal(count_wrong_conversions(&bf16, 0x8000, step, convert), 0);
    assert_int_equal(count_wrong_nans(BF16_NAN, invar_test_full() ? 1 : 509, convert), 0);
}

/* Each rounding boundary, and the floats just below and above it. */
static void test_math_bf16__boundaries_are_exact(void **state)
{
    (void)state;
    for (int code = 0; code < INFINITE_CODE; code++) {
        uint32_t middle = ((uint32_t)code << 16) + 0x8000;
        for (uint32_t bits = middle - 1; bits <= middle + 1; bits++) {
            float x = invar_bits_f32(bits);
            assert_int_equal(invar_bf16_from_f32(x), nearest(&bf16, (double)x));
        }
    }
}

static void test_math_bf16__to_f32_is_exact(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= 0xFFFF; code++) {
        float x = invar_f32_from_bf16((uint16_t)code);
        int magnitude = (int)(code & 0x7FFF);
        assert_int_equal(invar_f32_bits(x), code << 16);
        if (magnitude < INFINITE_CODE) {
            assert_true(fabs((double)x) == values[magnitude]);
            assert_int_equal(invar_bf16_from_f32(x), code);
            assert_int_equal(invar_f32_bits(invar_round_bf16(x)), code << 16);
        } else if (magnitude == INFINITE_CODE) {
            assert_true(isinf(x));
        } else {
            assert_true(isnan(x));
        }
    }
}

static uint32_t convert_truncating(float x)
{
    return invar_f32_bits(x) >> 16;
}

static void test_math_bf16__sweep_detects_truncation(void **state)
{
    (void)state;
    assert_true(count_wrong_conversions(&bf16, 0x8000, 509, convert_truncating) > 0);
    assert_true(count_wrong_nans(BF16_NAN, 509, convert_truncating) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_bf16__from_f32_is_nearest),
        cmocka_unit_test(test_math_bf16__boundaries_are_exact),
        cmocka_unit_test(test_math_bf16__to_f32_is_exact),
        cmocka_unit_test(test_math_bf16__sweep_detects_truncation),
    };
    return cmocka_run_group_tests(tests, fill_values, NULL);
}
