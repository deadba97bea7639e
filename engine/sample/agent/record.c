/*
 * record.c - agent sessions as JSON, written and read.
 *
 * A record has the prompts and numbers of the calls and the final reply, which the agent decided,
 * and the responses, which a replay samples again from the same seeds and compares. Log-probs are
 * not written: the replay computes them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/sample/agent/session.h"

#include "base/invar_banned.h"

/* ---- writing --------------------------------------------------------------------------------- */

void invar_agent_call_write(invar_json_text *text, const invar_agent_call *call)
{
    const char *finish = invar_finish_name(call->finish);

    invar_json_text_open(text, '{');
    invar_json_text_put_int(text, call->numbered ? "number" : "occurrence", call->number);
    invar_json_text_put_ints(text, "prompt", call->prompt, call->n_prompt);
    invar_json_text_put_ints(text, "response", call->response, call->n_response);
    invar_json_text_put_string(text, "finish", finish);
    invar_json_text_close(text, '}');
}

void invar_agent_session_write(invar_json_text *text, const invar_agent_session *s)
{
    invar_json_text_open(text, '{');
    invar_json_text_put_open(text, "calls", '[');
    for (int64_t i = 0; i < s->n_calls; i++)
        invar_agent_call_write(text, s->calls[i]);
    invar_json_text_close(text, ']');
    invar_json_text_key(text, "end");
    invar_json_text_value(text, s->end, s->end_bytes);
    invar_json_text_close(text, '}');
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads a list of at least one token id. */
static invar_status read_ids(int32_t **out, int64_t *count_out, const json_t *object,
                             const char *key, const invar_agent_limits *limits, const char *where)
{
    const json_t *list = json_object_get(object, key), *item;
    size_t i, count = json_array_size(list);

    if (count < 1 || (int64_t)count > limits->context)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: \"%s\" of a call is no list of 1 to %" PRId64 " tokens", where, key,
                          limits->context);
    INVAR_TRY(INVAR_ALLOC(*out, count, "tokens of a call"));
    json_array_foreach(list, i, item)
    {
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) >= limits->vocab)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"%s\" of a call has no token at %zu", where,
                              key, i);
        (*out)[i] = (int32_t)json_integer_value(item);
    }
    *count_out = (int64_t)count;
    return INVAR_OK;
}

static invar_status read_finish(invar_finish *out, const json_t *object, const char *where)
{
    const char *word;

    INVAR_TRY(invar_json_as_corrupt(invar_json_string(&word, object, "finish", where)));
    *out = strcmp(word, invar_finish_name(INVAR_FINISH_STOP)) == 0 ? INVAR_FINISH_STOP
                                                                   : INVAR_FINISH_LENGTH;
    if (strcmp(word, invar_finish_name(*out)) != 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"finish\" of a call is neither stop nor length",
                          where);
    return INVAR_OK;
}

static invar_status read_number(int64_t *out, bool *numbered_out, const json_t *object,
                                const char *where)
{
    const char *key;

    *numbered_out = json_object_get(object, "number") != NULL;
    key = *numbered_out ? "number" : "occurrence";
    return invar_json_as_corrupt(invar_json_int(out, object, key, where, 0, UINT32_MAX));
}

static invar_status read_call_members(invar_agent_session *out, const json_t *object,
                                      int32_t *prompt, int64_t n_prompt,
                                      const invar_agent_limits *limits, const char *where)
{
    invar_agent_call *call;
    bool numbered;
    int64_t number;

    INVAR_TRY(read_number(&number, &numbered, object, where));
    if (invar_agent_session_find(out, prompt, n_prompt, numbered, number))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: a call is recorded twice", where);
    INVAR_TRY(invar_agent_session_append(&call, out, prompt, n_prompt, number));
    call->numbered = numbered;
    INVAR_TRY(read_ids(&call->response, &call->n_response, object, "response", limits, where));
    INVAR_TRY(read_finish(&call->finish, object, where));
    if (call->n_prompt + call->n_response > limits->context)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: a call has %" PRId64 " tokens; the context has %" PRId64, where,
                          call->n_prompt + call->n_response, limits->context);
    return INVAR_OK;
}

invar_status invar_agent_call_read(invar_agent_session *out, const json_t *object,
                                   const invar_agent_limits *limits, const char *where)
{
    int32_t *prompt = NULL;
    int64_t n_prompt = 0;
    invar_status status;

    if (out->n_calls >= limits->max_calls)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: it has more than %" PRId64 " calls (agent-max-calls)", where,
                          limits->max_calls);
    status = read_ids(&prompt, &n_prompt, object, "prompt", limits, where);
    if (status == INVAR_OK)
        status = read_call_members(out, object, prompt, n_prompt, limits, where);
    invar_free(prompt);
    return status;
}

invar_status invar_agent_end_read(invar_agent_session *out, const json_t *object,
                                  const invar_agent_limits *limits, const char *where)
{
    int64_t branches;

    INVAR_TRY(invar_agent_session_branches(&branches, out));
    if (branches > limits->max_branches)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: it has %" PRId64 " branches, more than %" PRId64
                          " (agent-max-branches)",
                          where, branches, limits->max_branches);
    return invar_agent_session_end_read(out, object, where);
}

static invar_status read_session_members(invar_agent_session *out, const json_t *object,
                                         const invar_agent_limits *limits, const char *where)
{
    const json_t *calls = json_object_get(object, "calls"), *call;
    const json_t *end = json_object_get(object, "end");
    size_t i;

    if (!json_is_array(calls) || !json_is_object(end))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: it has no list \"calls\" or no object \"end\"",
                          where);
    json_array_foreach(calls, i, call) INVAR_TRY(invar_agent_call_read(out, call, limits, where));
    return invar_agent_end_read(out, end, limits, where);
}

invar_status invar_agent_session_read(invar_agent_session *out, const char *text, size_t bytes,
                                      const invar_agent_limits *limits, const char *where)
{
    json_t *object = NULL;
    invar_status status;

    INVAR_TRY(invar_json_as_corrupt(invar_json_parse(&object, where, text, bytes)));
    status = read_session_members(out, object, limits, where);
    json_decref(object);
    return status;
}
