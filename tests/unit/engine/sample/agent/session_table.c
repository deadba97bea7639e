/*
 * session_table.c - requests of a session: what is too much is refused, and leaves no trace.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/agent/session_table.h"

#include <string.h>

#include "base/alloc.h"
#include "tests/support.h"

enum { LONG = 1 << 20, LARGE_TOKEN = 100000000 }; /* ten bytes each, in a record */

static const invar_sampling_params sampling = {
    .temperature = 1.0f, .top_p = 1.0f, .max_response = 1};
static const invar_agent_server_options options = {.max_calls = 8, .max_branches = 8};
static const invar_agent_batch_options order = {.sampling = &sampling};
static const int32_t few[] = {1, 2, 3};
static const invar_rl_sample sample = {.index = 7};

typedef struct scene {
    invar_agent_session session;
    invar_live_session desk;
    invar_session_table desks;
} scene;

static void scene_init(scene *s)
{
    memset(s, 0, sizeof *s);
    s->desk = (invar_live_session){.task = {&sample, &s->session}, .key = "invar-1"};
    s->desks = (invar_session_table){
        .options = &options, .batch = &order, .sessions = &s->desk, .count = 1};
    (void)pthread_mutex_init(&s->desks.lock, NULL);
    (void)pthread_cond_init(&s->desks.idle_cond, NULL);
}

static void scene_release(scene *s)
{
    invar_agent_session_release(&s->session);
    (void)pthread_cond_destroy(&s->desks.idle_cond);
    (void)pthread_mutex_destroy(&s->desks.lock);
}

/* Asks with the key, and goes again where it is let in. */
static invar_status ask(scene *s, const char *key)
{
    int32_t ids[sizeof few / sizeof *few];
    invar_completion_prompt prompt = {.ids = ids, .n_ids = (int64_t)(sizeof few / sizeof *few)};
    invar_completion_request asked = {
        .n = 1, .n_prompts = 1, .prompts = &prompt, .sampling = sampling};
    invar_generation_request ticket;
    void *visit = NULL;
    invar_status status;

    memcpy(ids, few, sizeof few);
    assert_ok(invar_generation_request_init(&ticket, 1, 1));
    asked.body = json_object();
    status = invar_session_table_hooks.begin(&visit, &s->desks, key, &asked, &ticket);
    if (status == INVAR_OK)
        invar_session_table_hooks.end(visit);
    json_decref(asked.body);
    invar_generation_request_release(&ticket);
    return status;
}

static void test_desk__a_record_has_a_limit(void **state)
{
    int32_t *prompt = NULL;
    scene s;

    (void)state;
    scene_init(&s);
    assert_ok(invar_alloc((void **)&prompt, LONG, sizeof *prompt, "a prompt"));
    for (int64_t i = 0; i < LONG; i++)
        prompt[i] = LARGE_TOKEN;
    for (int64_t calls = 0; calls < 4; calls++) { // 10 MiB each: there is room beside three
        invar_agent_call *call;

        assert_int_equal(s.session.n_calls, calls);
        assert_ok(ask(&s, s.desk.key));
        assert_ok(invar_agent_session_append(&call, &s.session, prompt, LONG, calls));
    }
    assert_fails(ask(&s, s.desk.key), INVAR_E_INVALID, "would have more than 32 MiB");
    assert_int_equal(s.session.n_calls, 4);
    assert_int_equal(s.desks.n_active_requests, 0);
    scene_release(&s);
    invar_free(prompt);
}

static void test_desk__keys_and_ends(void **state)
{
    scene s;

    (void)state;
    scene_init(&s);
    assert_ok(ask(&s, s.desk.key));
    assert_fails(ask(&s, "invar-2"), INVAR_E_STATE, "the session has ended");
    assert_fails(ask(&s, NULL), INVAR_E_STATE, "the session has ended");
    s.desk.ended = true;
    assert_fails(ask(&s, s.desk.key), INVAR_E_STATE, "the session has ended");
    scene_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_desk__a_record_has_a_limit),
        cmocka_unit_test(test_desk__keys_and_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
