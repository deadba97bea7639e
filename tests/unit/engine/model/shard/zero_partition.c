/*
 * zero_partition.c - tests of the ZeRO partition: every row has one owner, and shares are balanced.
 *
 * Owners change only at leaf and scale boundaries. The byte ranges of all owners must be disjoint
 * and cover all masters and all weights. Ranks are simulated, because ownership is a function of
 * the model and of the number of ranks.
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

static int64_t local_rows(const invar_param *p)
{
    return p->local.experts * p->local.rows;
}

/* Checks that the owner may change at `row`: a boundary of leaves, scales and alignment. */
static void check_border(const invar_param *p, int64_t row)
{
    int64_t shard_row = row - invar_logical_shard_rows(p, invar_logical_shard_at(p, row)).first;

    assert_int_equal(row * invar_param_row_elements(p) * (int64_t)sizeof(float) % INVAR_ALIGN, 0);
    if (p->split.shards > 1 && p->split.columns)
        assert_int_equal(shard_row, 0);
    else
        assert_int_equal(
            shard_row * invar_param_row_elements(p) % INVAR_LOGICAL_SHARD_LEAF_ELEMENTS, 0);
    if (p->weight.scale_period)
        assert_int_equal(row % p->weight.scale_period, 0);
    else if (p->weight.scale_rows > 1)
        assert_int_equal(row % p->weight.scale_rows, 0);
}

/* Checks the owners of all rows; returns the number of changes of owner inside parameters. */
static int check_model(const invar_model *model)
{
    int size = model->layout->data.size, n_borders = 0;

    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        int64_t next = 0;

        for (int r = 0; r < size; r++) {
            invar_index_range rows = invar_zero_partition_rows(model, i, r);

            assert_true(rows.first == next && rows.count >= 0);
            next += rows.count;
            if (rows.count == 0 || next == local_rows(p))
                continue;
            check_border(p, next);
            n_borders++;
        }
        assert_int_equal(next, local_rows(p));
    }
    return n_borders;
}

/*
 * No rank has more than its share plus, for each group that is divided separately, the largest
 * parameter, which may stay undivided.
 */
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

/* Asserts that no byte has two owners; returns the number of bytes with an owner. */
static size_t check_disjoint(const invar_zero_ranges *owned)
{
    size_t n_bytes = 0;

    for (int64_t i = 0; i < owned->count; i++) {
        const invar_byte_range *a = &owned->ranges[i];
        n_bytes += a->bytes;
        for (int64_t j = 0; j < i; j++) {
            const invar_byte_range *b = &owned->ranges[j];
            assert_true(b->first + b->bytes <= a->first || a->first + a->bytes <= b->first);
        }
    }
    return n_bytes;
}

/* Asserts that every byte from `first` on has an owner; counts the bytes in *total. */
static void check_owned(size_t *total, const invar_zero_ranges *owned, size_t first, size_t bytes)
{
    size_t end = first + bytes;

    *total += bytes;
    while (first < end) {
        size_t before = first;

        for (int64_t i = 0; i < owned->count && first == before; i++) {
            const invar_byte_range *r = &owned->ranges[i];
            if (r->first <= first && first < r->first + r->bytes)
                first = r->first + r->bytes;
        }
        assert_true(first > before);
    }
}

/* Asserts that all weights, with their padding, and all scales have owners, and nothing else. */
static void check_weights(const invar_zero_ranges *owned, const invar_model *model)
{
    size_t total = 0;

    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_tensor *w = &model->params[i].weight;
        size_t bytes = (size_t)invar_param_elements(&model->params[i]) *
                       (size_t)invar_dtype_bits(w->dtype) / 8;

        if (bytes == 0) // another rank holds the parameter
            continue;
        check_owned(&total, owned, (size_t)((char *)w->data - (char *)model->memory.trained),
                    invar_aligned(bytes));
        if (w->scale)
            check_owned(&total, owned, (size_t)((char *)w->scale - (char *)model->memory.trained),
                        invar_tensor_scale_bytes(w));
    }
    assert_true(total > 0);
    assert_int_equal(check_disjoint(owned), total);
}

