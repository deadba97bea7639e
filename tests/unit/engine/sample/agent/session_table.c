/*
 * session_table.c - tests of requests to a live session: size limit, unknown keys, ended sessions.
 *
 * The hooks of the HTTP server are called directly. A rejected request must not change the session
 * or the number of active requests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/agent/session_table.h"

#include <string.h>

#include "base/alloc.h"
#include "tests/support.h"

enum { LONG = 1 << 20, LARGE_TOKEN = 100000000 }; /* a token of ten bytes in a record */

static const invar_sampling_params sampling = {
    .temperature = 1.0f, .top_p = 1.0f, .max_response = 1};
static const invar_agent_server_options options = {.max_calls = 8, .max_branches = 8};
static const invar_agent_batch_options batch = {.sampling = &sampling};
static const int32_t prompt_ids[] = {1, 2, 3};
static const invar_rl_sample sample = {.index = 7};

typedef struct table_fixture {
    invar_agent_session session;
    invar_live_session live;
    invar_session_table table;
} table_fixture;

static void init_fixture(table_fixture *s)
{
    memset(s, 0, sizeof *s);
    s->live = (invar_live_session){.task = {&sample, &s->session}, .key = "invar-1"};
    s->table = (invar_session_table){
        .options = &options, .batch = &batch, .sessions = &s->live, .count = 1};
    (void)pthread_mutex_init(&s->table.lock, NULL);
    (void)pthread_cond_init(&s->table.idle_cond, NULL);
}

static void release_fixture(table_fixture *s)
{
    invar_agent_session_release(&s->session);
    (void)pthread_cond_destroy(&s->table.idle_cond);
    (void)pthread_mutex_destroy(&s->table.lock);
}

/* Begins a request with the key, and ends it if it was accepted. */
static invar_status begin_and_end(table_fixture *s, const char *key)
{
    int32_t ids[sizeof prompt_ids / sizeof *prompt_ids];
    invar_completion_prompt prompt = {.ids = ids,
                                      .n_ids = (int64_t)(sizeof prompt_ids / sizeof *prompt_ids)};
    invar_completion_request request = {
        .n = 1, .n_prompts = 1, .prompts = &prompt, .sampling = sampling};
    invar_generation_request generation;
    void *active = NULL;
    invar_status status;

    memcpy(ids, prompt_ids, sizeof prompt_ids);
    assert_ok(invar_generation_request_init(&generation, 1, 1));
    request.body = json_object();
    status = invar_session_table_hooks.begin(&active, &s->table, key, &request, &generation);
    if (status == INVAR_OK)
        invar_session_table_hooks.end(active);
    json_decref(request.body);
    invar_generation_request_release(&generation);
    return status;
}

static void test_session_table__a_record_has_a_limit(void **state)
{
    int32_t *prompt = NULL;
    table_fixture s;

    (void)state;
    init_fixture(&s);
    assert_ok(INVAR_ALLOC(prompt, LONG, "a prompt"));
    for (int64_t i = 0; i < LONG; i++)
        prompt[i] = LARGE_TOKEN;
    for (int64_t calls = 0; calls < 4; calls++) { // 10 MiB each: a fourth fits
        invar_agent_call *call;

        assert_int_equal(s.session.n_calls, calls);
        assert_ok(begin_and_end(&s, s.live.key));
        assert_ok(invar_agent_session_append(&call, &s.session, prompt, LONG, calls));
    }
    assert_fails(begin_and_end(&s, s.live.key), INVAR_E_INVALID, "would have more than 32 MiB");
    assert_int_equal(s.session.n_calls, 4);
    assert_int_equal(s.table.n_active_requests, 0);
    release_fixture(&s);
    invar_free(prompt);
}

static void test_session_table__keys_and_ends(void **state)
{
    table_fixture s;

    (void)state;
    init_fixture(&s);
    assert_ok(begin_and_end(&s, s.live.key));
    assert_fails(begin_and_end(&s, "invar-2"), INVAR_E_STATE, "the session has ended");
    assert_fails(begin_and_end(&s, NULL), INVAR_E_STATE, "the session has ended");
    s.live.ended = true;
    assert_fails(begin_and_end(&s, s.live.key), INVAR_E_STATE, "the session has ended");
    release_fixture(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session_table__a_record_has_a_limit),
        cmocka_unit_test(test_session_table__keys_and_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
