/*
 * stages.c - tests of scoring and training on pipeline stages.
 *
 * Every rank has only its layers and their gradients, and must have the results of one rank bit for
 * bit. Ranks are threads, with and without an adversarial message schedule. Control: units added in
 * descending order give other gradients. The training step itself is in tests/train_step_case.h.
 * By default the layouts are distributed over the plans and the models: each of the layouts runs
 * once. Under `full` all models run all pairs of a plan and a layout with both schedules.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "tests/device/fake_gpu.h"
#include "tests/ranks.h"
#include "tests/train_step_case.h"

#define SECONDS 60

enum { LAYERS = 8, SEED = 11 };

#define WHOLE_LAYERS                                                                               \
    {                                                                                              \
        .tensor = 1, .expert = 1, .expert_tensor = 1                                               \
    }

/* ---- ranks ----------------------------------------------------------------------------------- */

typedef struct stage_run {
    const train_step_case *l;
    invar_layout_sizes sizes;
    bool far; /* rank 1 has its model on the fake GPU */
} stage_run;

static invar_status run_stage(const stage_run *s, const invar_layout *layout, int rank)
{
    const invar_device *dev = s->far && rank == 1 ? &s->l->far : &s->l->near;
    invar_model *model = NULL;
    invar_status status;
    outcome out = {.grads = NULL};

    INVAR_TRY(invar_model_new(&model, &s->l->model->spec, s->l->model->format, layout, dev));
    status = invar_model_init(model, SEED, dev);
    if (status == INVAR_OK)
        status = train_step_case_step(&out, s->l, layout, model, dev);
    if (status == INVAR_OK)
        status = train_step_case_compare(&out, s->l, model, rank);
    free(out.grads);
    invar_model_free(model);
    return status;
}

static invar_status run_rank(rank_run *run)
{
    const stage_run *s = run->payload;
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    if (s->l->bucket)
        layout.bucket_bytes = s->l->bucket;
    status = invar_layout_divide(&layout, &s->sizes);
    if (status == INVAR_OK)
        status = run_stage(s, &layout, invar_comm_rank(run->comm));
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_layout_release(&layout);
    return status;
}

/* ---- one rank and several -------------------------------------------------------------------- */

typedef struct layout_shape {
    int ranks, stages, chunks;
} layout_shape;

static void check_ranks(stage_run *s, const layout_shape *shape, uint64_t schedule)
{
    rank_run runs[MAX_RANKS];

    s->sizes.pipeline = shape->stages;
    s->sizes.virtual_stages = shape->chunks;
    run_ranks(runs, shape->ranks, schedule, 0, run_rank, s);
    for (int r = 0; r < shape->ranks; r++)
        if (runs[r].status != INVAR_OK)
            fail_msg("rank %d of %d, %d stages of %d chunks: %s", r, shape->ranks, shape->stages,
                     shape->chunks, runs[r].error.message);
}

static const layout_shape shapes[] = {{2, 2, 1}, {4, 4, 1}, {3, 3, 1}, {2, 2, 2},
                                      {2, 2, 4}, {4, 4, 2}, {4, 2, 1}, {6, 2, 1},
                                      {4, 2, 2}, {6, 3, 2}, {8, 8, 1}};
enum { SHAPES = sizeof shapes / sizeof *shapes, MODELS = 8 };

static size_t models; /* models that check_plans has checked; MODELS after all tests */

/* Plans with 7 units of one sample, 4 units of two samples (the last of one), and one unit. */
static const invar_batch_plan_options plans[] = {{1, 1, 2, 0}, {MOST, 3, 0, 40}, {MOST, 1, 0, 0}};

/* Returns whether the model being checked runs the layout i with the plan p by default. */
static bool is_selected(size_t p, size_t i)
{
    return i % (sizeof plans / sizeof *plans) == p && i % MODELS == models % MODELS;
}

