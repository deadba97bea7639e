/*
 * attention_expression.c - tests that attention has the bits of its expression, written naively.
 *
 * Controls: a naive form with another order of sums, block size or exponential (attention_twist)
 * has other bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>

#include "tests/unit/kernels-deterministic/cpu/attention_expression.h"

static const int64_t groups[] = {1, 2, 4, 7};
static const int64_t dims[] = {16, 64, 80, 128, 192};
static const int64_t windows[] = {0, 1, 17, 130};
static const struct {
    int64_t kv, q;
} spans[] = {{0, 0}, {128, 256}, {256, 128}, {256, 0}, {0, 128}};

#define N_ITEMS(x) ((int64_t)(sizeof(x) / sizeof *(x)))

static void check_form(const attention_form *form, int64_t length, const char *what)
{
    // only the middle sample is compared; its short neighbors must not affect it
    int64_t lengths[] = {3, length, 5};
    attention_pack p = attention_pack_new(form, 3, lengths);
    attention_pack expected = attention_pack_new(form, 3, lengths);
    invar_device dev;

    for (int64_t i = 0; i < 3; i++) {
        attention_fill(&p, i, (uint64_t)(i + 10));
        attention_fill(&expected, i, (uint64_t)(i + 10));
    }
    invar_test_device_init(&dev, form->numerics, INVAR_CPU_PATH_SIMD, 1);
    attention_run(&dev, &p);
    expression_forward(&expected, 1, TWIST_NONE);
    expression_backward(&expected, 1, TWIST_NONE);
    assert_forward_bits(&p, 1, &expected, 1, length, what);
    assert_backward_bits(&p, 1, &expected, 1, what);
    invar_test_device_release(&dev);
    attention_pack_free(&p);
    attention_pack_free(&expected);
}

/* Returns the number of a combination of indexes into the lists. */
#define COMBINATION(kind, dim, window, span, group)                                                \
    ((kind) + N_ITEMS(attention_kinds) *                                                           \
                  ((dim) + N_ITEMS(dims) * ((window) + N_ITEMS(windows) *                          \
                                                           ((span) + N_ITEMS(spans) * (group)))))

/*
 * All combinations of the lists; by default a selection that has each value of each list, each dim,
 * window and span with bf16 under sm90, and many heads only if they are narrow.
 */
static void test_attention_expression__bits_match(void **state)
{
    const int64_t reduced[] = {
        COMBINATION(0, 4, 0, 1, 0), COMBINATION(0, 0, 2, 2, 3), COMBINATION(0, 1, 3, 4, 1),
        COMBINATION(0, 3, 1, 0, 0), COMBINATION(0, 2, 0, 3, 0), COMBINATION(1, 0, 0, 3, 2),
        COMBINATION(1, 2, 1, 1, 0), COMBINATION(1, 3, 3, 4, 0), COMBINATION(2, 3, 2, 3, 0),
        COMBINATION(2, 0, 0, 4, 3), COMBINATION(2, 4, 1, 2, 0), COMBINATION(3, 0, 3, 1, 3),
        COMBINATION(3, 1, 2, 0, 1)};
    bool full = invar_test_full();
    int64_t all = full ? COMBINATION(3, 4, 3, 4, 3) + 1 : N_ITEMS(reduced);

    (void)state;
    for (int64_t index = 0; index < all; index++) {
        int64_t n = full ? index : reduced[index];
        int64_t kind = n % N_ITEMS(attention_kinds), i = n / N_ITEMS(attention_kinds);
        attention_form form = {
            attention_kinds[kind].numerics, attention_kinds[kind].dtype, 0, 1, 0, {0.0f, 0, 0, 0}};
        char what[160];
        int64_t length;

        form.dim = dims[i % N_ITEMS(dims)], i /= N_ITEMS(dims);
        form.shape.window = windows[i % N_ITEMS(windows)], i /= N_ITEMS(windows);
        form.shape.kv_span = spans[i % N_ITEMS(spans)].kv;
        form.shape.q_span = spans[i % N_ITEMS(spans)].q, i /= N_ITEMS(spans);
        form.heads = groups[i];
        // two blocks and two spans; three in every fifth case
        length = form.shape.kv_span == 256 || form.shape.q_span == 256 || n % 5 == 0 ? 269 : 141;
        snprintf(what, sizeof what,
                 "%s %s, %" PRId64 " heads, dim %" PRId64 ", window %" PRId64 ", spans %" PRId64
                 " %" PRId64,
                 invar_dtype_name(form.dtype), invar_numerics_name(form.numerics), form.heads,
                 form.dim, form.shape.window, form.shape.kv_span, form.shape.q_span);
        check_form(&form, length, what);
    }
}

