/*
 * int4.c - tests of int4 weights: scale, code, dequantized value, packing.
 *
 * Scales are compared with the nearest bf16 value (nearest.h), codes with rounding in double, and
 * packed words with the definition of compressed-tensors.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support.h"

#include <inttypes.h>

#include "kernels-deterministic/math/int4.h"
#include "tests/unit/kernels-deterministic/math/bf16_values.h"

/* The correctly rounded quotient: double rounding is harmless, because 53 >= 2 * 24 + 2. */
static float quotient(float a, double b)
{
    return (float)((double)a / b);
}

static void test_math_int4__scale(void **state)
{
    uint64_t step = (uint64_t)invar_test_count(1021, 1);
    int code = 0;

    (void)state;
    for (uint64_t bits = 0; bits < INVAR_INF_BITS; bits += step) {
        float amax = invar_bits_f32((uint32_t)bits);
        double exact = fmax((double)quotient(amax, 7.0), 0x1p-24);
        code = nearest_from(&bf16, code, exact);
        if (invar_int4_scale(amax) != code)
            fail_msg("scale of %a: %04x, expected %04x", (double)amax, invar_int4_scale(amax),
                     (unsigned)code);
    }
    assert_int_equal(invar_int4_scale(INFINITY), INFINITE_CODE);
    assert_int_equal(invar_int4_scale(NAN), BF16_NAN);
}

static int oracle_code(float w, uint16_t scale)
{
    double t = rint((double)quotient(w, values[scale]));

    return (int)(t < -7.0 ? -7.0 : t > 7.0 ? 7.0 : t);
}

static void test_math_int4__quantize_and_back(void **state)
{
    int seen[15] = {0};

    (void)state;
    for (int64_t i = 0; i < invar_test_count(2000000, 200000000); i++) {
        uint32_t random = invar_test_random(1, 2 * (uint64_t)i);
        uint32_t scale = 0x3380 + random % (INFINITE_CODE - 0x3380); // at least 2^-24
        // Values run from -8 to 8 scales in steps of one eighth, so that ties occur.
        int32_t eighths = (int32_t)(invar_test_random(1, 2 * (uint64_t)i + 1) % 129) - 64;
        float w = (float)((double)eighths / 8.0 * values[scale]);
        w = invar_bits_f32(invar_f32_bits(w) + (random >> 20) % 3);
        if (!isfinite(w))
            continue;

        int32_t q = invar_int4_quantize(w, (uint16_t)scale);
        assert_int_equal(q, oracle_code(w, (uint16_t)scale));
        seen[q + 7]++;
        int back = nearest(&bf16, fabs((double)q * values[scale])) | (q < 0 ? 0x8000 : 0);
        assert_int_equal(invar_int4_dequantize(q, (uint16_t)scale), back);
    }
    for (int i = 0; i < 15; i++)
        assert_true(seen[i] > 0);
}

static void test_math_int4__ties_and_limits(void **state)
{
    const uint16_t one = 0x3F80;

    (void)state;
    assert_int_equal(invar_int4_quantize(0.5f, one), 0);
    assert_int_equal(invar_int4_quantize(1.5f, one), 2);
    assert_int_equal(invar_int4_quantize(-2.5f, one), -2);
    assert_int_equal(invar_int4_quantize(6.5f, one), 6);
    assert_int_equal(invar_int4_quantize(7.5f, one), 7);
    assert_int_equal(invar_int4_quantize(INFINITY, one), 7);
    assert_int_equal(invar_int4_quantize(-0x1.fffffep127f, one), -7);
    assert_int_equal(invar_int4_dequantize(0, one), 0);
    // A group with a NaN or an infinity is dequantized to NaN.
    assert_int_equal(invar_int4_quantize(NAN, one), 0);
    assert_int_equal(invar_int4_quantize(1.0f, BF16_NAN), 0);
    assert_int_equal(invar_int4_dequantize(0, BF16_NAN), BF16_NAN);
    assert_int_equal(invar_int4_quantize(INFINITY, INFINITE_CODE), 0);
    assert_int_equal(invar_int4_dequantize(0, INFINITE_CODE), BF16_NAN);
}

/* compressed-tensors: word |= (q[i] + 8) << 4 i for i = 0 .. 7. */
static void test_math_int4__packing_follows_compressed_tensors(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 10000; n++) {
        uint32_t word = 0, got = 0;
        int32_t q[8];

        for (int i = 0; i < 8; i++) {
            q[i] = (int32_t)(invar_test_random(2, 8 * n + (uint64_t)i) % 16) - 8;
            word |= (uint32_t)(q[i] + 8) << (4 * i);
        }
        for (int i = 0; i < 4; i++) {
            uint8_t byte = invar_int4_pack(q[2 * i], q[2 * i + 1]);
            got |= (uint32_t)byte << (8 * i);
            assert_int_equal(invar_int4_unpack(byte, 0), q[2 * i]);
            assert_int_equal(invar_int4_unpack(byte, 1), q[2 * i + 1]);
        }
        assert_int_equal(got, word);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_int4__scale),
        cmocka_unit_test(test_math_int4__quantize_and_back),
        cmocka_unit_test(test_math_int4__ties_and_limits),
        cmocka_unit_test(test_math_int4__packing_follows_compressed_tensors),
    };
    return cmocka_run_group_tests(tests, fill_values, NULL);
}
