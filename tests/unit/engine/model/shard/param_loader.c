/*
 * param_loader.c - a rank has masters of the rows that it owns, and what ops read of all rows,
 * however a model is filled.
 *
 * Ranks are imagined: each is filled by itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/param_loader.h"

#include <string.h>

#include "engine/model/shard/master_weights.h"
#include "engine/run/memory_plan/phase_arena.h"
#include "tests/device/fake_gpu.h"
#include "tests/sharded_model.h"

enum { SEED = 7 };

static const int sizes[] = {1, 2, 3, 8};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void imagine(invar_layout *layout, int ranks, int rank)
{
    const invar_layout_sizes by = {
        .tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 1};

    assert_ok(invar_layout_simulate(layout, &by, ranks, rank));
}

static void fill(invar_param_loader *f, const invar_model *one, int64_t i, int64_t first,
                 int64_t rows)
{
    const invar_param *p = &f->model->params[i];
    int64_t each = invar_param_row_elements(p);
    float *values;

    assert_ok(invar_param_loader_buffer(&values, f, p, first, rows));
    memcpy(values, (const float *)one->params[i].master.data + first * each,
           (size_t)(rows * each) * sizeof *values);
    assert_ok(invar_param_loader_put(f));
}

/* From the last parameter to the first, and the experts of a stack one by one, or all at once. */
static void fill_all(invar_model *model, const invar_model *one, bool backwards,
                     const invar_device *dev)
{
    invar_param_loader f;

    invar_param_loader_init(&f, model, dev);
    for (int64_t k = 0; k < model->n_params; k++) {
        int64_t i = backwards ? model->n_params - 1 - k : k;
        const invar_param *p = &model->params[i];

        for (int64_t e = 0; e < p->stack; e++)
            fill(&f, one, i, e * p->local.rows, p->local.rows);
    }
    invar_param_loader_release(&f);
}

static void check_same(const invar_model *one, const invar_model *model)
{
    assert_ok(divided_same_model(one, model));
}

static void check_other(const invar_model *one, const invar_model *model)
{
    assert_int_equal(divided_same_model(one, model), INVAR_E_MISMATCH);
    invar_error_clear();
}

/* A value of a row differs, be it the rank's own or that of another. */
static void check_control(const invar_model *one, invar_model *model, const invar_device *dev)
{
    const float wrong = 42.0f;
    invar_param_loader f;
    float *values;

    invar_param_loader_init(&f, model, dev);
    for (int64_t i = 0; i < 2; i++) {
        const invar_param *p = &model->params[i * model->first[1]]; // embedding, norm
        assert_ok(invar_param_loader_buffer_all(&values, &f, p));
        memcpy(values, one->params[p - model->params].master.data,
               (size_t)invar_param_elements(p) * sizeof *values);
        values[invar_param_elements(p) - 1] = wrong;
        assert_ok(invar_param_loader_put(&f));
        check_other(one, model);
        fill(&f, one, p - model->params, 0, invar_param_rows(p));
        check_same(one, model);
    }
    invar_param_loader_release(&f);
}

static void check_rank(const invar_model *one, int ranks, int rank, const invar_device *dev)
{
    invar_layout layout;
    invar_model *model;

    imagine(&layout, ranks, rank);
    assert_ok(invar_model_new(&model, &one->spec, one->format, &layout, dev));
    assert_ok(invar_model_init(model, SEED + 1, dev));
    check_other(one, model);
    fill_all(model, one, rank % 2 == 1, dev);
    check_same(one, model);
    check_control(one, model, dev);
    assert_ok(invar_model_init(model, SEED + 1, dev));
    assert_ok(invar_model_init(model, SEED, dev));
    check_same(one, model);
    invar_model_free(model);
    invar_layout_release(&layout);
}

static void test_fill__own_rows_are_those_of_one_rank(void **state)
{
    const invar_device *dev = *state;
    invar_device far;

    assert_ok(invar_far_open(&far, dev));
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        invar_model_spec spec = divided_spec(INVAR_TEST_MODEL_EXPERTS, (invar_format)format);
        invar_model *one;

        assert_ok(invar_model_new(&one, &spec, (invar_format)format, NULL, dev));
        assert_ok(invar_model_init(one, SEED, dev));
        for (int s = 0; s < SIZES; s++)
            if (invar_test_full() || (format + s) % 3 == 0)
                check_rank(one, sizes[s], (format + s) % sizes[s], s % 2 == 0 ? dev : &far);
        invar_model_free(one);
    }
    assert_int_equal(invar_far_counted().live, 0);
    invar_device_close(&far);
}

