/*
 * serve_alloc.c - every allocation of a request and its reply fails once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/sample/serve/completion_response.h"
#include "tests/fault/faulty.h"

#define TALK                                                                                       \
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},{"        \
    "\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","       \
    "\"arguments\":\"{}\"}}]}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]," \
    "\"logprobs\":true,\"return_token_ids\":true,\"stop\":[\"zz\"],\"stop_token_ids\":[1]}"
#define TEXT "{\"prompt\":[\"ab\",[1,2]],\"n\":2,\"echo\":true,\"logprobs\":0,\"stop\":\"zz\"}"
#define CALL "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"

/* Made with the usual allocator, before it is replaced. */
static invar_tokenizer *tokenizer;

static int setup(void **state)
{
    (void)state;
    assert_ok(invar_tokenizer_alphabet(&tokenizer, "abcdefglmnorstu_<>/{}:,\" "));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    invar_tokenizer_free(tokenizer);
    return 0;
}

/* What prompt_encoder.h and a rollout would have made. */
static invar_status fill(invar_completion_request *ask, invar_generation_request *ticket)
{
    int64_t count;

    if (ask->kind == INVAR_COMPLETION_REQUEST_CHAT) {
        INVAR_TRY(invar_alloc((void **)&ask->prompts, 1, sizeof *ask->prompts, "a prompt"));
        *ask->prompts = (invar_completion_prompt){.text = "ab"};
        ask->n_prompts = 1;
    }
    for (int64_t i = 0; i < ask->n_prompts; i++)
        if (ask->prompts[i].text)
            INVAR_TRY(invar_tokenizer_encode(&ask->prompts[i].ids, &ask->prompts[i].n_ids,
                                             tokenizer, "ab", 2));
    INVAR_TRY(invar_generation_request_init(ticket, ask->n_prompts, ask->n));
    for (int64_t i = 0; i < ask->n_prompts; i++) {
        ticket->prompts[i].tokens = ask->prompts[i].ids;
        ticket->prompts[i].count = 2;
        INVAR_TRY(invar_alloc((void **)&ticket->prompts[i].logp, 1, sizeof(float), "log-probs"));
        ticket->prompts[i].logp[0] = -1.0f;
    }
    for (int64_t i = 0; i < ask->n_prompts * ask->n; i++) {
        invar_generation_choice *c = &ticket->choices[i];
        INVAR_TRY(invar_tokenizer_encode(&c->tokens, &count, tokenizer, CALL, strlen(CALL)));
        INVAR_TRY(invar_alloc((void **)&c->logp, (size_t)count, sizeof *c->logp, "log-probs"));
        memset(c->logp, 0, (size_t)count * sizeof *c->logp);
        c->count = count;
        c->finish = INVAR_FINISH_STOP;
    }
    return INVAR_OK;
}

static invar_status write_reply(const invar_completion_request *ask,
                                const invar_generation_request *ticket, bool events)
{
    static const invar_server_info facts = {.model = "m", .numerics = "ieee", .format = "fp32"};
    invar_json_text text = {0};
    invar_completion_response reply;
    invar_status status = invar_completion_response_init(&reply, ask, ticket, &facts, tokenizer);

    if (status == INVAR_OK)
        status = invar_completion_response_copy(&reply);
    if (status == INVAR_OK)
        status = events ? invar_completion_response_events(&text, &reply, true)
                        : invar_completion_response_write(&text, &reply);
    invar_completion_response_release(&reply);
    invar_json_text_release(&text);
    return status;
}

static invar_status live(invar_completion_kind kind, const char *body)
{
    static const int32_t ids[] = {2};
    const invar_sampling_params sampling = {
        .temperature = 1.0f, .top_p = 1.0f, .stop_ids = ids, .n_stop_ids = 1};
    invar_generation_request ticket = {0};
    invar_completion_request ask;
    invar_status status =
        invar_completion_request_read(&ask, kind, body, strlen(body), &sampling, NULL);
    bool has_ticket = status == INVAR_OK;

    if (has_ticket)
        status = fill(&ask, &ticket);
    if (status == INVAR_OK)
        status = write_reply(&ask, &ticket, false);
    if (status == INVAR_OK)
        status = write_reply(&ask, &ticket, true);
    if (has_ticket)
        invar_generation_request_release(&ticket);
    invar_completion_request_release(&ask);
    return status;
}

static invar_status live_text(void)
{
    return live(INVAR_COMPLETION_REQUEST_TEXT, TEXT);
}

static invar_status live_chat(void)
{
    return live(INVAR_COMPLETION_REQUEST_CHAT, TALK);
}

static void test_serve_alloc__a_text_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(live_text);
}

static void test_serve_alloc__a_chat_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(live_chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serve_alloc__a_text_survives_each_failure),
        cmocka_unit_test(test_serve_alloc__a_chat_survives_each_failure),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
