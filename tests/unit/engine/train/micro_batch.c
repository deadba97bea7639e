/*
 * micro_batch.c - tests of packed micro-batches: expected arrays by hand, and rejected samples.
 *
 * Tokens are sample * 10 + position and routing values are sample * 100 + index, so that a wrong
 * index shows in the packed arrays.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/train/micro_batch.h"
#include "tests/support.h"

/* Prompts of 1, 2, 3 tokens and responses of 2, 1, 3; tokens are sample * 10 + position. */
enum { SAMPLES = 3, ROUTE = 2 };

typedef struct samples_fixture {
    int32_t tokens[SAMPLES][6];
    int32_t routing[SAMPLES][5 * ROUTE];
    invar_rl_sample samples[SAMPLES];
} samples_fixture;

static void make_samples(samples_fixture *s)
{
    static const int64_t prompt[SAMPLES] = {1, 2, 3}, response[SAMPLES] = {2, 1, 3};

    memset(s, 0, sizeof *s);
    for (int32_t i = 0; i < SAMPLES; i++) {
        for (int32_t j = 0; j < 6; j++)
            s->tokens[i][j] = 10 * i + j;
        for (int32_t j = 0; j < 5 * ROUTE; j++)
            s->routing[i][j] = 100 * i + j;
        s->samples[i] = (invar_rl_sample){.index = 7 + i,
                                          .tokens = s->tokens[i],
                                          .prompt_tokens = prompt[i],
                                          .n_tokens = prompt[i] + response[i],
                                          .routing = s->routing[i],
                                          .route_size = ROUTE};
    }
}

static void assert_i32(const int32_t *got, const int32_t *expected, size_t count)
{
    assert_memory_equal(got, expected, count * sizeof *got);
}

static void assert_i64(const int64_t *got, const int64_t *expected, size_t count)
{
    assert_memory_equal(got, expected, count * sizeof *got);
}

static void test_micro_batch__packs_rows_and_targets(void **state)
{
    const int32_t ids[] = {0, 1, 10, 11, 20, 21, 22, 23, 24};
    const int32_t positions[] = {0, 1, 0, 1, 0, 1, 2, 3, 4};
    const int32_t targets[] = {1, 2, 12, 23, 24, 25};
    const int64_t row[] = {0, 1, 3, 6, 7, 8};
    const int64_t units[] = {0, 2, 3};
    invar_micro_batch batch = {0};
    samples_fixture s;

    (void)state;
    make_samples(&s);
    assert_ok(invar_micro_batch_fill(&batch, s.samples,
                                     &(invar_micro_batch_plan){.count = SAMPLES,
                                                               .unit_start = units,
                                                               .units = 2,
                                                               .temperature = 0.5f,
                                                               .route = ROUTE}));
    assert_int_equal(batch.rows.count, 9);
    assert_i32(batch.rows.ids, ids, 9);
    assert_i32(batch.rows.positions, positions, 9);
    assert_int_equal(batch.rows.samples.count, SAMPLES);
    assert_i64(batch.rows.samples.offsets, (int64_t[]){0, 2, 4, 9}, 4);
    assert_int_equal(batch.rows.units.count, 2);
    assert_i64(batch.rows.units.offsets, (int64_t[]){0, 4, 9}, 3);
    assert_int_equal(batch.head.count, 6);
    assert_i64(batch.head.row, row, 6);
    assert_i32(batch.head.targets, targets, 6);
    assert_i64(batch.head.units.offsets, (int64_t[]){0, 3, 6}, 3);
    assert_true(batch.head.temperature == 0.5f);
    assert_non_null(batch.rows.routing);
    assert_null(batch.rows.routing_replay);
    invar_micro_batch_release(&batch);
    assert_null(batch.memory);
}

/* Packs a range of the samples after a larger fill, of which nothing may remain. */
static void test_micro_batch__packs_a_part(void **state)
{
    const int64_t units[] = {0, 1, 2, 3};
    invar_micro_batch batch = {0};
    samples_fixture s;

    (void)state;
    make_samples(&s);
    assert_ok(invar_micro_batch_fill(
        &batch, s.samples,
        &(invar_micro_batch_plan){
            .count = SAMPLES, .unit_start = units, .units = 3, .route = ROUTE}));
    assert_ok(invar_micro_batch_fill(&batch, s.samples,
                                     &(invar_micro_batch_plan){.first = 1,
                                                               .count = 2,
                                                               .unit_start = units + 1,
                                                               .units = 2,
                                                               .route = ROUTE,
                                                               .replay = true}));
    assert_int_equal(batch.rows.count, 7);
    assert_i32(batch.rows.ids, (int32_t[]){10, 11, 20, 21, 22, 23, 24}, 7);
    assert_i64(batch.rows.units.offsets, (int64_t[]){0, 2, 7}, 3);
    assert_i64(batch.head.units.offsets, (int64_t[]){0, 1, 4}, 3);
    // recorded routing of all rows; the last token of a sample has no row
    assert_i32(batch.rows.routing_replay,
               (int32_t[]){100, 101, 102, 103, 200, 201, 202, 203, 204, 205, 206, 207, 208, 209},
               14);
    invar_micro_batch_release(&batch);
}

