/*
 * session_table.c - requests of sessions: what they may ask, where their noise comes from, what is
 * kept.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/agent/session_table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* A request that is worked on. */
typedef struct visit {
    invar_session_table *desks;
    invar_live_session *desk;
    invar_agent_call *call; /* NULL: it has its reply already */
} visit;

invar_status invar_session_key_new(char out[INVAR_SESSION_KEY_SIZE])
{
    unsigned char bytes[16];
    int at = snprintf(out, INVAR_SESSION_KEY_SIZE, "invar-");

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return INVAR_FAIL(INVAR_E_IO, errno, "no random bytes for the key of a session: %s",
                          strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        at += snprintf(out + at, (size_t)(INVAR_SESSION_KEY_SIZE - at), "%02x", bytes[i]);
    return INVAR_OK;
}

void invar_session_table_fail(invar_session_table *d)
{
    if (d->error.status == INVAR_OK)
        d->error = *invar_error_last();
}

/* With the lock: the desk that the key opens; NULL: none does any more. */
static invar_live_session *session_table_find(const invar_session_table *d, const char *key)
{
    for (int64_t i = 0; key && i < d->count; i++)
        if (!d->sessions[i].ended && strcmp(d->sessions[i].key, key) == 0)
            return &d->sessions[i];
    return NULL;
}

static bool is_session_key(void *payload, const char *key)
{
    invar_session_table *d = payload;
    bool found;

    (void)pthread_mutex_lock(&d->lock);
    found = session_table_find(d, key) != NULL;
    (void)pthread_mutex_unlock(&d->lock);
    return found;
}

static invar_status fail_session_ended(void)
{
    return INVAR_FAIL(INVAR_E_STATE, 0, "the session has ended");
}

/* As the order says. Without a session there is none. */
static invar_status session_sampling(invar_sampling_params *out, void *payload, const char *key)
{
    invar_session_table *d = payload;
    bool found;

    (void)pthread_mutex_lock(&d->lock);
    found = session_table_find(d, key) != NULL;
    if (found)
        *out = *d->batch->sampling;
    (void)pthread_mutex_unlock(&d->lock);
    return found ? INVAR_OK : fail_session_ended();
}

/* ---- what may be asked ----------------------------------------------------------------------- */

static invar_status completion_request_fail(invar_completion_request *ask, const char *param,
                                            const char *why)
{
    ask->param = param;
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: %s", param, why);
}

/* Samples are drawn as the recipe says: with other settings they were another policy's. */
static invar_status check_ask(invar_completion_request *ask, const invar_sampling_params *recipe)
{
    static const char other[] =
        "samples of a training run are drawn as its recipe says: leave it out";
    const invar_sampling_params *p = &ask->sampling;

    if (ask->n != 1)
        return completion_request_fail(ask, "n",
                                       "a call of a session is one choice: ask once for each");
    if (ask->n_prompts != 1)
        return completion_request_fail(ask, "prompt",
                                       "a call of a session is one prompt: ask once for each");
    if (ask->echo)
        return completion_request_fail(ask, "echo",
                                       "sessions of a training run score nothing: leave it out");
    if (p->max_response < 1)
        return completion_request_fail(ask, "max_tokens",
                                       "a call of a session draws at least one token");
    if (p->temperature != recipe->temperature)
        return completion_request_fail(ask, "temperature", other);
    if (p->top_p != recipe->top_p)
        return completion_request_fail(ask, "top_p", other);
    if (p->top_k != (recipe->top_k < 0 ? 0 : recipe->top_k))
        return completion_request_fail(ask, "top_k", other);
    if (p->min_p != recipe->min_p)
        return completion_request_fail(ask, "min_p", other);
    if (p->min_response > 0)
        return completion_request_fail(ask, "min_tokens", other);
    return INVAR_OK;
}

/* The number that the client gives; -1: none. */
static int64_t number_of(const invar_completion_request *ask)
{
    const json_t *seed = json_object_get(ask->body, "seed");

    return json_is_integer(seed) ? (int64_t)json_integer_value(seed) : -1;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static invar_status copy(void **out, const void *from, int64_t count, size_t size)
{
    INVAR_TRY(invar_alloc(out, (size_t)count, size, "tokens of a call"));
    memcpy(*out, from, (size_t)count * size);
    return INVAR_OK;
}

/* A retry: the same number and prompt have the same reply. */
static invar_status answer_again(invar_generation_request *ticket, const invar_agent_call *call)
{
    invar_generation_choice *c = &ticket->choices[0];

    if (!call->response)
        return INVAR_FAIL(INVAR_E_BUSY, 0, "the same call is on its way");
    INVAR_TRY(copy((void **)&c->tokens, call->response, call->n_response, sizeof *c->tokens));
    INVAR_TRY(copy((void **)&c->logp, call->logp, call->n_response, sizeof *c->logp));
    c->count = c->room = call->n_response;
    c->finish = call->finish;
    ticket->done = true;
    return INVAR_OK;
}

static invar_status check_limits(const invar_session_table *d, const invar_agent_session *session)
{
    int64_t branches;

    if (session->n_calls > d->options->max_calls)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the session has made its %" PRId64 " calls (agent-max-calls)",
                          d->options->max_calls);
    INVAR_TRY(invar_agent_session_branches(&branches, session));
    if (branches > d->options->branches)
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "the prompt goes on with no earlier call, and the session has its %" PRId64
            " branches (agent-max-branches): send what was said before as it was, or "
            "raise the key",
            d->options->branches);
    return INVAR_OK;
}

