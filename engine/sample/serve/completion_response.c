/*
 * completion_response.c - writes completions as the JSON of OpenAI's API.
 *
 * The events of a stream and the complete response are written by the same functions, so the texts,
 * tokens and log-probs of the events add up to the complete response. Token log-probs and text
 * offsets come from token ids and the detokenizer; tool calls are parsed in tool_calls.c.
 *
 * Invariant: the same request to the same server gives the same bytes, except in agent sessions,
 * which have seeds and coordinates of their own. How the text is divided into events may depend on
 * the load; nothing else does.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/completion_response.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/sample/serve/tool_calls.h"

#include "base/invar_banned.h"

#define CALL_DIGITS 24        // hexadecimal digits of a hash in the id of a tool call
#define FINGERPRINT_DIGITS 12 // hexadecimal digits of a hash in the fingerprint
#define OPEN SIZE_MAX         // end of a token whose last character is completed by the next token

/* ---- creation -------------------------------------------------------------------------------- */

/* Derives the id from the weights and the request, so that the same request gets the same id. */
static invar_status make_id(invar_completion_response *r)
{
    char hex[INVAR_DIGEST_HEX_SIZE], *body;
    invar_hasher hasher;
    invar_digest digest;
    size_t bytes;

    INVAR_TRY(invar_json_dump(&body, &bytes, r->request->body, JSON_COMPACT | JSON_SORT_KEYS,
                              "a request"));
    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, &r->server_info->weights, sizeof r->server_info->weights);
    invar_hasher_update(&hasher, body, bytes);
    invar_hasher_final(&digest, &hasher);
    invar_free(body);
    invar_digest_format(hex, &digest);
    (void)snprintf(r->id, sizeof r->id, "%s-%s",
                   r->request->kind == INVAR_COMPLETION_REQUEST_CHAT ? "chatcmpl" : "cmpl", hex);
    return INVAR_OK;
}

invar_status invar_completion_response_init(invar_completion_response *r,
                                            const invar_completion_request *request,
                                            const invar_generation_request *generation,
                                            const invar_server_info *server_info,
                                            const invar_tokenizer *tokenizer)
{
    int64_t count = generation->n_prompts * generation->n;

    *r = (invar_completion_response){.request = request,
                                     .generation = generation,
                                     .server_info = server_info,
                                     .tokenizer = tokenizer};
    INVAR_TRY(INVAR_ALLOC_ZEROED(r->choices, (size_t)count, "choices"));
    r->n_choices = count;
    return make_id(r);
}

