/*
 * attention_lengths.c - what attention gives for a position does not depend on what follows it.
 *
 * Lengths around every edge of a group, a block or a span. Attention is causal, so o, lse2 and dq
 * of a short sample are the first rows of a long one, to the bit.
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

/* The long sample is run once; each length repeats its beginning. */
static attention_pack beginning(const attention_pack *whole, int64_t length)
{
    attention_pack p = attention_pack_new(&whole->form, 1, &length);
    const invar_tensor *from[] = {&whole->q, &whole->k, &whole->v, &whole->d_o};
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
        attention_pack whole = attention_sample(&forms[f], LONGEST, 3);
        invar_device dev;

        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 2);
        attention_forward(&dev, &whole);
        if (invar_test_full())
            attention_backward(&dev, &whole);
        for (int64_t n = 0; n < LENGTHS; n++) {
            attention_pack p = beginning(&whole, lengths[n]);
            char what[64];

            snprintf(what, sizeof what, "form %" PRId64 ", length %" PRId64, f, lengths[n]);
            attention_forward(&dev, &p);
            assert_forward_bits(&p, 0, &whole, 0, lengths[n], what);
            if (invar_test_full()) {
                attention_backward(&dev, &p);
                assert_dq_bits(&p, &whole, lengths[n], what);
            }
            attention_pack_free(&p);
        }
        invar_test_device_release(&dev);
        attention_pack_free(&whole);
    }
}

/* The last row of each length by the naive expression, and what a shifted block grid would give. */
static void test_attention_lengths__last_row_matches_expression(void **state)
{
    int64_t changed = 0;

    (void)state;
    for (int64_t f = 0; f < FORMS; f++) {
        attention_pack whole = attention_sample(&forms[f], LONGEST, 3);
        int64_t heads = forms[f].heads, width = heads * forms[f].dim;
        invar_device dev;

        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 2);
        attention_forward(&dev, &whole);
        for (int64_t n = 0; n < LENGTHS; n++) {
            expression right = expression_open(&whole, 0, TWIST_NONE);
            expression wrong = expression_open(&whole, 0, TWIST_BLOCKS_SHIFTED);
            int64_t i = lengths[n] - 1;
            const float *o = right.o + i * width;
            char what[64];

            right.length = wrong.length = lengths[n];
            for (int64_t h = 0; h < heads; h++) {
                expression_row(&right, i, h);
                expression_row(&wrong, i, h);
            }
            snprintf(what, sizeof what, "form %" PRId64 ", length %" PRId64, f, lengths[n]);
            for (int64_t j = 0; j < width; j++) {
                float got = invar_test_get(&whole.o, i, j);
                invar_assert_bits_f32(&got, &o[j], 1, what);
            }
            // where blocks start shows in few bits of o, since rescaling is exact
            changed += invar_bits_differ(o, wrong.o + i * width, (size_t)width * sizeof *o) ||
                       invar_bits_differ(right.lse2 + i * heads, wrong.lse2 + i * heads,
                                         (size_t)heads * sizeof *right.lse2);
            expression_close(&right);
            expression_close(&wrong);
        }
        invar_test_device_release(&dev);
        attention_pack_free(&whole);
    }
    assert_true(changed > 0); // the sweep would see blocks that start elsewhere
}

/*
 * dk and dv of a short sample are those of a long one whose further rows have no gradient: lengths
 * of queries move no group and no span.
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
            attention_pack whole = attention_sample(&forms[f], longest, 3);
            attention_pack part = beginning(&whole, cuts[n]);
            invar_tensor silent = invar_tensor_rows(&whole.d_o, cuts[n], longest - cuts[n]);
            invar_tensor dk, dv;

            invar_test_fill(&silent, 0.0f);
            attention_run(&dev, &whole);
            attention_run(&dev, &part);
            dk = invar_tensor_rows(&whole.dk, 0, cuts[n]);
            dv = invar_tensor_rows(&whole.dv, 0, cuts[n]);
            assert_dq_bits(&part, &whole, cuts[n], "dq");
            invar_assert_bits_tensor(&part.dk, &dk, "dk");
            invar_assert_bits_tensor(&part.dv, &dv, "dv");
            attention_pack_free(&whole);
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
