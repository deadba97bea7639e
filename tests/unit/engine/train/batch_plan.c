/*
 * batch_plan.c - tests of the batch plan: everything once, in order, within the limits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/batch_plan.h"

#include "tests/support.h"

enum { MAX_SAMPLES = 64 };

static void assert_list(const int64_t *got, const int64_t *expected, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(got[i], expected[i]);
}

/* ---- units by hand --------------------------------------------------------------------------- */

typedef struct unit_case {
    int64_t rows, count; /* unit-rows, unit-count */
    int64_t samples;
    int64_t tokens[10];
    int64_t units;
    int64_t first[11]; /* sample of each unit, and the end */
} unit_case;

static void test_engine_plan__units_by_hand(void **state)
{
    static const unit_case cases[] = {
        // samples are the limit: floor(n / unit-count) of them, one at least
        {100, 3, 7, {5, 5, 5, 5, 5, 5, 5}, 4, {0, 2, 4, 6, 7}},
        {100, 7, 7, {5, 5, 5, 5, 5, 5, 5}, 7, {0, 1, 2, 3, 4, 5, 6, 7}},
        {100, 64, 3, {5, 5, 5}, 3, {0, 1, 2, 3}},
        {100, 1, 4, {5, 5, 5, 5}, 1, {0, 4}},
        // rows are: exactly as many fit, one more does not
        {10, 1, 4, {5, 5, 5, 6}, 3, {0, 2, 3, 4}},
        {9, 1, 3, {5, 4, 5}, 2, {0, 2, 3}},
        // a long sample is alone, and so is what stands before it
        {10, 1, 5, {3, 11, 3, 3, 5}, 4, {0, 1, 2, 4, 5}},
        {1, 1, 3, {4, 4, 4}, 3, {0, 1, 2, 3}},
        // both
        {10, 2, 8, {2, 2, 2, 2, 2, 9, 1, 1}, 4, {0, 4, 5, 7, 8}},
        {10, 2, 7, {1, 1, 1, 1, 1, 9, 1}, 3, {0, 3, 5, 7}},
        {10, 5, 0, {0}, 0, {0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const unit_case *c = &cases[i];
        invar_batch_plan plan;

        assert_ok(invar_batch_plan_make(&plan, c->tokens, c->samples,
                                        &(invar_batch_plan_options){c->rows, c->count, 0, 0}));
        assert_int_equal(plan.units, c->units);
        assert_list(plan.unit_sample, c->first, c->units + 1);
        invar_batch_plan_release(&plan);
    }
}

/* ---- micro-batches by hand ------------------------------------------------------------------- */

static void test_engine_plan__micro_batches_keep_the_samples(void **state)
{
    // units of two: 2 + 2 samples, not 2 + 2 + 2
    static const int64_t tokens[7] = {5, 5, 5, 5, 5, 5, 5};
    invar_batch_plan plan;

    (void)state;
    assert_ok(invar_batch_plan_make(&plan, tokens, 7, &(invar_batch_plan_options){10, 1, 5, 0}));
    assert_list(plan.unit_sample, (const int64_t[]){0, 2, 4, 6, 7}, 5);
    assert_int_equal(plan.n_micro_batches, 2);
    assert_list(plan.first_unit, (const int64_t[]){0, 2, 4}, 3);
    assert_list(plan.first_sample, (const int64_t[]){0, 4, 7}, 3);
    assert_int_equal(plan.max_tokens, 20);
    invar_batch_plan_release(&plan);
    // a unit with more is one by itself
    assert_ok(invar_batch_plan_make(&plan, tokens, 7, &(invar_batch_plan_options){10, 1, 1, 0}));
    assert_int_equal(plan.n_micro_batches, 4);
    assert_list(plan.first_sample, (const int64_t[]){0, 2, 4, 6, 7}, 5);
    invar_batch_plan_release(&plan);
}

static void test_engine_plan__dynamic_micro_batches_keep_the_limit(void **state)
{
    // units of two: 7, 3, 12 (too large, alone), 4, 6
    static const int64_t tokens[10] = {3, 4, 1, 2, 6, 6, 4, 0, 5, 1};
    invar_batch_plan plan;

    (void)state;
    assert_ok(invar_batch_plan_make(&plan, tokens, 10, &(invar_batch_plan_options){12, 5, 0, 10}));
    assert_int_equal(plan.n_micro_batches, 3);
    assert_list(plan.first_unit, (const int64_t[]){0, 2, 3, 5}, 4);
    assert_list(plan.first_sample, (const int64_t[]){0, 4, 6, 10}, 4);
    assert_int_equal(plan.max_tokens, 12);
    invar_batch_plan_release(&plan);
}

static void test_engine_plan__without_limits_all_is_one_micro_batch(void **state)
{
    static const int64_t tokens[3] = {1000, 1, 1000};
    invar_batch_plan plan;

    (void)state;
    assert_ok(invar_batch_plan_make(&plan, tokens, 3, &(invar_batch_plan_options){1, 1, 0, 0}));
    assert_int_equal(plan.n_micro_batches, 1);
    assert_list(plan.first_sample, (const int64_t[]){0, 3}, 2);
    invar_batch_plan_release(&plan);
}

static void test_engine_plan__no_samples_no_micro_batches(void **state)
{
    invar_batch_plan plan;

    (void)state;
    assert_ok(invar_batch_plan_make(&plan, NULL, 0, &(invar_batch_plan_options){4, 4, 2, 100}));
    assert_int_equal(plan.units, 0);
    assert_int_equal(plan.n_micro_batches, 0);
    assert_int_equal(plan.first_sample[0], 0);
    invar_batch_plan_release(&plan);
}

/* ---- any batch ------------------------------------------------------------------------------- */

static int64_t sum(const int64_t *tokens, int64_t first, int64_t end)
{
    int64_t total = 0;

    for (int64_t i = first; i < end; i++)
        total += tokens[i];
    return total;
}

/* What the rule promises, and that no unit could have taken the next sample. */
static void check_units(const invar_batch_plan *plan, const int64_t *tokens,
                        const invar_batch_plan_options *o)
{
    int64_t n = plan->samples, share = n / o->unit_count > 1 ? n / o->unit_count : 1, longest = 0;

    for (int64_t i = 0; i < n; i++)
        longest = tokens[i] > longest ? tokens[i] : longest;
    assert_int_equal(plan->unit_sample[0], 0);
    assert_int_equal(plan->unit_sample[plan->units], n);
    assert_true(plan->units >= (o->unit_count < n ? o->unit_count : n));
    for (int64_t u = 0; u < plan->units; u++) {
        int64_t first = plan->unit_sample[u], end = plan->unit_sample[u + 1];
        int64_t rows = sum(tokens, first, end);

        assert_in_range(end - first, 1, share);
        assert_true(rows <= (o->unit_rows > longest ? o->unit_rows : longest));
        assert_true(end - first == 1 || rows <= o->unit_rows);
        assert_true(end == n || end - first == share || rows + tokens[end] > o->unit_rows);
    }
}

static void check_plan(const invar_batch_plan *plan, const int64_t *tokens,
                       const invar_batch_plan_options *o)
{
    check_units(plan, tokens, o);
    assert_int_equal(plan->first_unit[0], 0);
    assert_int_equal(plan->first_unit[plan->n_micro_batches], plan->units);
    for (int64_t b = 0; b < plan->n_micro_batches; b++) {
        int64_t first = plan->first_unit[b], end = plan->first_unit[b + 1], rows, samples;
        assert_true(first < end); // none is empty: with the ends above, each unit comes once
        assert_int_equal(plan->first_sample[b], plan->unit_sample[first]);
        assert_int_equal(plan->first_sample[b + 1], plan->unit_sample[end]);
        rows = sum(tokens, plan->first_sample[b], plan->first_sample[b + 1]);
        samples = plan->first_sample[b + 1] - plan->first_sample[b];
        assert_true(rows <= plan->max_tokens);
        assert_true(o->micro_batch == 0 || samples <= o->micro_batch || end - first == 1);
        assert_true(o->max_tokens == 0 || rows <= o->max_tokens || end - first == 1);
        // no smaller number of micro-batches by taking one unit more into this one
        if (end < plan->units) {
            rows += sum(tokens, plan->unit_sample[end], plan->unit_sample[end + 1]);
            samples += plan->unit_sample[end + 1] - plan->unit_sample[end];
            assert_true((o->micro_batch > 0 && samples > o->micro_batch) ||
                        (o->max_tokens > 0 && rows > o->max_tokens));
        }
    }
}

static void test_engine_plan__covers_all_units_once_in_order(void **state)
{
    int64_t tokens[MAX_SAMPLES], rounds = invar_test_count(2000, 200000), several = 0, full = 0;

    (void)state;
    for (int64_t round = 0; round < rounds; round++) {
        uint64_t seed = (uint64_t)round;
        int64_t samples = invar_test_random(seed, 0) % (MAX_SAMPLES + 1);
        invar_batch_plan_options options = {
            1 + invar_test_random(seed, 1) % 300, 1 + invar_test_random(seed, 4) % 20,
            invar_test_random(seed, 2) % 30, invar_test_random(seed, 3) % 400};
        invar_batch_plan plan;
        for (int64_t i = 0; i < samples; i++)
            tokens[i] = invar_test_random(seed, 10 + (uint64_t)i) % 60;
        assert_ok(invar_batch_plan_make(&plan, tokens, samples, &options));
        assert_int_equal(plan.samples, samples);
        check_plan(&plan, tokens, &options);
        several += plan.n_micro_batches > 1;
        full += plan.units < samples;
        invar_batch_plan_release(&plan);
    }
    assert_true(several > rounds / 4 && full > rounds / 4); // the limits were at work
}

/* The units of a step are the same whatever its micro-batches are. */
static void test_engine_plan__micro_batches_change_no_unit(void **state)
{
    int64_t tokens[MAX_SAMPLES];

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        invar_batch_plan_options options = {1 + invar_test_random(seed, 1) % 300,
                                            1 + invar_test_random(seed, 2) % 20, 0, 0};
        invar_batch_plan whole, cut;
        for (uint64_t i = 0; i < MAX_SAMPLES; i++)
            tokens[i] = invar_test_random(seed, 10 + i) % 60;
        assert_ok(invar_batch_plan_make(&whole, tokens, MAX_SAMPLES, &options));
        options.micro_batch = invar_test_random(seed, 3) % 9;
        options.max_tokens = invar_test_random(seed, 4) % 200;
        assert_ok(invar_batch_plan_make(&cut, tokens, MAX_SAMPLES, &options));
        assert_int_equal(cut.units, whole.units);
        assert_list(cut.unit_sample, whole.unit_sample, whole.units + 1);
        invar_batch_plan_release(&whole);
        invar_batch_plan_release(&cut);
    }
}

static void test_engine_plan__refuses_impossible_numbers(void **state)
{
    static const int64_t negative[2] = {1, -1}, huge[2] = {INT64_MAX, 1};
    invar_batch_plan plan;

    (void)state;
    assert_fails(invar_batch_plan_make(&plan, negative, 1, &(invar_batch_plan_options){0, 1, 1, 0}),
                 INVAR_E_INVALID, "at most 0 rows");
    assert_fails(invar_batch_plan_make(&plan, negative, 1, &(invar_batch_plan_options){1, 0, 1, 0}),
                 INVAR_E_INVALID, "at least 0 units");
    assert_fails(
        invar_batch_plan_make(&plan, negative, -1, &(invar_batch_plan_options){1, 1, 1, 0}),
        INVAR_E_INVALID, "-1 samples in");
    assert_fails(
        invar_batch_plan_make(&plan, negative, 1, &(invar_batch_plan_options){1, 1, -1, 0}),
        INVAR_E_INVALID, "-1 samples and");
    assert_fails(
        invar_batch_plan_make(&plan, negative, 1, &(invar_batch_plan_options){1, 1, 0, -1}),
        INVAR_E_INVALID, "-1 tokens");
    assert_fails(invar_batch_plan_make(&plan, negative, 2, &(invar_batch_plan_options){1, 1, 0, 0}),
                 INVAR_E_INVALID, "sample 1 has -1 tokens");
    assert_fails(invar_batch_plan_make(&plan, huge, 2, &(invar_batch_plan_options){1, 1, 0, 0}),
                 INVAR_E_INVALID, "sample 1 has 1 tokens");
    invar_batch_plan_release(&plan); // harmless after a failure
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_plan__units_by_hand),
        cmocka_unit_test(test_engine_plan__micro_batches_keep_the_samples),
        cmocka_unit_test(test_engine_plan__dynamic_micro_batches_keep_the_limit),
        cmocka_unit_test(test_engine_plan__without_limits_all_is_one_micro_batch),
        cmocka_unit_test(test_engine_plan__no_samples_no_micro_batches),
        cmocka_unit_test(test_engine_plan__covers_all_units_once_in_order),
        cmocka_unit_test(test_engine_plan__micro_batches_change_no_unit),
        cmocka_unit_test(test_engine_plan__refuses_impossible_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