/* Every byte of the masters and of the weights has exactly one owner. */
static void check_bytes(const invar_model *model)
{
    size_t block = 0;
    invar_zero_ranges owned;

    assert_ok(invar_zero_ranges_masters(&owned, model));
    for (int64_t i = 0; i < model->n_params; i++)
        block += invar_aligned((size_t)invar_param_elements(&model->params[i]) * sizeof(float));
    for (int64_t i = 0; i < owned.count; i++)
        assert_true(owned.ranges[i].first + owned.ranges[i].bytes <= block);
    assert_true(check_disjoint(&owned) == block);
    check_balance(model, &owned);
    invar_zero_ranges_release(&owned);
    assert_ok(invar_zero_ranges_weights(&owned, model));
    check_weights(&owned, model);
    invar_zero_ranges_release(&owned);
}

/* Returns the model of one simulated rank. */
static invar_model *simulate_model(invar_layout *layout, const invar_model_spec *spec,
                                   invar_format format, invar_layout_sizes by, int ranks, int rank,
                                   const invar_device *dev)
{
    invar_model *model = NULL;

    assert_ok(invar_layout_simulate(layout, &by, ranks, rank));
    assert_ok(invar_model_new(&model, spec, format, layout, dev));
    return model;
}

static void test_zero_partition__rows_have_one(void **state)
{
    static const invar_layout_sizes by[] = {
        {.tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 1},
        {.tensor = 2, .expert_tensor = 2, .pipeline = 1, .virtual_stages = 1, .expert = 1},
        {.tensor = 1, .expert_tensor = 1, .pipeline = 2, .virtual_stages = 2, .expert = 1},
        {.tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 3}};
    int n_borders = 0;

    for (int format = 0; format < INVAR_FORMAT_COUNT; format++)
        for (int s = 0; s < SIZES; s++)
            for (size_t b = 0; b < sizeof by / sizeof *by; b++) {
                invar_model_spec spec =
                    sharded_spec(INVAR_TEST_MODEL_EXPERTS, (invar_format)format);
                int model_ranks = by[b].tensor * by[b].pipeline * by[b].expert;
                invar_layout layout;
                invar_model *model =
                    simulate_model(&layout, &spec, (invar_format)format, by[b],
                                   sizes[s] * model_ranks, sizes[s] * model_ranks - 1, *state);

                n_borders += check_model(model);
                check_bytes(model);
                invar_model_free(model);
                invar_layout_release(&layout);
            }
    assert_true(n_borders > 100); // control: many parameters are divided at all
}

/* Both ends of a pipeline have the tied embedding; a rank owns the same rows of it on both. */
static void test_zero_partition__ends_of_a_pipeline(void **state)
{
    invar_model_spec spec = sharded_spec(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16);
    const invar_layout_sizes by = {
        .tensor = 1, .expert_tensor = 1, .pipeline = 4, .virtual_stages = 1, .expert = 1};

    assert_true(spec.tied);
    for (int d = 0; d < 3; d++) {
        invar_layout first, last;
        invar_model *a = simulate_model(&first, &spec, INVAR_FORMAT_BF16, by, 12, d, *state);
        invar_model *b = simulate_model(&last, &spec, INVAR_FORMAT_BF16, by, 12, 9 + d, *state);
        invar_index_range x = invar_zero_partition_local_rows(a, 0),
                          y = invar_zero_partition_local_rows(b, 0);

        assert_true(a->part.stage == 0 && b->part.stage == 3);
        assert_true(x.count > 0 && x.first == y.first && x.count == y.count);
        invar_model_free(a);
        invar_model_free(b);
        invar_layout_release(&first);
        invar_layout_release(&last);
    }
}

static void test_zero_partition__one_rank_has_all(void **state)
{
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 1, *state);

    assert_false(invar_zero_partition_is_divided(model));
    for (int64_t i = 0; i < model->n_params; i++) {
        assert_int_equal(invar_zero_partition_local_rows(model, i).first, 0);
        assert_int_equal(invar_zero_partition_local_rows(model, i).count,
                         local_rows(&model->params[i]));
    }
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zero_partition__rows_have_one),
        cmocka_unit_test(test_zero_partition__ends_of_a_pipeline),
        cmocka_unit_test(test_zero_partition__one_rank_has_all),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
