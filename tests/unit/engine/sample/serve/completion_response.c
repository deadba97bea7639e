/*
 * completion_response.c - tests of responses: a stream has the content of the full response.
 *
 * Streams receive their tokens in steps of different size. The tokenizer has a token for each
 * character, so that texts are arbitrary: incomplete stop strings, tool calls, malformed calls.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/completion_response.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/support.h"

#define ALPHABET " \"ABCIabcdefghiklmnorstux_<>/{}:,1"
#define CALL "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call>"

static const invar_server_info server_info = {
    .model = "m", .numerics = "ieee", .format = "fp32", .context = 999, .started = 5};

/* A request and its generation. */
typedef struct response_fixture {
    invar_tokenizer *tokenizer;
    invar_completion_request request;
    invar_generation_request generation,
        arrived; /* the complete generation, and its tokens so far */
} response_fixture;

static void open_fixture(response_fixture *s, invar_completion_kind kind, const char *body,
                         const char *text)
{
    const invar_sampling_params sampling = {.temperature = 1.0f, .top_p = 1.0f};
    invar_generation_request *generations[] = {&s->generation, &s->arrived};
    int64_t count;

    assert_ok(invar_tokenizer_alphabet(&s->tokenizer, ALPHABET));
    assert_ok(
        invar_completion_request_read(&s->request, kind, body, strlen(body), &sampling, NULL));
    if (kind == INVAR_COMPLETION_REQUEST_CHAT) { // like prompt_encoder.h
        assert_ok(INVAR_ALLOC(s->request.prompts, 1, "a prompt"));
        s->request.n_prompts = 1;
        s->request.prompts[0] = (invar_completion_prompt){.text = "ab"};
    }
    assert_ok(invar_tokenizer_encode(&s->request.prompts->ids, &s->request.prompts->n_ids,
                                     s->tokenizer, "ab", 2));
    for (int i = 0; i < 2; i++) {
        invar_generation_choice *c;

        assert_ok(invar_generation_request_init(generations[i], 1, 1));
        generations[i]->prompts[0].tokens = s->request.prompts->ids;
        generations[i]->prompts[0].count = 2;
        c = &generations[i]->choices[0];
        assert_ok(invar_tokenizer_encode(&c->tokens, &count, s->tokenizer, text, strlen(text)));
        assert_ok(INVAR_ALLOC(c->logp, (size_t)count + 1, "log-probs"));
        for (int64_t n = 0; n < count; n++)
            c->logp[n] = -0.25f * (float)n;
        c->count = i == 0 ? count : 0;
        c->finish = i == 0 ? INVAR_FINISH_STOP : INVAR_FINISH_NONE;
    }
}

static void close_fixture(response_fixture *s)
{
    invar_generation_request_release(&s->generation);
    invar_generation_request_release(&s->arrived);
    invar_completion_request_release(&s->request);
    invar_tokenizer_free(s->tokenizer);
}