/* Several kv heads, unusual head dims, and explicit scales. */
static void test_attention_expression__bits_match_unusual_shapes(void **state)
{
    static const attention_form forms[] = {
        {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 6, 3, 1, {0.3f, 0, 0, 0}},
        {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 3, 3, 33, {0.0f, 65, 128, 128}},
        {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 4, 2, 47, {1.7f, 0, 128, 128}},
        {INVAR_NUMERICS_IEEE, INVAR_DTYPE_BF16, 2, 2, 129, {0.05f, 0, 64, 64}},
        {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 2, 1, 256, {0.01f, 70, 192, 192}},
        {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 160, 1, 2, {0.0f, 0, 0, 0}},
        {INVAR_NUMERICS_IEEE, INVAR_DTYPE_BF16, 1, 1, 130, {0.0f, 5, 64, 64}}, // rows skip spans
    };
    static const int64_t lengths[] = {150, 200, 130, 100, 66, 9, 260};

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char what[32];

        snprintf(what, sizeof what, "form %zu", i);
        check_form(&forms[i], lengths[i], what);
    }
}

/* Control: each twist of the forward gives other bits. */
static void test_attention_expression__twists_differ(void **state)
{
    (void)state;
    for (int64_t kind = 0; kind < 3; kind++) {
        attention_form form = {
            attention_kinds[kind].numerics, attention_kinds[kind].dtype, 2, 1, 16, {0.0f, 0, 0, 0}};
        attention_pack right = attention_sample(&form, 269, 7);
        attention_pack wrong = attention_sample(&form, 269, 7);

        expression_forward(&right, 0, TWIST_NONE);
        for (attention_twist t = TWIST_BLOCKS_DESCENDING; t < TWIST_DQ_ASCENDING; t++) {
            expression_forward(&wrong, 0, t);
            if (!invar_tensors_differ(&right.o, &wrong.o) &&
                !invar_tensors_differ(&right.lse2, &wrong.lse2))
                fail_msg("kind %d: twist %d gives the same bits", (int)kind, (int)t);
        }
        attention_pack_free(&right);
        attention_pack_free(&wrong);
    }
}

static void assert_gradients(const attention_pack *a, const attention_pack *b, bool differ)
{
    assert_int_equal(invar_tensors_differ(&a->dq, &b->dq), differ);
    assert_int_equal(invar_tensors_differ(&a->dk, &b->dk), differ);
    assert_int_equal(invar_tensors_differ(&a->dv, &b->dv), differ);
}

