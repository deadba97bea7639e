/*
 * subnormals.c - values near the end of the range: groups of zeros and masked keys change nothing.
 *
 * A zero product carries no exponent, so a chain whose accumulator is subnormal must rest through
 * groups of zeros. Networks rarely get there; the promise holds all the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "tests/ops.h"

enum { WIDEST = 400 };

/* Random signs and significands, exponent `e` to `e` + 3. */
static float faint(uint64_t seed, uint64_t n, int e)
{
    uint32_t r = invar_test_random(seed, n);

    return ldexpf((r & 1 ? -1.0f : 1.0f) * (1.0f + (float)(r >> 1 & 0x7F) * 0x1p-7f),
                  e + (int)(r >> 8 & 3));
}

/* y of chains whose first 16 products are faint and whose other k - 16 are zeros, but the last. */
static invar_tensor product(invar_numerics numerics, invar_cpu_path path, int64_t k, float last)
{
    enum { M = 9, N = 11 };
    invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, M, k));
    invar_tensor w = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, N, k));
    invar_tensor y = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, M, N));
    invar_device dev;

    invar_test_fill(&x, 0.0f);
    invar_test_fill_normal(&w, 3, 1.0f);
    for (uint64_t p = 0; p < 16; p++) {
        for (int64_t i = 0; i < M; i++)
            invar_test_set(&x, i, (int64_t)p, faint(1, (uint64_t)i * 16 + p, -70));
        for (int64_t j = 0; j < N; j++)
            invar_test_set(&w, j, (int64_t)p, faint(2, (uint64_t)j * 16 + p, -66));
    }
    if (k > 16)
        for (int64_t i = 0; i < M; i++)
            invar_test_set(&x, i, k - 1, last);
    invar_test_device_init(&dev, numerics, path, 1);
    assert_ok(
        invar_linear_fwd(&dev, &(invar_linear_fwd_args){.y = y, .x = x, .w = w, .k_shards = 1}));
    invar_test_device_release(&dev);
    invar_test_free(&x, &w);
    return y;
}

static void test_faint__zeros_at_the_end_of_a_chain_change_nothing(void **state)
{
    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++) {
        invar_tensor expected =
            product((invar_numerics)numerics, INVAR_CPU_PATH_PORTABLE, 16, 0.0f);
        int subnormal = 0;

        for (int64_t i = 0; i < expected.shape[0] * expected.shape[1]; i++)
            subnormal += fpclassify(((float *)expected.data)[i]) == FP_SUBNORMAL;
        assert_true(subnormal > 0); // or the test would prove nothing
        for (int path = 0; path < 2; path++)
            for (int64_t k = 16; k < WIDEST; k += 31) {
                invar_tensor y = product((invar_numerics)numerics, (invar_cpu_path)path, k, 0.0f);
                invar_assert_bits_tensor(&y, &expected, "y");
                invar_test_free(&y);
            }
        // the control: a last product as faint as the others is seen
        for (int path = 0; path < 2; path++) {
            invar_tensor y = product((invar_numerics)numerics, (invar_cpu_path)path, 47, 0x1p-130f);
            assert_true(invar_tensors_differ(&y, &expected));
            invar_test_free(&y);
        }
        invar_test_free(&expected);
    }
}

/* o of one head over `length` tokens with faint values. */
static invar_tensor attention(invar_numerics numerics, invar_cpu_path path, int64_t length)
{
    enum { D = 16 };
    const int64_t start[] = {0, length};
    invar_tensor view = invar_tensor_3d(NULL, INVAR_DTYPE_BF16, length, 1, D);
    invar_tensor q = invar_test_tensor(view), k = invar_test_tensor(view);
    invar_tensor v = invar_test_tensor(view), o = invar_test_tensor(view);
    invar_device dev;

    invar_test_fill_normal(&q, 1, 1.0f);
    invar_test_fill_normal(&k, 2, 1.0f);
    for (int64_t t = 0; t < length; t++)
        for (int64_t d = 0; d < D; d++)
            invar_test_set(&v, t, d, faint(3, (uint64_t)(t * D + d), -131));
    invar_test_device_init(&dev, numerics, path, 1);
    assert_ok(invar_attention_fwd(
        &dev, &(invar_attention_fwd_args){.o = o, .q = q, .k = k, .v = v, .samples = {start, 1}}));
    invar_test_device_release(&dev);
    invar_test_free(&q, &k, &v);
    return o;
}

static void test_faint__later_tokens_change_nothing(void **state)
{
    static const int64_t lengths[] = {1, 2, 8, 16, 17, 64, 128, 129, 200, 300};

    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++) {
        invar_tensor whole = attention((invar_numerics)numerics, INVAR_CPU_PATH_PORTABLE, 300);

        for (int path = 0; path < 2; path++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                invar_tensor o =
                    attention((invar_numerics)numerics, (invar_cpu_path)path, lengths[i]);
                invar_tensor expected = invar_tensor_rows(&whole, 0, lengths[i]);
                invar_assert_bits_tensor(&o, &expected, "o");
                invar_test_free(&o);
            }
        // the control: rows that see different tokens differ, so equality is no accident
        {
            invar_tensor first = invar_tensor_rows(&whole, 0, 1);
            invar_tensor second = invar_tensor_rows(&whole, 1, 1);
            assert_true(invar_test_get(&whole, 0, 0) != 0.0f);
            assert_true(invar_tensors_differ(&first, &second));
        }
        invar_test_free(&whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faint__zeros_at_the_end_of_a_chain_change_nothing),
        cmocka_unit_test(test_faint__later_tokens_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
