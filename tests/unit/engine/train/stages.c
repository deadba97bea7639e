/*
 * stages.c - stages of a pipeline score and learn as one rank does, bit for bit.
 *
 * Ranks are threads, with and without an adversary that schedules their messages. Each has its
 * layers of the model and its gradients of them alone.
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

/* ---- a rank ---------------------------------------------------------------------------------- */

typedef struct stage_run {
    const lesson *l;
    invar_layout_sizes sizes;
    bool far; /* the last rank's model is */
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
        status = lesson_step(&out, s->l, layout, model, dev);
    if (status == INVAR_OK)
        status = lesson_compare(&out, s->l, model, rank);
    free(out.grads);
    invar_model_free(model);
    return status;
}

static invar_status rank_part(rank_run *run)
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

typedef struct shape {
    int ranks, stages, chunks;
} shape;

static void all_equal(stage_run *s, const shape *by, uint64_t schedule)
{
    rank_run runs[MAX_RANKS];

    s->sizes.pipeline = by->stages;
    s->sizes.virtual_stages = by->chunks;
    run_ranks(runs, by->ranks, schedule, 0, rank_part, s);
    for (int r = 0; r < by->ranks; r++)
        if (runs[r].status != INVAR_OK)
            fail_msg("rank %d of %d, %d stages of %d chunks: %s", r, by->ranks, by->stages,
                     by->chunks, runs[r].error.message);
}

static const shape shapes[] = {{2, 2, 1}, {4, 4, 1}, {3, 3, 1}, {2, 2, 2}, {2, 2, 4}, {4, 4, 2},
                               {4, 2, 1}, {6, 2, 1}, {4, 2, 2}, {6, 3, 2}, {8, 8, 1}};

/* Units: each sample; two samples, the last alone; all: 7, 4 and 1 of them. */
static const invar_batch_plan_options plans[] = {{1, 1, 2, 0}, {MOST, 3, 0, 40}, {MOST, 1, 0, 0}};

static void sweep(lesson *l, bool far)
{
    stage_run s = {.l = l, .sizes = WHOLE_LAYERS, .far = far};
    outcome expected;

    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        l->options = (invar_trainer_options){.plan = plans[p],
                                             .temperature = 0.8f,
                                             .recompute = p == 1,
                                             .head_rows = p == 1 ? 3 : 0};
        assert_ok(lesson_step(&expected, l, NULL, l->model, &l->near));
        l->expected = &expected;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            if (!invar_test_full() && (i + p) % 3 != 0)
                continue;
            l->bucket = i % 2 ? 4096 : 0;
            all_equal(&s, &shapes[i], 0);
            all_equal(&s, &shapes[i], 11 * p + i + 1);
        }
        free(expected.grads);
    }
}

static invar_model *make_model(invar_test_model kind, invar_format format, bool critic,
                               const invar_device *dev)
{
    invar_model_spec spec = invar_test_spec(kind, true);
    invar_model *model = NULL;

    spec.layers = LAYERS;
    for (int i = 0; i < LAYERS && kind == INVAR_TEST_MODEL_EXPERTS; i++)
        spec.sparse[i] = i % 3 != 0;
    if (critic) {
        spec.value_head = true;
        spec.tied = false;
    }
    assert_ok(invar_model_new(&model, &spec, format, NULL, dev));
    assert_ok(invar_model_init(model, SEED, dev));
    return model;
}

