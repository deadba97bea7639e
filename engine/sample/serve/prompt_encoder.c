/*
 * prompt_encoder.c - prompts as tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/prompt_encoder.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/text/chat/chat_template.h"

#include "base/invar_banned.h"

#define RENDER_COPIES 12 // of the messages while a template renders them: lines, trees, texts

struct invar_prompt_encoder {
    invar_prompt_encoder_options options;
    pthread_mutex_t lock;
    invar_chat_template *chat; /* NULL: it could not be opened, or its program has died */
    char why[512];             /* there are no chats; "": there are */
};

/* ---- life ------------------------------------------------------------------------------------ */

static invar_status open_template(invar_prompt_encoder *p)
{
    const invar_prompt_encoder_options *o = &p->options;

    return invar_chat_template_open(&p->chat, o->hf_dir, o->template_path, o->template_kwargs);
}

invar_status invar_prompt_encoder_new(invar_prompt_encoder **out,
                                      const invar_prompt_encoder_options *options)
{
    invar_prompt_encoder *p = NULL;

    INVAR_TRY(invar_alloc((void **)&p, 1, sizeof *p, "a prompter"));
    memset(p, 0, sizeof *p);
    p->options = *options;
    (void)pthread_mutex_init(&p->lock, NULL);
    if (open_template(p) != INVAR_OK) { // texts can be completed all the same
        (void)snprintf(p->why, sizeof p->why, "%.500s", invar_error_last()->message);
        invar_error_clear();
    }
    *out = p;
    return INVAR_OK;
}

void invar_prompt_encoder_free(invar_prompt_encoder *p)
{
    if (!p)
        return;
    invar_chat_template_close(p->chat);
    (void)pthread_mutex_destroy(&p->lock);
    invar_free(p);
}

const char *invar_prompt_encoder_no_chat(const invar_prompt_encoder *p)
{
    return p->why[0] ? p->why : NULL;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static int64_t room_for_prompt(const invar_prompt_encoder *p, const invar_completion_request *ask)
{
    return p->options.context - (ask->sampling.max_response != 0);
}

/* A text that is certainly too long is refused before it takes memory and time. */
static invar_status encode(const invar_prompt_encoder *p, const invar_completion_request *ask,
                           int64_t index, const char *text, size_t bytes)
{
    const invar_tokenizer *t = p->options.tokenizer;
    invar_completion_prompt *prompt = &ask->prompts[index];
    int64_t least = invar_tokenizer_least(t, bytes);
    uint64_t room = invar_tokenizer_room(t, text, bytes);
    invar_status status;

    if (least > room_for_prompt(p, ask))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "prompt %" PRId64 " has %zu bytes of text, at least %" PRId64
                          " tokens; the longest that is taken has %" PRId64,
                          index, bytes, least, room_for_prompt(p, ask));
    INVAR_TRY(invar_serve_memory_reserve(ask->memory, room, false));
    status = invar_tokenizer_encode(&prompt->ids, &prompt->n_ids, t, text, bytes);
    invar_serve_memory_give_back(ask->memory, room);
    return status;
}

/* ---- chats ----------------------------------------------------------------------------------- */

/* With the lock. After a program that died the next render starts another. */
static invar_status render_locked(char **out, size_t *bytes, invar_prompt_encoder *p,
                                  const char *messages, const char *tools)
{
    invar_status status = p->chat ? INVAR_OK : open_template(p);

    if (status == INVAR_OK)
        status = invar_chat_template_render(out, bytes, p->chat, messages, tools, true);
    if (status != INVAR_OK && status != INVAR_E_INVALID) {
        invar_chat_template_close(p->chat);
        p->chat = NULL;
    }
    return status;
}

/*
 * Refuses tools that leave the prompt as it is without them: the model would never see them. The
 * template may fail without tools, which shows that it reads them. Caller holds the lock.
 */
static invar_status check_tools(invar_prompt_encoder *p, const char *messages, const char *text,
                                size_t bytes)
{
    char *plain = NULL;
    size_t plain_bytes = 0;
    invar_status status = render_locked(&plain, &plain_bytes, p, messages, "");
    bool same = status == INVAR_OK && plain_bytes == bytes && memcmp(plain, text, bytes) == 0;

    invar_free(plain);
    if (same)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the chat template does not use tools: the prompt is the same with and "
                          "without them; leave tools out, or serve a template that uses them "
                          "(chat-template-path)");
    if (status == INVAR_E_INVALID)
        invar_error_clear();
    return status == INVAR_E_INVALID ? INVAR_OK : status;
}

/* Caller holds the lock. */
static invar_status render_checked(char **out, size_t *bytes, invar_prompt_encoder *p,
                                   invar_completion_request *ask, const char *messages,
                                   const char *tools)
{
    INVAR_TRY(render_locked(out, bytes, p, messages, tools));
    if (json_array_size(ask->tools) == 0)
        return INVAR_OK;
    ask->param = "tools";
    return check_tools(p, messages, *out, *bytes);
}