void invar_completion_response_release(invar_completion_response *r)
{
    for (int64_t i = 0; i < r->n_choices; i++) {
        invar_detokenizer_release(&r->choices[i].detokenizer);
        invar_free(r->choices[i].tokens);
        invar_free(r->choices[i].logp);
        invar_free(r->choices[i].ends);
    }
    invar_free(r->choices);
    memset(r, 0, sizeof *r);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

invar_status invar_completion_response_copy(invar_completion_response *r)
{
    r->n_tokens = 0;
    for (int64_t i = 0; i < r->n_choices; i++) {
        const invar_generation_choice *from = &r->generation->choices[i];
        invar_response_choice *to = &r->choices[i];
        int64_t count = to->count, fresh = from->count - count;

        INVAR_TRY(INVAR_GROW(to->tokens, to->tokens_capacity, count, from->count, "tokens"));
        INVAR_TRY(INVAR_GROW(to->logp, to->logp_capacity, count, from->count, "log-probs"));
        INVAR_TRY(INVAR_GROW(to->ends, to->ends_capacity, count, from->count, "ends of tokens"));
        if (fresh > 0) {
            memcpy(to->tokens + count, from->tokens + count, (size_t)fresh * sizeof *to->tokens);
            memcpy(to->logp + count, from->logp + count, (size_t)fresh * sizeof *to->logp);
        }
        to->count = from->count;
        to->finish = from->finish;
        r->n_tokens += from->count;
    }
    return INVAR_OK;
}

/*
 * Detokenizes the tokens that were copied since the last call. Ends the text if the choice is
 * finished or `done` is set.
 */
static invar_status detokenize_new_tokens(invar_completion_response *r, invar_response_choice *c,
                                          bool done)
{
    while (c->detokenizer.tokens < c->count) {
        int64_t i = c->detokenizer.tokens;

        INVAR_TRY(invar_detokenizer_take(&c->detokenizer, r->tokenizer, &r->request->sampling,
                                         c->tokens[i]));
        c->ends[i] = invar_text_stream_is_complete(&c->detokenizer.stream)
                         ? c->detokenizer.stream.bytes
                         : OPEN;
    }
    if (done && c->finish == INVAR_FINISH_NONE)
        c->finish = INVAR_FINISH_LENGTH; // max_tokens is 0
    return c->finish == INVAR_FINISH_NONE ? INVAR_OK
                                          : invar_detokenizer_finish(&c->detokenizer, r->tokenizer);
}

/* ---- parts of the JSON ----------------------------------------------------------------------- */

static void put_fingerprint(invar_json_text *out, const invar_server_info *f)
{
    char hex[INVAR_DIGEST_HEX_SIZE], text[96];
    invar_hasher hasher;
    invar_digest both = f->weights;

    if (f->adapted) {
        invar_hasher_init(&hasher);
        invar_hasher_update(&hasher, &f->base, sizeof f->base);
        invar_hasher_update(&hasher, &f->weights, sizeof f->weights);
        invar_hasher_final(&both, &hasher);
    }
    invar_digest_format(hex, &both);
    (void)snprintf(text, sizeof text, "%s-%s-%.*s", f->numerics, f->format, FINGERPRINT_DIGITS,
                   hex);
    invar_json_text_put_string(out, "system_fingerprint", text);
}

static void put_head(invar_json_text *out, const invar_completion_response *r, bool event)
{
    bool chat = r->request->kind == INVAR_COMPLETION_REQUEST_CHAT;

    invar_json_text_open(out, '{');
    invar_json_text_put_string(out, "id", r->id);
    invar_json_text_put_string(out, "object",
                               !chat   ? "text_completion"
                               : event ? "chat.completion.chunk"
                                       : "chat.completion");
    invar_json_text_put_int(out, "created", r->server_info->started);
    invar_json_text_put_string(out, "model", r->server_info->model);
    put_fingerprint(out, r->server_info);
}

static void put_usage(invar_json_text *out, const invar_completion_response *r)
{
    int64_t prompts = 0;

    for (int64_t i = 0; i < r->generation->n_prompts; i++)
        prompts += r->generation->prompts[i].count;
    invar_json_text_put_open(out, "usage", '{');
    invar_json_text_put_int(out, "prompt_tokens", prompts);
    invar_json_text_put_int(out, "completion_tokens", r->n_tokens);
    invar_json_text_put_int(out, "total_tokens", prompts + r->n_tokens);
    invar_json_text_close(out, '}');
}

/*
 * Writes what is needed to generate these choices again: seed, sample indices, weights, numerics.
 * The rollout and draw index of an agent's sample are not written.
 */
static void put_coordinates(invar_json_text *out, const invar_completion_response *r, int64_t first,
                            int64_t count)
{
    const invar_server_info *f = r->server_info;

    invar_json_text_put_open(out, "invar", '{');
    invar_json_text_put_int(out, "seed", r->request->sampling.seed);
    invar_json_text_put_open(out, "samples", '[');
    for (int64_t i = first; i < first + count; i++)
        invar_json_text_int(out, i % r->generation->n);
    invar_json_text_close(out, ']');
    invar_json_text_put_digest(out, "weights", &f->weights);
    if (f->adapted) {
        invar_json_text_put_digest(out, "base", &f->base);
    }
    invar_json_text_put_string(out, "numerics", f->numerics);
    invar_json_text_put_string(out, "dtype", f->format);
    invar_json_text_close(out, '}');
}

/* ---- log-probs ------------------------------------------------------------------------------- */

/* Consecutive tokens of a prompt or a response. */
typedef struct span {
    const int32_t *tokens;
    const float *logp; /* (count) log-probs; if `headless`, (count - 1), those of the tokens after
                          the first */
    int64_t count;
    bool headless; /* the first token has no log-prob, because no token precedes it */
} span;

static void put_logp(invar_json_text *out, const span *s, int64_t i)
{
    if (s->headless && i == 0)
        invar_json_text_null(out);
    else
        invar_json_text_f64(out, (double)s->logp[s->headless ? i - 1 : i]);
}

/* Writes bytes as a JSON string. A byte that is not part of valid UTF-8 becomes U+FFFD. */
static void put_bytes_as_text(invar_json_text *out, const char *bytes, size_t count)
{
    static const char unknown[] = "\xef\xbf\xbd";
    char *text = NULL;
    size_t used = 0;
    uint32_t point;

    if (out->status == INVAR_OK)
        out->status = INVAR_ALLOC(text, 3 * count + 1, "a token's text");
    for (size_t i = 0; text && i < count;) {
        size_t length = invar_text_utf8(&point, bytes + i, count - i);

        memcpy(text + used, length ? bytes + i : unknown, length ? length : 3);
        used += length ? length : 3;
        i += length ? length : 1;
    }
    if (text)
        invar_json_text_string(out, text, used);
    invar_free(text);
}

static void put_token(invar_json_text *out, const invar_completion_response *r, int32_t token)
{
    size_t count;
    const char *bytes = invar_tokenizer_bytes(&count, r->tokenizer, token);

    put_bytes_as_text(out, bytes, count);
}

/*
 * Returns how many characters the token adds to the text; 0 for a skipped special token of a
 * response.
 */
static int64_t token_width(const invar_completion_response *r, const span *s, int32_t token)
{
    size_t count;
    const char *bytes = invar_tokenizer_bytes(&count, r->tokenizer, token);
    int64_t width = 0;
    uint32_t point;

    if (!s->headless && r->request->sampling.skip_special &&
        invar_tokenizer_special(r->tokenizer, token))
        return 0;
    for (size_t i = 0; i < count; width++) {
        size_t length = invar_text_utf8(&point, bytes + i, count - i);
        i += length ? length : 1;
    }
    return width;
}

/* Writes log-probs as parallel lists, the form of the completion route. */
static void put_lists(invar_json_text *out, const invar_completion_response *r, const span *spans,
                      int n, int64_t *offset)
{
    invar_json_text_open(out, '{');
    invar_json_text_put_open(out, "tokens", '[');
    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < spans[k].count; i++)
            put_token(out, r, spans[k].tokens[i]);
    invar_json_text_close(out, ']');
    invar_json_text_put_open(out, "token_logprobs", '[');
    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < spans[k].count; i++)
            put_logp(out, &spans[k], i);
    invar_json_text_close(out, ']');
    invar_json_text_put_string(out, "top_logprobs", NULL);
    invar_json_text_put_open(out, "text_offset", '[');
    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < spans[k].count; i++) {
            invar_json_text_int(out, *offset);
            *offset += token_width(r, &spans[k], spans[k].tokens[i]);
        }
    invar_json_text_close(out, ']');
    invar_json_text_close(out, '}');
}