static void learn_as_one(const invar_device *dev, invar_test_model kind, invar_format format,
                         bool critic)
{
    invar_model *model = make_model(kind, format, critic, dev);
    invar_rl_samples samples;
    lesson l;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    lesson_init(&l, model, &samples, dev);
    sweep(&l, false);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

static void test_stages__learn_as_one(void **state)
{
    static const invar_format formats[] = {INVAR_FORMAT_FP32, INVAR_FORMAT_BF16, INVAR_FORMAT_FP8};
    const invar_device *devs = *state;

    for (size_t f = 0; f < 3; f++) { // both numerics
        learn_as_one(&devs[f % 2], INVAR_TEST_MODEL_DENSE, formats[f], false);
        learn_as_one(&devs[f % 2], INVAR_TEST_MODEL_EXPERTS, formats[f], false);
    }
}

static void test_stages__critic(void **state)
{
    const invar_device *dev = *state;

    learn_as_one(dev, INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, true);
}

/* One stage has its memory on a device that the host cannot touch, the others have not. */
static void test_stages__far_device(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = make_model(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, false, dev);
    invar_rl_samples samples;
    lesson l;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    lesson_init(&l, model, &samples, dev);
    assert_ok(invar_far_open(&l.far, &l.near));
    sweep(&l, true);
    assert_true(invar_far_counted().ops > 0);
    assert_int_equal(invar_far_counted().live, 0);
    invar_device_close(&l.far);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* ---- a loss of one rank ---------------------------------------------------------------------- */

/* Rank 0, which has no head, computes it for all: they ask at the same time. */
static void test_stages__led_loss(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = make_model(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, false, dev);
    invar_rl_samples samples;
    outcome expected;
    lesson l;
    stage_run s = {.l = &l, .sizes = WHOLE_LAYERS};

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    lesson_init(&l, model, &samples, dev);
    l.options = (invar_trainer_options){.plan = plans[0], .temperature = 0.8f};
    assert_ok(lesson_step(&expected, &l, NULL, model, &l.near));
    l.expected = &expected;
    l.led = true;
    all_equal(&s, &(shape){2, 2, 1}, 0);
    all_equal(&s, &(shape){4, 2, 2}, 3);
    free(expected.grads);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* ---- routing --------------------------------------------------------------------------------- */

/* Each stage compares the choices of its own layers; all know the sum. */
static void test_stages__routes_are_counted(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = make_model(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, false, dev);
    invar_rl_samples samples;
    outcome expected;
    lesson l;
    stage_run s = {.l = &l, .sizes = WHOLE_LAYERS};

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    lesson_route(&samples, model);
    lesson_init(&l, model, &samples, dev);
    l.options = (invar_trainer_options){.plan = plans[0], .temperature = 1.0f};
    assert_ok(lesson_step(&expected, &l, NULL, model, &l.near));
    assert_true(0 < expected.result.routes_differ &&
                expected.result.routes_differ < expected.result.routes);
    l.expected = &expected;
    all_equal(&s, &(shape){4, 2, 2}, 5);
    free(expected.grads);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* ---- what would differ, and what fails ------------------------------------------------------- */

/* The sum over units, each computed alone, in either order: the order matters. */
static void test_stages__descending_units_differ(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = make_model(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, false, dev);
    outcome all, one[SAMPLES];
    float *up, *down;
    invar_rl_samples samples;
    size_t layers, count;
    lesson l;

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    lesson_init(&l, model, &samples, dev);
    l.options = (invar_trainer_options){.plan = plans[0], .temperature = 0.8f};
    assert_ok(lesson_step(&all, &l, NULL, model, &l.near));
    for (l.only = 0; l.only < SAMPLES; l.only++)
        assert_ok(lesson_step(&one[l.only], &l, NULL, model, &l.near));
    layers = (uintptr_t)model->params[1].grad.data; // before them a tied embedding, joined already
    count = ((uintptr_t)model->tied_grad.data - layers) / sizeof(float);
    up = calloc(count, sizeof *up);
    down = calloc(count, sizeof *down);
    for (int u = 0; u < SAMPLES; u++)
        for (size_t i = 0; i < count; i++) {
            up[i] += ((float *)((char *)one[u].grads + layers))[i];
            down[i] += ((float *)((char *)one[SAMPLES - 1 - u].grads + layers))[i];
        }
    assert_false(invar_bits_differ(up, (char *)all.grads + layers, count * sizeof *up));
    assert_true(invar_bits_differ(down, (char *)all.grads + layers, count * sizeof *up));
    free(up);
    free(down);
    free(all.grads);
    for (int u = 0; u < SAMPLES; u++)
        free(one[u].grads);
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

/* The stage with the loss cannot go on; the others, which wait for it, end with its line. */
static void test_stages__loss_fails(void **state)
{
    const invar_device *dev = *state;
    invar_model *model = make_model(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, false, dev);
    invar_rl_samples samples;
    rank_run runs[MAX_RANKS];
    lesson l;
    stage_run s = {.l = &l, .sizes = WHOLE_LAYERS};

    invar_test_samples(&samples, SAMPLES, 20, model->spec.vocab, 5);
    lesson_init(&l, model, &samples, dev);
    l.options = (invar_trainer_options){.plan = plans[0], .temperature = 1.0f};
    l.failing = 1;
    s.sizes.pipeline = s.sizes.virtual_stages = 2;
    run_ranks(runs, 2, 0, 0, rank_part, &s);
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
        cmocka_unit_test(test_stages__learn_as_one),
        cmocka_unit_test(test_stages__critic),
        cmocka_unit_test(test_stages__far_device),
        cmocka_unit_test(test_stages__led_loss),
        cmocka_unit_test(test_stages__routes_are_counted),
        cmocka_unit_test(test_stages__descending_units_differ),
        cmocka_unit_test(test_stages__loss_fails),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