/* A branch is a sequence: its positions start at 0. The number of rows and targets is the same. */
static void test_micro_batch__cuts_branches(void **state)
{
    const int64_t units[] = {0, 3};
    int64_t cuts[] = {4};
    invar_micro_batch batch = {0};
    samples_fixture s;

    (void)state;
    make_samples(&s);
    s.samples[2].branch_starts = cuts;
    s.samples[2].n_branch_starts = 1;
    assert_ok(invar_micro_batch_fill(
        &batch, s.samples,
        &(invar_micro_batch_plan){
            .count = SAMPLES, .unit_start = units, .units = 1, .route = ROUTE}));
    assert_int_equal(batch.rows.count, 9);
    assert_i32(batch.rows.ids, (int32_t[]){0, 1, 10, 11, 20, 21, 22, 23, 24}, 9);
    assert_i32(batch.rows.positions, (int32_t[]){0, 1, 0, 1, 0, 1, 2, 3, 0}, 9);
    assert_int_equal(batch.rows.samples.count, SAMPLES + 1);
    assert_i64(batch.rows.samples.offsets, (int64_t[]){0, 2, 4, 8, 9}, 5);
    assert_i64(batch.rows.units.offsets, (int64_t[]){0, 9}, 2);
    assert_int_equal(batch.head.count, 6);
    assert_i32(batch.head.targets, (int32_t[]){1, 2, 12, 23, 24, 25}, 6);
    // a branch needs a token before it and at least one row
    for (int64_t at = 0; at < 8; at++) {
        invar_status status;
        cuts[0] = at;
        status = invar_micro_batch_fill(
            &batch, s.samples,
            &(invar_micro_batch_plan){
                .count = SAMPLES, .unit_start = units, .units = 1, .route = ROUTE});
        assert_int_equal(status, at == 4 ? INVAR_OK : INVAR_E_INVALID);
    }
    invar_micro_batch_release(&batch);
}

static void test_micro_batch__refuses(void **state)
{
    const int64_t units[] = {0, 1, 2, 3};
    const invar_micro_batch_plan good = {
        .count = SAMPLES, .unit_start = units, .units = 3, .route = ROUTE};
    invar_micro_batch_plan plan = good;
    invar_micro_batch batch = {0};
    samples_fixture s;

    (void)state;
    make_samples(&s);
    s.samples[1].n_tokens = s.samples[1].prompt_tokens;
    assert_fails(invar_micro_batch_fill(&batch, s.samples, &plan), INVAR_E_INVALID, "sample 8 has");
    make_samples(&s);
    s.samples[2].prompt_tokens = 0;
    assert_fails(invar_micro_batch_fill(&batch, s.samples, &plan), INVAR_E_INVALID, "sample 9 has");
    // files may have routing of another model, or a size without routing, which only a replay
    // rejects
    make_samples(&s);
    plan.route = 0;
    assert_ok(invar_micro_batch_fill(&batch, s.samples, &plan));
    plan.route = ROUTE + 1;
    assert_ok(invar_micro_batch_fill(&batch, s.samples, &plan));
    plan.replay = true;
    assert_fails(invar_micro_batch_fill(&batch, s.samples, &plan), INVAR_E_INVALID,
                 "another model sampled it");
    plan = good;
    s.samples[1].routing = NULL;
    s.samples[1].route_size = 1000000;
    assert_ok(invar_micro_batch_fill(&batch, s.samples, &plan));
    plan.replay = true;
    assert_fails(invar_micro_batch_fill(&batch, s.samples, &plan), INVAR_E_INVALID,
                 "sample 8 has no recorded routing");
    invar_micro_batch_release(&batch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_micro_batch__packs_rows_and_targets),
        cmocka_unit_test(test_micro_batch__packs_a_part),
        cmocka_unit_test(test_micro_batch__cuts_branches),
        cmocka_unit_test(test_micro_batch__refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
