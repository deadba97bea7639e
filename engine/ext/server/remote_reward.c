/*
 * remote_reward.c - requests rewards over HTTP and joins them to one reply line.
 *
 * Each response is parsed and written again, so that a response cannot inject rewards of other
 * samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/server/remote_reward.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "base/text.h"
#include "engine/ext/server/http_batch.h"

#include "base/invar_banned.h"

#define MAX_RESPONSE_BYTES ((size_t)1 << 20) /* largest response for one sample */

invar_status invar_remote_reward_open(invar_http **out, const char *name, const char *url,
                                      double timeout)
{
    return invar_http_open(out, &(invar_http_options){.name = name,
                                                      .url = url,
                                                      .timeout = timeout,
                                                      .attempts = INVAR_HTTP_BATCH_ATTEMPTS,
                                                      .retry_delay_s = INVAR_HTTP_BATCH_PAUSE,
                                                      .max_concurrency = INVAR_HTTP_BATCH_PARALLEL,
                                                      .max_response_bytes = MAX_RESPONSE_BYTES});
}

/* Call that is being answered. */
typedef struct reward_call {
    const invar_plugin_call *call;
    invar_json_text *line; /* rewards received so far */
} reward_call;

static void write_field(invar_json_text *text, const char *key, const char *value, size_t bytes)
{
    invar_json_text_key(text, key);
    invar_json_text_string(text, value, bytes);
}

static void write_question(invar_json_text *text, size_t i, void *payload)
{
    const reward_call *a = payload;
    const invar_plugin_sample *s = &a->call->samples[i];

    invar_json_text_open(text, '{');
    write_field(text, "prompt", s->prompt, strlen(s->prompt));
    write_field(text, "response", s->response, s->response_bytes);
    write_field(text, "label", s->label, strlen(s->label));
    invar_json_text_close(text, '}');
}

static invar_status fail_no_reward(const invar_plugin_call *call, size_t i, const char *answer,
                                   size_t bytes)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    invar_text_quote(quoted, sizeof quoted, answer, bytes);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "plug-in %.1000s: the answer for sample %" PRId64
                      " is no number and no object of named numbers: \"%s\"",
                      call->plugin, call->samples[i].index, quoted);
}

/*
 * Appends one reward. A body must be one JSON value, so that it cannot add values for its
 * neighbors.
 */
static invar_status add_answer(size_t i, const char *answer, size_t bytes, void *payload)
{
    const reward_call *a = payload;
    invar_status status = INVAR_OK;
    char *text = NULL;
    size_t text_bytes;
    json_t *value;

    if (invar_json_parse(&value, "an answer", answer, bytes) != INVAR_OK)
        return fail_no_reward(a->call, i, answer, bytes);
    if (json_is_number(value) || json_is_object(value))
        status =
            invar_json_dump(&text, &text_bytes, value, JSON_COMPACT | JSON_ENCODE_ANY, "a reward");
    else
        status = fail_no_reward(a->call, i, answer, bytes);
    json_decref(value);
    if (status == INVAR_OK)
        invar_json_text_value(a->line, text, text_bytes);
    invar_free(text);
    return status == INVAR_OK ? a->line->status : status;
}

invar_status invar_remote_reward_ask(invar_json_text *line_out, invar_http *server,
                                     const invar_plugin_call *call)
{
    reward_call a = {call, line_out};

    invar_json_text_reset(line_out);
    invar_json_text_open(line_out, '{');
    invar_json_text_key(line_out, "rewards");
    invar_json_text_open(line_out, '[');
    INVAR_TRY(invar_http_batch_run(server, &(invar_http_batch){.count = call->count,
                                                               .write = write_question,
                                                               .read = add_answer,
                                                               .payload = &a}));
    invar_json_text_close(line_out, ']');
    invar_json_text_close(line_out, '}');
    return line_out->status;
}
