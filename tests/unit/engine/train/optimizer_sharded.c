/*
 * optimizer_sharded.c - tests of AdamW and the gradient norm on ranks that divide a model.
 *
 * Norm, digests and weights must be those of one rank bit for bit, and a NaN on one rank must be
 * reported by all. Control: a norm that sums per rank has other bits. By default a selection of the
 * layouts of tests/sharded_model.h runs, under `full` all of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/optimizer.h"

#include <math.h>

#include "base/alloc.h"
#include "engine/model/shard/logical_shards.h"
#include "engine/model/shard/master_weights.h"
#include "kernels-deterministic/math/reduce.h"
#include "tests/device/fake_gpu.h"
#include "tests/sharded_model.h"

enum { STEPS = 2, SEED = 3, NORMALS = 65521 };

static const invar_adamw_options adamw = {
    .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.1f};

/* Expected results, of one rank. */
typedef struct sharded_case {
    sharded_model base;    /* model after STEPS steps, and how ranks divide it */
    float **gradients;     /* (n_params + 1) full gradients; the last is that of a tied head */
    float norm, clip;      /* norm and clip factor of the gradients */
    invar_digest *digests; /* (n_params) digests of the gradients */
    invar_digest *masters; /* (n_params) digests of the masters after the steps */
} sharded_case;

/* ---- gradients ------------------------------------------------------------------------------- */

/* Returns full gradients of all parameters, followed by that of a tied head. */
static float **gradients_of(const invar_model *model)
{
    static float normal[NORMALS];
    float **out = calloc((size_t)model->n_params + 1, sizeof *out);

    for (uint64_t k = 0; k < NORMALS && normal[NORMALS - 1] == 0.0f; k++)
        normal[k] = invar_test_normal(1, k, 0.5f);
    for (int64_t i = 0; i <= model->n_params; i++) {
        const invar_param *p = i < model->n_params ? &model->params[i] : model->embedding;
        int64_t count = invar_param_all_elements(p);

        out[i] = malloc((size_t)count * sizeof **out);
        for (int64_t k = 0; k < count; k++)
            out[i][k] = normal[(i * 1009 + k) % NORMALS];
    }
    return out;
}

static void free_gradients(float **gradients, int64_t params)
{
    for (int64_t i = 0; i <= params; i++)
        free(gradients[i]);
    free(gradients);
}

static invar_status upload_gradient(const invar_grads *grads, const invar_param *p,
                                    const float *whole, const invar_tensor *to)
{
    size_t count = (size_t)invar_param_elements(p);
    float *own = malloc(count * sizeof *own);
    invar_status status;

    invar_param_shard_extract(own, p, &p->local, whole);
    status = invar_device_upload(&grads->dev, to->data, own, count * sizeof *own);
    free(own);
    return status;
}

/* Fills gradients like a backward pass: both ends of a pipeline have one of a tied embedding. */
static invar_status fill_gradients(invar_grads *grads, const invar_model *model, float **whole)
{
    const invar_model_partition *part = &model->part;
    bool last = part->stage == part->stages - 1;

    grads->overwrite_next = false;
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        if (p->local.experts > 0 && (p != model->embedding || part->stage == 0))
            INVAR_TRY(upload_gradient(grads, p, whole[i], &grads->tensors[i]));
    }
    if (!last || !invar_tensor_present(&grads->tied_head))
        return INVAR_OK;
    return upload_gradient(grads, model->embedding, whole[model->n_params], &grads->tied_head);
}

static invar_status run_steps(invar_optimizer *o, invar_model *model, const invar_grads *grads,
                              float clip, const invar_device *dev)
{
    for (int i = 0; i < STEPS; i++)
        INVAR_TRY(invar_optimizer_step(o, model, grads, clip, 0.01f, true, &adamw, dev));
    return INVAR_OK;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static invar_status check_norm(const sharded_case *l, invar_model *model, invar_grads *grads,
                               const invar_device *dev)
{
    float norm = 0.0f, clip = 0.0f;

    INVAR_TRY(invar_grads_finalize(grads, model, dev));
    INVAR_TRY(invar_optimizer_norm(&norm, &clip, model, grads, true, 1.0f, dev));
    if (memcmp(&norm, &l->norm, sizeof norm) != 0 || memcmp(&clip, &l->clip, sizeof clip) != 0)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "the norm is %a, one rank's %a", (double)norm,
                          (double)l->norm);
    for (int64_t i = 0; i < model->n_params; i++)
        if (!invar_digest_equal(&grads->digests[i], &l->digests[i]))
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "the gradient of %s is another",
                              model->params[i].name);
    return INVAR_OK;
}

