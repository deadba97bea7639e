/*
 * attention_lengths.c - the results of attention at a position do not depend on later positions.
 *
 * Attention is causal, so o, lse2 and dq of a short sample are the first rows of a long one, bit
 * by bit. The lengths lie around every edge of a group, block or span. The last rows are also
 * compared with attention_expression.h, which writes the contract naively. Control: key blocks
 * that start elsewhere change the naive result of every form.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>

#include "tests/unit/kernels-deterministic/cpu/attention_expression.h"

static const int64_t lengths[] = {1,   15,  16,  17,  63,  64,   65,   127,
                                  128, 129, 511, 512, 513, 2047, 2048, 2049};

#define LENGTHS ((int64_t)(sizeof lengths / sizeof *lengths))
#define LONGEST 2049

static const attention_form forms[] = {
    {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 2, 1, 16, {0.0f, 0, 0, 0}},
    {INVAR_NUMERICS_IEEE, INVAR_DTYPE_BF16, 2, 2, 24, {0.0f, 0, 512, 512}},
    {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 1, 1, 16, {0.0f, 130, 128, 128}},
    {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 2, 1, 16, {0.0f, 600, 256, 256}},
    {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 1, 1, 144, {0.0f, 0, 64, 64}},
};

#define FORMS ((int64_t)(sizeof forms / sizeof *forms))

/* Returns a pack with the first `length` tokens of the long sample. */
static attention_pack first_tokens(const attention_pack *longest_pack, int64_t length)
{
    attention_pack p = attention_pack_new(&longest_pack->form, 1, &length);
    const invar_tensor *from[] = {&longest_pack->q, &longest_pack->k, &longest_pack->v,
                                  &longest_pack->d_o};
    const invar_tensor *to[] = {&p.q, &p.k, &p.v, &p.d_o};

    for (int n = 0; n < 4; n++)
        for (int64_t r = 0; r < length; r++)
            for (int64_t j = 0; j < invar_tensor_row_elements(from[n]); j++)
                invar_test_set(to[n], r, j, invar_test_get(from[n], r, j));
    return p;
}

static void assert_dq_bits(const attention_pack *got, const attention_pack *expected,
                           int64_t length, const char *what)
{
    invar_tensor dq = invar_tensor_rows(&expected->dq, 0, length);

    invar_assert_bits_tensor(&got->dq, &dq, what);
}

static void test_attention_lengths__bits_invariant_to_length(void **state)
{
    (void)state;
    for (int64_t f = 0; f < invar_test_count(3, FORMS); f++) {
        attention_pack longest_pack = attention_sample(&forms[f], LONGEST, 3);
        invar_device dev;

        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 2);
        attention_forward(&dev, &longest_pack);
        if (invar_test_full())
            attention_backward(&dev, &longest_pack);
        for (int64_t n = 0; n < LENGTHS; n++) {
            attention_pack p = first_tokens(&longest_pack, lengths[n]);
            char what[64];

            snprintf(what, sizeof what, "form %" PRId64 ", length %" PRId64, f, lengths[n]);
            attention_forward(&dev, &p);
            assert_forward_bits(&p, 0, &longest_pack, 0, lengths[n], what);
            if (invar_test_full()) {
                attention_backward(&dev, &p);
                assert_dq_bits(&p, &longest_pack, lengths[n], what);
            }
            attention_pack_free(&p);
        }
        invar_test_device_release(&dev);
        attention_pack_free(&longest_pack);
    }
}

static void assert_row_bits(const invar_tensor *got, int64_t row, const float *expected,
                            const char *what)
{
    for (int64_t j = 0; j < invar_tensor_row_elements(got); j++) {
        float value = invar_test_get(got, row, j);
        invar_assert_bits_f32(&value, &expected[j], 1, what);
    }
}

/*
 * Compares the last row of `length` tokens with the naive expression. Returns whether shifted key
 * blocks change that expression.
 */
