/*
 * mx.c - tests of the E8M0 scale and of MXFP8 elements, against a search for the nearest value.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support.h"

#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/math/mx.h"
#include "tests/unit/kernels-deterministic/math/nearest.h"

enum { E4M3_CODES = 0x7F, LOWEST = -118, HIGHEST = 118 };

static double e4m3_values[E4M3_CODES];
static const format e4m3 = {e4m3_values, E4M3_CODES};

static int fill_values(void **state)
{
    (void)state;
    for (int code = 0; code < E4M3_CODES; code++)
        e4m3_values[code] = decode(code, 3, 7);
    return 0;
}

/* Counts the finite amax for which `scale` is not the smallest sufficient power of two. */
static int64_t count_wrong_scales(uint64_t step, uint8_t (*scale)(float))
{
    int64_t wrong = 0;
    int exponent = LOWEST;

    for (uint64_t bits = 0; bits < INVAR_INF_BITS; bits += step) {
        float amax = invar_bits_f32((uint32_t)bits);
        while (exponent < HIGHEST && ldexp(448.0, exponent) < (double)amax)
            exponent++;
        wrong += scale(amax) != exponent + 127;
    }
    return wrong;
}

static uint8_t scale_rounding_down(float amax)
{
    return (uint8_t)(invar_e8m0_from_amax(amax * 0.999f));
}

static void test_math_mx__scale_is_smallest_sufficient(void **state)
{
    (void)state;
    assert_int_equal(count_wrong_scales((uint64_t)invar_test_count(127, 1), invar_e8m0_from_amax),
                     0);
    assert_true(count_wrong_scales(127, scale_rounding_down) > 0); // control
}

static void test_math_mx__scale_of_special_values(void **state)
{
    (void)state;
    assert_int_equal(invar_e8m0_from_amax(448.0f), 127);
    assert_int_equal(invar_e8m0_from_amax(448.00003f), 128);
    assert_int_equal(invar_e8m0_from_amax(-448.0f), 127);
    assert_int_equal(invar_e8m0_from_amax(0.0f), 127 + LOWEST);
    assert_int_equal(invar_e8m0_from_amax(0x1p-149f), 127 + LOWEST);
    assert_int_equal(invar_e8m0_from_amax(0x1.fffffep127f), 127 + HIGHEST);
    assert_int_equal(invar_e8m0_from_amax(INFINITY), INVAR_E8M0_NAN);
    assert_int_equal(invar_e8m0_from_amax(NAN), INVAR_E8M0_NAN);
    assert_int_equal(invar_e8m0_from_amax(invar_bits_f32(0xFF800001)), INVAR_E8M0_NAN);
    for (int code = 0; code < 0xFF; code++)
        assert_true((double)invar_f32_from_e8m0((uint8_t)code) == ldexp(1.0, code - 127));
    assert_int_equal(invar_f32_bits(invar_f32_from_e8m0(INVAR_E8M0_NAN)), INVAR_NAN_BITS);
}

/* The code of an input is the exact quotient by the scale, rounded once; all scales are tested. */
static void test_math_mx__quantize_rounds_once(void **state)
{
    int64_t count = invar_test_count(20000, 2000000);

    (void)state;
    for (int exponent = LOWEST; exponent <= HIGHEST; exponent++) {
        uint8_t scale = (uint8_t)(exponent + 127);
        for (int64_t i = 0; i < count; i++) {
            // One half is any finite value; the other has codes between 0 and the largest.
            uint32_t random = invar_test_random((uint64_t)(exponent + 200), (uint64_t)i);
            float x = invar_bits_f32(random % INVAR_INF_BITS);
            if (i % 2)
                x = (float)ldexp((double)(random >> 8) * 0x1p-24 + 1.0,
                                 exponent - 11 + (int)(i % 21));
            int code = nearest(&e4m3, ldexp((double)x, -exponent));
            assert_int_equal(invar_mx_quantize(x, scale), code);
            assert_int_equal(invar_mx_quantize(-x, scale), code | 0x80);
        }
    }
    assert_int_equal(invar_mx_quantize(1.0f, INVAR_E8M0_NAN), INVAR_FP8_NAN);
    assert_int_equal(invar_mx_quantize(NAN, 127), INVAR_FP8_NAN);
    assert_int_equal(invar_mx_quantize(-INFINITY, 127), 0xFE);
}

/* All 256 codes under all 237 scales. */
static void test_math_mx__dequantize_is_exact_in_bf16(void **state)
{
    (void)state;
    for (int exponent = LOWEST; exponent <= HIGHEST; exponent++) {
        for (int q = 0; q <= 0xFF; q++) {
            uint16_t got = invar_mx_dequantize((uint8_t)q, (uint8_t)(exponent + 127));
            if ((q & 0x7F) == 0x7F) {
                assert_int_equal(got, 0x7FFF);
                continue;
            }
            double exact = ldexp(e4m3_values[q & 0x7F], exponent);
            assert_true((double)invar_f32_from_bf16(got) == (q & 0x80 ? -exact : exact));
            assert_int_equal(got >> 15, q >> 7);
        }
    }
    assert_int_equal(invar_mx_dequantize(0x00, INVAR_E8M0_NAN), 0x7FFF);
}

static void test_math_mx__nothing_saturates_inside_the_clamp(void **state)
{
    (void)state;
    for (int64_t i = 0; i < invar_test_count(1000000, 100000000); i++) {
        // Exponents run from -100 to 125, significands are random.
        uint32_t random = invar_test_random(9, (uint64_t)i);
        float amax = invar_bits_f32((27u << 23) + random % (226u << 23));
        uint8_t scale = invar_e8m0_from_amax(amax);
        assert_true(ldexp((double)amax, 127 - scale) <= 448.0);
        assert_true(ldexp((double)amax, 127 - scale) > 224.0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_mx__scale_is_smallest_sufficient),
        cmocka_unit_test(test_math_mx__scale_of_special_values),
        cmocka_unit_test(test_math_mx__quantize_rounds_once),
        cmocka_unit_test(test_math_mx__dequantize_is_exact_in_bf16),
        cmocka_unit_test(test_math_mx__nothing_saturates_inside_the_clamp),
    };
    return cmocka_run_group_tests(tests, fill_values, NULL);
}