/* Only bf16 under sm90 uses the special function unit for weights. */
static void test_attention_expression__sfu_is_for_bf16_under_sm90(void **state)
{
    (void)state;
    for (int64_t kind = 0; kind < N_ITEMS(attention_kinds); kind++) {
        attention_form form = {
            attention_kinds[kind].numerics, attention_kinds[kind].dtype, 2, 1, 16, {0.0f, 0, 0, 0}};
        attention_pack p = attention_sample(&form, 269, 7);
        attention_pack other = attention_sample(&form, 269, 7);
        invar_device dev;

        invar_test_device_init(&dev, form.numerics, INVAR_CPU_PATH_SIMD, 1);
        attention_forward(&dev, &p);
        expression_forward(&other, 0, TWIST_SFU);
        assert_int_equal(invar_tensors_differ(&p.lse2, &other.lse2), kind != 0);
        assert_int_equal(invar_tensors_differ(&p.o, &other.o), kind != 0);
        expression_forward(&other, 0, TWIST_POLYNOMIAL);
        assert_int_equal(invar_tensors_differ(&p.lse2, &other.lse2), kind == 0);
        assert_int_equal(invar_tensors_differ(&p.o, &other.o), kind == 0);

        expression_forward(&other, 0, TWIST_NONE);
        attention_backward(&dev, &p);
        expression_backward(&other, 0, TWIST_SFU);
        assert_gradients(&p, &other, kind != 0);
        expression_backward(&other, 0, TWIST_POLYNOMIAL);
        assert_gradients(&p, &other, kind == 0);
        invar_test_device_release(&dev);
        attention_pack_free(&p);
        attention_pack_free(&other);
    }
}

/* Control for the backward, in f32, because bf16 would round most differences away. */
static void test_attention_expression__twisted_gradients_differ(void **state)
{
    attention_form form = {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 2, 1, 16, {0.0f, 0, 0, 0}};
    attention_pack right = attention_sample(&form, 269, 7), wrong = attention_sample(&form, 269, 7);

    (void)state;
    expression_forward(&right, 0, TWIST_NONE);
    expression_forward(&wrong, 0, TWIST_NONE);
    expression_backward(&right, 0, TWIST_NONE);
    expression_backward(&wrong, 0, TWIST_DQ_ASCENDING);
    assert_true(invar_tensors_differ(&right.dq, &wrong.dq));
    assert_false(invar_tensors_differ(&right.dk, &wrong.dk));
    expression_backward(&wrong, 0, TWIST_HEADS_DESCENDING);
    assert_false(invar_tensors_differ(&right.dq, &wrong.dq));
    assert_true(invar_tensors_differ(&right.dk, &wrong.dk));
    assert_true(invar_tensors_differ(&right.dv, &wrong.dv));
    attention_pack_free(&right);
    attention_pack_free(&wrong);
}

/*
 * Checks dk and dv with logical shards of heads. Control: if the query heads of some kv head are in
 * several shards (`split`), the bits differ from those of one shard.
 */
static void check_shards(const attention_form *form, int32_t shards, int64_t atom, bool split)
{
    attention_pack got = attention_sample(form, 150, 7), one_shard = attention_sample(form, 150, 7);
    attention_pack expected = attention_sample(form, 150, 7);
    invar_device dev;

    got.head_shards = expected.head_shards = shards;
    got.head_atom = expected.head_atom = atom;
    invar_test_device_init(&dev, form->numerics, INVAR_CPU_PATH_SIMD, 2);
    attention_run(&dev, &got);
    attention_run(&dev, &one_shard);
    invar_test_device_release(&dev);
    expression_forward(&expected, 0, TWIST_NONE);
    expression_backward(&expected, 0, TWIST_NONE);
    assert_backward_bits(&got, 0, &expected, 0, "shards of heads");
    assert_false(invar_tensors_differ(&got.dq, &one_shard.dq));
    // control
    assert_int_equal(invar_tensors_differ(&got.dk, &one_shard.dk), split);
    assert_int_equal(invar_tensors_differ(&got.dv, &one_shard.dv), split);
    attention_pack_free(&got);
    attention_pack_free(&one_shard);
    attention_pack_free(&expected);
}

static void test_attention_expression__shards_of_heads(void **state)
{
    static const struct {
        int64_t heads, kv_heads, atom;
        int32_t shards;
        bool split;
    } cases[] = {{8, 8, 1, 8, false}, {8, 2, 1, 2, false}, {8, 2, 1, 4, true},  {8, 1, 1, 8, true},
                 {8, 2, 2, 8, true},  {11, 1, 1, 8, true}, {22, 11, 1, 8, true}};

    (void)state;
    for (int64_t n = 0; n < N_ITEMS(cases); n++)
        for (int64_t span = 0; span <= 128; span += 128) {
            if (!invar_test_full() && span / 128 != n % 2)
                continue;
            attention_form form = {
                INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, cases[n].heads, cases[n].kv_heads, 16,
                {0.0f, 0, 0, span}};
            check_shards(&form, cases[n].shards, cases[n].atom, cases[n].split);
        }
}