static json_t *full_response(const response_fixture *s)
{
    invar_json_text text = {0};
    invar_completion_response reply;
    json_t *out;

    assert_ok(invar_completion_response_init(&reply, &s->request, &s->generation, &server_info,
                                             s->tokenizer));
    assert_ok(invar_completion_response_copy(&reply));
    assert_ok(invar_completion_response_write(&text, &reply));
    assert_ok(invar_json_parse(&out, "reply", text.data, text.bytes));
    invar_completion_response_release(&reply);
    invar_json_text_release(&text);
    return out;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* The content of all events of a stream. */
typedef struct stream_content {
    char text[512];
    size_t bytes;
    int64_t tokens;
    json_t *calls;
    char reason[32];
} stream_content;

/* Checks that an event has the tokens of its text: none without text, unless `other` is set. */
static void check_tokens(const json_t *logprobs, const json_t *content, bool chat, bool other)
{
    const json_t *list = json_object_get(logprobs, chat ? "content" : "tokens"), *item;
    char text[512] = "";
    size_t i, used = 0;

    json_array_foreach(list, i, item)
    {
        const json_t *token = chat ? json_object_get(item, "token") : item;

        used += (size_t)snprintf(text + used, sizeof text - used, "%s", json_string_value(token));
    }
    if (json_string_length(content) > 0)
        assert_string_equal(text, json_string_value(content));
    else if (!other)
        assert_true(json_is_null(logprobs));
}

static void read_event(stream_content *h, const json_t *event, bool chat)
{
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *delta = chat ? json_object_get(choice, "delta") : choice;
    const json_t *content = json_object_get(delta, chat ? "content" : "text");
    const json_t *logprobs = json_object_get(choice, "logprobs");
    json_t *calls = json_object_get(delta, "tool_calls");

    check_tokens(logprobs, content, chat,
                 calls || json_is_string(json_object_get(choice, "finish_reason")));
    assert_true(!h->reason[0]); // no event follows the one with finish_reason
    if (json_is_string(content)) {
        memcpy(h->text + h->bytes, json_string_value(content), json_string_length(content));
        h->bytes += json_string_length(content);
    }
    h->tokens +=
        (int64_t)json_array_size(json_object_get(logprobs, chat ? "content" : "token_logprobs"));
    if (calls)
        h->calls = json_incref(calls);
    if (json_is_string(json_object_get(choice, "finish_reason")))
        snprintf(h->reason, sizeof h->reason, "%s",
                 json_string_value(json_object_get(choice, "finish_reason")));
}

static bool read_events(stream_content *h, const invar_json_text *text, bool chat)
{
    const char *at = text->data, *end = at + text->bytes;
    bool done = false;

    while (at < end) {
        const char *stop = strstr(at, "\n\n");
        json_t *event;

        assert_true(!done && strncmp(at, "data: ", 6) == 0 && stop && stop < end);
        at += 6;
        done = strncmp(at, "[DONE]", 6) == 0;
        if (!done) {
            assert_ok(invar_json_parse(&event, "event", at, (size_t)(stop - at)));
            read_event(h, event, chat);
            json_decref(event);
        }
        at = stop + 2;
    }
    return done;
}

/* Writes the stream of a response whose tokens arrive `step` at a time. */
static void stream_response(stream_content *out, response_fixture *s, int64_t step)
{
    invar_generation_choice *c = &s->arrived.choices[0];
    invar_json_text text = {0};
    invar_completion_response reply;
    bool done = false;

    memset(out, 0, sizeof *out);
    c->count = 0;
    c->finish = INVAR_FINISH_NONE;
    assert_ok(invar_completion_response_init(&reply, &s->request, &s->arrived, &server_info,
                                             s->tokenizer));
    while (!done) {
        int64_t all = s->generation.choices[0].count;

        c->count = c->count + step < all ? c->count + step : all;
        c->finish = c->count == all ? INVAR_FINISH_STOP : INVAR_FINISH_NONE;
        invar_json_text_reset(&text);
        assert_ok(invar_completion_response_copy(&reply));
        assert_ok(invar_completion_response_events(&text, &reply, c->count == all));
        invar_json_text_append(&text, "\0", 1);
        text.bytes--;
        done = read_events(out, &text, s->request.kind == INVAR_COMPLETION_REQUEST_CHAT);
    }
    invar_completion_response_release(&reply);
    invar_json_text_release(&text);
}

typedef struct expectation {
    const char *body, *text; /* request, and text of the model */
    const char *content;     /* content of the response; NULL if there is none */
    const char *call;        /* name of the called function; NULL if none is called */
    invar_completion_kind kind;
} expectation;

#define TOOLS                                                                                      \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}],\"logprobs\":true,\"tools\":[{"        \
    "\"type\":\"function\",\"function\":{\"name\":\"add\"}}]}"
#define NO_TOOLS "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}],\"logprobs\":true}"
#define STOPS "{\"prompt\":\"ab\",\"logprobs\":0,\"stop\":[\"ABC\",\"BB\"]}"

static const expectation cases[] = {
    {TOOLS, "abc", "abc", NULL, INVAR_COMPLETION_REQUEST_CHAT},
    {TOOLS, CALL, NULL, "add", INVAR_COMPLETION_REQUEST_CHAT},
    {TOOLS, "I do", "I do", NULL, INVAR_COMPLETION_REQUEST_CHAT},
    {TOOLS, "do it: " CALL " ", "do it:", "add", INVAR_COMPLETION_REQUEST_CHAT},
    {TOOLS, "a <tool_call> b", "a <tool_call> b", NULL, INVAR_COMPLETION_REQUEST_CHAT},
    {TOOLS, "a <tool_cal", "a <tool_cal", NULL, INVAR_COMPLETION_REQUEST_CHAT},
    {TOOLS, CALL " no", CALL " no", NULL, INVAR_COMPLETION_REQUEST_CHAT},
    {NO_TOOLS, "x" CALL + 1, NULL, NULL, INVAR_COMPLETION_REQUEST_CHAT},
    {STOPS, "abABCcd", "ab", NULL, INVAR_COMPLETION_REQUEST_TEXT},
    {STOPS, "abABabABC", "abABab", NULL, INVAR_COMPLETION_REQUEST_TEXT},
    {STOPS, "aABB", "aA", NULL, INVAR_COMPLETION_REQUEST_TEXT},
    {STOPS, "aABAB", "aABAB", NULL, INVAR_COMPLETION_REQUEST_TEXT},
    {STOPS, "ABC", "", NULL, INVAR_COMPLETION_REQUEST_TEXT},
};

static void check_full_response(const response_fixture *s, const expectation *e)
{
    json_t *reply = full_response(s);
    const json_t *choice = json_array_get(json_object_get(reply, "choices"), 0);
    const json_t *message = json_object_get(choice, "message"), *call;
    const json_t *content = e->kind == INVAR_COMPLETION_REQUEST_CHAT
                                ? json_object_get(message, "content")
                                : json_object_get(choice, "text");

    if (e->content && strcmp(json_string_value(content), e->content) != 0)
        fail_msg("%s: %s", e->text, json_string_value(content));
    if (!e->content)
        assert_true(json_is_null(content));
    call = json_array_get(json_object_get(message, "tool_calls"), 0);
    assert_true(!call == !e->call);
    if (call) {
        const json_t *function = json_object_get(call, "function");
        assert_string_equal(json_string_value(json_object_get(function, "name")), e->call);
        assert_string_equal(json_string_value(json_object_get(function, "arguments")),
                            "{\"a\": 1}");
    }
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")),
                        e->call ? "tool_calls" : "stop");
    json_decref(reply);
}

