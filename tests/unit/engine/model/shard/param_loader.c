/*
 * param_loader.c - tests of loading parameters on ranks that share masters (ZeRO).
 *
 * A rank must have the masters of the rows that it owns, and the weights of all rows, in whatever
 * order they are loaded. All are compared with a model of one rank. Control: one wrong value is
 * found, in rows of this rank and of others. Ranks are simulated, one at a time.
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

/* Simulates the layout of one data-parallel rank. */
static void simulate_layout(invar_layout *layout, int ranks, int rank)
{
    const invar_layout_sizes by = {
        .tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 1};

    assert_ok(invar_layout_simulate(layout, &by, ranks, rank));
}

/* Loads rows of parameter `i` from the model of one rank. */
static void load_rows(invar_param_loader *loader, const invar_model *one, int64_t i, int64_t first,
                      int64_t rows)
{
    const invar_param *p = &loader->model->params[i];
    int64_t row_elements = invar_param_row_elements(p);
    float *values;

    assert_ok(invar_param_loader_buffer(&values, loader, p, first, rows));
    memcpy(values, (const float *)one->params[i].master.data + first * row_elements,
           (size_t)(rows * row_elements) * sizeof *values);
    assert_ok(invar_param_loader_store(loader));
}

/* Loads all parameters, optionally from the last to the first; experts one by one. */
static void load_all(invar_model *model, const invar_model *one, bool backwards,
                     const invar_device *dev)
{
    invar_param_loader loader;

    invar_param_loader_init(&loader, model, dev);
    for (int64_t k = 0; k < model->n_params; k++) {
        int64_t i = backwards ? model->n_params - 1 - k : k;
        const invar_param *p = &model->params[i];

        for (int64_t e = 0; e < p->stack; e++)
            load_rows(&loader, one, i, e * p->local.rows, p->local.rows);
    }
    invar_param_loader_release(&loader);
}

static void check_same(const invar_model *one, const invar_model *model)
{
    assert_ok(sharded_compare_model(one, model));
}

static void check_other(const invar_model *one, const invar_model *model)
{
    assert_int_equal(sharded_compare_model(one, model), INVAR_E_MISMATCH);
    invar_error_clear();
}

/* Control: a wrong value is found, in a row that this rank owns or in one of another rank. */
static void check_control(const invar_model *one, invar_model *model, const invar_device *dev)
{
    const float wrong = 42.0f;
    invar_param_loader loader;
    float *values;

    invar_param_loader_init(&loader, model, dev);
    for (int64_t i = 0; i < 2; i++) {
        const invar_param *p = &model->params[i * model->first[1]]; // embedding, norm
        assert_ok(invar_param_loader_buffer_all(&values, &loader, p));
        memcpy(values, one->params[p - model->params].master.data,
               (size_t)invar_param_elements(p) * sizeof *values);
        values[invar_param_elements(p) - 1] = wrong;
        assert_ok(invar_param_loader_store(&loader));
        check_other(one, model);
        load_rows(&loader, one, p - model->params, 0, invar_param_rows(p));
        check_same(one, model);
    }
    invar_param_loader_release(&loader);
}

static void check_rank(const invar_model *one, int ranks, int rank, bool control,
                       const invar_device *dev)
{
    invar_layout layout;
    invar_model *model;

    simulate_layout(&layout, ranks, rank);
    assert_ok(invar_model_new(&model, &one->spec, one->format, &layout, dev));
    assert_ok(invar_model_init(model, SEED + 1, dev));
    check_other(one, model);
    load_all(model, one, rank % 2 == 1, dev);
    check_same(one, model);
    if (control) {
        check_control(one, model, dev);
        assert_ok(invar_model_init(model, SEED + 1, dev));
        assert_ok(invar_model_init(model, SEED, dev));
        check_same(one, model);
    }
    invar_model_free(model);
    invar_layout_release(&layout);
}

static void test_param_loader__own_rows_are_those_of_one_rank(void **state)
{
    const invar_device *dev = *state;
    invar_device fake_gpu;

    assert_ok(invar_fake_gpu_open(&fake_gpu, dev));
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        invar_model_spec spec = sharded_spec(INVAR_TEST_MODEL_EXPERTS, (invar_format)format);
        invar_model *one;

        assert_ok(invar_model_new(&one, &spec, (invar_format)format, NULL, dev));
        assert_ok(invar_model_init(one, SEED, dev));
        for (int s = 0; s < SIZES; s++)
            if (invar_test_full() || s == (format + 1) % SIZES)
                check_rank(one, sizes[s], (format + s) % sizes[s], true,
                           s % 2 == 0 ? dev : &fake_gpu);
        invar_model_free(one);
    }
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_device_close(&fake_gpu);
}