/* Under sm90, each head begins a new group of the dot-step. */
static void test_attention_expression__shards_of_heads_sm90(void **state)
{
    attention_form form = {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 8, 1, 16, {0.0f, 0, 0, 0}};

    (void)state;
    check_shards(&form, 8, 1, true);
}

/*
 * Compares o, lse2, dq, dk and dv of a sample with the given spans to those without spans. The
 * gradients are computed from one forward, so that they show the effect on the backward alone.
 */
static void compare_spans(bool differs[5], int64_t length, int64_t kv_span, int64_t q_span)
{
    attention_form form = {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 2, 1, 16, {0.0f, 0, 0, 0}};
    attention_pack without_spans = attention_sample(&form, length, 7);
    attention_pack with_spans = attention_sample(&form, length, 7);
    const invar_tensor *results[][2] = {{&without_spans.o, &with_spans.o},
                                        {&without_spans.lse2, &with_spans.lse2},
                                        {&without_spans.dq, &with_spans.dq},
                                        {&without_spans.dk, &with_spans.dk},
                                        {&without_spans.dv, &with_spans.dv}};
    invar_device dev;

    invar_test_device_init(&dev, form.numerics, INVAR_CPU_PATH_SIMD, 1);
    attention_run(&dev, &without_spans);
    with_spans.form.shape.kv_span = kv_span;
    with_spans.form.shape.q_span = q_span;
    attention_run(&dev, &with_spans);
    for (int i = 0; i < 2; i++)
        differs[i] = invar_tensors_differ(results[i][0], results[i][1]);
    with_spans.form.shape.kv_span = 0; // the gradients of the same forward
    attention_forward(&dev, &with_spans);
    with_spans.form.shape.kv_span = kv_span;
    attention_backward(&dev, &with_spans);
    for (int i = 2; i < 5; i++)
        differs[i] = invar_tensors_differ(results[i][0], results[i][1]);
    invar_test_device_release(&dev);
    attention_pack_free(&without_spans);
    attention_pack_free(&with_spans);
}

/* A sample of at most one span is unaffected. In longer ones, each span affects its results. */
static void test_attention_expression__spans_affect_longer_samples(void **state)
{
    static const struct {
        int64_t length, kv, q;
        bool differs[5]; /* o, lse2, dq, dk, dv */
    } cases[] = {{256, 256, 256, {false}},
                 {300, 384, 512, {false}},
                 {300, 256, 0, {true, true, true, false, false}},
                 {300, 0, 256, {false, false, false, true, true}},
                 {300, 256, 256, {true, true, true, true, true}}};

    (void)state;
    for (int64_t n = 0; n < N_ITEMS(cases); n++) {
        bool differs[5];

        compare_spans(differs, cases[n].length, cases[n].kv, cases[n].q);
        for (int i = 0; i < 5; i++)
            if (differs[i] != cases[n].differs[i])
                fail_msg("case %d: result %d %s", (int)n, i, differs[i] ? "differs" : "is equal");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_expression__bits_match),
        cmocka_unit_test(test_attention_expression__bits_match_unusual_shapes),
        cmocka_unit_test(test_attention_expression__twists_differ),
        cmocka_unit_test(test_attention_expression__sfu_is_for_bf16_under_sm90),
        cmocka_unit_test(test_attention_expression__twisted_gradients_differ),
        cmocka_unit_test(test_attention_expression__shards_of_heads),
        cmocka_unit_test(test_attention_expression__shards_of_heads_sm90),
        cmocka_unit_test(test_attention_expression__spans_affect_longer_samples),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