static void test_completion_response__stream_equals_full_response(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expectation e = cases[i];
        response_fixture s = {0};

        if (!e.content && !e.call) // without tools in the request, calls are text
            e.text = e.content = CALL;
        open_fixture(&s, e.kind, e.body, e.text);
        check_full_response(&s, &e);
        for (int64_t step = 1; step < 20; step += step < 4 ? 1 : 5) {
            stream_content h;

            stream_response(&h, &s, step);
            // spaces before a call may have been sent already
            if (strncmp(h.text, e.content ? e.content : "", strlen(e.content ? e.content : "")) !=
                    0 ||
                strspn(h.text + strlen(e.content ? e.content : ""), " ") !=
                    h.bytes - strlen(e.content ? e.content : ""))
                fail_msg("%s, %d at a time: %s", e.text, (int)step, h.text);
            assert_true(e.call || h.bytes == strlen(e.content));
            assert_int_equal(h.tokens, s.generation.choices[0].count);
            assert_true(!h.calls == !e.call);
            assert_string_equal(h.reason, e.call ? "tool_calls" : "stop");
            json_decref(h.calls);
        }
        close_fixture(&s);
    }
}

/* Equal requests have equal ids, and another seed gives another id. */
static void test_completion_response__ids_depend_on_requests(void **state)
{
    static const char *const bodies[] = {"{\"prompt\":\"ab\",\"n\":1}",
                                         "{\"n\":1,\"prompt\":\"ab\"}",
                                         "{\"prompt\":\"ab\",\"n\":1,\"seed\":1}"};
    char ids[3][64];

    (void)state;
    for (int i = 0; i < 3; i++) {
        response_fixture s = {0};
        json_t *reply;

        open_fixture(&s, INVAR_COMPLETION_REQUEST_TEXT, bodies[i], "abc");
        reply = full_response(&s);
        snprintf(ids[i], sizeof ids[i], "%s", json_string_value(json_object_get(reply, "id")));
        json_decref(reply);
        close_fixture(&s);
    }
    assert_string_equal(ids[0], ids[1]);
    assert_string_not_equal(ids[0], ids[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_completion_response__stream_equals_full_response),
        cmocka_unit_test(test_completion_response__ids_depend_on_requests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