static void check_plans(train_step_case *l, bool far)
{
    stage_run s = {.l = l, .sizes = WHOLE_LAYERS, .far = far};
    outcome expected;
    size_t selected;

    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        l->options = (invar_trainer_options){.plan = plans[p],
                                             .temperature = 0.8f,
                                             .recompute = p == 1,
                                             .head_rows = p == 1 ? 3 : 0};
        selected = 0;
        for (size_t i = 0; i < SHAPES; i++)
            selected += is_selected(p, i);
        if (!invar_test_full() && selected == 0)
            continue;
        assert_ok(train_step_case_step(&expected, l, NULL, l->model, &l->near));
        l->expected = &expected;
        for (size_t i = 0; i < SHAPES; i++) {
            size_t pair = SHAPES * p + i;
            bool scheduled = i / 2 % 2 == 1;

            if (!invar_test_full() && !is_selected(p, i))
                continue;
            l->bucket = i % 2 ? 4096 : 0;
            if (invar_test_full() || !scheduled)
                check_ranks(&s, &shapes[i], 0);
            if (invar_test_full() || scheduled)
                check_ranks(&s, &shapes[i], pair + 1);
        }
        free(expected.grads);
    }
    models++;
}

static invar_model *make_model(invar_test_model kind, invar_format format, bool critic,
                               const invar_device *dev)
{
    invar_model_spec spec = invar_test_spec(kind, true);
    invar_model *model = NULL;

    spec.layers = LAYERS;
    for (int i = 0; i < LAYERS && kind == INVAR_TEST_MODEL_EXPERTS; i++)
        spec.experts.sparse[i] = i % 3 != 0;
    if (critic) {
        spec.value_head = true;
        spec.tied = false;
    }
    assert_ok(invar_model_new(&model, &spec, format, NULL, dev));
    assert_ok(invar_model_init(model, SEED, dev));
    return model;
}