/* Writes log-probs as a list of objects, the form of the chat route. */
static void put_objects(invar_json_text *out, const invar_completion_response *r, const span *s)
{
    invar_json_text_open(out, '{');
    invar_json_text_put_open(out, "content", '[');
    for (int64_t i = 0; i < s->count; i++) {
        size_t count;
        const char *bytes = invar_tokenizer_bytes(&count, r->tokenizer, s->tokens[i]);

        invar_json_text_open(out, '{');
        invar_json_text_key(out, "token");
        put_bytes_as_text(out, bytes, count);
        invar_json_text_key(out, "logprob");
        put_logp(out, s, i);
        invar_json_text_put_bytes(out, "bytes", (const uint8_t *)bytes, (int64_t)count);
        invar_json_text_put_open(out, "top_logprobs", '[');
        invar_json_text_close(out, ']');
        invar_json_text_close(out, '}');
    }
    invar_json_text_close(out, ']');
    invar_json_text_put_string(out, "refusal", NULL);
    invar_json_text_close(out, '}');
}

/*
 * Writes log-probs and token ids of the choice up to token `until`; if `first`, those of the prompt
 * as well.
 */
static void put_tokens(invar_json_text *out, const invar_completion_response *r, int64_t index,
                       int64_t until, bool first)
{
    invar_response_choice *c = &r->choices[index];
    const invar_generation_prompt *prompt = &r->generation->prompts[index / r->generation->n];
    const span spans[2] = {
        {prompt->tokens, prompt->logp, prompt->count, true},
        {c->tokens + c->written, c->logp + c->written, until - c->written, false}};
    bool echo = first && r->request->echo;

    invar_json_text_key(out, "logprobs");
    if (!r->request->logprobs || (!echo && spans[1].count == 0))
        invar_json_text_null(out);
    else if (r->request->kind == INVAR_COMPLETION_REQUEST_CHAT)
        put_objects(out, r, &spans[1]);
    else
        put_lists(out, r, spans + !echo, 1 + echo, &c->offset);
    if (r->request->return_token_ids && first) {
        invar_json_text_put_ints(out, "prompt_token_ids", prompt->tokens, prompt->count);
    }
    if (r->request->return_token_ids) {
        invar_json_text_put_ints(out, "token_ids", spans[1].tokens, spans[1].count);
    }
    c->written = until;
}