static bool compare_last_row(const attention_pack *pack, int64_t length, const char *what)
{
    expression right = expression_init(pack, 0, TWIST_NONE);
    expression shifted = expression_init(pack, 0, TWIST_BLOCKS_SHIFTED);
    int64_t i = length - 1, heads = pack->form.heads, width = heads * pack->form.dim;
    bool changed;

    right.length = shifted.length = length;
    for (int64_t h = 0; h < heads; h++) {
        expression_row(&right, i, h);
        expression_row(&shifted, i, h);
    }
    assert_row_bits(&pack->o, i, right.o + i * width, what);
    assert_row_bits(&pack->lse2, i, right.lse2 + i * heads, what);
    changed = invar_bits_differ(right.o + i * width, shifted.o + i * width,
                                (size_t)width * sizeof *right.o) ||
              invar_bits_differ(right.lse2 + i * heads, shifted.lse2 + i * heads,
                                (size_t)heads * sizeof *right.lse2);
    expression_release(&right);
    expression_release(&shifted);
    return changed;
}

/*
 * Compares the last row of each length with the naive expression. Control: shifted key blocks must
 * change that expression, for every form. The start of the blocks changes few rows, because
 * rescaling is exact, so further lengths follow until a row has changed.
 */
static void test_attention_lengths__last_row_matches_expression(void **state)
{
    (void)state;
    for (int64_t f = 0; f < FORMS; f++) {
        attention_pack longest_pack = attention_sample(&forms[f], LONGEST, 3);
        invar_device dev;
        int64_t n_changed = 0;

        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 2);
        attention_forward(&dev, &longest_pack);
        for (int64_t n = 0; n < LENGTHS || n_changed == 0; n++) {
            int64_t length = n < LENGTHS ? lengths[n] : 130 + 37 * (n - LENGTHS);
            char what[64];

            snprintf(what, sizeof what, "form %" PRId64 ", length %" PRId64, f, length);
            if (length > LONGEST)
                fail_msg("%s: no row has detected shifted blocks", what);
            n_changed += compare_last_row(&longest_pack, length, what);
        }
        invar_test_device_release(&dev);
        attention_pack_free(&longest_pack);
    }
}

/*
 * dk and dv of a short sample are those of a long one whose further rows have zero gradient: the
 * number of queries moves no group and no span.
 */
static void test_attention_lengths__gradients_ignore_rows_without_gradient(void **state)
{
    static const int64_t cuts[] = {1, 17, 64, 129, 300, 513};
    int64_t longest = 600;

    (void)state;
    for (int64_t f = 0; f < FORMS; f++) {
        invar_device dev;

        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 2);
        for (size_t n = 0; n < sizeof cuts / sizeof *cuts; n += (size_t)invar_test_count(2, 1)) {
            attention_pack longest_pack = attention_sample(&forms[f], longest, 3);
            attention_pack part = first_tokens(&longest_pack, cuts[n]);
            invar_tensor later_d_o =
                invar_tensor_rows(&longest_pack.d_o, cuts[n], longest - cuts[n]);
            invar_tensor dk, dv;

            invar_test_fill(&later_d_o, 0.0f);
            attention_run(&dev, &longest_pack);
            attention_run(&dev, &part);
            dk = invar_tensor_rows(&longest_pack.dk, 0, cuts[n]);
            dv = invar_tensor_rows(&longest_pack.dv, 0, cuts[n]);
            assert_dq_bits(&part, &longest_pack, cuts[n], "dq");
            invar_assert_bits_tensor(&part.dk, &dk, "dk");
            invar_assert_bits_tensor(&part.dv, &dv, "dv");
            attention_pack_free(&longest_pack);
            attention_pack_free(&part);
        }
        invar_test_device_release(&dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_lengths__bits_invariant_to_length),
        cmocka_unit_test(test_attention_lengths__last_row_matches_expression),
        cmocka_unit_test(test_attention_lengths__gradients_ignore_rows_without_gradient),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
