/*
 * sharded_model_alloc.c - allocations of ranks that share one model fail one at a time.
 *
 * Two ranks shard a model by tensor, pipeline or context parallelism and initialize, hash, score,
 * step and collect it. After a failure on one rank both return, the failing one with INVAR_E_NOMEM,
 * and leave no block (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/full_param.h"
#include "engine/model/shard/master_weights.h"
#include "engine/train/optimizer.h"
#include "engine/train/trainer.h"
#include "tests/fault/faulty.h"
#include "tests/model.h"
#include "tests/ranks.h"

enum { RANKS = 2, SAMPLES = 2, TOKENS = 64 };

static invar_device dev;
static invar_layout_sizes sizes;
static invar_rl_samples samples;

static int setup(void **state)
{
    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    invar_test_samples(&samples, SAMPLES, 5, 512, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    invar_rl_samples_reset(&samples);
    invar_test_device_release(&dev);
    return 0;
}

/* Each sample is a unit of its own, so that ranks can divide the rows. */
static invar_status score_samples(const invar_model *model)
{
    const invar_trainer_options options = {
        .plan = {1, 1, SAMPLES, 0}, .temperature = 1.0f, .layout = model->layout};
    invar_trainer *trainer;
    invar_status status;
    float logp[TOKENS];

    INVAR_TRY(invar_trainer_new(&trainer, &dev, &options));
    status = invar_trainer_score(trainer, model, samples.items, SAMPLES, logp, NULL);
    invar_trainer_free(trainer);
    return status;
}

static invar_status optimizer_step(invar_model *model, invar_grads *grads)
{
    const invar_adamw_options adamw = {.beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    float norm, clip;
    invar_optimizer *optimizer;
    invar_status status;

    INVAR_TRY(invar_grads_finalize(grads, model, &dev));
    INVAR_TRY(invar_optimizer_norm(&norm, &clip, model, grads, true, 1.0f, &dev));
    INVAR_TRY(invar_optimizer_new(&optimizer, model, 0));
    status = invar_optimizer_step(optimizer, model, grads, clip, 0.1f, true, &adamw, &dev);
    invar_optimizer_free(optimizer);
    return status;
}

static invar_status collect_full_params(const invar_model *model)
{
    invar_full_param_reader reader = {.capacity = 0};
    invar_full_masters masters = {.tensors = NULL};
    invar_status status = invar_full_masters_collect(&masters, model);
    const float *values;

    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++) {
        const invar_full_param_source source = {
            model, i, masters.tensors ? &masters.tensors[i] : invar_param_f32(&model->params[i]),
            masters.tensors ? NULL : &model->dev};
        status = invar_full_param_reader_read(&values, &reader, &source, 0, model->params[i].stack);
    }
    invar_full_masters_release(&masters);
    invar_full_param_reader_release(&reader);
    return status;
}

static invar_status use_model(invar_model *model)
{
    invar_digest hash;
    invar_grads *grads;
    invar_status status;

    INVAR_TRY(invar_model_init(model, 1, &dev));
    INVAR_TRY(invar_model_hash(&hash, model, &dev));
    INVAR_TRY(score_samples(model));
    INVAR_TRY(invar_grads_new(&grads, model));
    status = optimizer_step(model, grads);
    invar_grads_free(grads);
    return status == INVAR_OK ? collect_full_params(model) : status;
}

static invar_status exercise_part(rank_run *run)
{
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);
    invar_model *model = NULL;
    invar_layout layout;
    invar_status status;

    spec.vocab = 512;
    spec.intermediate = 256;
    spec.logical_tp = 2;
    invar_layout_init(&layout, run->comm, 60);
    status = invar_layout_divide(&layout, &sizes);
    if (status == INVAR_OK)
        status = invar_model_new(&model, &spec, INVAR_FORMAT_BF16, &layout, &dev);
    if (status == INVAR_OK)
        status = use_model(model);
    invar_model_free(model);
    invar_layout_release(&layout);
    return status;
}

static invar_status exercise_ranks(void)
{
    rank_run runs[MAX_RANKS];

    INVAR_TRY(try_ranks(runs, RANKS, 0, 0, exercise_part, NULL));
    return ranks_status(runs, RANKS);
}

static void test_sharded_model_alloc__tensor(void **state)
{
    (void)state;
    sizes = (invar_layout_sizes){
        .tensor = 2, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .sequence = true};
    fail_each_allocation(exercise_ranks);
}

static void test_sharded_model_alloc__pipeline(void **state)
{
    (void)state;
    sizes =
        (invar_layout_sizes){.tensor = 1, .expert_tensor = 1, .pipeline = 2, .virtual_stages = 1};
    fail_each_allocation(exercise_ranks);
}

static void test_sharded_model_alloc__context(void **state)
{
    (void)state;
    sizes = (invar_layout_sizes){
        .tensor = 1, .expert_tensor = 1, .context = 2, .pipeline = 1, .virtual_stages = 1};
    fail_each_allocation(exercise_ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharded_model_alloc__tensor),
        cmocka_unit_test(test_sharded_model_alloc__pipeline),
        cmocka_unit_test(test_sharded_model_alloc__context),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