/* More than one staging of rows: scales are those of the whole parameter. */
static void test_fill__large_parameters_go_in_parts(void **state)
{
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, true);
    invar_model *one, *alone;

    spec.layers = 1;
    spec.intermediate = 35 * 1024 + 128; // times 64 or 128 columns
    assert_ok(invar_model_new(&one, &spec, INVAR_FORMAT_FP8, NULL, *state));
    assert_ok(invar_model_init(one, SEED, *state));
    check_rank(one, 3, 1, *state);
    assert_ok(invar_model_new_weights(&alone, &spec, INVAR_FORMAT_FP8, NULL, *state));
    assert_ok(invar_model_init(alone, SEED, *state));
    for (int64_t i = 0; i < one->n_params; i++) {
        assert_false(invar_tensor_present(&alone->params[i].master));
        assert_false(invar_tensors_differ(&alone->params[i].weight, &one->params[i].weight));
    }
    invar_model_free(alone);
    invar_model_free(one);
}

/* Of masters a rank takes its share of bytes, and a row block more at most for each border. */
static void test_masters__take_a_share_of_memory(void **state)
{
    invar_model_spec spec = divided_spec(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16);
    size_t all = 0, block = (size_t)(spec.expert_intermediate * spec.hidden) * sizeof(float);

    for (int s = 0; s < SIZES; s++) {
        size_t sum = 0;

        for (int r = 0; r < sizes[s]; r++) {
            invar_model *model, *weights;
            size_t alone, taken;
            invar_phase_arena stage;
            invar_layout layout;

            imagine(&layout, sizes[s], r);
            invar_phase_arena_init(&stage, *state, 0);
            assert_ok(
                invar_model_new_weights(&weights, &spec, INVAR_FORMAT_BF16, &layout, &stage.dev));
            alone = stage.allocated_bytes;
            assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_BF16, &layout, &stage.dev));
            taken = stage.allocated_bytes - 2 * alone;
            sum += taken;
            assert_true(s == 0 || taken <= all / (size_t)sizes[s] + 3 * block);
            invar_model_free(model);
            invar_model_free(weights);
            invar_layout_release(&layout);
        }
        all = s == 0 ? sum : all;
        assert_int_equal(sum, all);
    }
}

/* In any order the same values have the same sum, and a value changes it. */
static void test_fill__sums_up_what_came(void **state)
{
    invar_model_spec spec = divided_spec(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16);
    invar_model *one, *model[3];
    invar_layout layout;

    imagine(&layout, 2, 0);
    assert_ok(invar_model_new(&one, &spec, INVAR_FORMAT_BF16, NULL, *state));
    assert_ok(invar_model_init(one, SEED, *state));
    for (int i = 0; i < 3; i++) {
        assert_ok(invar_model_new(&model[i], &spec, INVAR_FORMAT_BF16, &layout, *state));
        if (i == 2)
            ((float *)one->params[2].master.data)[0] += 1.0f;
        fill_all(model[i], one, i == 1, *state);
    }
    assert_memory_equal(model[0]->load_checksum, model[1]->load_checksum,
                        sizeof model[0]->load_checksum);
    assert_memory_not_equal(model[0]->load_checksum, model[2]->load_checksum,
                            sizeof model[0]->load_checksum);
    for (int i = 0; i < 3; i++)
        invar_model_free(model[i]);
    assert_true(one->load_checksum[0] == 0 &&
                one->load_checksum[1] == 0); // nobody has another copy
    invar_model_free(one);
    invar_layout_release(&layout);
}

/* Who owns rows does not depend on the format: so weights of one can be made from masters of
 * another. */
static void test_masters__have_the_same_owners_in_all_formats(void **state)
{
    for (int s = 1; s < SIZES; s++) {
        invar_model_spec spec = divided_spec(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP8);
        invar_model *of[INVAR_FORMAT_COUNT];
        invar_layout layout;

        imagine(&layout, sizes[s], sizes[s] - 1);
        for (int f = 0; f < INVAR_FORMAT_COUNT; f++)
            assert_ok(invar_model_new(&of[f], &spec, (invar_format)f, &layout, *state));
        for (int f = 1; f < INVAR_FORMAT_COUNT; f++)
            assert_memory_equal(of[f]->zero_rows, of[0]->zero_rows,
                                (size_t)(of[0]->n_params * (sizes[s] + 1)) * sizeof(int64_t));
        for (int f = 0; f < INVAR_FORMAT_COUNT; f++)
            invar_model_free(of[f]);
        invar_layout_release(&layout);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill__own_rows_are_those_of_one_rank),
        cmocka_unit_test(test_fill__large_parameters_go_in_parts),
        cmocka_unit_test(test_fill__sums_up_what_came),
        cmocka_unit_test(test_masters__take_a_share_of_memory),
        cmocka_unit_test(test_masters__have_the_same_owners_in_all_formats),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