/* ---- tool calls ------------------------------------------------------------------------------ */

static void put_call_id(invar_json_text *out, const invar_completion_response *r, int64_t choice,
                        size_t number)
{
    const uint64_t place[2] = {(uint64_t)choice, number};
    char hex[INVAR_DIGEST_HEX_SIZE], id[48];
    invar_hasher hasher;
    invar_digest digest;

    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, r->id, strlen(r->id));
    invar_hasher_update(&hasher, place, sizeof place);
    invar_hasher_final(&digest, &hasher);
    invar_digest_format(hex, &digest);
    (void)snprintf(id, sizeof id, "call_%.*s", CALL_DIGITS, hex);
    invar_json_text_put_string(out, "id", id);
}

static void put_calls(invar_json_text *out, const invar_completion_response *r, int64_t choice,
                      const invar_tool_calls *calls, bool event)
{
    const json_t *call;
    size_t i;

    invar_json_text_put_open(out, "tool_calls", '[');
    json_array_foreach(calls->list, i, call)
    {
        invar_json_text_open(out, '{');
        if (event)
            invar_json_text_put_int(out, "index", (int64_t)i);
        put_call_id(out, r, choice, i);
        invar_json_text_put_string(out, "type", "function");
        invar_json_text_put_open(out, "function", '{');
        invar_json_text_put_string(out, "name", json_string_value(json_object_get(call, "name")));
        invar_json_text_put_string(out, "arguments",
                                   json_string_value(json_object_get(call, "arguments")));
        invar_json_text_close(out, '}');
        invar_json_text_close(out, '}');
    }
    invar_json_text_close(out, ']');
}

static bool has_tools(const invar_completion_response *r)
{
    return r->request->tools != NULL;
}

/*
 * Reads the tool calls of a finished choice. The list stays empty unless the request offers tools.
 */
static invar_status read_tool_calls(invar_tool_calls *out, const invar_completion_response *r,
                                    const invar_response_choice *c)
{
    *out = (invar_tool_calls){.text_bytes = c->detokenizer.end};
    return has_tools(r) ? invar_tool_calls_read(out, invar_detokenizer_text(&c->detokenizer),
                                                c->detokenizer.end)
                        : INVAR_OK;
}

static const char *finish_reason(const invar_response_choice *c, const invar_tool_calls *calls)
{
    return calls->list && c->finish == INVAR_FINISH_STOP ? "tool_calls"
                                                         : invar_finish_name(c->finish);
}

/* ---- complete responses ---------------------------------------------------------------------- */

/*
 * Returns the text of the prompt if the request wants an echo, else NULL; token ids are decoded.
 * The caller frees *out with invar_free.
 */
static invar_status prompt_text(char **out, size_t *bytes, const invar_completion_response *r,
                                int64_t prompt)
{
    const invar_completion_prompt *p = &r->request->prompts[prompt];

    *out = NULL;
    *bytes = 0;
    if (!r->request->echo)
        return INVAR_OK;
    if (!p->text)
        return invar_tokenizer_decode(out, bytes, r->tokenizer, p->ids, p->n_ids, false);
    *bytes = p->text_bytes;
    INVAR_TRY(INVAR_ALLOC(*out, *bytes + 1, "the text of a prompt"));
    memcpy(*out, p->text, *bytes + 1);
    return INVAR_OK;
}

