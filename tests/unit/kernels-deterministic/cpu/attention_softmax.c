/*
 * attention_softmax.c - tests of the online softmax of attention: the reference of a row, large
 * scores, NaN and infinities.
 *
 * The reference of a row is the exponent that is subtracted from its scores. Queries are the first
 * unit vector and the scale is ln 2, so the first element of a key is its score as an exponent of
 * two. Another reference would multiply weights, sums and outputs by the same power of two, which
 * cancels. The tests detect it by a weight that just does not underflow, times a huge value.
 * Control: naive forms whose reference rises too early or too late differ (attention_expression.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>

#include "tests/unit/kernels-deterministic/cpu/attention_expression.h"

enum { DIM = 16, LENGTH = 256, WEIGHTLESS = -1000 /* an exponent whose weight is +0 */ };

enum { KINDS = sizeof attention_kinds / sizeof *attention_kinds };

static attention_form make_form(int kind, int64_t span)
{
    return (attention_form){attention_kinds[kind].numerics, attention_kinds[kind].dtype, 1, 1, DIM,
                            {0x1.62e43p-1f, 0, span, span}};
}

/* Returns a sample in which key i has scores[i] for every query. */
static attention_pack make_pack(const attention_form *form, const float *scores)
{
    attention_pack p = attention_sample(form, LENGTH, 3);

    invar_test_fill(&p.q, 0.0f);
    invar_test_fill(&p.k, 0.0f);
    for (int64_t i = 0; i < LENGTH; i++) {
        invar_test_set(&p.q, i, 0, 1.0f);
        invar_test_set(&p.k, i, 0, scores[i]);
    }
    return p;
}

static void run_attention(const attention_pack *p, invar_cpu_path path)
{
    invar_device dev;

    invar_test_device_init(&dev, p->form.numerics, path, 1);
    attention_run(&dev, p);
    invar_test_device_release(&dev);
}

static void run_forward(const attention_pack *p, invar_cpu_path path)
{
    invar_device dev;

    invar_test_device_init(&dev, p->form.numerics, path, 1);
    attention_forward(&dev, p);
    invar_test_device_release(&dev);
}

/* ---- when it rises --------------------------------------------------------------------------- */

/*
 * Scores of two key blocks. All keys of the first block have the score `first`; the second block
 * has one key with `second` and one with `faint`.
 */
typedef struct rise {
    float first;
    float second;
    float faint;   /* smallest integer score whose weight is not +0 */
    float largest; /* weight of `second` */
} rise;

static const rise rises[] = {
    {0.0f, 8.0f, -126.0f, 256.0f},        // 8 above the reference, which stays
    {0.0f, 8.0625f, -117.0f, 0.5221368f}, // more than 8 above: it rises to the next integer
    {0.0f, 9.0f, -117.0f, 1.0f},
    {0.0f, 9.0625f, -116.0f, 0.5221368f},
    {0.0f, 100.0f, -26.0f, 1.0f},
    {0.0f, -50.0f, -126.0f, 0x1p-50f}, // the reference never falls
    {0.5f, 8.0f, -125.0f, 128.0f},     // the first reference is the next integer above the scores
    {0.5f, 9.0f, -125.0f, 256.0f},
    {0.5f, 9.0625f, -116.0f, 0.5221368f},
    {-3.5f, -50.0f, -129.0f, 0x1p-47f},
    {-3.0f, 5.0f, -129.0f, 256.0f},
};
enum { RISES = sizeof rises / sizeof *rises };

/* Returns a sample with the scores of `r`; the faint score is `below` lower than in the table. */
static attention_pack rise_pack(const attention_form *form, const rise *r, float below)
{
    float scores[LENGTH];
    attention_pack p;

    for (int j = 0; j < LENGTH; j++)
        scores[j] = j < INVAR_ATTENTION_BLOCK ? r->first : WEIGHTLESS;
    scores[INVAR_ATTENTION_BLOCK + 1] = r->second;
    scores[INVAR_ATTENTION_BLOCK + 70] = r->faint - below;
    p = make_pack(form, scores);
    invar_test_fill(&p.v, 0.0f);
    invar_test_set(&p.v, INVAR_ATTENTION_BLOCK + 70, 0, 0x1p100f);
    invar_test_set(&p.v, INVAR_ATTENTION_BLOCK + 1, 1, 1.0f);
    return p;
}

