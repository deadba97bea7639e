/*
 * optimizer_sharded.c - ranks that divide a model have one rank's norm, and step as it does.
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

enum { STEPS = 2, SEED = 3 };

static const invar_adamw_options adamw = {
    .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.1f};

typedef struct lesson {
    divided_model of;      /* one rank's after STEPS */
    float **gradients;     /* whole */
    float norm, clip;      /* of one rank's gradients, */
    invar_digest *digests; /* (n_params) and their digests */
} lesson;

/* ---- gradients ------------------------------------------------------------------------------- */

/* Whole gradients of all parameters, and behind them that of a tied head. */
static float **gradients_of(const invar_model *model)
{
    float **out = calloc((size_t)model->n_params + 1, sizeof *out);

    for (int64_t i = 0; i <= model->n_params; i++) {
        const invar_param *p = i < model->n_params ? &model->params[i] : model->embedding;
        int64_t count = invar_param_all_elements(p);

        out[i] = malloc((size_t)count * sizeof **out);
        for (int64_t k = 0; k < count; k++)
            out[i][k] = invar_test_normal((uint64_t)i, (uint64_t)k, 0.5f);
    }
    return out;
}

static void free_gradients(float **gradients, int64_t params)
{
    for (int64_t i = 0; i <= params; i++)
        free(gradients[i]);
    free(gradients);
}

static invar_status put_gradient(const invar_grads *grads, const invar_param *p, const float *whole,
                                 const invar_tensor *to)
{
    size_t count = (size_t)invar_param_elements(p);
    float *own = malloc(count * sizeof *own);
    invar_status status;

    invar_param_shard_extract(own, p, &p->local, whole);
    status = invar_device_upload(&grads->dev, to->data, own, count * sizeof *own);
    free(own);
    return status;
}

/* As a backward leaves them: the ends of a pipeline make one of the two of a tied embedding. */
static invar_status fill_gradients(invar_grads *grads, const invar_model *model, float **whole)
{
    const invar_model_partition *part = &model->part;
    bool last = part->stage == part->stages - 1;

    grads->overwrite_next = false;
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        if (p->local.experts > 0 && (p != model->embedding || part->stage == 0))
            INVAR_TRY(put_gradient(grads, p, whole[i], &grads->tensors[i]));
    }
    if (!last || !invar_tensor_present(&grads->tied_head))
        return INVAR_OK;
    return put_gradient(grads, model->embedding, whole[model->n_params], &grads->tied_head);
}