/* Writes the echo of the prompt, followed by the text of the choice. */
static invar_status put_whole_text(invar_json_text *out, const invar_completion_response *r,
                                   int64_t index)
{
    const invar_detokenizer *voice = &r->choices[index].detokenizer;
    char *echo = NULL, *text = NULL;
    size_t bytes;
    invar_status status = prompt_text(&echo, &bytes, r, index / r->generation->n);

    if (status == INVAR_OK)
        status = INVAR_ALLOC(text, bytes + voice->end + 1, "the text of a choice");
    if (status == INVAR_OK) {
        if (bytes > 0)
            memcpy(text, echo, bytes);
        memcpy(text + bytes, invar_detokenizer_text(voice), voice->end);
        invar_json_text_key(out, "text");
        invar_json_text_string(out, text, bytes + voice->end);
    }
    invar_free(echo);
    invar_free(text);
    return status;
}

static void put_message(invar_json_text *out, const invar_completion_response *r, int64_t index,
                        const invar_tool_calls *calls)
{
    invar_json_text_put_open(out, "message", '{');
    invar_json_text_put_string(out, "role", "assistant");
    invar_json_text_key(out, "content");
    if (calls->list && calls->text_bytes == 0)
        invar_json_text_null(out);
    else
        invar_json_text_string(out, invar_detokenizer_text(&r->choices[index].detokenizer),
                               calls->text_bytes);
    invar_json_text_put_string(out, "refusal", NULL);
    if (calls->list)
        put_calls(out, r, index, calls, false);
    invar_json_text_close(out, '}');
}

static invar_status put_choice(invar_json_text *out, invar_completion_response *r, int64_t index)
{
    invar_response_choice *c = &r->choices[index];
    invar_tool_calls calls = {0};
    invar_status status;

    INVAR_TRY(detokenize_new_tokens(r, c, true));
    status = read_tool_calls(&calls, r, c);
    invar_json_text_open(out, '{');
    invar_json_text_put_int(out, "index", index);
    if (status == INVAR_OK && r->request->kind == INVAR_COMPLETION_REQUEST_CHAT)
        put_message(out, r, index, &calls);
    else if (status == INVAR_OK)
        status = put_whole_text(out, r, index);
    put_tokens(out, r, index, c->count, true);
    invar_json_text_put_string(out, "finish_reason", finish_reason(c, &calls));
    invar_json_text_close(out, '}');
    invar_tool_calls_release(&calls);
    return status;
}

invar_status invar_completion_response_write(invar_json_text *out, invar_completion_response *r)
{
    put_head(out, r, false);
    invar_json_text_put_open(out, "choices", '[');
    for (int64_t i = 0; i < r->n_choices; i++)
        INVAR_TRY(put_choice(out, r, i));
    invar_json_text_close(out, ']');
    put_usage(out, r);
    put_coordinates(out, r, 0, r->n_choices);
    invar_json_text_close(out, '}');
    return out->status;
}

/* ---- events ---------------------------------------------------------------------------------- */

/*
 * Begins an event. Its JSON is built in `event` and then appended to `out`: a JSON writer keeps
 * track of commas, which must start again with each event.
 */
static void begin_event(invar_json_text *out, invar_json_text *event)
{
    invar_json_text_append(out, "data: ", 6);
    invar_json_text_reset(event);
}

static void end_event(invar_json_text *out, invar_json_text *event)
{
    if (out->status == INVAR_OK)
        out->status = event->status;
    if (out->status == INVAR_OK)
        invar_json_text_append(out, event->data, event->bytes);
    invar_json_text_append(out, "\n\n", 2);
}

/* Writes the beginning of an event about a choice, up to its text. */
static void open_choice(invar_json_text *out, invar_json_text *event,
                        const invar_completion_response *r, int64_t index)
{
    begin_event(out, event);
    put_head(event, r, true);
    invar_json_text_put_open(event, "choices", '[');
    invar_json_text_open(event, '{');
    invar_json_text_put_int(event, "index", index);
}

/* Writes the end of an event about a choice. `why` is NULL if the choice is not finished. */
static void close_choice(invar_json_text *out, invar_json_text *event,
                         const invar_completion_response *r, int64_t index, const char *why)
{
    invar_json_text_put_string(event, "finish_reason", why);
    invar_json_text_close(event, '}');
    invar_json_text_close(event, ']');
    if (r->request->include_usage)
        invar_json_text_put_string(event, "usage", NULL);
    if (why)
        put_coordinates(event, r, index, 1);
    invar_json_text_close(event, '}');
    end_event(out, event);
}

