/*
 * portable.c - tests of the fp32 primitives, and of the compiler flags they rely on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support.h"

#include <inttypes.h>
#include <math.h>

#include "kernels-deterministic/math/portable.h"

static const uint32_t edge_values[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000,
    0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF,
};

enum { EDGE_VALUES = sizeof edge_values / sizeof edge_values[0] };

/* Rank of a number in ascending order, with -0 below +0. */
static int64_t rank_of(uint32_t bits)
{
    return bits & INVAR_SIGN_BIT ? -(int64_t)(bits & ~INVAR_SIGN_BIT) - 1 : (int64_t)bits;
}

static bool is_nan(uint32_t bits)
{
    return (bits & ~INVAR_SIGN_BIT) > INVAR_INF_BITS;
}

static void check_pair(uint32_t a, uint32_t b)
{
    uint32_t larger = rank_of(a) > rank_of(b) ? a : b;
    uint32_t smaller = rank_of(a) > rank_of(b) ? b : a;

    if (is_nan(a) || is_nan(b))
        larger = smaller = INVAR_NAN_BITS;
    uint32_t max = invar_f32_bits(invar_max_f32(invar_bits_f32(a), invar_bits_f32(b)));
    uint32_t min = invar_f32_bits(invar_min_f32(invar_bits_f32(a), invar_bits_f32(b)));
    if (max != larger || min != smaller)
        fail_msg("%08" PRIX32 ", %08" PRIX32 ": max %08" PRIX32 ", min %08" PRIX32, a, b, max, min);
}

static void test_math_portable__max_and_min(void **state)
{
    (void)state;
    for (int i = 0; i < EDGE_VALUES; i++) {
        for (int j = 0; j < EDGE_VALUES; j++)
            check_pair(edge_values[i], edge_values[j]);
    }
    for (int64_t i = 0; i < invar_test_count(1000000, 100000000); i++) {
        uint32_t a = invar_test_random(1, 2 * (uint64_t)i);
        check_pair(a, invar_test_random(1, 2 * (uint64_t)i + 1));
        check_pair(a, a + 1);
    }
}

static void test_math_portable__bits_and_sign(void **state)
{
    (void)state;
    for (int i = 0; i < EDGE_VALUES; i++) {
        uint32_t bits = edge_values[i];
        float x = invar_bits_f32(bits);
        assert_int_equal(invar_f32_bits(invar_abs_f32(x)), bits & 0x7FFFFFFF);
        assert_int_equal(invar_f32_bits(invar_canonical_f32(x)), is_nan(bits) ? 0x7FFFFFFF : bits);
    }
    assert_int_equal(invar_f32_bits(1.0f), 0x3F800000);
    assert_true(invar_bits_f32(0x40490FDB) == 3.14159274f);
}

static void test_math_portable__sqrt_is_correctly_rounded(void **state)
{
    uint64_t step = (uint64_t)invar_test_count(1021, 1);

    (void)state;
    for (uint64_t bits = 0; bits <= INVAR_INF_BITS; bits += step) {
        float x = invar_bits_f32((uint32_t)bits);
        if (invar_sqrtf(x) != (float)sqrt((double)x)) // innocuous double rounding: 53 >= 2 * 24 + 2
            fail_msg("sqrt of %08" PRIX32, (uint32_t)bits);
    }
}

/* Expressions that a wrong compiler flag, such as -ffast-math, would change. */
static void test_math_portable__flags_keep_ieee(void **state)
{
    volatile float a = 1.0f + 0x1p-13f, b = 1.0f - 0x1p-13f, c = -1.0f, tiny = 0x1p-126f;

    (void)state;
    assert_true(invar_fmaf(a, b, c) == -0x1p-26f); // one rounding
    assert_true(a * b + c == 0.0f);                // two roundings: the product is not contracted
    assert_true(tiny * 0.5f == 0x1p-127f);         // no flush to zero
    assert_true((a + 0x1p30f) - 0x1p30f == 0.0f);  // no reassociation, no excess precision
    assert_true(1.0f / 3.0f == 0x1.555556p-2f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_portable__max_and_min),
        cmocka_unit_test(test_math_portable__bits_and_sign),
        cmocka_unit_test(test_math_portable__sqrt_is_correctly_rounded),
        cmocka_unit_test(test_math_portable__flags_keep_ieee),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
