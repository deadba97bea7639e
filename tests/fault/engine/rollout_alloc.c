/*
 * rollout_alloc.c - allocations of rollouts fail one by one: batch, stream, draft model, scoring.
 *
 * Each failure must return INVAR_E_NOMEM with a message and leave no block (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/fault/faulty.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

/* Made with the usual allocator, before it is replaced. */
static invar_device dev;
static invar_model *model;
static invar_tokenizer *tokenizer;

static int setup(void **state)
{
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_EXPERTS, false);

    (void)state;
    spec.vocab = 27;
    spec.eos[0] = 26;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, &dev));
    assert_ok(invar_model_init(model, 5, &dev));
    assert_ok(invar_tokenizer_alphabet(&tokenizer, "abcdefghijklmnopqrstuvwxyz"));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    invar_tokenizer_free(tokenizer);
    invar_model_free(model);
    invar_test_device_release(&dev);
    return 0;
}

/*
 * Samples groups with and without a common prompt, with a stop string and with responses that
 * outgrow their initial capacity.
 */
static invar_status use_rollout(invar_rollout *rollout, invar_rl_samples *samples)
{
    static const char *const stop[] = {"never this"};
    const int32_t ids[] = {3};
    const invar_sampling_params sampling = {.seed = 1,
                                            .temperature = 1.0f,
                                            .top_p = 0.9f,
                                            .max_response = 70,
                                            .min_response = 66,
                                            .stop_ids = ids,
                                            .n_stop_ids = 1,
                                            .stop = stop,
                                            .n_stop = 1};

    INVAR_TRY(prompts_new(samples, 2, 2, 5, 27));
    return invar_rollout_run(rollout, samples->items, samples->count, &sampling, NULL, NULL);
}

static invar_status exercise_rollout(invar_speculative_algorithm algorithm)
{
    const invar_rollout_exec_options limits = {
        .concurrency = 2, .page_size = 4, .speculation = {algorithm, 2, {1, 4}, model}};
    invar_rl_samples samples = {0};
    invar_rollout *rollout;
    invar_status status;

    INVAR_TRY(invar_rollout_new(&rollout, model, tokenizer, &dev, &limits));
    status = use_rollout(rollout, &samples);
    invar_rl_samples_reset(&samples);
    invar_rollout_free(rollout);
    return status;
}

static invar_status exercise_ngram(void)
{
    return exercise_rollout(INVAR_SPECULATIVE_ALGORITHM_NGRAM);
}

static invar_status exercise_draft(void)
{
    return exercise_rollout(INVAR_SPECULATIVE_ALGORITHM_DRAFT);
}

static invar_status exercise_score(void)
{
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7};
    const int32_t *const sequences[] = {tokens, tokens + 2};
    const int64_t n[] = {7, 5};
    const invar_rollout_exec_options limits = {.prefill_chunk = 4};
    float logp[2][6], *out[] = {logp[0], logp[1]};
    invar_rollout *rollout;
    invar_status status;

    INVAR_TRY(invar_rollout_new(&rollout, model, NULL, &dev, &limits));
    status = invar_rollout_score(rollout, sequences, n, 2, 1.0f, out);
    invar_rollout_free(rollout);
    return status;
}

/* Adds more samples than the stream has capacity for, one at a time, and cancels some of them. */
static invar_status use_stream(invar_rollout *rollout, invar_rl_samples *samples,
                               const invar_sampling_params *sampling)
{
    INVAR_TRY(prompts_new(samples, 60, 2, 3, 27));
    INVAR_TRY(invar_rollout_open_stream(rollout, 9));
    for (int64_t i = 0; i < samples->count; i++) {
        INVAR_TRY(invar_rollout_add(rollout, &samples->items[i], 1, sampling));
        INVAR_TRY(i % 2 ? invar_rollout_step(rollout) : INVAR_OK);
        if (i % 5 == 0)
            invar_rollout_cancel(rollout, &samples->items[i / 2], 1);
    }
    return INVAR_OK;
}

static invar_status exercise_stream(invar_speculative_algorithm algorithm)
{
    static const char *const stop[] = {"never this"};
    const invar_sampling_params sampling = {
        .temperature = 1.0f, .top_p = 1.0f, .max_response = 4, .stop = stop, .n_stop = 1};
    const invar_rollout_exec_options limits = {
        .concurrency = 2, .page_size = 4, .speculation = {algorithm, 2, {1, 4}, model}};
    invar_rl_samples samples = {0};
    invar_rollout *rollout;
    invar_status status;

    INVAR_TRY(invar_rollout_new(&rollout, model, tokenizer, &dev, &limits));
    status = use_stream(rollout, &samples, &sampling);
    invar_rollout_free(rollout);
    invar_rl_samples_reset(&samples);
    return status;
}

static invar_status exercise_stream_ngram(void)
{
    return exercise_stream(INVAR_SPECULATIVE_ALGORITHM_NGRAM);
}

static invar_status exercise_stream_draft(void)
{
    return exercise_stream(INVAR_SPECULATIVE_ALGORITHM_DRAFT);
}

static void test_rollout_alloc__an_open_one_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_stream_ngram);
    fail_each_allocation(exercise_stream_draft);
}

static void test_rollout_alloc__generation_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_ngram);
}

static void test_rollout_alloc__a_draft_model_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_draft);
}

static void test_rollout_alloc__scoring_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_score);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rollout_alloc__generation_survives_each_failure),
        cmocka_unit_test(test_rollout_alloc__a_draft_model_survives_each_failure),
        cmocka_unit_test(test_rollout_alloc__scoring_survives_each_failure),
        cmocka_unit_test(test_rollout_alloc__an_open_one_survives_each_failure),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