/* Writes text of a choice in the form of the route; with the role if `role` is set. */
static void put_delta(invar_json_text *event, const invar_completion_response *r, const char *text,
                      size_t bytes, bool role)
{
    bool chat = r->request->kind == INVAR_COMPLETION_REQUEST_CHAT;

    if (chat) {
        invar_json_text_put_open(event, "delta", '{');
    }
    if (role)
        invar_json_text_put_string(event, "role", "assistant");
    invar_json_text_key(event, chat ? "content" : "text");
    invar_json_text_string(event, text, bytes);
    if (chat)
        invar_json_text_close(event, '}');
}

/* Writes the first event of a choice: the role in a chat, the echo in a completion. */
static invar_status write_first_event(invar_json_text *out, invar_json_text *event,
                                      invar_completion_response *r, int64_t index)
{
    invar_response_choice *c = &r->choices[index];
    bool chat = r->request->kind == INVAR_COMPLETION_REQUEST_CHAT;
    char *echo;
    size_t bytes;

    if (c->first_written)
        return INVAR_OK;
    c->first_written = true;
    if (!chat && !r->request->echo && !r->request->return_token_ids)
        return INVAR_OK;
    INVAR_TRY(prompt_text(&echo, &bytes, r, index / r->generation->n));
    open_choice(out, event, r, index);
    put_delta(event, r, echo ? echo : "", bytes, chat);
    put_tokens(event, r, index, 0, true);
    close_choice(out, event, r, index, NULL);
    invar_free(echo);
    return INVAR_OK;
}

/*
 * Returns the number of tokens that begin before byte `end` of the text. Tokens that share a
 * character begin together, and tokens without text begin where the next token does.
 */
static int64_t tokens_before(const invar_response_choice *c, size_t end)
{
    size_t begin = c->detokenizer.sent_bytes;
    int64_t i = c->written;

    for (; i < c->count && begin < end; i++)
        if (c->ends[i] != OPEN)
            begin = c->ends[i];
    return i;
}

/* Writes an event with the text up to byte `end` and its tokens. */
static void write_text_event(invar_json_text *out, invar_json_text *event,
                             invar_completion_response *r, int64_t index, size_t end)
{
    invar_detokenizer *voice = &r->choices[index].detokenizer;

    if (end <= voice->sent_bytes)
        return;
    open_choice(out, event, r, index);
    put_delta(event, r, invar_detokenizer_text(voice) + voice->sent_bytes, end - voice->sent_bytes,
              false);
    put_tokens(event, r, index, tokens_before(&r->choices[index], end), false);
    close_choice(out, event, r, index, NULL);
    voice->sent_bytes = end;
}

/* Writes an event with the tokens whose text lies within the first `ready` bytes. */
static void write_ready_text(invar_json_text *out, invar_json_text *event,
                             invar_completion_response *r, int64_t index, size_t ready)
{
    const invar_response_choice *c = &r->choices[index];
    size_t end = c->detokenizer.sent_bytes;

    for (int64_t i = c->written; i < c->count && ready > c->detokenizer.sent_bytes; i++)
        if (c->ends[i] <= ready)
            end = c->ends[i];
    write_text_event(out, event, r, index, end);
}

static void write_calls_event(invar_json_text *out, invar_json_text *event,
                              const invar_completion_response *r, int64_t index,
                              const invar_tool_calls *calls)
{
    const invar_response_choice *c = &r->choices[index];

    open_choice(out, event, r, index);
    invar_json_text_put_open(event, "delta", '{');
    put_calls(event, r, index, calls, true);
    invar_json_text_close(event, '}');
    put_tokens(event, r, index, tokens_before(c, c->detokenizer.end), false);
    close_choice(out, event, r, index, NULL);
}

/* Writes the last event of a choice, with the remaining tokens, which have no text. */
static void write_last_event(invar_json_text *out, invar_json_text *event,
                             const invar_completion_response *r, int64_t index, const char *why)
{
    open_choice(out, event, r, index);
    if (r->request->kind == INVAR_COMPLETION_REQUEST_CHAT) {
        invar_json_text_put_open(event, "delta", '{');
        invar_json_text_close(event, '}');
    } else {
        invar_json_text_put_string(event, "text", "");
    }
    put_tokens(event, r, index, r->choices[index].count, false);
    close_choice(out, event, r, index, why);
}