/* A parameter larger than the staging buffer gets the scales of the complete parameter. */
static void test_param_loader__large_parameters_go_in_parts(void **state)
{
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, true);
    invar_model *one, *weights_only;

    spec.layers = 1;
    spec.intermediate = 35 * 1024 + 128; // times 64 or 128 columns
    assert_ok(invar_model_new(&one, &spec, INVAR_FORMAT_FP8, NULL, *state));
    assert_ok(invar_model_init(one, SEED, *state));
    check_rank(one, 3, 1, invar_test_full(), *state); // else smaller parameters have the control
    assert_ok(invar_model_new_weights(&weights_only, &spec, INVAR_FORMAT_FP8, NULL, *state));
    assert_ok(invar_model_init(weights_only, SEED, *state));
    for (int64_t i = 0; i < one->n_params; i++) {
        assert_false(invar_tensor_present(&weights_only->params[i].master));
        assert_false(invar_tensors_differ(&weights_only->params[i].weight, &one->params[i].weight));
    }
    invar_model_free(weights_only);
    invar_model_free(one);
}

/*
 * The masters of all ranks add up to those of one rank. Each rank has its share of the bytes, plus
 * at most three blocks of rows that cannot be divided.
 */
static void test_masters__take_a_share_of_memory(void **state)
{
    invar_model_spec spec = sharded_spec(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16);
    size_t all = 0, block = (size_t)(spec.experts.intermediate * spec.hidden) * sizeof(float);

    for (int s = 0; s < SIZES; s++) {
        size_t sum = 0;

        for (int r = 0; r < sizes[s]; r++) {
            invar_model *model, *weights;
            size_t weights_only, master_bytes;
            invar_phase_arena arena;
            invar_layout layout;

            simulate_layout(&layout, sizes[s], r);
            invar_phase_arena_init(&arena, *state, 0);
            assert_ok(
                invar_model_new_weights(&weights, &spec, INVAR_FORMAT_BF16, &layout, &arena.dev));
            weights_only = arena.allocated_bytes;
            assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_BF16, &layout, &arena.dev));
            master_bytes = arena.allocated_bytes - 2 * weights_only;
            sum += master_bytes;
            assert_true(s == 0 || master_bytes <= all / (size_t)sizes[s] + 3 * block);
            invar_model_free(model);
            invar_model_free(weights);
            invar_layout_release(&layout);
        }
        all = s == 0 ? sum : all;
        assert_int_equal(sum, all);
    }
}

/* The checksum does not depend on the order of loading; a changed value changes it. */
static void test_param_loader__checksum_of_values(void **state)
{
    invar_model_spec spec = sharded_spec(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16);
    invar_model *one, *model[3];
    invar_layout layout;

    simulate_layout(&layout, 2, 0);
    assert_ok(invar_model_new(&one, &spec, INVAR_FORMAT_BF16, NULL, *state));
    assert_ok(invar_model_init(one, SEED, *state));
    for (int i = 0; i < 3; i++) {
        assert_ok(invar_model_new(&model[i], &spec, INVAR_FORMAT_BF16, &layout, *state));
        if (i == 2)
            ((float *)one->params[2].master.data)[0] += 1.0f;
        load_all(model[i], one, i == 1, *state);
    }
    assert_memory_equal(model[0]->load_checksum, model[1]->load_checksum,
                        sizeof model[0]->load_checksum);
    assert_memory_not_equal(model[0]->load_checksum, model[2]->load_checksum,
                            sizeof model[0]->load_checksum);
    for (int i = 0; i < 3; i++)
        invar_model_free(model[i]);
    // a single rank has no other rank to compare with, and sums nothing
    assert_true(one->load_checksum[0] == 0 && one->load_checksum[1] == 0);
    invar_model_free(one);
    invar_layout_release(&layout);
}

/*
 * Ownership of rows does not depend on the number format, so weights of one format can be made from
 * masters of another.
 */
static void test_masters__have_the_same_owners_in_all_formats(void **state)
{
    for (int s = 1; s < SIZES; s++) {
        invar_model_spec spec = sharded_spec(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP8);
        invar_model *models[INVAR_FORMAT_COUNT];
        invar_layout layout;

        simulate_layout(&layout, sizes[s], sizes[s] - 1);
        for (int loader = 0; loader < INVAR_FORMAT_COUNT; loader++)
            assert_ok(
                invar_model_new(&models[loader], &spec, (invar_format)loader, &layout, *state));
        for (int loader = 1; loader < INVAR_FORMAT_COUNT; loader++)
            assert_memory_equal(models[loader]->zero_rows, models[0]->zero_rows,
                                (size_t)(models[0]->n_params * (sizes[s] + 1)) * sizeof(int64_t));
        for (int loader = 0; loader < INVAR_FORMAT_COUNT; loader++)
            invar_model_free(models[loader]);
        invar_layout_release(&layout);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_param_loader__own_rows_are_those_of_one_rank),
        cmocka_unit_test(test_param_loader__large_parameters_go_in_parts),
        cmocka_unit_test(test_param_loader__checksum_of_values),
        cmocka_unit_test(test_masters__take_a_share_of_memory),
        cmocka_unit_test(test_masters__have_the_same_owners_in_all_formats),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
