/*
 * remote_reward.c - reward model behind an HTTP server, the back end of rm-url.
 *
 * The protocol is that of Miles: each sample is a POST of {"prompt", "response", "label"}, and the
 * body of the response is the reward, a number or an object of named parts. The responses of a call
 * become one line in the form of a program's reply, which the ledger keeps. Each is parsed and
 * written again, so that a response cannot inject rewards of other samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "base/text.h"
#include "engine/ext/http/http.h"
#include "engine/ext/plugin_backend.h"

#include "base/invar_banned.h"

#define MAX_RESPONSE_BYTES ((size_t)1 << 20) /* largest response for one sample */

static invar_status open_server(invar_plugin_peer *peer, uint32_t *offered_out,
                                const invar_plugin_options *options)
{
    const invar_http_options o = {.name = peer->name,
                                  .url = options->url,
                                  .timeout = options->timeout,
                                  .attempts = INVAR_HTTP_BATCH_ATTEMPTS,
                                  .retry_delay_s = INVAR_HTTP_BATCH_PAUSE,
                                  .max_concurrency = INVAR_HTTP_BATCH_PARALLEL};
    invar_http *server;

    *offered_out = INVAR_PLUGIN_KIND_REWARD | INVAR_PLUGIN_KIND_GROUP_REWARD;
    (void)snprintf(peer->title, sizeof peer->title, "server");
    INVAR_TRY(invar_http_open(&server, &o));
    peer->self = server;
    return INVAR_OK;
}

/* Call that is being answered. */
typedef struct reward_call {
    const invar_plugin_call *call;
    invar_json_text *line; /* rewards received so far */
} reward_call;

static size_t write_question(invar_json_text *text, size_t i, void *payload)
{
    const reward_call *a = payload;
    const invar_plugin_sample *s = &a->call->samples[i];

    invar_json_text_open(text, '{');
    invar_json_text_put_string(text, "prompt", s->prompt);
    invar_json_text_key(text, "response");
    invar_json_text_string(text, s->response, s->response_bytes);
    invar_json_text_put_string(text, "label", s->label);
    invar_json_text_close(text, '}');
    return MAX_RESPONSE_BYTES;
}

/*
 * Appends one reward. A body must be one JSON value, so that it cannot add values for its
 * neighbors.
 */
static invar_status add_answer(size_t i, const char *answer, size_t bytes, void *payload)
{
    const reward_call *a = payload;
    char quoted[INVAR_TEXT_QUOTE_SIZE], *text = NULL;
    invar_status status = INVAR_OK;
    json_t *value = NULL;
    size_t text_bytes;

    if (invar_json_parse(&value, "an answer", answer, bytes) == INVAR_OK &&
        (json_is_number(value) || json_is_object(value))) {
        status =
            invar_json_dump(&text, &text_bytes, value, JSON_COMPACT | JSON_ENCODE_ANY, "a reward");
        if (status == INVAR_OK)
            invar_json_text_value(a->line, text, text_bytes);
    } else {
        invar_text_quote(quoted, sizeof quoted, answer, bytes);
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0,
                            "plug-in %.1000s: the answer for sample %" PRId64
                            " is no number and no object of named numbers: \"%s\"",
                            a->call->plugin, a->call->samples[i].index, quoted);
    }
    json_decref(value);
    invar_free(text);
    return status == INVAR_OK ? a->line->status : status;
}

static invar_status ask_server(invar_plugin_peer *peer, const invar_plugin_call *call)
{
    invar_json_text *line = &peer->text;
    reward_call a = {call, line};

    invar_json_text_reset(line);
    invar_json_text_open(line, '{');
    invar_json_text_put_open(line, "rewards", '[');
    INVAR_TRY(invar_http_batch_run(peer->self, &(invar_http_batch){.count = call->count,
                                                                   .write = write_question,
                                                                   .read = add_answer,
                                                                   .payload = &a}));
    invar_json_text_close(line, ']');
    invar_json_text_close(line, '}');
    return invar_plugin_call_read_text(call, line, false);
}

static void watch_server(invar_plugin_peer *peer, void (*waits)(void *payload), void *payload)
{
    invar_http_set_wait_callback(peer->self, waits, payload);
}

static void close_server(invar_plugin_peer *peer)
{
    invar_http_close(peer->self);
}

const invar_plugin_backend invar_remote_reward_backend = {open_server, ask_server, watch_server,
                                                          close_server};
