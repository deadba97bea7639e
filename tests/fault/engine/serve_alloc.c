/*
 * serve_alloc.c - allocations of a completion request and its response fail one at a time.
 *
 * Each failure must return INVAR_E_NOMEM with a message and leave no block (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/sample/serve/completion_response.h"
#include "tests/fault/faulty.h"

#define CHAT_BODY                                                                                  \
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},{"        \
    "\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","       \
    "\"arguments\":\"{}\"}}]}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]," \
    "\"logprobs\":true,\"return_token_ids\":true,\"stop\":[\"zz\"],\"stop_token_ids\":[1]}"
#define TEXT_BODY "{\"prompt\":[\"ab\",[1,2]],\"n\":2,\"echo\":true,\"logprobs\":0,\"stop\":\"zz\"}"
#define TOOL_CALL "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"

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

/* Stands in for prompt_encoder.h and a rollout: fills in the prompts and the sampled choices. */
static invar_status fill_choices(invar_completion_request *request,
                                 invar_generation_request *generation)
{
    int64_t count;

    if (request->kind == INVAR_COMPLETION_REQUEST_CHAT) {
        INVAR_TRY(INVAR_ALLOC(request->prompts, 1, "a prompt"));
        *request->prompts = (invar_completion_prompt){.text = "ab"};
        request->n_prompts = 1;
    }
    for (int64_t i = 0; i < request->n_prompts; i++)
        if (request->prompts[i].text)
            INVAR_TRY(invar_tokenizer_encode(&request->prompts[i].ids, &request->prompts[i].n_ids,
                                             tokenizer, "ab", 2));
    INVAR_TRY(invar_generation_request_init(generation, request->n_prompts, request->n));
    for (int64_t i = 0; i < request->n_prompts; i++) {
        generation->prompts[i].tokens = request->prompts[i].ids;
        generation->prompts[i].count = 2;
        INVAR_TRY(INVAR_ALLOC_SIZED(generation->prompts[i].logp, 1, sizeof(float), "log-probs"));
        generation->prompts[i].logp[0] = -1.0f;
    }
    for (int64_t i = 0; i < request->n_prompts * request->n; i++) {
        invar_generation_choice *c = &generation->choices[i];
        INVAR_TRY(
            invar_tokenizer_encode(&c->tokens, &count, tokenizer, TOOL_CALL, strlen(TOOL_CALL)));
        INVAR_TRY(INVAR_ALLOC_ZEROED(c->logp, (size_t)count, "log-probs"));
        c->count = count;
        c->finish = INVAR_FINISH_STOP;
    }
    return INVAR_OK;
}

static invar_status write_response(const invar_completion_request *request,
                                   const invar_generation_request *generation, bool events)
{
    static const invar_server_info info = {.model = "m", .numerics = "ieee", .format = "fp32"};
    invar_json_text text = {0};
    invar_completion_response response;
    invar_status status =
        invar_completion_response_init(&response, request, generation, &info, tokenizer);

    if (status == INVAR_OK)
        status = invar_completion_response_copy(&response);
    if (status == INVAR_OK)
        status = events ? invar_completion_response_events(&text, &response, true)
                        : invar_completion_response_write(&text, &response);
    invar_completion_response_release(&response);
    invar_json_text_release(&text);
    return status;
}

static invar_status exercise_request(invar_completion_kind kind, const char *body)
{
    static const int32_t ids[] = {2};
    const invar_sampling_params sampling = {
        .temperature = 1.0f, .top_p = 1.0f, .stop_ids = ids, .n_stop_ids = 1};
    invar_generation_request generation = {0};
    invar_completion_request request;
    invar_status status =
        invar_completion_request_read(&request, kind, body, strlen(body), &sampling, NULL);
    bool has_generation = status == INVAR_OK;

    if (has_generation)
        status = fill_choices(&request, &generation);
    if (status == INVAR_OK)
        status = write_response(&request, &generation, false);
    if (status == INVAR_OK)
        status = write_response(&request, &generation, true);
    if (has_generation)
        invar_generation_request_release(&generation);
    invar_completion_request_release(&request);
    return status;
}

static invar_status exercise_text(void)
{
    return exercise_request(INVAR_COMPLETION_REQUEST_TEXT, TEXT_BODY);
}

static invar_status exercise_chat(void)
{
    return exercise_request(INVAR_COMPLETION_REQUEST_CHAT, CHAT_BODY);
}

static void test_serve_alloc__a_text_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_text);
}

static void test_serve_alloc__a_chat_survives_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serve_alloc__a_text_survives_each_failure),
        cmocka_unit_test(test_serve_alloc__a_chat_survives_each_failure),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