static invar_status prompt_encoder_render(char **out, size_t *bytes, invar_prompt_encoder *p,
                                          invar_completion_request *ask)
{
    char *messages = NULL, *tools = NULL;
    size_t n_messages = 0, n_tools = 0;
    invar_status status;

    status = invar_json_dump(&messages, &n_messages, ask->messages, JSON_COMPACT, "messages");
    if (status == INVAR_OK && ask->tools)
        status = invar_json_dump(&tools, &n_tools, ask->tools, JSON_COMPACT, "tools");
    if (status == INVAR_OK) {
        uint64_t room = RENDER_COPIES * (uint64_t)(n_messages + n_tools) +
                        invar_serve_memory_of_json(messages, n_messages);

        (void)pthread_mutex_lock(&p->lock);
        status = invar_serve_memory_reserve(ask->memory, room, false);
        if (status == INVAR_OK) {
            status = render_checked(out, bytes, p, ask, messages, tools ? tools : "");
            invar_serve_memory_give_back(ask->memory, room);
        }
        (void)pthread_mutex_unlock(&p->lock);
    }
    invar_free(messages);
    invar_free(tools);
    return status;
}

static invar_status make_chat(invar_prompt_encoder *p, invar_completion_request *ask)
{
    char *text = NULL;
    size_t bytes;
    invar_status status;

    ask->param = "messages";
    if (p->why[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "this model takes no chats: %s", p->why);
    INVAR_TRY(invar_alloc((void **)&ask->prompts, 1, sizeof *ask->prompts, "a prompt"));
    memset(ask->prompts, 0, sizeof *ask->prompts);
    ask->n_prompts = 1;
    status = prompt_encoder_render(&text, &bytes, p, ask);
    if (status == INVAR_OK)
        status = encode(p, ask, 0, text, bytes);
    invar_free(text);
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static invar_status check_prompt(const invar_prompt_encoder *p, const invar_completion_request *ask,
                                 int64_t index)
{
    const invar_completion_prompt *prompt = &ask->prompts[index];
    int64_t room = room_for_prompt(p, ask);

    if (prompt->n_ids < 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "prompt %" PRId64 " is empty: there is no token to begin with", index);
    if (prompt->n_ids > room)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "prompt %" PRId64 " has %" PRId64 " tokens; the longest that is taken "
                          "has %" PRId64,
                          index, prompt->n_ids, room);
    for (int64_t i = 0; i < prompt->n_ids; i++)
        if (prompt->ids[i] >= p->options.vocab)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "prompt %" PRId64 " has token %" PRId32 "; the vocabulary has "
                              "%" PRId64,
                              index, prompt->ids[i], p->options.vocab);
    return INVAR_OK;
}

/* OpenAI's API and vLLM refuse a length that the context cannot hold; a cut would be silent. */
static invar_status check_length(const invar_prompt_encoder *p, invar_completion_request *ask,
                                 int64_t index)
{
    int64_t n_prompt = ask->prompts[index].n_ids, most = p->options.context - n_prompt;

    if (!ask->length || p->options.cut_responses || ask->sampling.max_response <= most)
        return INVAR_OK;
    ask->param = ask->length;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%s is %" PRId64 " and prompt %" PRId64 " has %" PRId64
                      " tokens, but the context has %" PRId64 " tokens: ask for at most %" PRId64
                      ", or leave %s out",
                      ask->length, ask->sampling.max_response, index, n_prompt, p->options.context,
                      most, ask->length);
}

static invar_status check_stops(const invar_prompt_encoder *p, invar_completion_request *ask)
{
    ask->param = "stop_token_ids";
    for (int64_t i = 0; i < ask->sampling.n_stop_ids; i++)
        if (ask->sampling.stop_ids[i] >= p->options.vocab)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "stop_token_ids has token %" PRId32 "; the vocabulary has %" PRId64,
                              ask->sampling.stop_ids[i], p->options.vocab);
    return INVAR_OK;
}

invar_status invar_prompt_encoder_make(invar_prompt_encoder *p, invar_completion_request *ask)
{
    INVAR_TRY(check_stops(p, ask));
    if (ask->kind == INVAR_COMPLETION_REQUEST_CHAT)
        INVAR_TRY(make_chat(p, ask));
    ask->param = ask->kind == INVAR_COMPLETION_REQUEST_CHAT ? "messages" : "prompt";
    for (int64_t i = 0; i < ask->n_prompts; i++) {
        invar_completion_prompt *prompt = &ask->prompts[i];

        if (prompt->text)
            INVAR_TRY(encode(p, ask, i, prompt->text, prompt->text_bytes));
        INVAR_TRY(check_prompt(p, ask, i));
        INVAR_TRY(check_length(p, ask, i));
    }
    if (ask->sampling.max_response < 0)
        ask->sampling.max_response = p->options.context;
    ask->sampling.max_context = p->options.context;
    ask->param = NULL;
    return INVAR_OK;
}