static invar_status steps(invar_optimizer *o, invar_model *model, const invar_grads *grads,
                          float clip, const invar_device *dev)
{
    for (int i = 0; i < STEPS; i++)
        INVAR_TRY(invar_optimizer_step(o, model, grads, clip, 0.01f, true, &adamw, dev));
    return INVAR_OK;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static invar_status check_norm(const lesson *l, invar_model *model, invar_grads *grads,
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

/* Of masters, each rank's of the rows that it owns. */
static invar_status check_digests(const lesson *l, const invar_model *model,
                                  const invar_device *dev)
{
    invar_digest *is = calloc((size_t)model->n_params, sizeof *is), *one = NULL;
    invar_device alone = *l->of.dev;
    invar_status status = invar_model_digests(is, model, NULL, dev);

    alone.pool = NULL; // a rank is a thread
    one = calloc((size_t)model->n_params, sizeof *one);
    if (status == INVAR_OK)
        status = invar_model_digests(one, l->of.one, NULL, &alone);
    for (int64_t i = 0; status == INVAR_OK && i < model->n_params; i++)
        if (!invar_digest_equal(&is[i], &one[i]))
            status =
                INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s has another digest", model->params[i].name);
    free(is);
    free(one);
    return status;
}

static invar_status check_steps(const lesson *l, invar_model *model, const invar_grads *grads,
                                const invar_device *dev)
{
    invar_optimizer *o;
    invar_status status;

    INVAR_TRY(invar_optimizer_new(&o, model, 0));
    status = steps(o, model, grads, l->clip, dev);
    if (status == INVAR_OK)
        status = check_digests(l, model, dev);
    if (status == INVAR_OK)
        status = divided_same_model(l->of.one, model);
    invar_optimizer_free(o);
    return status;
}

/* A fault of one rank is told by all, with the name of its parameter. */
static invar_status check_fault(const invar_model *model, invar_grads *grads,
                                const invar_device *dev)
{
    const invar_param *norm = model->norm, *q = &model->params[model->first[2] + 1];
    const float odd = NAN;
    invar_status status;
    float got[2];

    if (norm->local.experts > 0) // later in canonical order
        INVAR_TRY(
            invar_device_upload(dev, grads->tensors[norm - model->params].data, &odd, sizeof odd));
    if (q->local.experts > 0 && model->part.tensor == model->part.tensors - 1)
        INVAR_TRY(
            invar_device_upload(dev, grads->tensors[q - model->params].data, &odd, sizeof odd));
    status = invar_optimizer_norm(&got[0], &got[1], model, grads, true, 1.0f, dev);
    if (status != INVAR_E_STATE || !strstr(invar_error_last()->message, q->name))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "a fault in %s is told as: %s", q->name,
                          invar_error_last()->message);
    invar_error_clear();
    return INVAR_OK;
}

static invar_status check_rank(void *payload, invar_model *model, const invar_device *dev)
{
    const lesson *l = payload;
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

static void make_one(lesson *l)
{
    invar_optimizer *o;
    invar_grads *grads;

    assert_ok(invar_model_new(&l->of.one, &l->of.spec, l->of.format, NULL, l->of.dev));
    assert_ok(invar_model_init(l->of.one, SEED, l->of.dev));
    l->gradients = gradients_of(l->of.one);
    assert_ok(invar_grads_new(&grads, l->of.one));
    assert_ok(fill_gradients(grads, l->of.one, l->gradients));
    assert_ok(invar_grads_finalize(grads, l->of.one, l->of.dev));
    assert_ok(invar_optimizer_norm(&l->norm, &l->clip, l->of.one, grads, true, 1.0f, l->of.dev));
    l->digests = calloc((size_t)l->of.one->n_params, sizeof *l->digests);
    memcpy(l->digests, grads->digests, (size_t)l->of.one->n_params * sizeof *l->digests);
    assert_ok(invar_optimizer_new(&o, l->of.one, 0));
    assert_ok(steps(o, l->of.one, grads, l->clip, l->of.dev));
    invar_optimizer_free(o);
    invar_grads_free(grads);
}

static void check(invar_test_model kind, invar_format format, const divided_world *world,
                  uint64_t schedule, const invar_device *dev, const invar_device *far)
{
    lesson l = {.of = {.world = world,
                       .spec = divided_spec(kind, format),
                       .format = format,
                       .dev = dev,
                       .far = far,
                       .bucket = 1 << 17, // several of a tied head
                       .check = check_rank,
                       .payload = &l}};

    make_one(&l);
    divided_check(&l.of, schedule, invar_test_model_name(kind));
    free_gradients(l.gradients, l.of.one->n_params);
    invar_model_free(l.of.one);
    free(l.digests);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_optimizer_divided__steps_as_one(void **state)
{
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_EXPERTS};

    for (int w = 0; w < DIVIDED_WORLDS; w++)
        check(kinds[w % 2], (invar_format)(w % INVAR_FORMAT_COUNT), &divided_worlds[w], (uint64_t)w,
              *state, NULL);
    for (int w = 0; w < DIVIDED_EXPERT_WORLDS; w++)
        check(INVAR_TEST_MODEL_EXPERTS, (invar_format)w, &divided_expert_worlds[w], (uint64_t)w,
              *state, NULL);
}

/* Ranks that hold the same own rows of it. */
static void test_optimizer_divided__owners(void **state)
{
    static const divided_world worlds[] = {
        {3, {.tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 1}},
        {8, {.tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 1}},
        {8, {.tensor = 1, .expert_tensor = 1, .pipeline = 2, .virtual_stages = 2, .expert = 1}}};

    for (int w = 0; w < (int)(sizeof worlds / sizeof *worlds); w++)
        check(w == 1 ? INVAR_TEST_MODEL_EXPERTS : INVAR_TEST_MODEL_DENSE,
              (invar_format)(w * 2 % INVAR_FORMAT_COUNT), &worlds[w], (uint64_t)w, *state, NULL);
}

static void test_optimizer_divided__far_device(void **state)
{
    const invar_device *dev = *state;
    invar_device far;

    assert_ok(invar_far_open(&far, dev));
    check(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, &divided_worlds[2], 1, dev, &far);
    check(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, &divided_worlds[5], 2, dev, &far);
    assert_int_equal(invar_far_counted().live, 0);
    invar_device_close(&far);
}

/* What the order of pieces is for: a sum over ranks of their sums is another one. */
static void test_optimizer_divided__sums_by_rank_differ(void **state)
{
    invar_model_spec spec = divided_spec(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32);
    float norm, clip, *squares, sum, **gradients;
    invar_grads *grads;
    invar_model *model;
    int differ = 0;

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
        differ += sum !=
                  invar_reduce_f32(squares, i) + invar_reduce_f32(squares + i, grads->n_pieces - i);
    assert_true(differ > 0);
    free(squares);
    free_gradients(gradients, model->n_params);
    invar_grads_free(grads);
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer_divided__steps_as_one),
        cmocka_unit_test(test_optimizer_divided__owners),
        cmocka_unit_test(test_optimizer_divided__far_device),
        cmocka_unit_test(test_optimizer_divided__sums_by_rank_differ),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