/* The digests of the masters, of which each rank has a range of rows, equal those of one rank. */
static invar_status check_digests(const sharded_case *l, const invar_model *model,
                                  const invar_device *dev)
{
    invar_digest *actual = calloc((size_t)model->n_params, sizeof *actual);
    invar_status status = invar_model_digests(actual, model, NULL, dev);

    for (int64_t i = 0; status == INVAR_OK && i < model->n_params; i++)
        if (!invar_digest_equal(&actual[i], &l->masters[i]))
            status =
                INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s has another digest", model->params[i].name);
    free(actual);
    return status;
}

static invar_status check_steps(const sharded_case *l, invar_model *model, const invar_grads *grads,
                                const invar_device *dev)
{
    invar_optimizer *o;
    invar_status status;

    INVAR_TRY(invar_optimizer_new(&o, model, 0));
    status = run_steps(o, model, grads, l->clip, dev);
    if (status == INVAR_OK)
        status = check_digests(l, model, dev);
    if (status == INVAR_OK)
        status = sharded_compare_model(l->base.one, model);
    invar_optimizer_free(o);
    return status;
}

/* All ranks report a NaN in the gradients of one rank, with the name of the parameter. */
static invar_status check_fault(const invar_model *model, invar_grads *grads,
                                const invar_device *dev)
{
    const invar_param *norm = model->norm, *q = &model->params[model->first[2] + 1];
    const float nan_value = NAN;
    invar_status status;
    float norm_and_clip[2];

    if (norm->local.experts > 0) // later in canonical order
        INVAR_TRY(invar_device_upload(dev, grads->tensors[norm - model->params].data, &nan_value,
                                      sizeof nan_value));
    if (q->local.experts > 0 && model->part.tensor == model->part.tensors - 1)
        INVAR_TRY(invar_device_upload(dev, grads->tensors[q - model->params].data, &nan_value,
                                      sizeof nan_value));
    status =
        invar_optimizer_norm(&norm_and_clip[0], &norm_and_clip[1], model, grads, true, 1.0f, dev);
    if (status != INVAR_E_STATE || !strstr(invar_error_last()->message, q->name))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "a fault in %s is told as: %s", q->name,
                          invar_error_last()->message);
    invar_error_clear();
    return INVAR_OK;
}

static invar_status check_rank(void *payload, invar_model *model, const invar_device *dev)
{
    const sharded_case *l = payload;
    invar_grads *grads;
    invar_status status;

    INVAR_TRY(invar_model_init(model, SEED, dev));
    INVAR_TRY(invar_grads_new(&grads, model));
    status = fill_gradients(grads, model, l->gradients);
    if (status == INVAR_OK)
        status = check_norm(l, model, grads, dev);
    if (status == INVAR_OK)
        status = check_steps(l, model, grads, dev);
    if (status == INVAR_OK)
        status = check_fault(model, grads, dev);
    invar_grads_free(grads);
    return status;
}

/* ---- one rank -------------------------------------------------------------------------------- */

static void step_one_rank(sharded_case *l)
{
    invar_optimizer *o;
    invar_grads *grads;

    assert_ok(invar_model_new(&l->base.one, &l->base.spec, l->base.format, NULL, l->base.dev));
    assert_ok(invar_model_init(l->base.one, SEED, l->base.dev));
    l->gradients = gradients_of(l->base.one);
    assert_ok(invar_grads_new(&grads, l->base.one));
    assert_ok(fill_gradients(grads, l->base.one, l->gradients));
    assert_ok(invar_grads_finalize(grads, l->base.one, l->base.dev));
    assert_ok(
        invar_optimizer_norm(&l->norm, &l->clip, l->base.one, grads, true, 1.0f, l->base.dev));
    l->digests = calloc((size_t)l->base.one->n_params, sizeof *l->digests);
    memcpy(l->digests, grads->digests, (size_t)l->base.one->n_params * sizeof *l->digests);
    assert_ok(invar_optimizer_new(&o, l->base.one, 0));
    assert_ok(run_steps(o, l->base.one, grads, l->clip, l->base.dev));
    l->masters = calloc((size_t)l->base.one->n_params, sizeof *l->masters);
    assert_ok(invar_model_digests(l->masters, l->base.one, NULL, l->base.dev));
    invar_optimizer_free(o);
    invar_grads_free(grads);
}