static void check_model(const invar_device *dev, invar_test_model kind, invar_format format,
                        bool critic)
{
    invar_model *model = make_model(kind, format, critic, dev);
    invar_rl_samples samples;
    train_step_case l;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    train_step_case_init(&l, model, &samples, dev);
    check_plans(&l, false);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

static void test_stages__equal_one_rank(void **state)
{
    static const invar_format formats[] = {INVAR_FORMAT_FP32, INVAR_FORMAT_BF16, INVAR_FORMAT_FP8};
    const invar_device *devs = *state;

    for (size_t f = 0; f < 3; f++) { // both numerics
        check_model(&devs[f % 2], INVAR_TEST_MODEL_DENSE, formats[f], false);
        check_model(&devs[f % 2], INVAR_TEST_MODEL_EXPERTS, formats[f], false);
    }
}

static void test_stages__critic(void **state)
{
    const invar_device *dev = *state;

    check_model(dev, INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, true);
}

/* One stage has its memory on the fake GPU, the others on the host. */
static void test_stages__fake_gpu(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = make_model(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, false, dev);
    invar_rl_samples samples;
    train_step_case l;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    train_step_case_init(&l, model, &samples, dev);
    assert_ok(invar_fake_gpu_open(&l.far, &l.near));
    check_plans(&l, true);
    assert_int_equal(models, MODELS); // so every layout has run
    assert_true(invar_fake_gpu_counted().ops > 0);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_device_close(&l.far);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* ---- loss on one rank ------------------------------------------------------------------------ */

/* Rank 0, which has no head, computes the loss of all ranks in a collective call. */
static void test_stages__loss_on_one_rank(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = make_model(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, false, dev);
    invar_rl_samples samples;
    outcome expected;
    train_step_case l;
    stage_run s = {.l = &l, .sizes = WHOLE_LAYERS};

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    train_step_case_init(&l, model, &samples, dev);
    l.options = (invar_trainer_options){.plan = plans[0], .temperature = 0.8f};
    assert_ok(train_step_case_step(&expected, &l, NULL, model, &l.near));
    l.expected = &expected;
    l.led = true;
    check_ranks(&s, &(layout_shape){2, 2, 1}, 0);
    check_ranks(&s, &(layout_shape){4, 2, 2}, 3);
    free(expected.grads);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* ---- routing --------------------------------------------------------------------------------- */

/* Each stage counts the differing routes of its layers; all ranks get the sum. */
static void test_stages__routes_are_counted(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = make_model(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, false, dev);
    invar_rl_samples samples;
    outcome expected;
    train_step_case l;
    stage_run s = {.l = &l, .sizes = WHOLE_LAYERS};

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    train_step_case_route(&samples, model);
    train_step_case_init(&l, model, &samples, dev);
    l.options = (invar_trainer_options){.plan = plans[0], .temperature = 1.0f};
    assert_ok(train_step_case_step(&expected, &l, NULL, model, &l.near));
    assert_true(0 < expected.result.routes_differ &&
                expected.result.routes_differ < expected.result.routes);
    l.expected = &expected;
    check_ranks(&s, &(layout_shape){4, 2, 2}, 5);
    free(expected.grads);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* ---- control and failures -------------------------------------------------------------------- */

/* Control: gradients of single units give the sum in ascending order only, not in descending. */
static void test_stages__descending_units_differ(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = make_model(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, false, dev);
    outcome all, one[SAMPLES];
    float *ascending, *descending;
    invar_rl_samples samples;
    size_t layers, count;
    train_step_case l;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    train_step_case_init(&l, model, &samples, dev);
    l.options = (invar_trainer_options){.plan = plans[0], .temperature = 0.8f};
    assert_ok(train_step_case_step(&all, &l, NULL, model, &l.near));
    for (l.only = 0; l.only < SAMPLES; l.only++)
        assert_ok(train_step_case_step(&one[l.only], &l, NULL, model, &l.near));
    layers = (uintptr_t)model->params[1]
                 .grad.data; // skips the tied embedding, whose two gradients are summed already
    count = ((uintptr_t)model->tied_grad.data - layers) / sizeof(float);
    ascending = calloc(count, sizeof *ascending);
    descending = calloc(count, sizeof *descending);
    for (int u = 0; u < SAMPLES; u++)
        for (size_t i = 0; i < count; i++) {
            ascending[i] += ((float *)((char *)one[u].grads + layers))[i];
            descending[i] += ((float *)((char *)one[SAMPLES - 1 - u].grads + layers))[i];
        }
    assert_false(
        invar_bits_differ(ascending, (char *)all.grads + layers, count * sizeof *ascending));
    assert_true(
        invar_bits_differ(descending, (char *)all.grads + layers, count * sizeof *ascending));
    free(ascending);
    free(descending);
    free(all.grads);
    for (int u = 0; u < SAMPLES; u++)
        free(one[u].grads);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* The loss fails on its stage; the other stages, which wait for it, fail with the same message. */
static void test_stages__loss_fails(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = make_model(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, false, dev);
    invar_rl_samples samples;
    rank_run runs[MAX_RANKS];
    train_step_case l;
    stage_run s = {.l = &l, .sizes = WHOLE_LAYERS};

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    train_step_case_init(&l, model, &samples, dev);
    l.options = (invar_trainer_options){.plan = plans[0], .temperature = 1.0f};
    l.failing = 1;
    s.sizes.pipeline = s.sizes.virtual_stages = 2;
    run_ranks(runs, 2, 0, 0, run_rank, &s);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(runs[r].status, r == 1 ? INVAR_E_STATE : INVAR_E_IO);
        assert_non_null(strstr(runs[r].error.message, "the loss of sample 6 is no number"));
    }
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages__equal_one_rank),
        cmocka_unit_test(test_stages__critic),
        cmocka_unit_test(test_stages__fake_gpu),
        cmocka_unit_test(test_stages__loss_on_one_rank),
        cmocka_unit_test(test_stages__routes_are_counted),
        cmocka_unit_test(test_stages__descending_units_differ),
        cmocka_unit_test(test_stages__loss_fails),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
