/*
 * session_table.c - HTTP requests of agent sessions: API key, allowed parameters, seed, recording.
 *
 * These are the session hooks that the HTTP server calls for each request, from many threads. A
 * request must use the sampling parameters of the recipe, except length and stops. Its seed comes
 * from its prompt and number, not from its time of arrival. A client that numbers its calls (the
 * field "seed") may retry them: a call that was recorded is answered from the record.
 *
 * Invariant: a call gets its response only after the journal has it on disk.
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

/* An HTTP request of a live session. */
typedef struct agent_request {
    invar_session_table *table;
    invar_live_session *live;
    invar_agent_call *call; /* NULL if the request is answered from the record */
} agent_request;

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

/* Returns the running session with this key, or NULL. Caller holds `lock`. */
static invar_live_session *find_live_session(const invar_session_table *d, const char *key)
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
    found = find_live_session(d, key) != NULL;
    (void)pthread_mutex_unlock(&d->lock);
    return found;
}

static invar_status fail_session_ended(void)
{
    return INVAR_FAIL(INVAR_E_STATE, 0, "the session has ended");
}

/* Sets the sampling parameters of the batch. Fails if the session has ended. */
static invar_status session_sampling(invar_sampling_params *out, void *payload, const char *key)
{
    invar_session_table *d = payload;
    bool found;

    (void)pthread_mutex_lock(&d->lock);
    found = find_live_session(d, key) != NULL;
    if (found)
        *out = *d->batch->sampling;
    (void)pthread_mutex_unlock(&d->lock);
    return found ? INVAR_OK : fail_session_ended();
}

/* ---- allowed parameters ---------------------------------------------------------------------- */

static invar_status fail_param(invar_completion_request *request, const char *param,
                               const char *why)
{
    request->param = param;
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: %s", param, why);
}

/*
 * Rejects parameters that differ from the recipe: the tokens would be sampled from another policy
 * than the one that is trained.
 */
static invar_status check_parameters(invar_completion_request *request,
                                     const invar_sampling_params *recipe)
{
    static const char other[] =
        "samples of a training run are drawn as its recipe says: leave it out";
    const invar_sampling_params *p = &request->sampling;

    if (request->n != 1)
        return fail_param(request, "n", "a call of a session is one choice: ask once for each");
    if (request->n_prompts != 1)
        return fail_param(request, "prompt",
                          "a call of a session is one prompt: ask once for each");
    if (request->echo)
        return fail_param(request, "echo",
                          "sessions of a training run score nothing: leave it out");
    if (p->max_response < 1)
        return fail_param(request, "max_tokens", "a call of a session draws at least one token");
    if (p->temperature != recipe->temperature)
        return fail_param(request, "temperature", other);
    if (p->top_p != recipe->top_p)
        return fail_param(request, "top_p", other);
    if (p->top_k != (recipe->top_k < 0 ? 0 : recipe->top_k))
        return fail_param(request, "top_k", other);
    if (p->min_p != recipe->min_p)
        return fail_param(request, "min_p", other);
    if (p->min_response > 0)
        return fail_param(request, "min_tokens", other);
    return INVAR_OK;
}

/* Returns the number that the client has given as "seed", or -1. */
static int64_t client_number(const invar_completion_request *request)
{
    const json_t *seed = json_object_get(request->body, "seed");

    return json_is_integer(seed) ? (int64_t)json_integer_value(seed) : -1;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static invar_status copy_tokens(void **out, const void *from, int64_t count, size_t size)
{
    INVAR_TRY(invar_alloc(out, (size_t)count, size, "tokens of a call"));
    if (count > 0) // `from` may be NULL if there are none
        memcpy(*out, from, (size_t)count * size);
    return INVAR_OK;
}

/* Answers a retry: a call with the same number and prompt gets the recorded response. */
static invar_status answer_from_record(invar_generation_request *generation,
                                       const invar_agent_call *call)
{
    invar_generation_choice *c = &generation->choices[0];

    if (!call->response)
        return INVAR_FAIL(INVAR_E_BUSY, 0, "the same call is in progress");
    INVAR_TRY(
        copy_tokens((void **)&c->tokens, call->response, call->n_response, sizeof *c->tokens));
    INVAR_TRY(copy_tokens((void **)&c->logp, call->logp, call->n_response, sizeof *c->logp));
    c->count = c->tokens_capacity = c->logp_capacity = call->n_response;
    c->finish = call->finish;
    generation->done = true;
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
    if (branches > d->options->max_branches)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the prompt continues no earlier call, and the session has its %" PRId64
                          " branches (agent-max-branches): send what was said before as it was, or "
                          "raise the key",
                          d->options->max_branches);
    return INVAR_OK;
}

