/*
 * inference_engine.c - tests of batched scoring: a request that cannot be scored fails alone.
 *
 * The other requests of the batch must get the log-probs of a separate rollout, bit for bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/inference_engine.h"

#include <string.h>

#include "tests/model.h"
#include "tests/support.h"

enum { REQUESTS = 4, LENGTH = 6, CONTEXT = 64, PAGES = 4, PAGE_SIZE = 4 };

typedef struct fixture {
    invar_device dev;
    invar_model *model;
    invar_inference_engine *engine;
    invar_sampling_params sampling;
    int32_t tokens[REQUESTS][CONTEXT];
    invar_generation_request requests[REQUESTS];
} fixture;

static int setup(void **state)
{
    static fixture f;
    const invar_rollout_exec_options limits = {.page_size = PAGE_SIZE, .pages = PAGES};

    memset(&f, 0, sizeof f);
    f.sampling = (invar_sampling_params){.temperature = 1.0f, .top_p = 1.0f};
    invar_test_device_init(&f.dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    f.model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 3, &f.dev);
    assert_ok(invar_inference_engine_new(
        &f.engine, &(invar_inference_engine_options){.model = f.model,
                                                     .dev = &f.dev,
                                                     .limits = &limits,
                                                     .context = CONTEXT,
                                                     .max_requests = REQUESTS}));
    for (int i = 0; i < REQUESTS; i++) {
        for (int n = 0; n < CONTEXT; n++)
            f.tokens[i][n] = (7 * i + 3 * n) % 90;
        assert_ok(invar_generation_request_init(&f.requests[i], 1, 1));
        f.requests[i].sampling = &f.sampling;
        f.requests[i].score = true;
        f.requests[i].prompts[0].tokens = f.tokens[i];
        f.requests[i].prompts[0].count = LENGTH;
    }
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    for (int i = 0; i < REQUESTS; i++)
        invar_generation_request_release(&f->requests[i]);
    invar_inference_engine_free(f->engine);
    invar_model_free(f->model);
    invar_test_device_release(&f->dev);
    return 0;
}

/* Submits all requests and runs the engine until they are done. */
static void submit_and_run(fixture *f)
{
    const volatile sig_atomic_t stop = 1;

    for (int i = 0; i < REQUESTS; i++)
        assert_ok(invar_inference_engine_submit(f->engine, &f->requests[i]));
    assert_ok(invar_inference_engine_run(f->engine, &stop));
    assert_int_equal(invar_inference_engine_load(f->engine), 0);
}

/* Checks that only the given request has failed, with `text`, and the log-probs of the others. */
static void assert_only_fails(fixture *f, int failing, const char *text)
{
    invar_rollout *rollout;

    assert_ok(
        invar_rollout_new(&rollout, f->model, NULL, &f->dev, &(invar_rollout_exec_options){0}));
    for (int i = 0; i < REQUESTS; i++) {
        const invar_generation_request *t = &f->requests[i];
        float logp[LENGTH] = {0}, *out = logp;
        const int64_t length = LENGTH;

        assert_true(t->done);
        if (i == failing) {
            assert_int_equal(t->error.status, INVAR_E_INVALID);
            assert_non_null(strstr(t->error.message, text));
            continue;
        }
        assert_int_equal(t->error.status, INVAR_OK);
        assert_ok(invar_rollout_score(rollout, (const int32_t *const[]){f->tokens[i]}, &length, 1,
                                      1.0f, &out));
        assert_memory_equal(t->prompts[0].logp, logp, (LENGTH - 1) * sizeof *logp);
    }
    invar_rollout_free(rollout);
}

static void test_inference_engine__invalid_token_fails_its_request(void **state)
{
    fixture *f = *state;

    f->tokens[2][3] = INT32_MAX;
    submit_and_run(f);
    assert_only_fails(f, 2, "the vocabulary has");
}

static void test_inference_engine__too_long_prompt_fails_its_request(void **state)
{
    fixture *f = *state;

    f->requests[1].prompts[0].count = PAGES * PAGE_SIZE + 2;
    submit_and_run(f);
    assert_only_fails(f, 1, "room to score 17");
}

/* The kernels reject the temperature; requests with others are scored in another batch. */
static void test_inference_engine__invalid_temperature_fails_its_request(void **state)
{
    fixture *f = *state;
    invar_sampling_params other = f->sampling;

    other.temperature = 1e-39f;
    f->requests[0].sampling = &other;
    submit_and_run(f);
    assert_only_fails(f, 0, "temperature");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_inference_engine__invalid_token_fails_its_request,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_inference_engine__too_long_prompt_fails_its_request,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_inference_engine__invalid_temperature_fails_its_request, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
