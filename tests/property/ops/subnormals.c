/*
 * subnormals.c - zero products and masked keys change nothing, even for subnormal values.
 *
 * A zero product carries no exponent, so the accumulator of a dot chain must keep its bits through
 * groups of zeros even if it is subnormal. Checks linear.fwd with zeros appended to the chain, and
 * attention with later tokens appended, on both CPU paths. Controls: one tiny product at the end
 * of the chain, and rows that see other tokens, must differ.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "tests/ops.h"

enum { WIDEST = 400 };

/* Returns a value with random sign and significand, and an exponent from e to e + 3. */
static float tiny(uint64_t seed, uint64_t n, int e)
{
    uint32_t r = invar_test_random(seed, n);

    return ldexpf((r & 1 ? -1.0f : 1.0f) * (1.0f + (float)(r >> 1 & 0x7F) * 0x1p-7f),
                  e + (int)(r >> 8 & 3));
}

/*
 * Returns y of chains whose first 16 products are tiny. The others are zeros, except that x ends
 * with `last`.
 */
static invar_tensor tiny_product(invar_numerics numerics, invar_cpu_path path, int64_t k,
                                 float last)
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
            invar_test_set(&x, i, (int64_t)p, tiny(1, (uint64_t)i * 16 + p, -70));
        for (int64_t j = 0; j < N; j++)
            invar_test_set(&w, j, (int64_t)p, tiny(2, (uint64_t)j * 16 + p, -66));
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

static void test_subnormals__zeros_at_the_end_of_a_chain_change_nothing(void **state)
{
    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++) {
        invar_tensor expected =
            tiny_product((invar_numerics)numerics, INVAR_CPU_PATH_PORTABLE, 16, 0.0f);
        int subnormal = 0;

        for (int64_t i = 0; i < expected.shape[0] * expected.shape[1]; i++)
            subnormal += fpclassify(((float *)expected.data)[i]) == FP_SUBNORMAL;
        assert_true(subnormal > 0); // otherwise the test would prove nothing
        for (int path = 0; path < 2; path++)
            for (int64_t k = 16; k < WIDEST; k += 31) {
                invar_tensor y =
                    tiny_product((invar_numerics)numerics, (invar_cpu_path)path, k, 0.0f);
                invar_assert_bits_tensor(&y, &expected, "y");
                invar_test_free(&y);
            }
        // control: a last product as tiny as the others changes y
        for (int path = 0; path < 2; path++) {
            invar_tensor y =
                tiny_product((invar_numerics)numerics, (invar_cpu_path)path, 47, 0x1p-130f);
            assert_true(invar_tensors_differ(&y, &expected));
            invar_test_free(&y);
        }
        invar_test_free(&expected);
    }
}

/* Returns o of one head over `length` tokens with tiny values. */
static invar_tensor tiny_attention(invar_numerics numerics, invar_cpu_path path, int64_t length)
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
            invar_test_set(&v, t, d, tiny(3, (uint64_t)(t * D + d), -131));
    invar_test_device_init(&dev, numerics, path, 1);
    assert_ok(invar_attention_fwd(
        &dev, &(invar_attention_fwd_args){.o = o, .q = q, .k = k, .v = v, .samples = {start, 1}}));
    invar_test_device_release(&dev);
    invar_test_free(&q, &k, &v);
    return o;
}

static void test_subnormals__later_tokens_change_nothing(void **state)
{
    static const int64_t lengths[] = {1, 2, 8, 16, 17, 64, 128, 129, 200, 300};

    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++) {
        invar_tensor longest =
            tiny_attention((invar_numerics)numerics, INVAR_CPU_PATH_PORTABLE, 300);

        for (int path = 0; path < 2; path++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                invar_tensor o =
                    tiny_attention((invar_numerics)numerics, (invar_cpu_path)path, lengths[i]);
                invar_tensor expected = invar_tensor_rows(&longest, 0, lengths[i]);
                invar_assert_bits_tensor(&o, &expected, "o");
                invar_test_free(&o);
            }
        // control: rows that see different tokens differ, so the comparison is not trivial
        {
            invar_tensor first = invar_tensor_rows(&longest, 0, 1);
            invar_tensor second = invar_tensor_rows(&longest, 1, 1);
            assert_true(invar_test_get(&longest, 0, 0) != 0.0f);
            assert_true(invar_tensors_differ(&first, &second));
        }
        invar_test_free(&longest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_subnormals__zeros_at_the_end_of_a_chain_change_nothing),
        cmocka_unit_test(test_subnormals__later_tokens_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
