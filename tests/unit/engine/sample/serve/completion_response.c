/*
 * completion_response.c - tests of replies: a stream says what the whole reply does, however its
 * tokens come.
 *
 * The tokenizer has a token for each character, so texts are chosen freely: stop strings that begin
 * and do not go on, tool calls, blocks that only look like them.
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

static const invar_server_info facts = {
    .model = "m", .numerics = "ieee", .format = "fp32", .context = 999, .started = 5};

/* A request, and the ticket of its reply. */
typedef struct scene {
    invar_tokenizer *tokenizer;
    invar_completion_request ask;
    invar_generation_request ticket, seen; /* all of it, and what has come so far */
} scene;

static void open_scene(scene *s, invar_completion_kind kind, const char *body, const char *text)
{
    const invar_sampling_params sampling = {.temperature = 1.0f, .top_p = 1.0f};
    invar_generation_request *tickets[] = {&s->ticket, &s->seen};
    int64_t count;

    assert_ok(invar_tokenizer_alphabet(&s->tokenizer, ALPHABET));
    assert_ok(invar_completion_request_read(&s->ask, kind, body, strlen(body), &sampling, NULL));
    if (kind == INVAR_COMPLETION_REQUEST_CHAT) { // as prompt_encoder.h does
        assert_ok(invar_alloc((void **)&s->ask.prompts, 1, sizeof *s->ask.prompts, "a prompt"));
        s->ask.n_prompts = 1;
        s->ask.prompts[0] = (invar_completion_prompt){.text = "ab"};
    }
    assert_ok(invar_tokenizer_encode(&s->ask.prompts->ids, &s->ask.prompts->n_ids, s->tokenizer,
                                     "ab", 2));
    for (int i = 0; i < 2; i++) {
        invar_generation_choice *c;

        assert_ok(invar_generation_request_init(tickets[i], 1, 1));
        tickets[i]->prompts[0].tokens = s->ask.prompts->ids;
        tickets[i]->prompts[0].count = 2;
        c = &tickets[i]->choices[0];
        assert_ok(invar_tokenizer_encode(&c->tokens, &count, s->tokenizer, text, strlen(text)));
        assert_ok(invar_alloc((void **)&c->logp, (size_t)count + 1, sizeof *c->logp, "log-probs"));
        for (int64_t n = 0; n < count; n++)
            c->logp[n] = -0.25f * (float)n;
        c->count = i == 0 ? count : 0;
        c->finish = i == 0 ? INVAR_FINISH_STOP : INVAR_FINISH_NONE;
    }
}

static void close_scene(scene *s)
{
    invar_generation_request_release(&s->ticket);
    invar_generation_request_release(&s->seen);
    invar_completion_request_release(&s->ask);
    invar_tokenizer_free(s->tokenizer);
}