/* Adds a call to the session, or answers it from the record. Caller holds `lock`. */
static invar_status begin_call(agent_request *v, invar_completion_request *request,
                               invar_generation_request *generation)
{
    invar_agent_session *session = v->live->task.session;
    const invar_completion_prompt *p = &request->prompts[0];
    int64_t number = client_number(request);
    const invar_agent_call *before =
        number < 0 ? NULL : invar_agent_session_find(session, p->ids, p->n_ids, true, number);
    invar_status status;

    if (before)
        return answer_from_record(generation, before);
    INVAR_TRY(invar_agent_session_add(&v->call, session, p->ids, p->n_ids, number));
    status = check_limits(v->table, session);
    if (status != INVAR_OK) {
        invar_agent_session_remove(session, v->call);
        return status;
    }
    request->sampling.seed = invar_agent_call_seed(v->call, v->table->batch->sampling->seed);
    generation->rollout = v->live->task.sample->rollout;
    generation->draw_index = v->live->task.sample->draw_index;
    return INVAR_OK;
}

static invar_status register_request(agent_request *v, const char *key,
                                     invar_completion_request *request,
                                     invar_generation_request *generation)
{
    v->live = find_live_session(v->table, key);
    if (!v->live)
        return fail_session_ended();
    INVAR_TRY(check_parameters(request, v->table->batch->sampling));
    INVAR_TRY(begin_call(v, request, generation));
    v->table->n_active_requests++;
    return INVAR_OK;
}

static invar_status begin_request(void **visit_out, void *payload, const char *key,
                                  invar_completion_request *request,
                                  invar_generation_request *generation)
{
    invar_session_table *d = payload;
    agent_request *v = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(v, 1, "a request of a session"));
    *v = (agent_request){.table = d};
    (void)pthread_mutex_lock(&d->lock);
    status = register_request(v, key, request, generation);
    (void)pthread_mutex_unlock(&d->lock);
    if (status == INVAR_OK)
        *visit_out = v;
    else
        invar_free(v);
    return status;
}

/*
 * Appends the call to the journal. A failure fails the batch, because a call that is not recorded
 * cannot be replayed.
 */
static invar_status journal_call(agent_request *v, const invar_agent_call *said)
{
    invar_status status = INVAR_OK;

    if (v->table->journal)
        status = invar_session_journal_call(v->table->journal, v->live->task.sample->index, said);
    if (status != INVAR_OK)
        invar_session_table_fail(v->table);
    return status;
}

/* Appends the call to the journal, then sets its response. Caller holds `lock`. */
static invar_status store_response(agent_request *v, const invar_generation_request *generation)
{
    const invar_generation_choice *c = &generation->choices[0];
    invar_agent_call said = *v->call;
    invar_status status;

    if (v->live->ended)
        return fail_session_ended();
    said.n_response = c->count;
    said.finish = c->finish;
    said.speculated = generation->samples[0].stats.speculated;
    INVAR_TRY(copy_tokens((void **)&said.response, c->tokens, c->count, sizeof *c->tokens));
    status = copy_tokens((void **)&said.logp, c->logp, c->count, sizeof *c->logp);
    if (status == INVAR_OK)
        status = journal_call(v, &said);
    if (status != INVAR_OK) {
        invar_free(said.response);
        invar_free(said.logp);
        return status;
    }
    *v->call = said;
    v->table->tokens += c->count;
    return INVAR_OK;
}

static invar_status record_call(void *payload, const invar_generation_request *generation)
{
    agent_request *v = payload;
    invar_status status;

    (void)pthread_mutex_lock(&v->table->lock);
    status = store_response(v, generation);
    (void)pthread_mutex_unlock(&v->table->lock);
    return status;
}

static void end_request(void *payload)
{
    agent_request *v = payload;
    invar_session_table *d = v->table;

    (void)pthread_mutex_lock(&d->lock);
    if (v->call && !v->call->response)
        invar_agent_session_remove(v->live->task.session, v->call);
    d->n_active_requests--;
    (void)pthread_cond_broadcast(&d->idle_cond);
    (void)pthread_mutex_unlock(&d->lock);
    invar_free(v);
}

const invar_server_session_hooks invar_session_table_hooks = {.is_session_key = is_session_key,
                                                              .get_sampling = session_sampling,
                                                              .begin = begin_request,
                                                              .record = record_call,
                                                              .end = end_request};
