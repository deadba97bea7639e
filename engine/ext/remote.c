/*
 * remote.c - a reward model that is asked over HTTP.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/remote.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define ATTEMPTS 5
#define PAUSE 0.25 /* seconds before the second call for a sample; then it doubles */
#define PARALLEL 32
#define MOST_BYTES ((size_t)1 << 20) /* of the reply to one sample */

invar_status invar_remote_open(invar_http **out, const char *name, const char *url, double timeout)
{
    return invar_http_open(out, &(invar_http_options){.name = name,
                                                      .url = url,
                                                      .timeout = timeout,
                                                      .attempts = ATTEMPTS,
                                                      .pause = PAUSE,
                                                      .parallel = PARALLEL,
                                                      .most_bytes = MOST_BYTES});
}

static void put_text(invar_json_text *text, const char *key, const char *value, size_t bytes)
{
    invar_json_text_key(text, key);
    invar_json_text_string(text, value, bytes);
}

/* The questions, one behind the other; each exchange gets its length. */
static invar_status write_bodies(invar_json_text *text, invar_http_exchange *exchanges,
                                 const invar_plugin_call *call)
{
    for (size_t i = 0; i < call->count; i++) {
        const invar_plugin_sample *s = &call->samples[i];
        size_t before = text->bytes;

        invar_json_text_open(text, '{');
        put_text(text, "prompt", s->prompt, strlen(s->prompt));
        put_text(text, "response", s->response, s->response_bytes);
        put_text(text, "label", s->label, strlen(s->label));
        invar_json_text_close(text, '}');
        invar_json_text_newline(text);
        exchanges[i] = (invar_http_exchange){.bytes = text->bytes - before};
    }
    return text->status;
}

static invar_status no_reward(const invar_plugin_call *call, size_t i, const invar_http_exchange *e)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    invar_text_quote(quoted, sizeof quoted, e->reply ? e->reply : "", e->reply_bytes);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "plug-in %.1000s: the answer for sample %" PRId64
                      " is no number and no object of named numbers: \"%s\"",
                      call->plugin, call->samples[i].index, quoted);
}

/* A body is one value of JSON, so that none can speak for its neighbours. */
static invar_status add_reply(invar_json_text *line, const invar_plugin_call *call, size_t i,
                              const invar_http_exchange *e)
{
    invar_status status = INVAR_OK;
    char *text = NULL;
    size_t bytes;
    json_t *value;

    if (!e->reply || invar_json_parse(&value, "an answer", e->reply, e->reply_bytes) != INVAR_OK)
        return no_reward(call, i, e);
    if (json_is_number(value) || json_is_object(value))
        status = invar_json_dump(&text, &bytes, value, JSON_COMPACT | JSON_ENCODE_ANY, "a reward");
    else
        status = no_reward(call, i, e);
    json_decref(value);
    if (status == INVAR_OK)
        invar_json_text_value(line, text, bytes);
    invar_free(text);
    return status == INVAR_OK ? line->status : status;
}

static invar_status write_line(invar_json_text *line, const invar_plugin_call *call,
                               const invar_http_exchange *exchanges)
{
    invar_json_text_reset(line);
    invar_json_text_open(line, '{');
    invar_json_text_key(line, "rewards");
    invar_json_text_open(line, '[');
    for (size_t i = 0; i < call->count; i++)
        INVAR_TRY(add_reply(line, call, i, &exchanges[i]));
    invar_json_text_close(line, ']');
    invar_json_text_close(line, '}');
    return line->status;
}

invar_status invar_remote_ask(invar_json_text *line_out, invar_http *server,
                              const invar_plugin_call *call)
{
    invar_json_text bodies = {0};
    invar_http_exchange *exchanges = NULL;
    invar_status status;
    size_t at = 0;

    INVAR_TRY(invar_alloc((void **)&exchanges, call->count, sizeof *exchanges, "questions"));
    memset(exchanges, 0, call->count * sizeof *exchanges);
    status = write_bodies(&bodies, exchanges, call);
    for (size_t i = 0; i < call->count && status == INVAR_OK; at += exchanges[i++].bytes)
        exchanges[i].body = bodies.data + at;
    if (status == INVAR_OK)
        status = invar_http_post(server, exchanges, call->count);
    if (status == INVAR_OK)
        status = write_line(line_out, call, exchanges);
    for (size_t i = 0; i < call->count; i++)
        invar_free(exchanges[i].reply);
    invar_free(exchanges);
    invar_json_text_release(&bodies);
    return status;
}
