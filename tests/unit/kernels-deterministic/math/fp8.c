/*
 * fp8.c - tests of the e4m3 and e5m2 conversions and of the FP8 block scale.
 *
 * The oracle searches for the nearest value (nearest.h). Control: a conversion that rounds ties
 * away from zero is detected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support.h"

#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/math/fp8.h"
#include "tests/unit/kernels-deterministic/math/nearest.h"

enum { E4M3_CODES = 0x7F, E5M2_CODES = 0x7C }; /* finite non-negative values */

static double e4m3_values[E4M3_CODES], e5m2_values[E5M2_CODES];
static const format e4m3 = {e4m3_values, E4M3_CODES};
static const format e5m2 = {e5m2_values, E5M2_CODES};

static int fill_values(void **state)
{
    (void)state;
    for (int code = 0; code < E4M3_CODES; code++)
        e4m3_values[code] = decode(code, 3, 7);
    for (int code = 0; code < E5M2_CODES; code++)
        e5m2_values[code] = decode(code, 2, 15);
    return 0;
}

static uint32_t convert_e4m3(float x)
{
    return invar_e4m3_from_f32(x);
}

static uint32_t convert_e5m2(float x)
{
    return invar_e5m2_from_f32(x);
}

static void test_math_fp8__from_f32_is_nearest_and_saturates(void **state)
{
    uint64_t step = (uint64_t)invar_test_count(509, 1);

    (void)state;
    assert_int_equal(count_wrong_conversions(&e4m3, 0x80, step, convert_e4m3), 0);
    assert_int_equal(count_wrong_conversions(&e5m2, 0x80, step, convert_e5m2), 0);
    assert_int_equal(count_wrong_nans(INVAR_FP8_NAN, step, convert_e4m3), 0);
    assert_int_equal(count_wrong_nans(INVAR_FP8_NAN, step, convert_e5m2), 0);
}

/* Checks the float at each rounding boundary and its two neighbors. */
static void check_boundaries(const format *f, uint32_t (*convert)(float))
{
    for (int code = 0; code + 1 < f->count; code++) {
        float middle = (float)((f->value[code] + f->value[code + 1]) / 2.0); // exact
        for (int offset = -1; offset <= 1; offset++) {
            float x = invar_bits_f32(invar_f32_bits(middle) + (uint32_t)offset);
            assert_int_equal(convert(x), nearest(f, (double)x));
            assert_int_equal(convert(-x), nearest(f, (double)x) | 0x80);
        }
    }
}

static void test_math_fp8__boundaries_are_exact(void **state)
{
    (void)state;
    check_boundaries(&e4m3, convert_e4m3);
    check_boundaries(&e5m2, convert_e5m2);
}

static void test_math_fp8__special_values(void **state)
{
    (void)state;
    assert_true(e4m3_values[E4M3_CODES - 1] == 448.0 && e4m3_values[1] == 0x1p-9);
    assert_true(e5m2_values[E5M2_CODES - 1] == 57344.0 && e5m2_values[1] == 0x1p-16);
    assert_int_equal(invar_e4m3_from_f32(INFINITY), 0x7E);
    assert_int_equal(invar_e4m3_from_f32(-INFINITY), 0xFE);
    assert_int_equal(invar_e5m2_from_f32(INFINITY), 0x7B);
    assert_int_equal(invar_e5m2_from_f32(-INFINITY), 0xFB);
    assert_int_equal(invar_e4m3_from_f32(-0.0f), 0x80);
    assert_int_equal(invar_e4m3_from_f32(-0x1p-10f), 0x80);
    assert_int_equal(invar_e5m2_from_f32(-0x1p-149f), 0x80);
    assert_int_equal(invar_f32_bits(invar_f32_from_e5m2(0x7C)), INVAR_INF_BITS);
    assert_int_equal(invar_f32_bits(invar_f32_from_e5m2(0xFC)), INVAR_INF_BITS | INVAR_SIGN_BIT);
}

