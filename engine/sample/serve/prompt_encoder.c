/*
 * prompt_encoder.c - encodes texts and rendered chats as token ids and checks their lengths.
 *
 * The chat template is a child process that renders one chat at a time, under the lock. If the
 * process has died, the next chat starts another. Memory for encoding and rendering is reserved
 * with the request before it is used. The lock is taken before the reservation, which is given back
 * before the lock is released.
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

// copies of the messages while a template renders them: lines, trees, texts
#define RENDER_COPIES 12

struct invar_prompt_encoder {
    invar_prompt_encoder_options options;
    pthread_mutex_t lock;
    invar_chat_template *chat; /* guarded by `lock`; NULL if the process could not be started or has
                                  died */
    char no_chat_reason[512];  /* reason why chats are not supported; empty if they are */
};

/* ---- creation -------------------------------------------------------------------------------- */

static invar_status open_template(invar_prompt_encoder *p)
{
    const invar_prompt_encoder_options *o = &p->options;

    return invar_chat_template_open(&p->chat, o->hf_dir, o->template_path, o->template_kwargs);
}

invar_status invar_prompt_encoder_new(invar_prompt_encoder **out,
                                      const invar_prompt_encoder_options *options)
{
    invar_prompt_encoder *p = NULL;

    INVAR_TRY(INVAR_ALLOC_ZEROED(p, 1, "a prompter"));
    p->options = *options;
    (void)pthread_mutex_init(&p->lock, NULL);
    if (open_template(p) != INVAR_OK) { // texts can be completed without a chat template
        (void)snprintf(p->no_chat_reason, sizeof p->no_chat_reason, "%.500s",
                       invar_error_last()->message);
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
    return p->no_chat_reason[0] ? p->no_chat_reason : NULL;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static int64_t max_prompt_tokens(const invar_prompt_encoder *p,
                                 const invar_completion_request *request)
{
    return p->options.context - (request->sampling.max_response != 0);
}

/* Encodes a text. A text that is certainly too long is rejected before it takes memory and time. */
static invar_status encode_text(const invar_prompt_encoder *p,
                                const invar_completion_request *request, int64_t index,
                                const char *text, size_t bytes)
{
    const invar_tokenizer *t = p->options.tokenizer;
    invar_completion_prompt *prompt = &request->prompts[index];
    int64_t least = invar_tokenizer_min_tokens(t, bytes);
    uint64_t room = invar_tokenizer_max_bytes(t, text, bytes);
    invar_status status;

    if (least > max_prompt_tokens(p, request))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "prompt %" PRId64 " has %zu bytes of text, at least %" PRId64
                          " tokens; the longest that is taken has %" PRId64,
                          index, bytes, least, max_prompt_tokens(p, request));
    INVAR_TRY(invar_serve_memory_reserve(request->memory, room, false));
    status = invar_tokenizer_encode(&prompt->ids, &prompt->n_ids, t, text, bytes);
    invar_serve_memory_give_back(request->memory, room);
    return status;
}

/* ---- chats ----------------------------------------------------------------------------------- */

/* Renders a chat and starts the template process if it is not running. Caller holds `lock`. */
static invar_status render_or_reopen(char **out, size_t *bytes, invar_prompt_encoder *p,
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
 * Fails if tools do not change the prompt, because the model would never see them. The template may
 * fail without tools, which shows that it reads them. Caller holds `lock`.
 */
static invar_status check_tools(invar_prompt_encoder *p, const char *messages, const char *text,
                                size_t bytes)
{
    char *plain = NULL;
    size_t plain_bytes = 0;
    invar_status status = render_or_reopen(&plain, &plain_bytes, p, messages, "");
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

/*
 * Renders a chat and checks that the template uses the tools of the request. Caller holds `lock`.
 */
static invar_status render_checked(char **out, size_t *bytes, invar_prompt_encoder *p,
                                   invar_completion_request *request, const char *messages,
                                   const char *tools)
{
    INVAR_TRY(render_or_reopen(out, bytes, p, messages, tools));
    if (json_array_size(request->tools) == 0)
        return INVAR_OK;
    request->param = "tools";
    return check_tools(p, messages, *out, *bytes);
}

static invar_status render_chat(char **out, size_t *bytes, invar_prompt_encoder *p,
                                invar_completion_request *request)
{
    char *messages = NULL, *tools = NULL;
    size_t n_messages = 0, n_tools = 0;
    invar_status status;

    status = invar_json_dump(&messages, &n_messages, request->messages, JSON_COMPACT, "messages");
    if (status == INVAR_OK && request->tools)
        status = invar_json_dump(&tools, &n_tools, request->tools, JSON_COMPACT, "tools");
    if (status == INVAR_OK) {
        uint64_t room = RENDER_COPIES * (uint64_t)(n_messages + n_tools) +
                        invar_serve_memory_of_json(messages, n_messages);

        (void)pthread_mutex_lock(&p->lock);
        status = invar_serve_memory_reserve(request->memory, room, false);
        if (status == INVAR_OK) {
            status = render_checked(out, bytes, p, request, messages, tools ? tools : "");
            invar_serve_memory_give_back(request->memory, room);
        }
        (void)pthread_mutex_unlock(&p->lock);
    }
    invar_free(messages);
    invar_free(tools);
    return status;
}

static invar_status encode_chat(invar_prompt_encoder *p, invar_completion_request *request)
{
    char *text = NULL;
    size_t bytes;
    invar_status status;

    request->param = "messages";
    if (p->no_chat_reason[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "this model takes no chats: %s", p->no_chat_reason);
    INVAR_TRY(INVAR_ALLOC_ZEROED(request->prompts, 1, "a prompt"));
    request->n_prompts = 1;
    status = render_chat(&text, &bytes, p, request);
    if (status == INVAR_OK)
        status = encode_text(p, request, 0, text, bytes);
    invar_free(text);
    return status;
}

/* ---- request --------------------------------------------------------------------------------- */

static invar_status check_prompt(const invar_prompt_encoder *p,
                                 const invar_completion_request *request, int64_t index)
{
    const invar_completion_prompt *prompt = &request->prompts[index];
    int64_t room = max_prompt_tokens(p, request);

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

/*
 * Fails if the context cannot hold the length that the request asks for, as OpenAI's API and vLLM
 * do: a shorter response would be a silent change.
 */
static invar_status check_length(const invar_prompt_encoder *p, invar_completion_request *request,
                                 int64_t index)
{
    int64_t n_prompt = request->prompts[index].n_ids, most = p->options.context - n_prompt;

    if (!request->length_param || p->options.cut_responses ||
        request->sampling.max_response <= most)
        return INVAR_OK;
    request->param = request->length_param;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%s is %" PRId64 " and prompt %" PRId64 " has %" PRId64
                      " tokens, but the context has %" PRId64 " tokens: ask for at most %" PRId64
                      ", or leave %s out",
                      request->length_param, request->sampling.max_response, index, n_prompt,
                      p->options.context, most, request->length_param);
}

static invar_status check_stops(const invar_prompt_encoder *p, invar_completion_request *request)
{
    request->param = "stop_token_ids";
    for (int64_t i = 0; i < request->sampling.n_stop_ids; i++)
        if (request->sampling.stop_ids[i] >= p->options.vocab)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "stop_token_ids has token %" PRId32 "; the vocabulary has %" PRId64,
                              request->sampling.stop_ids[i], p->options.vocab);
    return INVAR_OK;
}

invar_status invar_prompt_encoder_make(invar_prompt_encoder *p, invar_completion_request *request)
{
    INVAR_TRY(check_stops(p, request));
    if (request->kind == INVAR_COMPLETION_REQUEST_CHAT)
        INVAR_TRY(encode_chat(p, request));
    request->param = request->kind == INVAR_COMPLETION_REQUEST_CHAT ? "messages" : "prompt";
    for (int64_t i = 0; i < request->n_prompts; i++) {
        invar_completion_prompt *prompt = &request->prompts[i];

        if (prompt->text)
            INVAR_TRY(encode_text(p, request, i, prompt->text, prompt->text_bytes));
        INVAR_TRY(check_prompt(p, request, i));
        INVAR_TRY(check_length(p, request, i));
    }
    if (request->sampling.max_response < 0)
        request->sampling.max_response = p->options.context;
    request->sampling.max_context = p->options.context;
    request->param = NULL;
    return INVAR_OK;
}
