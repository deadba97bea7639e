/*
 * zero_partition.c - every row of a parameter has one owner, no leaf has two, and nobody has much
 * more.
 *
 * Ranks are imagined: who owns what is a function of numbers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/zero_partition.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/shard/logical_shards.h"
#include "tests/sharded_model.h"

static const int sizes[] = {2, 3, 8, 64};
enum { SIZES = sizeof sizes / sizeof *sizes };

static int64_t rows_of(const invar_param *p)
{
    return p->local.experts * p->local.rows;
}

/* Where the rows of one owner end and those of another begin. */
static void check_border(const invar_param *p, int64_t row)
{
    int64_t into = row - invar_logical_shard_rows(p, invar_logical_shard_at(p, row)).first;

    assert_int_equal(row * invar_param_row_elements(p) * (int64_t)sizeof(float) % INVAR_ALIGN, 0);
    if (p->split.shards > 1 && p->split.columns)
        assert_int_equal(into, 0);
    else
        assert_int_equal(into * invar_param_row_elements(p) % INVAR_LOGICAL_SHARD_LEAF_ELEMENTS, 0);
    if (p->weight.scale_period)
        assert_int_equal(row % p->weight.scale_period, 0);
    else if (p->weight.scale_rows > 1)
        assert_int_equal(row % p->weight.scale_rows, 0);
}

/* Returns how many parameters have several owners. */
static int check_model(const invar_model *model)
{
    int size = model->layout->data.size, shared = 0;

    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        int64_t next = 0;

        for (int r = 0; r < size; r++) {
            invar_index_range rows = invar_zero_partition_rows(model, i, r);

            assert_true(rows.first == next && rows.count >= 0);
            next += rows.count;
            if (rows.count == 0 || next == rows_of(p))
                continue;
            check_border(p, next);
            shared++;
        }
        assert_int_equal(next, rows_of(p));
    }
    return shared;
}

/* Nobody has more than a share and, of each group, the largest parameter, which may stay whole. */
static void check_balance(const invar_model *model, const invar_zero_ranges *owned)
{
    size_t total = 0, largest = 0, groups = (size_t)model->part.chunks + 1;

    for (int r = 0; r < owned->size; r++)
        total += owned->bytes[r];
    for (int64_t i = 0; i < model->n_params; i++) {
        size_t bytes = (size_t)invar_param_elements(&model->params[i]) * sizeof(float);
        largest = bytes > largest ? bytes : largest;
    }
    for (int r = 0; r < owned->size; r++)
        assert_true(owned->bytes[r] <= total / (size_t)owned->size + groups * largest);
}

/* No byte is owned twice; yields how many are owned. */
static size_t check_apart(const invar_zero_ranges *owned)
{
    size_t seen = 0;

    for (int64_t i = 0; i < owned->count; i++) {
        const invar_byte_range *a = &owned->ranges[i];
        seen += a->bytes;
        for (int64_t j = 0; j < i; j++) {
            const invar_byte_range *b = &owned->ranges[j];
            assert_true(b->first + b->bytes <= a->first || a->first + a->bytes <= b->first);
        }
    }
    return seen;
}

/* Every byte of masters is somebody's, and nobody's twice; nor is any of what ops read. */
static void check_bytes(const invar_model *model)
{
    size_t block = 0;
    invar_zero_ranges owned;

    assert_ok(invar_zero_ranges_masters(&owned, model));
    for (int64_t i = 0; i < model->n_params; i++)
        block += invar_aligned((size_t)invar_param_elements(&model->params[i]) * sizeof(float));
    for (int64_t i = 0; i < owned.count; i++)
        assert_true(owned.ranges[i].first + owned.ranges[i].bytes <= block);
    assert_true(check_apart(&owned) == block);
    check_balance(model, &owned);
    invar_zero_ranges_release(&owned);
    assert_ok(invar_zero_ranges_weights(&owned, model));
    assert_true(check_apart(&owned) > 0);
    invar_zero_ranges_release(&owned);
}

static invar_model *imagine(invar_layout *layout, const invar_model_spec *spec, invar_format format,
                            invar_layout_sizes by, int ranks, int rank, const invar_device *dev)
{
    invar_model *model = NULL;

    assert_ok(invar_layout_simulate(layout, &by, ranks, rank));
    assert_ok(invar_model_new(&model, spec, format, layout, dev));
    return model;
}

static void test_owners__rows_have_one(void **state)
{
    static const invar_layout_sizes by[] = {
        {.tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 1},
        {.tensor = 2, .expert_tensor = 2, .pipeline = 1, .virtual_stages = 1, .expert = 1},
        {.tensor = 1, .expert_tensor = 1, .pipeline = 2, .virtual_stages = 2, .expert = 1},
        {.tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 3}};
    int shared = 0;

    for (int format = 0; format < INVAR_FORMAT_COUNT; format++)
        for (int s = 0; s < SIZES; s++)
            for (size_t b = 0; b < sizeof by / sizeof *by; b++) {
                invar_model_spec spec =
                    divided_spec(INVAR_TEST_MODEL_EXPERTS, (invar_format)format);
                int parts = by[b].tensor * by[b].pipeline * by[b].expert;
                invar_layout layout;
                invar_model *model = imagine(&layout, &spec, (invar_format)format, by[b],
                                             sizes[s] * parts, sizes[s] * parts - 1, *state);

                shared += check_model(model);
                check_bytes(model);
                invar_model_free(model);
                invar_layout_release(&layout);
            }
    assert_true(shared > 100); // else nothing was tried
}

/* Both ends of a pipeline have a tied embedding: what a rank owns of it is the same on both. */
static void test_owners__ends_of_a_pipeline(void **state)
{
    invar_model_spec spec = divided_spec(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16);
    const invar_layout_sizes by = {
        .tensor = 1, .expert_tensor = 1, .pipeline = 4, .virtual_stages = 1, .expert = 1};

    assert_true(spec.tied);
    for (int d = 0; d < 3; d++) {
        invar_layout first, last;
        invar_model *a = imagine(&first, &spec, INVAR_FORMAT_BF16, by, 12, d, *state);
        invar_model *b = imagine(&last, &spec, INVAR_FORMAT_BF16, by, 12, 9 + d, *state);
        invar_index_range x = invar_zero_partition_here(a, 0), y = invar_zero_partition_here(b, 0);

        assert_true(a->part.stage == 0 && b->part.stage == 3);
        assert_true(x.count > 0 && x.first == y.first && x.count == y.count);
        invar_model_free(a);
        invar_model_free(b);
        invar_layout_release(&first);
        invar_layout_release(&last);
    }
}

static void test_owners__one_rank_has_all(void **state)
{
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 1, *state);

    assert_false(invar_zero_partition_divide(model));
    for (int64_t i = 0; i < model->n_params; i++) {
        assert_int_equal(invar_zero_partition_here(model, i).first, 0);
        assert_int_equal(invar_zero_partition_here(model, i).count, rows_of(&model->params[i]));
    }
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owners__rows_have_one),
        cmocka_unit_test(test_owners__ends_of_a_pipeline),
        cmocka_unit_test(test_owners__one_rank_has_all),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
