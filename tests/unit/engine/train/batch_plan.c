/*
 * batch_plan.c - tests of the batch plan: units and micro-batches within their limits.
 *
 * Short plans are compared with tables. For random batches, every sample must be in one unit and
 * every unit in one micro-batch, in order, and none may be smaller than the limits allow.
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
    int64_t rows, count; /* unit-rows and unit-count */
    int64_t samples;
    int64_t tokens[10]; /* (samples) rows of each sample */
    int64_t units;      /* expected number of units */
    int64_t first[11];  /* (units + 1) expected first sample of each unit, then the end */
} unit_case;

static void test_batch_plan__units_by_hand(void **state)
{
    static const unit_case cases[] = {
        // limited by samples: floor(n / unit-count) per unit, but at least one
        {100, 3, 7, {5, 5, 5, 5, 5, 5, 5}, 4, {0, 2, 4, 6, 7}},
        {100, 7, 7, {5, 5, 5, 5, 5, 5, 5}, 7, {0, 1, 2, 3, 4, 5, 6, 7}},
        {100, 64, 3, {5, 5, 5}, 3, {0, 1, 2, 3}},
        {100, 1, 4, {5, 5, 5, 5}, 1, {0, 4}},
        // limited by rows: a unit of exactly unit-rows rows, and one row too many
        {10, 1, 4, {5, 5, 5, 6}, 3, {0, 2, 3, 4}},
        {9, 1, 3, {5, 4, 5}, 2, {0, 2, 3}},
        // a sample above unit-rows is a unit of its own and ends the unit before it
        {10, 1, 5, {3, 11, 3, 3, 5}, 4, {0, 1, 2, 4, 5}},
        {1, 1, 3, {4, 4, 4}, 3, {0, 1, 2, 3}},
        // both limits
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

static void test_batch_plan__micro_batches_keep_the_samples(void **state)
{
    // units of two samples: a micro-batch of at most 5 samples has two units
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
    // a unit above the limit is a micro-batch of its own
    assert_ok(invar_batch_plan_make(&plan, tokens, 7, &(invar_batch_plan_options){10, 1, 1, 0}));
    assert_int_equal(plan.n_micro_batches, 4);
    assert_list(plan.first_sample, (const int64_t[]){0, 2, 4, 6, 7}, 5);
    invar_batch_plan_release(&plan);
}

static void test_batch_plan__dynamic_micro_batches_keep_the_limit(void **state)
{
    // rows of the units of two samples: 7, 3, 12 (above the limit), 4, 6
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

static void test_batch_plan__without_limits_all_is_one_micro_batch(void **state)
{
    static const int64_t tokens[3] = {1000, 1, 1000};
    invar_batch_plan plan;

    (void)state;
    assert_ok(invar_batch_plan_make(&plan, tokens, 3, &(invar_batch_plan_options){1, 1, 0, 0}));
    assert_int_equal(plan.n_micro_batches, 1);
    assert_list(plan.first_sample, (const int64_t[]){0, 3}, 2);
    invar_batch_plan_release(&plan);
}

static void test_batch_plan__no_samples_no_micro_batches(void **state)
{
    invar_batch_plan plan;

    (void)state;
    assert_ok(invar_batch_plan_make(&plan, NULL, 0, &(invar_batch_plan_options){4, 4, 2, 100}));
    assert_int_equal(plan.units, 0);
    assert_int_equal(plan.n_micro_batches, 0);
    assert_int_equal(plan.first_sample[0], 0);
    invar_batch_plan_release(&plan);
}

/* ---- random batches -------------------------------------------------------------------------- */

static int64_t sum(const int64_t *tokens, int64_t first, int64_t end)
{
    int64_t total = 0;

    for (int64_t i = first; i < end; i++)
        total += tokens[i];
    return total;
}

/* Units cover all samples within the limits, and no unit could contain the next sample. */
static void check_units(const invar_batch_plan *plan, const int64_t *tokens,
                        const invar_batch_plan_options *o)
{
    int64_t n = plan->samples, max_samples = n / o->unit_count > 1 ? n / o->unit_count : 1,
            longest = 0;

    for (int64_t i = 0; i < n; i++)
        longest = tokens[i] > longest ? tokens[i] : longest;
    assert_int_equal(plan->unit_sample[0], 0);
    assert_int_equal(plan->unit_sample[plan->units], n);
    assert_true(plan->units >= (o->unit_count < n ? o->unit_count : n));
    for (int64_t u = 0; u < plan->units; u++) {
        int64_t first = plan->unit_sample[u], end = plan->unit_sample[u + 1];
        int64_t rows = sum(tokens, first, end);

        assert_in_range(end - first, 1, max_samples);
        assert_true(rows <= (o->unit_rows > longest ? o->unit_rows : longest));
        assert_true(end - first == 1 || rows <= o->unit_rows);
        assert_true(end == n || end - first == max_samples || rows + tokens[end] > o->unit_rows);
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
        assert_true(first < end); // not empty, so that each unit is in one micro-batch
        assert_int_equal(plan->first_sample[b], plan->unit_sample[first]);
        assert_int_equal(plan->first_sample[b + 1], plan->unit_sample[end]);
        rows = sum(tokens, plan->first_sample[b], plan->first_sample[b + 1]);
        samples = plan->first_sample[b + 1] - plan->first_sample[b];
        assert_true(rows <= plan->max_tokens);
        assert_true(o->micro_batch == 0 || samples <= o->micro_batch || end - first == 1);
        assert_true(o->max_tokens == 0 || rows <= o->max_tokens || end - first == 1);
        // the next unit does not fit into this micro-batch
        if (end < plan->units) {
            rows += sum(tokens, plan->unit_sample[end], plan->unit_sample[end + 1]);
            samples += plan->unit_sample[end + 1] - plan->unit_sample[end];
            assert_true((o->micro_batch > 0 && samples > o->micro_batch) ||
                        (o->max_tokens > 0 && rows > o->max_tokens));
        }
    }
}

static void test_batch_plan__covers_all_units_once_in_order(void **state)
{
    int64_t tokens[MAX_SAMPLES], n_cases = invar_test_count(2000, 200000), n_several = 0,
                                 n_large_units = 0;

    (void)state;
    for (int64_t round = 0; round < n_cases; round++) {
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
        n_several += plan.n_micro_batches > 1;
        n_large_units += plan.units < samples;
        invar_batch_plan_release(&plan);
    }
    assert_true(n_several > n_cases / 4 &&
                n_large_units > n_cases / 4); // the limits had an effect in many cases
}

/* The limits of micro-batches do not change the units. */
static void test_batch_plan__micro_batches_change_no_unit(void **state)
{
    int64_t tokens[MAX_SAMPLES];

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        invar_batch_plan_options options = {1 + invar_test_random(seed, 1) % 300,
                                            1 + invar_test_random(seed, 2) % 20, 0, 0};
        invar_batch_plan unlimited, limited;
        for (uint64_t i = 0; i < MAX_SAMPLES; i++)
            tokens[i] = invar_test_random(seed, 10 + i) % 60;
        assert_ok(invar_batch_plan_make(&unlimited, tokens, MAX_SAMPLES, &options));
        options.micro_batch = invar_test_random(seed, 3) % 9;
        options.max_tokens = invar_test_random(seed, 4) % 200;
        assert_ok(invar_batch_plan_make(&limited, tokens, MAX_SAMPLES, &options));
        assert_int_equal(limited.units, unlimited.units);
        assert_list(limited.unit_sample, unlimited.unit_sample, unlimited.units + 1);
        invar_batch_plan_release(&unlimited);
        invar_batch_plan_release(&limited);
    }
}

static void test_batch_plan__refuses_impossible_numbers(void **state)
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
    invar_batch_plan_release(&plan); // allowed after a failure
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_plan__units_by_hand),
        cmocka_unit_test(test_batch_plan__micro_batches_keep_the_samples),
        cmocka_unit_test(test_batch_plan__dynamic_micro_batches_keep_the_limit),
        cmocka_unit_test(test_batch_plan__without_limits_all_is_one_micro_batch),
        cmocka_unit_test(test_batch_plan__no_samples_no_micro_batches),
        cmocka_unit_test(test_batch_plan__covers_all_units_once_in_order),
        cmocka_unit_test(test_batch_plan__micro_batches_change_no_unit),
        cmocka_unit_test(test_batch_plan__refuses_impossible_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