static json_t *whole(const scene *s)
{
    invar_json_text text = {0};
    invar_completion_response reply;
    json_t *out;

    assert_ok(invar_completion_response_init(&reply, &s->ask, &s->ticket, &facts, s->tokenizer));
    assert_ok(invar_completion_response_copy(&reply));
    assert_ok(invar_completion_response_write(&text, &reply));
    assert_ok(invar_json_parse(&out, "reply", text.data, text.bytes));
    invar_completion_response_release(&reply);
    invar_json_text_release(&text);
    return out;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* What the events of a stream said, put together. */
typedef struct heard {
    char text[512];
    size_t bytes;
    int64_t tokens;
    json_t *calls;
    char reason[32];
} heard;

/* An event has the tokens of its text. Without a text none come, unless it has `other` members. */
static void check_tokens(const json_t *logprobs, const json_t *said, bool chat, bool other)
{
    const json_t *list = json_object_get(logprobs, chat ? "content" : "tokens"), *item;
    char text[512] = "";
    size_t i, used = 0;

    json_array_foreach(list, i, item)
    {
        const json_t *token = chat ? json_object_get(item, "token") : item;

        used += (size_t)snprintf(text + used, sizeof text - used, "%s", json_string_value(token));
    }
    if (json_string_length(said) > 0)
        assert_string_equal(text, json_string_value(said));
    else if (!other)
        assert_true(json_is_null(logprobs));
}

static void hear_event(heard *h, const json_t *event, bool chat)
{
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *delta = chat ? json_object_get(choice, "delta") : choice;
    const json_t *said = json_object_get(delta, chat ? "content" : "text");
    const json_t *logprobs = json_object_get(choice, "logprobs");
    json_t *calls = json_object_get(delta, "tool_calls");

    check_tokens(logprobs, said, chat,
                 calls || json_is_string(json_object_get(choice, "finish_reason")));
    assert_true(!h->reason[0]); // nothing comes behind the last one
    if (json_is_string(said)) {
        memcpy(h->text + h->bytes, json_string_value(said), json_string_length(said));
        h->bytes += json_string_length(said);
    }
    h->tokens +=
        (int64_t)json_array_size(json_object_get(logprobs, chat ? "content" : "token_logprobs"));
    if (calls)
        h->calls = json_incref(calls);
    if (json_is_string(json_object_get(choice, "finish_reason")))
        snprintf(h->reason, sizeof h->reason, "%s",
                 json_string_value(json_object_get(choice, "finish_reason")));
}

static bool hear(heard *h, const invar_json_text *text, bool chat)
{
    const char *at = text->data, *end = at + text->bytes;
    bool over = false;

    while (at < end) {
        const char *stop = strstr(at, "\n\n");
        json_t *event;

        assert_true(!over && strncmp(at, "data: ", 6) == 0 && stop && stop < end);
        at += 6;
        over = strncmp(at, "[DONE]", 6) == 0;
        if (!over) {
            assert_ok(invar_json_parse(&event, "event", at, (size_t)(stop - at)));
            hear_event(h, event, chat);
            json_decref(event);
        }
        at = stop + 2;
    }
    return over;
}

/* The stream with tokens that come `step` at a time. */
static void stream(heard *out, scene *s, int64_t step)
{
    invar_generation_choice *c = &s->seen.choices[0];
    invar_json_text text = {0};
    invar_completion_response reply;
    bool over = false;

    memset(out, 0, sizeof *out);
    c->count = 0;
    c->finish = INVAR_FINISH_NONE;
    assert_ok(invar_completion_response_init(&reply, &s->ask, &s->seen, &facts, s->tokenizer));
    while (!over) {
        int64_t all = s->ticket.choices[0].count;

        c->count = c->count + step < all ? c->count + step : all;
        c->finish = c->count == all ? INVAR_FINISH_STOP : INVAR_FINISH_NONE;
        invar_json_text_reset(&text);
        assert_ok(invar_completion_response_copy(&reply));
        assert_ok(invar_completion_response_events(&text, &reply, c->count == all));
        invar_json_text_append(&text, "\0", 1);
        text.bytes--;
        over = hear(out, &text, s->ask.kind == INVAR_COMPLETION_REQUEST_CHAT);
    }
    invar_completion_response_release(&reply);
    invar_json_text_release(&text);
}

typedef struct expectation {
    const char *body, *text; /* what the model writes, */
    const char *said;        /* and what is said of it; NULL: nothing */
    const char *call;        /* the function that is called; NULL: none */
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

static void check_whole(const scene *s, const expectation *e)
{
    json_t *reply = whole(s);
    const json_t *choice = json_array_get(json_object_get(reply, "choices"), 0);
    const json_t *message = json_object_get(choice, "message"), *call;
    const json_t *said = e->kind == INVAR_COMPLETION_REQUEST_CHAT
                             ? json_object_get(message, "content")
                             : json_object_get(choice, "text");

    if (e->said && strcmp(json_string_value(said), e->said) != 0)
        fail_msg("%s: %s", e->text, json_string_value(said));
    if (!e->said)
        assert_true(json_is_null(said));
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

static void test_reply__a_stream_is_the_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expectation e = cases[i];
        scene s = {0};

        if (!e.said && !e.call) // nobody offered tools: calls are text
            e.text = e.said = CALL;
        open_scene(&s, e.kind, e.body, e.text);
        check_whole(&s, &e);
        for (int64_t step = 1; step < 20; step += step < 4 ? 1 : 5) {
            heard h;

            stream(&h, &s, step);
            // white space before a call may have been said already
            if (strncmp(h.text, e.said ? e.said : "", strlen(e.said ? e.said : "")) != 0 ||
                strspn(h.text + strlen(e.said ? e.said : ""), " ") !=
                    h.bytes - strlen(e.said ? e.said : ""))
                fail_msg("%s, %d at a time: %s", e.text, (int)step, h.text);
            assert_true(e.call || h.bytes == strlen(e.said));
            assert_int_equal(h.tokens, s.ticket.choices[0].count);
            assert_true(!h.calls == !e.call);
            assert_string_equal(h.reason, e.call ? "tool_calls" : "stop");
            json_decref(h.calls);
        }
        close_scene(&s);
    }
}

/* The same request has the same id; another one, or other weights, another. */
static void test_reply__ids_are_of_requests(void **state)
{
    static const char *const bodies[] = {"{\"prompt\":\"ab\",\"n\":1}",
                                         "{\"n\":1,\"prompt\":\"ab\"}",
                                         "{\"prompt\":\"ab\",\"n\":1,\"seed\":1}"};
    char ids[3][64];

    (void)state;
    for (int i = 0; i < 3; i++) {
        scene s = {0};
        json_t *reply;

        open_scene(&s, INVAR_COMPLETION_REQUEST_TEXT, bodies[i], "abc");
        reply = whole(&s);
        snprintf(ids[i], sizeof ids[i], "%s", json_string_value(json_object_get(reply, "id")));
        json_decref(reply);
        close_scene(&s);
    }
    assert_string_equal(ids[0], ids[1]);
    assert_string_not_equal(ids[0], ids[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reply__a_stream_is_the_whole),
        cmocka_unit_test(test_reply__ids_are_of_requests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
