/*
 * ranks_alloc.c - allocations of data-parallel ranks fail one at a time, on one of them.
 *
 * Two ranks score, train, step and collect their times. After a failure all ranks return, the
 * failing one with INVAR_E_NOMEM, and leave no block (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/rank_time.h"
#include "engine/train/optimizer.h"
#include "engine/train/trainer.h"
#include "tests/fault/faulty.h"
#include "tests/model.h"
#include "tests/ranks.h"

enum { RANKS = 2, SAMPLES = 3, TOKENS = 64 };

/* Made with the usual allocator, before it is replaced. */
static invar_device dev;
static invar_model *whole;
static invar_rl_samples samples;

static int setup(void **state)
{
    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    whole = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 5, &dev);
    invar_test_samples(&samples, SAMPLES, 5, whole->spec.vocab, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    invar_rl_samples_reset(&samples);
    invar_model_free(whole);
    invar_test_device_release(&dev);
    return 0;
}

static invar_status constant_loss(void *payload, int64_t first, int64_t count, const float *logp,
                                  const float *entropy, float *dlogp, float *dentropy)
{
    int64_t tokens = invar_trainer_tokens(samples.items + first, count);

    (void)payload;
    (void)logp;
    (void)entropy;
    for (int64_t t = 0; t < tokens; t++)
        dlogp[t] = dentropy[t] = 1.0f;
    return INVAR_OK;
}

static invar_status optimizer_step(invar_model *model, invar_grads *grads)
{
    const invar_adamw_options adamw = {.beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    invar_optimizer *optimizer;
    invar_status status;
    float norm, clip;

    INVAR_TRY(invar_optimizer_norm(&norm, &clip, model, grads, true, 1.0f, &dev));
    INVAR_TRY(invar_optimizer_new(&optimizer, model, 0));
    status = invar_optimizer_step(optimizer, model, grads, clip, 0.0f, true, &adamw, &dev);
    if (status == INVAR_OK)
        status = invar_optimizer_collect(optimizer, model);
    invar_optimizer_free(optimizer);
    return status;
}

static invar_status score_and_train(invar_trainer *trainer, invar_model *model)
{
    float logp[TOKENS], entropy[TOKENS];
    invar_trainer_result result = {.train_logp = logp, .entropy = entropy};
    invar_trainer_loss loss = {.run = constant_loss, .entropy = true};
    invar_grads *grads;
    invar_status status;

    INVAR_TRY(invar_trainer_score(trainer, model, samples.items, SAMPLES, logp, entropy));
    INVAR_TRY(invar_grads_new(&grads, model));
    status = invar_trainer_forward_backward(trainer, model, samples.items, SAMPLES, &loss, grads,
                                            &result);
    if (status == INVAR_OK)
        status = optimizer_step(model, grads);
    invar_grads_free(grads);
    return status;
}

static invar_status train(const invar_layout *layout)
{
    const invar_trainer_options options = {
        .plan = {1, 1, 0, 0}, .temperature = 1.0f, .layout = layout};
    invar_trainer *trainer = NULL;
    invar_model *model = NULL;
    invar_status status = invar_test_model_part(&model, whole, layout, &dev);

    if (status == INVAR_OK)
        status = invar_trainer_new(&trainer, &dev, &options);
    if (status == INVAR_OK)
        status = score_and_train(trainer, model);
    invar_trainer_free(trainer);
    invar_model_free(model);
    return status;
}

static invar_status train_and_collect_times(rank_run *run)
{
    invar_layout layout;
    invar_rank_times all;
    invar_rank_timer *timer;
    invar_status status;

    invar_layout_init(&layout, run->comm, 60);
    INVAR_TRY(invar_rank_timer_new(&timer, &layout, true));
    status = train(&layout);
    if (status == INVAR_OK)
        status = invar_rank_timer_collect(&all, timer);
    invar_rank_timer_free(timer);
    return status;
}

static invar_status exercise_ranks(void)
{
    rank_run runs[MAX_RANKS];

    INVAR_TRY(try_ranks(runs, RANKS, 0, 0, train_and_collect_times, NULL));
    return ranks_status(runs, RANKS);
}

static void test_ranks_alloc__survive_each_failure(void **state)
{
    (void)state;
    assert_true(invar_trainer_tokens(samples.items, SAMPLES) <= TOKENS);
    fail_each_allocation(exercise_ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranks_alloc__survive_each_failure)};

    return cmocka_run_group_tests(tests, setup, teardown);
}