static void check_world(invar_test_model kind, invar_format format, const sharded_world *world,
                        uint64_t schedule, const invar_device *dev, const invar_device *fake_gpu)
{
    sharded_case l = {.base = {.world = world,
                               .spec = sharded_spec(kind, format),
                               .format = format,
                               .dev = dev,
                               .far = fake_gpu,
                               .bucket = 1 << 17, // a tied head has several buckets
                               .check = check_rank,
                               .payload = &l}};

    step_one_rank(&l);
    sharded_check(&l.base, schedule, invar_test_model_name(kind));
    free_gradients(l.gradients, l.base.one->n_params);
    invar_model_free(l.base.one);
    free(l.digests);
    free(l.masters);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_optimizer_sharded__equals_one_rank(void **state)
{
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_EXPERTS};

    for (int w = 0; w < DIVIDED_WORLDS; w++)
        if (sharded_runs(w))
            check_world(kinds[w % 2], (invar_format)(w % INVAR_FORMAT_COUNT), &divided_worlds[w],
                        (uint64_t)w, *state, NULL);
    for (int w = invar_test_full() ? 0 : 1; w < DIVIDED_EXPERT_WORLDS;
         w += invar_test_full() ? 1 : 2)
        check_world(INVAR_TEST_MODEL_EXPERTS, (invar_format)w, &divided_expert_worlds[w],
                    (uint64_t)w, *state, NULL);
}

/* Data-parallel ranks, which hold the same parameters and divide their moments. */
static void test_optimizer_sharded__data_parallel(void **state)
{
    static const sharded_world worlds[] = {
        {3, {.tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 1}},
        {8, {.tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 1}},
        {8, {.tensor = 1, .expert_tensor = 1, .pipeline = 2, .virtual_stages = 2, .expert = 1}}};

    for (int w = 0; w < (int)(sizeof worlds / sizeof *worlds); w++)
        check_world(w == 1 ? INVAR_TEST_MODEL_EXPERTS : INVAR_TEST_MODEL_DENSE,
                    (invar_format)(w * 2 % INVAR_FORMAT_COUNT), &worlds[w], (uint64_t)w, *state,
                    NULL);
}

static void test_optimizer_sharded__fake_gpu(void **state)
{
    const invar_device *dev = *state;
    invar_device fake_gpu;

    assert_ok(invar_fake_gpu_open(&fake_gpu, dev));
    check_world(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, &divided_worlds[2], 1, dev, &fake_gpu);
    check_world(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, &divided_worlds[5], 2, dev, &fake_gpu);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_device_close(&fake_gpu);
}

/* Control: the sum of two partial sums differs from the sum over all logical shards. */
static void test_optimizer_sharded__sums_by_rank_differ(void **state)
{
    invar_model_spec spec = sharded_spec(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32);
    float norm, clip, *squares, sum, **gradients;
    invar_grads *grads;
    invar_model *model;
    int n_differ = 0;

    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, *state));
    gradients = gradients_of(model);
    assert_ok(invar_grads_new(&grads, model));
    assert_ok(fill_gradients(grads, model, gradients));
    squares = malloc((size_t)grads->n_pieces * sizeof *squares);
    assert_ok(invar_grad_norm(*state, &(invar_grad_norm_args){.norm = &norm,
                                                              .clip = &clip,
                                                              .grads = grads->pieces,
                                                              .count = grads->n_pieces,
                                                              .squares = squares}));
    sum = invar_reduce_f32(squares, grads->n_pieces);
    for (int64_t i = 1; i < grads->n_pieces; i++)
        n_differ += sum != invar_reduce_f32(squares, i) +
                               invar_reduce_f32(squares + i, grads->n_pieces - i);
    assert_true(n_differ > 0);
    free(squares);
    free_gradients(gradients, model->n_params);
    invar_grads_free(grads);
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer_sharded__equals_one_rank),
        cmocka_unit_test(test_optimizer_sharded__data_parallel),
        cmocka_unit_test(test_optimizer_sharded__fake_gpu),
        cmocka_unit_test(test_optimizer_sharded__sums_by_rank_differ),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