static void test_attention_softmax__reference_rises_by_more_than_eight(void **state)
{
    (void)state;
    for (int n = 0; n < RISES * KINDS * 2; n++) {
        const rise *r = &rises[n / 2 / KINDS];
        attention_form form = make_form(n / 2 % KINDS, 0);
        invar_cpu_path path = n % 2 ? INVAR_CPU_PATH_PORTABLE : INVAR_CPU_PATH_SIMD;
        attention_pack seen, lost;
        float big, sum;

        if (!invar_test_full() && n % 2 != (n / 2 / KINDS + n / 2 % KINDS) % 2)
            continue; // by default the paths alternate
        seen = rise_pack(&form, r, 0.0f), lost = rise_pack(&form, r, 1.0f);
        run_forward(&seen, path);
        run_forward(&lost, path);
        if (!(invar_test_get(&seen.o, LENGTH - 1, 0) > 0.0f))
            fail_msg("scores %g, %g: a weight of 2^%g is lost", (double)r->first, (double)r->second,
                     (double)r->faint);
        if (invar_test_get(&lost.o, LENGTH - 1, 0) != 0.0f)
            fail_msg("scores %g, %g: a weight of 2^%g is there", (double)r->first,
                     (double)r->second, (double)r->faint - 1.0);
        // derive both weights from the outputs
        sum = 0x1p-126f / invar_test_get(&seen.o, LENGTH - 1, 0) * 0x1p100f;
        big = invar_test_get(&seen.o, LENGTH - 1, 1) * sum;
        assert_true(fabsf(big / r->largest - 1.0f) < 0.02f); // three roundings to bf16
        attention_pack_free(&seen);
        attention_pack_free(&lost);
    }
}

/* Control: a naive form that rises at more than 7, or only at more than 9, has other outputs. */
static void test_attention_softmax__other_references_differ(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        attention_form form = make_form(kind, 0);
        bool early = false, late = false;

        for (int i = 0; i < RISES; i++)
            for (int below = 0; below < 2; below++) {
                attention_pack p, twisted;

                if (!invar_test_full() && below != (i + kind) % 2)
                    continue;
                p = rise_pack(&form, &rises[i], (float)below);
                twisted = rise_pack(&form, &rises[i], (float)below);
                run_forward(&p, INVAR_CPU_PATH_SIMD);
                expression_forward(&twisted, 0, TWIST_NONE);
                assert_forward_bits(&p, 0, &twisted, 0, LENGTH, "untwisted");
                if (!early) {
                    expression_forward(&twisted, 0, TWIST_RISES_EARLY);
                    early = invar_tensors_differ(&p.o, &twisted.o);
                }
                if (!late) {
                    expression_forward(&twisted, 0, TWIST_RISES_LATE);
                    late = invar_tensors_differ(&p.o, &twisted.o);
                }
                attention_pack_free(&p);
                attention_pack_free(&twisted);
            }
        assert_true(early);
        assert_true(late);
    }
}

/* When the reference rises, earlier sums are scaled by an exact power of two: lse2 by hand. */
static void test_attention_softmax__sums_follow_the_reference(void **state)
{
    static const struct {
        rise r;
        float m, l;
    } cases[] = {
        {{.first = 0.0f, .second = 8.0f}, 0.0f, 128.0f + 256.0f},
        {{.first = 0.0f, .second = 20.0f}, 20.0f, 128.0f * 0x1p-20f + 1.0f},
        {{.first = 3.0f, .second = -2.0f}, 3.0f, 128.0f + 0x1p-5f},
        {{.first = -60.0f, .second = 70.0f}, 70.0f, 1.0f}, // the factor is +0
    };

    (void)state;
    for (int n = 0; n < 4 * KINDS * 2; n++) {
        attention_form form = make_form(n / 4 % KINDS, n / 4 / KINDS ? INVAR_ATTENTION_BLOCK : 0);
        attention_pack p = rise_pack(&form, &cases[n % 4].r, 1000.0f);
        float m = cases[n % 4].m, l = cases[n % 4].l, lse2;

        // each span has its own reference, here 0 and 8; the merged one is the larger
        if (form.shape.kv_span > 0 && n % 4 == 0)
            m = 8.0f, l = 128.0f * 0x1p-8f + 1.0f;
        run_forward(&p, INVAR_CPU_PATH_SIMD);
        lse2 = fmaf(invar_log(l), 0x1.715476p0f, m);
        assert_int_equal(invar_f32_bits(invar_test_get(&p.lse2, LENGTH - 1, 0)),
                         invar_f32_bits(lse2));
        attention_pack_free(&p);
    }
}