static void test_math_fp8__to_f32_and_bf16_is_exact(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= 0xFF; code++) {
        int magnitude = (int)(code & 0x7F);
        float x = invar_f32_from_e4m3((uint8_t)code);
        float y = invar_f32_from_e5m2((uint8_t)code);

        if (magnitude < E4M3_CODES) {
            assert_true(fabs((double)x) == e4m3_values[magnitude]);
            assert_int_equal(invar_f32_bits(x) >> 31, code >> 7);
            assert_int_equal(invar_e4m3_from_f32(x), code);
        } else {
            assert_int_equal(invar_f32_bits(x), INVAR_NAN_BITS);
        }
        assert_int_equal(invar_bf16_from_e4m3((uint8_t)code), invar_bf16_from_f32(x));
        if (magnitude < E4M3_CODES)
            assert_true(invar_f32_from_bf16(invar_bf16_from_e4m3((uint8_t)code)) == x);

        if (magnitude < E5M2_CODES) {
            assert_true(fabs((double)y) == e5m2_values[magnitude]);
            assert_int_equal(invar_f32_bits(y) >> 31, code >> 7);
            assert_int_equal(invar_e5m2_from_f32(y), code);
        } else if (magnitude > E5M2_CODES) {
            assert_int_equal(invar_f32_bits(y), INVAR_NAN_BITS);
        }
    }
}

static void test_math_fp8__block_scale(void **state)
{
    const float tiny = (float)(0x1p-96 / 448.0);

    (void)state;
    assert_true(invar_fp8_block_scale(448.0f) == 1.0f);
    assert_true(invar_fp8_block_scale(0.0f) == tiny);
    assert_true(invar_fp8_block_scale(0x1p-100f) == tiny);
    assert_true(isinf(invar_fp8_block_scale(INFINITY)));
    assert_int_equal(invar_f32_bits(invar_fp8_block_scale(-NAN)), INVAR_NAN_BITS);
    assert_int_equal(invar_fp8_block_quantize(1.0f, NAN), INVAR_FP8_NAN);
    assert_int_equal(invar_fp8_block_quantize(-0.0f, tiny), 0x80);

    // The largest element of a block gets the largest code; the quotient is rounded to fp32.
    for (int64_t i = 0; i < invar_test_count(100000, 100000000); i++) {
        float amax = invar_bits_f32(0x0F800000 + invar_test_random(1, (uint64_t)i) % 0x70000000);
        float x =
            invar_bits_f32(invar_f32_bits(amax) - invar_test_random(2, (uint64_t)i) % 0x4000000);
        float scale = invar_fp8_block_scale(amax);
        float quotient = (float)((double)x / (double)scale); // correctly rounded: 53 >= 2 * 24 + 2

        assert_true(scale == (float)((double)amax / 448.0));
        assert_int_equal(invar_fp8_block_quantize(amax, scale), 0x7E);
        assert_int_equal(invar_fp8_block_quantize(x, scale), nearest(&e4m3, (double)quotient));
    }
}

/* Control: rounds to nearest, but ties away from zero. */
static uint32_t convert_ties_away(float x)
{
    uint32_t bits = invar_f32_bits(x);
    uint32_t code = invar_e4m3_from_f32(x);

    return (bits & 0xFFFFF) == 0x80000 ? invar_e4m3_from_f32(invar_bits_f32(bits + 1)) : code;
}

static void test_math_fp8__sweep_detects_wrong_ties(void **state)
{
    (void)state;
    assert_true(count_wrong_conversions(&e4m3, 0x80, 0x40000, convert_e4m3) == 0);
    assert_true(count_wrong_conversions(&e4m3, 0x80, 0x40000, convert_ties_away) > 0);
    assert_true(count_wrong_conversions(&e5m2, 0x80, 509, convert_e4m3) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_fp8__from_f32_is_nearest_and_saturates),
        cmocka_unit_test(test_math_fp8__boundaries_are_exact),
        cmocka_unit_test(test_math_fp8__special_values),
        cmocka_unit_test(test_math_fp8__to_f32_and_bf16_is_exact),
        cmocka_unit_test(test_math_fp8__block_scale),
        cmocka_unit_test(test_math_fp8__sweep_detects_wrong_ties),
    };
    return cmocka_run_group_tests(tests, fill_values, NULL);
}
