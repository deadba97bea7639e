/*
 * plan.c - tests of the batch plan: everything once, in order, within the limits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/plan.h"

#include "tests/support.h"

enum { MAX_SAMPLES = 64 };

static void assert_list(const int64_t *got, const int64_t *expected, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(got[i], expected[i]);
}

/* ---- by hand --------------------------------------------------------------------------------- */

static void test_engine_plan__micro_batches_of_a_fixed_number_of_units(void **state)
{
    static const int64_t tokens[7] = {5, 5, 5, 5, 5, 5, 5};
    invar_plan plan;

    (void)state;
    assert_ok(invar_plan_make(&plan, tokens, 7, &(invar_plan_options){2, 3, 0}));
    assert_int_equal(plan.units, 4);
    assert_list(plan.unit_sample, (const int64_t[]){0, 2, 4, 6, 7}, 5);
    assert_int_equal(plan.count, 2);
    assert_list(plan.unit, (const int64_t[]){0, 3, 4}, 3);
    assert_list(plan.sample, (const int64_t[]){0, 6, 7}, 3);
    assert_int_equal(plan.max_tokens, 30);
    invar_plan_release(&plan);
}

static void test_engine_plan__dynamic_micro_batches_keep_the_limit(void **state)
{
    // units of two: 7, 3, 12 (too large, alone), 4, 6
    static const int64_t tokens[10] = {3, 4, 1, 2, 6, 6, 4, 0, 5, 1};
    invar_plan plan;

    (void)state;
    assert_ok(invar_plan_make(&plan, tokens, 10, &(invar_plan_options){2, 0, 10}));
    assert_int_equal(plan.count, 3);
    assert_list(plan.unit, (const int64_t[]){0, 2, 3, 5}, 4);
    assert_list(plan.sample, (const int64_t[]){0, 4, 6, 10}, 4);
    assert_int_equal(plan.max_tokens, 12);
    invar_plan_release(&plan);
}

static void test_engine_plan__without_limits_all_is_one_micro_batch(void **state)
{
    static const int64_t tokens[3] = {1000, 1, 1000};
    invar_plan plan;

    (void)state;
    assert_ok(invar_plan_make(&plan, tokens, 3, &(invar_plan_options){1, 0, 0}));
    assert_int_equal(plan.count, 1);
    assert_list(plan.sample, (const int64_t[]){0, 3}, 2);
    invar_plan_release(&plan);
}

static void test_engine_plan__no_samples_no_micro_batches(void **state)
{
    invar_plan plan;

    (void)state;
    assert_ok(invar_plan_make(&plan, NULL, 0, &(invar_plan_options){4, 2, 100}));
    assert_int_equal(plan.units, 0);
    assert_int_equal(plan.count, 0);
    assert_int_equal(plan.sample[0], 0);
    invar_plan_release(&plan);
}

/* ---- any batch ------------------------------------------------------------------------------- */

static int64_t sum(const int64_t *tokens, int64_t first, int64_t end)
{
    int64_t total = 0;

    for (int64_t i = first; i < end; i++)
        total += tokens[i];
    return total;
}

static void check_plan(const invar_plan *plan, const int64_t *tokens, const invar_plan_options *o)
{
    assert_int_equal(plan->unit[0], 0);
    assert_int_equal(plan->unit[plan->count], plan->units);
    for (int64_t u = 0; u <= plan->units; u++)
        assert_int_equal(plan->unit_sample[u], u < plan->units ? u * o->unit : plan->samples);
    for (int64_t b = 0; b < plan->count; b++) {
        int64_t first = plan->unit[b], end = plan->unit[b + 1], rows;
        assert_true(first < end); // none is empty: with the ends above, each unit comes once
        assert_int_equal(plan->sample[b], plan->unit_sample[first]);
        assert_int_equal(plan->sample[b + 1], plan->unit_sample[end]);
        rows = sum(tokens, plan->sample[b], plan->sample[b + 1]);
        assert_true(rows <= plan->max_tokens);
        assert_true(o->micro_batch == 0 || end - first <= o->micro_batch);
        assert_true(o->max_tokens == 0 || rows <= o->max_tokens || end - first == 1);
        // no smaller number of micro-batches by taking one unit more into this one
        if (end < plan->units) {
            rows += sum(tokens, plan->unit_sample[end], plan->unit_sample[end + 1]);
            assert_true((o->micro_batch > 0 && end - first == o->micro_batch) ||
                        (o->max_tokens > 0 && rows > o->max_tokens));
        }
    }
}

static void test_engine_plan__covers_all_units_once_in_order(void **state)
{
    int64_t tokens[MAX_SAMPLES], rounds = invar_test_count(2000, 200000), several = 0;

    (void)state;
    for (int64_t round = 0; round < rounds; round++) {
        uint64_t seed = (uint64_t)round;
        int64_t samples = invar_test_random(seed, 0) % (MAX_SAMPLES + 1);
        invar_plan_options options = {1 + invar_test_random(seed, 1) % 9,
                                      invar_test_random(seed, 2) % 8,
                                      invar_test_random(seed, 3) % 200};
        invar_plan plan;
        for (int64_t i = 0; i < samples; i++)
            tokens[i] = invar_test_random(seed, 10 + (uint64_t)i) % 60;
        assert_ok(invar_plan_make(&plan, tokens, samples, &options));
        assert_int_equal(plan.samples, samples);
        check_plan(&plan, tokens, &options);
        several += plan.count > 1;
        invar_plan_release(&plan);
    }
    assert_true(several > rounds / 4); // the limits were at work
}

static void test_engine_plan__refuses_impossible_numbers(void **state)
{
    static const int64_t negative[2] = {1, -1}, huge[2] = {INT64_MAX, 1};
    invar_plan plan;

    (void)state;
    assert_fails(invar_plan_make(&plan, negative, 1, &(invar_plan_options){0, 1, 0}),
                 INVAR_E_INVALID, "units of 0");
    assert_fails(invar_plan_make(&plan, negative, -1, &(invar_plan_options){1, 1, 0}),
                 INVAR_E_INVALID, "-1 samples");
    assert_fails(invar_plan_make(&plan, negative, 1, &(invar_plan_options){1, -1, 0}),
                 INVAR_E_INVALID, "-1 units");
    assert_fails(invar_plan_make(&plan, negative, 1, &(invar_plan_options){1, 0, -1}),
                 INVAR_E_INVALID, "-1 tokens");
    assert_fails(invar_plan_make(&plan, negative, 2, &(invar_plan_options){1, 0, 0}),
                 INVAR_E_INVALID, "sample 1 has -1 tokens");
    assert_fails(invar_plan_make(&plan, huge, 2, &(invar_plan_options){1, 0, 0}), INVAR_E_INVALID,
                 "sample 1 has 1 tokens");
    invar_plan_release(&plan); // harmless after a failure
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_plan__micro_batches_of_a_fixed_number_of_units),
        cmocka_unit_test(test_engine_plan__dynamic_micro_batches_keep_the_limit),
        cmocka_unit_test(test_engine_plan__without_limits_all_is_one_micro_batch),
        cmocka_unit_test(test_engine_plan__no_samples_no_micro_batches),
        cmocka_unit_test(test_engine_plan__covers_all_units_once_in_order),
        cmocka_unit_test(test_engine_plan__refuses_impossible_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