/* ---- large scores ---------------------------------------------------------------------------- */

static void test_attention_softmax__accuracy_up_to_two_to_the_22(void **state)
{
    static const float tops[] = {4194303.0f, 4000000.0f, -4000000.0f, -4194302.0f, 2097152.25f};
    attention_form form = make_form(2, 0);

    (void)state;
    for (size_t i = 0; i < sizeof tops / sizeof *tops; i++) {
        float scores[LENGTH] = {tops[i] - 1.0f, tops[i]};
        attention_pack p = make_pack(&form, scores);

        invar_test_fill(&p.v, 0.0f);
        invar_test_set(&p.v, 0, 0, 1.0f);
        invar_test_set(&p.v, 1, 1, 1.0f);
        run_forward(&p, INVAR_CPU_PATH_SIMD);
        assert_true(fabs((double)invar_test_get(&p.o, 1, 0) - 1.0 / 3.0) < 1e-7);
        assert_true(fabs((double)invar_test_get(&p.o, 1, 1) - 2.0 / 3.0) < 1e-7);
        // half an ulp of the result and half an ulp of the logarithm
        assert_true(fabs((double)invar_test_get(&p.lse2, 1, 0) - (double)tops[i] - log2(1.5)) <
                    0.26);
        attention_pack_free(&p);
    }
}

/* At this size bf16 scores are multiples of 2^14: equal scores share the weight, others have 0. */
static void test_attention_softmax__equal_scores_up_to_two_to_the_22(void **state)
{
    (void)state;
    for (int n = 0; n < KINDS * 2; n++) {
        attention_form form = make_form(n / 2, 0);
        float top = n % 2 ? -4177920.0f : 4177920.0f; // 255 * 2^14
        float scores[LENGTH] = {top - 16384.0f, top, top};
        attention_pack p = make_pack(&form, scores);

        invar_test_fill(&p.v, 0.0f);
        invar_test_set(&p.v, 0, 0, 1.0f);
        invar_test_set(&p.v, 1, 1, 1.0f);
        invar_test_set(&p.v, 2, 2, 1.0f);
        run_forward(&p, INVAR_CPU_PATH_SIMD);
        assert_true(invar_test_get(&p.o, 2, 0) == 0.0f);
        assert_true(invar_test_get(&p.o, 2, 1) == 0.5f);
        assert_true(invar_test_get(&p.o, 2, 2) == 0.5f);
        assert_true(invar_test_get(&p.lse2, 2, 0) == top + 1.0f);
        attention_pack_free(&p);
    }
}

/* ---- NaN and infinite scores ----------------------------------------------------------------- */

/* Moderate scores, exact in bf16. */
static void moderate_scores(float *scores)
{
    for (int j = 0; j < LENGTH; j++)
        scores[j] = (float)(j * 37 % 65 - 32) / 8.0f;
}

static void assert_rows_bits(const invar_tensor *a, const invar_tensor *b, int64_t first,
                             int64_t count, const char *what)
{
    invar_tensor x = invar_tensor_rows(a, first, count), y = invar_tensor_rows(b, first, count);

    invar_assert_bits_tensor(&x, &y, what);
}

static void assert_rows_nan(const invar_tensor *t, int64_t first, int64_t end, const char *what)
{
    for (int64_t i = first; i < end; i++)
        for (int64_t j = 0; j < invar_tensor_row_elements(t); j++)
            if (!isnan(invar_test_get(t, i, j)))
                fail_msg("%s: row %d is not NaN", what, (int)i);
}