/* With the lock. */
static invar_status begin_call(visit *v, invar_completion_request *ask,
                               invar_generation_request *ticket)
{
    invar_agent_session *session = v->desk->task.session;
    const invar_completion_prompt *p = &ask->prompts[0];
    int64_t number = number_of(ask);
    const invar_agent_call *before =
        number < 0 ? NULL : invar_agent_session_find(session, p->ids, p->n_ids, true, number);
    invar_status status;

    if (before)
        return answer_again(ticket, before);
    INVAR_TRY(invar_agent_session_add(&v->call, session, p->ids, p->n_ids, number));
    status = check_limits(v->desks, session);
    if (status != INVAR_OK) {
        invar_agent_session_remove(session, v->call);
        return status;
    }
    ask->sampling.seed = invar_agent_call_seed(v->call, v->desks->batch->sampling->seed);
    ticket->rollout = v->desk->task.sample->rollout;
    ticket->draw = v->desk->task.sample->draw_index;
    return INVAR_OK;
}

static invar_status register_request(visit *v, const char *key, invar_completion_request *ask,
                                     invar_generation_request *ticket)
{
    v->desk = session_table_find(v->desks, key);
    if (!v->desk)
        return fail_session_ended();
    INVAR_TRY(check_ask(ask, v->desks->batch->sampling));
    INVAR_TRY(begin_call(v, ask, ticket));
    v->desks->n_active_requests++;
    return INVAR_OK;
}

static invar_status begin_request(void **visit_out, void *payload, const char *key,
                                  invar_completion_request *ask, invar_generation_request *ticket)
{
    invar_session_table *d = payload;
    visit *v = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&v, 1, sizeof *v, "a request of a session"));
    *v = (visit){.desks = d};
    (void)pthread_mutex_lock(&d->lock);
    status = register_request(v, key, ask, ticket);
    (void)pthread_mutex_unlock(&d->lock);
    if (status == INVAR_OK)
        *visit_out = v;
    else
        invar_free(v);
    return status;
}

/* Nothing that was not recorded may count: the run fails. */
static invar_status write_down(visit *v, const invar_agent_call *said)
{
    invar_status status = INVAR_OK;

    if (v->desks->log)
        status = invar_session_journal_call(v->desks->log, v->desk->task.sample->index, said);
    if (status != INVAR_OK)
        invar_session_table_fail(v->desks);
    return status;
}

/* With the lock: the call has its response once that is durable. */
static invar_status keep_call(visit *v, const invar_generation_request *ticket)
{
    const invar_generation_choice *c = &ticket->choices[0];
    invar_agent_call said = *v->call;
    invar_status status;

    if (v->desk->ended)
        return fail_session_ended();
    said.n_response = c->count;
    said.finish = c->finish;
    said.speculated = ticket->samples[0].speculated;
    INVAR_TRY(copy((void **)&said.response, c->tokens, c->count, sizeof *c->tokens));
    status = copy((void **)&said.logp, c->logp, c->count, sizeof *c->logp);
    if (status == INVAR_OK)
        status = write_down(v, &said);
    if (status != INVAR_OK) {
        invar_free(said.response);
        invar_free(said.logp);
        return status;
    }
    *v->call = said;
    v->desks->tokens += c->count;
    return INVAR_OK;
}

static invar_status record_call(void *payload, const invar_generation_request *ticket)
{
    visit *v = payload;
    invar_status status;

    (void)pthread_mutex_lock(&v->desks->lock);
    status = keep_call(v, ticket);
    (void)pthread_mutex_unlock(&v->desks->lock);
    return status;
}

static void end_request(void *payload)
{
    visit *v = payload;
    invar_session_table *d = v->desks;

    (void)pthread_mutex_lock(&d->lock);
    if (v->call && !v->call->response)
        invar_agent_session_remove(v->desk->task.session, v->call);
    d->n_active_requests--;
    (void)pthread_cond_broadcast(&d->idle_cond);
    (void)pthread_mutex_unlock(&d->lock);
    invar_free(v);
}

const invar_server_session_hooks invar_desks_gate = {.knows = is_session_key,
                                                     .settings = session_sampling,
                                                     .begin = begin_request,
                                                     .keep = record_call,
                                                     .leave = end_request};
