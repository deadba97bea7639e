/*
 * restricted_domain.c - tests that elementary functions for a restricted domain have the bits of
 * the general ones.
 *
 * A reduced run takes every 1021st argument, a full run all.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support.h"

#include "kernels-deterministic/math/restricted_domain.h"

static uint64_t argument_step(void)
{
    return invar_test_full() ? 1 : 1021;
}

/* Counts the arguments with the bits first to last for which both functions differ. */
static uint64_t count_differences(uint64_t first, uint64_t last, float (*restricted)(float),
                                  float (*general)(float))
{
    uint64_t differ = 0;

    for (uint64_t bits = first; bits <= last; bits += argument_step()) {
        float x = invar_bits_f32((uint32_t)bits);
        differ += invar_f32_bits(restricted(x)) != invar_f32_bits(general(x));
    }
    return differ;
}

static void test_restricted__exp_nonpositive_matches_exp(void **state)
{
    (void)state;
    assert_int_equal(
        count_differences(UINT32_C(0x80000000), UINT32_MAX, invar_exp_nonpositive, invar_exp), 0);
    assert_true(invar_exp_nonpositive(0.0f) == 1.0f);
    assert_int_equal(invar_f32_bits(invar_exp_nonpositive(invar_bits_f32(INVAR_NAN_BITS))),
                     INVAR_NAN_BITS);
}

static void test_restricted__exp_near_zero_matches_exp(void **state)
{
    (void)state;
    assert_int_equal(invar_f32_bits(INVAR_EXP_NEAR), INVAR_EXP_NEAR_BITS);
    assert_int_equal(count_differences(UINT32_C(0x80000000), INVAR_EXP_NEAR_BITS,
                                       invar_exp_nonpositive_normal, invar_exp),
                     0);
    assert_true(invar_exp_nonpositive_normal(0.0f) == 1.0f);
    assert_int_equal(invar_f32_bits(invar_exp_nonpositive_normal(invar_bits_f32(INVAR_NAN_BITS))),
                     INVAR_NAN_BITS);
}

static void test_restricted__log_normal_matches_log(void **state)
{
    (void)state;
    assert_int_equal(
        count_differences(UINT32_C(0x00800000), UINT32_C(0x7F7FFFFF), invar_log_normal, invar_log),
        0);
}

static float inverse(float d)
{
    return 1.0f / d;
}

/* All 2^23 + 1 floats from 1 to 2. */
static void test_restricted__inverse_of_1_to_2_is_rounded_correctly(void **state)
{
    uint64_t differ = 0;

    (void)state;
    for (uint32_t bits = invar_f32_bits(1.0f); bits <= invar_f32_bits(2.0f); bits++) {
        float d = invar_bits_f32(bits);
        differ += invar_f32_bits(invar_inverse_of_1_to_2(d)) != invar_f32_bits(inverse(d));
    }
    assert_int_equal(differ, 0);
}

static float silu_near(float x)
{
    return invar_silu_near(x, invar_sigmoid_moderate(x));
}

static float silu_grad_near(float x)
{
    return invar_silu_grad_near(x, invar_sigmoid_moderate(x));
}

static void test_restricted__silu_near_zero_matches_silu(void **state)
{
    uint32_t last = invar_f32_bits(INVAR_SIGMOID_MODERATE_MAX);

    (void)state;
    for (uint32_t sign = 0; sign <= INVAR_SIGN_BIT; sign += INVAR_SIGN_BIT) {
        assert_int_equal(count_differences(sign, sign | last, silu_near, invar_silu), 0);
        assert_int_equal(count_differences(sign, sign | last, silu_grad_near, invar_silu_grad), 0);
        if (sign == INVAR_SIGN_BIT)
            break;
    }
}

/* All 2^23 values of the upper bits of a word; the lower bits do not matter. */
static void test_restricted__gumbel_matches_and_is_bounded(void **state)
{
    uint64_t differ = 0, above = 0;
    float largest = 0.0f;

    (void)state;
    for (uint32_t value = 0; value < UINT32_C(1) << 23; value++) {
        uint32_t word = value << 9 | (value & 0x1FF);
        float gumbel = invar_gumbel_f32(word);
        differ += invar_f32_bits(invar_gumbel_normal(word)) != invar_f32_bits(gumbel);
        above += gumbel > invar_gumbel_bound(word);
        largest = gumbel > largest ? gumbel : largest;
    }
    assert_int_equal(differ, 0);
    assert_int_equal(above, 0);
    assert_true(largest < INVAR_GUMBEL_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restricted__exp_nonpositive_matches_exp),
        cmocka_unit_test(test_restricted__exp_near_zero_matches_exp),
        cmocka_unit_test(test_restricted__log_normal_matches_log),
        cmocka_unit_test(test_restricted__inverse_of_1_to_2_is_rounded_correctly),
        cmocka_unit_test(test_restricted__silu_near_zero_matches_silu),
        cmocka_unit_test(test_restricted__gumbel_matches_and_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