/* A score of NaN or +inf makes o, lse2 and dq NaN in all rows that see it, and in no other row. */
static void test_attention_softmax__nan_and_infinity_poison_their_rows(void **state)
{
    const float values[] = {NAN, -NAN, INFINITY};
    const int64_t keys[] = {0, 5, 130, LENGTH - 1}, spans[] = {0, INVAR_ATTENTION_BLOCK};
    attention_pack clean; // without such a score; for each form

    (void)state;
    for (int n = 0; n < 3 * 4 * 2 * KINDS; n++) {
        attention_form form = make_form(n / 24, spans[n / 12 % 2]);
        int64_t key = keys[n / 3 % 4];
        float scores[LENGTH];
        attention_pack p;
        char what[64];

        moderate_scores(scores);
        if (n % 12 == 0) {
            if (n > 0)
                attention_pack_free(&clean);
            clean = make_pack(&form, scores);
            run_attention(&clean, INVAR_CPU_PATH_SIMD);
        }
        if (!invar_test_full() && (n % 3 != n / 3 % 3 || n / 12 % 2 != n / 24 % 2))
            continue; // by default one value per key, and one span per kind

        snprintf(what, sizeof what, "kind %d, span %d, %g at %d", n / 24, (int)form.shape.kv_span,
                 (double)values[n % 3], (int)key);
        scores[key] = values[n % 3];
        p = make_pack(&form, scores);
        run_attention(&p, INVAR_CPU_PATH_SIMD);
        assert_rows_bits(&p.o, &clean.o, 0, key, what);
        assert_rows_bits(&p.lse2, &clean.lse2, 0, key, what);
        assert_rows_bits(&p.dq, &clean.dq, 0, key, what);
        assert_rows_nan(&p.o, key, LENGTH, what);
        assert_rows_nan(&p.lse2, key, LENGTH, what);
        assert_rows_nan(&p.dq, key, LENGTH, what);
        attention_pack_free(&p);
    }
    attention_pack_free(&clean);
}

/*
 * Checks scores of -inf at the keys [begin, end): the rows [nan_from, nan_end) are NaN, the others
 * equal those with a finite score whose weight is +0.
 */
static void check_minus_infinity(const attention_form *form, int64_t begin, int64_t end,
                                 int64_t nan_from, int64_t nan_end)
{
    float scores[LENGTH];
    attention_pack without, p;
    char what[64];

    snprintf(what, sizeof what, "%s, span %d, -inf at %d to %d", invar_dtype_name(form->dtype),
             (int)form->shape.kv_span, (int)begin, (int)end);
    moderate_scores(scores);
    for (int64_t j = begin; j < end; j++)
        scores[j] = WEIGHTLESS;
    without = make_pack(form, scores);
    for (int64_t j = begin; j < end; j++)
        scores[j] = -INFINITY;
    p = make_pack(form, scores);
    run_forward(&without, INVAR_CPU_PATH_SIMD);
    run_forward(&p, INVAR_CPU_PATH_SIMD);
    assert_rows_bits(&p.o, &without.o, 0, nan_from, what);
    assert_rows_bits(&p.lse2, &without.lse2, 0, nan_from, what);
    assert_rows_nan(&p.o, nan_from, nan_end, what);
    assert_rows_nan(&p.lse2, nan_from, nan_end, what);
    assert_rows_bits(&p.o, &without.o, nan_end, LENGTH - nan_end, what);
    assert_rows_bits(&p.lse2, &without.lse2, nan_end, LENGTH - nan_end, what);
    attention_pack_free(&without);
    attention_pack_free(&p);
}

/* A score of -inf has the weight +0, unless a span of the row begins with -inf only. */
static void test_attention_softmax__minus_infinity_has_no_weight(void **state)
{
    enum { BLOCK = INVAR_ATTENTION_BLOCK };

    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        attention_form one_span = make_form(kind, 0), spans = make_form(kind, BLOCK);

        check_minus_infinity(&one_span, 7, 8, 0, 0);
        check_minus_infinity(&one_span, 130, 131, 0, 0);
        check_minus_infinity(&one_span, BLOCK, LENGTH, 0, 0); // a later block
        check_minus_infinity(&one_span, 0, 3, 0, 3);
        check_minus_infinity(&one_span, 0, BLOCK, 0, LENGTH); // nothing finite in the first block
        check_minus_infinity(&spans, 7, 8, 0, 0);
        check_minus_infinity(&spans, BLOCK, BLOCK + 9, BLOCK, BLOCK + 9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_softmax__reference_rises_by_more_than_eight),
        cmocka_unit_test(test_attention_softmax__other_references_differ),
        cmocka_unit_test(test_attention_softmax__sums_follow_the_reference),
        cmocka_unit_test(test_attention_softmax__accuracy_up_to_two_to_the_22),
        cmocka_unit_test(test_attention_softmax__equal_scores_up_to_two_to_the_22),
        cmocka_unit_test(test_attention_softmax__nan_and_infinity_poison_their_rows),
        cmocka_unit_test(test_attention_softmax__minus_infinity_has_no_weight),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
