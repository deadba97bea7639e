/*
 * inference_engine.c - tests of tickets: one that cannot be scored fails alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/inference_engine.h"

#include <string.h>

#include "tests/model.h"
#include "tests/support.h"

enum { TICKETS = 4, LENGTH = 6, CONTEXT = 64, PAGES = 4, PAGE_SIZE = 4 };

typedef struct fixture {
    invar_device dev;
    invar_model *model;
    invar_inference_engine *dispatch;
    invar_sampling_params sampling;
    int32_t tokens[TICKETS][CONTEXT];
    invar_generation_request tickets[TICKETS];
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
        &f.dispatch, &(invar_inference_engine_options){.model = f.model,
                                                       .dev = &f.dev,
                                                       .limits = &limits,
                                                       .context = CONTEXT,
                                                       .max_requests = TICKETS}));
    for (int i = 0; i < TICKETS; i++) {
        for (int n = 0; n < CONTEXT; n++)
            f.tokens[i][n] = (7 * i + 3 * n) % 90;
        assert_ok(invar_generation_request_init(&f.tickets[i], 1, 1));
        f.tickets[i].sampling = &f.sampling;
        f.tickets[i].score = true;
        f.tickets[i].prompts[0].tokens = f.tokens[i];
        f.tickets[i].prompts[0].count = LENGTH;
    }
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    for (int i = 0; i < TICKETS; i++)
        invar_generation_request_release(&f->tickets[i]);
    invar_inference_engine_free(f->dispatch);
    invar_model_free(f->model);
    invar_test_device_release(&f->dev);
    return 0;
}

/* All tickets are handed in, and worked off. */
static void run_all(fixture *f)
{
    const volatile sig_atomic_t stop = 1;

    for (int i = 0; i < TICKETS; i++)
        assert_ok(invar_inference_engine_submit(f->dispatch, &f->tickets[i]));
    assert_ok(invar_inference_engine_run(f->dispatch, &stop));
    assert_int_equal(invar_inference_engine_load(f->dispatch), 0);
}

/* The given ticket has failed with this text; all others have the scores of a run alone. */
static void assert_guilty(fixture *f, int guilty, const char *text)
{
    invar_rollout *rollout;

    assert_ok(
        invar_rollout_new(&rollout, f->model, NULL, &f->dev, &(invar_rollout_exec_options){0}));
    for (int i = 0; i < TICKETS; i++) {
        const invar_generation_request *t = &f->tickets[i];
        float logp[LENGTH] = {0}, *out = logp;
        const int64_t length = LENGTH;

        assert_true(t->done);
        if (i == guilty) {
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

static void test_dispatch__a_token_that_is_none_fails_its_ticket(void **state)
{
    fixture *f = *state;

    f->tokens[2][3] = INT32_MAX;
    run_all(f);
    assert_guilty(f, 2, "the vocabulary has");
}

static void test_dispatch__a_prompt_without_pages_fails_its_ticket(void **state)
{
    fixture *f = *state;

    f->tickets[1].prompts[0].count = PAGES * PAGE_SIZE + 2;
    run_all(f);
    assert_guilty(f, 1, "room to score 17");
}

/* Kernels refuse it, and no other ticket is on its sheet. */
static void test_dispatch__a_temperature_that_is_none_fails_its_ticket(void **state)
{
    fixture *f = *state;
    invar_sampling_params other = f->sampling;

    other.temperature = 1e-39f;
    f->tickets[0].sampling = &other;
    run_all(f);
    assert_guilty(f, 0, "temperature");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_dispatch__a_token_that_is_none_fails_its_ticket, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_dispatch__a_prompt_without_pages_fails_its_ticket,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_dispatch__a_temperature_that_is_none_fails_its_ticket,
                                        setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
