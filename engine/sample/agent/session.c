/*
 * session.c - calls and final reply of one agent session.
 *
 * The seed of a call is a hash of the recipe's seed, the prompt and the number of the call. It must
 * never depend on the order in which calls arrive, because a replay repeats them in another order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/agent/session.h"

#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/ext/plugin_call.h"

#include "base/invar_banned.h"

#define CALL_BYTES 80 // largest size of a call in a record, not counting its tokens

/* ---- calls ----------------------------------------------------------------------------------- */

void invar_agent_call_free(invar_agent_call *call)
{
    if (!call)
        return;
    invar_free(call->prompt);
    invar_free(call->response);
    invar_free(call->logp);
    invar_free(call);
}

uint32_t invar_agent_call_seed(const invar_agent_call *call, uint32_t seed)
{
    const int64_t head[] = {seed, call->numbered, call->number, call->n_prompt};
    invar_hasher hasher;
    invar_digest digest;
    uint32_t out;

    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, head, sizeof head);
    invar_hasher_update(&hasher, call->prompt, (size_t)call->n_prompt * sizeof *call->prompt);
    invar_hasher_final(&digest, &hasher);
    memcpy(&out, &digest, sizeof out);
    return out;
}

void invar_agent_session_release(invar_agent_session *s)
{
    for (int64_t i = 0; i < s->n_calls; i++)
        invar_agent_call_free(s->calls[i]);
    invar_free(s->calls);
    invar_free(s->end);
    invar_free(s->error);
    invar_reward_parts_release(&s->parts);
    memset(s, 0, sizeof *s);
}

static bool has_prompt(const invar_agent_call *c, const int32_t *prompt, int64_t n_prompt)
{
    return c->n_prompt == n_prompt &&
           memcmp(c->prompt, prompt, (size_t)n_prompt * sizeof *prompt) == 0;
}

invar_agent_call *invar_agent_session_find(const invar_agent_session *s, const int32_t *prompt,
                                           int64_t n_prompt, bool numbered, int64_t number)
{
    for (int64_t i = 0; i < s->n_calls; i++)
        if (s->calls[i]->numbered == numbered && s->calls[i]->number == number &&
            has_prompt(s->calls[i], prompt, n_prompt))
            return s->calls[i];
    return NULL;
}

invar_status invar_agent_session_append(invar_agent_call **out, invar_agent_session *s,
                                        const int32_t *prompt, int64_t n_prompt, int64_t number)
{
    invar_agent_call *call = NULL;
    invar_status status;

    INVAR_TRY(INVAR_GROW(s->calls, s->capacity, s->n_calls, s->n_calls + 1, "calls of an agent"));
    INVAR_TRY(INVAR_ALLOC(call, 1, "a call of an agent"));
    *call = (invar_agent_call){.numbered = number >= 0, .n_prompt = n_prompt};
    status = INVAR_ALLOC_SIZED(call->prompt, (size_t)n_prompt, sizeof *prompt, "a prompt");
    if (status != INVAR_OK) {
        invar_agent_call_free(call);
        return status;
    }
    memcpy(call->prompt, prompt, (size_t)n_prompt * sizeof *prompt);
    call->number = call->numbered ? number : 0;
    while (!call->numbered && invar_agent_session_find(s, prompt, n_prompt, false, call->number))
        call->number++;
    s->calls[s->n_calls++] = call;
    *out = call;
    return INVAR_OK;
}

/* Returns the bytes of the token ids as JSON, each with a separator. */
static size_t json_bytes(const int32_t *ids, int64_t count)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < count; i++) {
        bytes += 2;
        for (int32_t rest = ids[i]; rest >= 10; rest /= 10)
            bytes++;
    }
    return bytes;
}

/*
 * Responses of calls in flight are not counted; the limit is half of a reply to leave space for
 * them.
 */
invar_status invar_agent_session_add(invar_agent_call **out, invar_agent_session *s,
                                     const int32_t *prompt, int64_t n_prompt, int64_t number)
{
    size_t bytes = json_bytes(prompt, n_prompt);

    for (int64_t i = 0; i < s->n_calls; i++)
        bytes += CALL_BYTES + json_bytes(s->calls[i]->prompt, s->calls[i]->n_prompt) +
                 json_bytes(s->calls[i]->response, s->calls[i]->n_response);
    if (bytes > INVAR_AGENT_RECORD_BYTES)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the record of the session would have more than %zu MiB: send shorter "
                          "prompts, or end the session",
                          INVAR_AGENT_RECORD_BYTES >> 20);
    return invar_agent_session_append(out, s, prompt, n_prompt, number);
}

void invar_agent_session_remove(invar_agent_session *s, const invar_agent_call *call)
{
    int64_t i = 0;

    while (s->calls[i] != call)
        i++;
    invar_agent_call_free(s->calls[i]);
    memmove(&s->calls[i], &s->calls[i + 1], (size_t)(s->n_calls - i - 1) * sizeof *s->calls);
    s->n_calls--;
}

/* ---- end ------------------------------------------------------------------------------------- */

static invar_status copy_text(char **out, const char *text, size_t bytes)
{
    INVAR_TRY(INVAR_ALLOC(*out, bytes + 1, "the end of a session"));
    memcpy(*out, text, bytes);
    (*out)[bytes] = '\0';
    return INVAR_OK;
}

static invar_status parse_final_reply(invar_agent_session *s, const json_t *reply,
                                      const char *where)
{
    const json_t *error = json_object_get(reply, "error");
    json_t *reward = json_object_get(reply, "reward");
    char quote[INVAR_TEXT_QUOTE_SIZE * 3];

    if (!json_is_object(reply))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: the reply is no JSON object", where);
    if (error && !json_is_string(error))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"error\" is no text", where);
    if (error) {
        invar_text_quote(quote, sizeof quote, json_string_value(error), json_string_length(error));
        return copy_text(&s->error, quote, strlen(quote));
    }
    s->rewarded = reward != NULL;
    return reward ? invar_plugin_reward_read(&s->reward, &s->parts, reward, where) : INVAR_OK;
}

invar_status invar_agent_session_end_read(invar_agent_session *s, const json_t *reply,
                                          const char *where)
{
    INVAR_TRY(parse_final_reply(s, reply, where));
    return invar_json_dump(&s->end, &s->end_bytes, reply, JSON_COMPACT, "the end of a session");
}

invar_status invar_agent_session_end(invar_agent_session *s, const char *reply, size_t bytes,
                                     const char *where)
{
    json_t *value = NULL;
    invar_status status;

    INVAR_TRY(invar_json_as_corrupt(invar_json_parse(&value, where, reply, bytes)));
    status = invar_agent_session_end_read(s, value, where);
    json_decref(value);
    return status;
}

invar_status invar_agent_session_fail(invar_agent_session *s, const char *why)
{
    invar_json_text text = {0};
    invar_status status;

    invar_reward_parts_release(&s->parts); // left by a final reply that was not valid
    s->rewarded = false;
    invar_json_text_open(&text, '{');
    invar_json_text_put_string(&text, "error", why);
    invar_json_text_close(&text, '}');
    status = text.status;
    if (status == INVAR_OK)
        status = invar_agent_session_end(s, text.data, text.bytes, "an agent's failure");
    invar_json_text_release(&text);
    return status;
}