static invar_status write_final_events(invar_json_text *out, invar_json_text *event,
                                       invar_completion_response *r, int64_t index)
{
    invar_response_choice *c = &r->choices[index];
    invar_tool_calls calls;
    invar_status status = read_tool_calls(&calls, r, c);

    if (status == INVAR_OK) {
        write_text_event(out, event, r, index, calls.text_bytes);
        if (calls.list)
            write_calls_event(out, event, r, index, &calls);
        write_last_event(out, event, r, index, finish_reason(c, &calls));
        c->last_written = true;
    }
    invar_tool_calls_release(&calls);
    return status;
}

static invar_status write_choice_events(invar_json_text *out, invar_json_text *event,
                                        invar_completion_response *r, int64_t index, bool done)
{
    invar_response_choice *c = &r->choices[index];

    if (c->last_written || (c->count == 0 && !done))
        return INVAR_OK;
    INVAR_TRY(detokenize_new_tokens(r, c, done));
    INVAR_TRY(write_first_event(out, event, r, index));
    if (c->finish != INVAR_FINISH_NONE)
        return write_final_events(out, event, r, index);
    write_ready_text(out, event, r, index,
                     invar_detokenizer_ready(&c->detokenizer, &r->request->sampling, has_tools(r)));
    return INVAR_OK;
}

static void write_usage_event(invar_json_text *out, invar_json_text *event,
                              const invar_completion_response *r)
{
    begin_event(out, event);
    put_head(event, r, true);
    invar_json_text_put_open(event, "choices", '[');
    invar_json_text_close(event, ']');
    put_usage(event, r);
    invar_json_text_close(event, '}');
    end_event(out, event);
}

invar_status invar_completion_response_events(invar_json_text *out, invar_completion_response *r,
                                              bool done)
{
    static const char last[] = "data: [DONE]\n\n";
    invar_json_text event = {0};
    invar_status status = INVAR_OK;

    for (int64_t i = 0; i < r->n_choices && status == INVAR_OK; i++)
        status = write_choice_events(out, &event, r, i, done);
    if (status == INVAR_OK && done) {
        if (r->request->include_usage)
            write_usage_event(out, &event, r);
        invar_json_text_append(out, last, sizeof last - 1);
        r->finished = true;
    }
    invar_json_text_release(&event);
    return status == INVAR_OK ? out->status : status;
}

/* ---- errors and models ----------------------------------------------------------------------- */

void invar_completion_response_put_error(invar_json_text *out, const invar_response_error *e)
{
    invar_json_text_open(out, '{');
    invar_json_text_put_open(out, "error", '{');
    invar_json_text_put_string(out, "message", e->message);
    invar_json_text_put_string(out, "type", e->type);
    invar_json_text_put_string(out, "param", e->param);
    invar_json_text_put_string(out, "code", e->code);
    invar_json_text_close(out, '}');
    invar_json_text_close(out, '}');
}

void invar_completion_response_error_event(invar_json_text *out, const invar_response_error *e)
{
    invar_json_text event = {0};

    begin_event(out, &event);
    invar_completion_response_put_error(&event, e);
    end_event(out, &event);
    invar_json_text_release(&event);
}

void invar_completion_response_put_model(invar_json_text *out, const invar_server_info *f)
{
    invar_json_text_open(out, '{');
    invar_json_text_put_string(out, "id", f->model);
    invar_json_text_put_string(out, "object", "model");
    invar_json_text_put_int(out, "created", f->started);
    invar_json_text_put_string(out, "owned_by", "invar");
    invar_json_text_put_int(out, "max_model_len", f->context);
    put_fingerprint(out, f);
    invar_json_text_close(out, '}');
}

void invar_completion_response_put_models(invar_json_text *out, const invar_server_info *f)
{
    invar_json_text_open(out, '{');
    invar_json_text_put_string(out, "object", "list");
    invar_json_text_put_open(out, "data", '[');
    invar_completion_response_put_model(out, f);
    invar_json_text_close(out, ']');
    invar_json_text_close(out, '}');
}
