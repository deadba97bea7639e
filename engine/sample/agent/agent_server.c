/*
 * agent_server.c - programs that lead sessions, and the server that they ask.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/agent/agent_server.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "engine/ext/line_process.h"
#include "engine/ext/plugin.h"
#include "engine/ext/plugin_call.h"
#include "engine/rl/reward/reward.h"
#include "engine/sample/agent/session_table.h"

#include "base/invar_banned.h"

#define HOST "127.0.0.1"
#define MOST_BODY (INT64_C(64) << 20)
#define CLIENT_SECONDS 30
#define CONNECTIONS_EACH 16 // of a program, which may ask several things at once
#define SPARE_CONNECTIONS 64
#define WHERE_SIZE 128

struct invar_agent_server {
    invar_agent_server_options options;
    invar_session_table desks;
    pthread_cond_t work; /* there are desks, or it closes */
    int64_t next;        /* the first desk that nobody has sat down at */
    bool closing;
    pthread_t *threads; /* (n_threads) each has a program */
    int64_t n_threads;
    invar_prompt_encoder *prompter;
    invar_inference_engine *dispatch;
    invar_server *server;
};

static void agent_server_lock(invar_agent_server *d)
{
    (void)pthread_mutex_lock(&d->desks.lock);
}

static void agent_server_unlock(invar_agent_server *d)
{
    (void)pthread_mutex_unlock(&d->desks.lock);
}

/* ---- a session ------------------------------------------------------------------------------- */

static void write_text(invar_json_text *text, const char *key, const char *value)
{
    invar_json_text_key(text, key);
    invar_json_text_string(text, value, strlen(value));
}

static void write_int(invar_json_text *text, const char *key, int64_t value)
{
    invar_json_text_key(text, key);
    invar_json_text_int(text, value);
}

/* The line that an agent begins with. */
static void write_task(invar_json_text *text, const invar_agent_server *d,
                       const invar_live_session *desk)
{
    const invar_rl_sample *s = desk->task.sample;
    invar_plugin_sample shown;
    char url[64];

    invar_plugin_sample_view(&shown, s);
    (void)snprintf(url, sizeof url, "http://" HOST ":%" PRId64 "/v1", invar_server_port(d->server));
    invar_json_text_open(text, '{');
    write_int(text, "id", s->index);
    write_text(text, "call", invar_plugin_kind_name(INVAR_PLUGIN_KIND_AGENT));
    write_int(text, "rollout", s->rollout);
    write_int(text, "group", s->group);
    write_text(text, "prompt", shown.prompt);
    write_text(text, "label", shown.label);
    invar_json_text_key(text, "metadata");
    invar_json_text_value(text, shown.metadata, strlen(shown.metadata));
    write_text(text, "base_url", url);
    write_text(text, "api_key", desk->key);
    write_text(text, "model", d->options.server_info.model);
    if (d->desks.batch->evaluation) {
        invar_json_text_key(text, "evaluation");
        invar_json_text_bool(text, true);
    }
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
}

static invar_status line_process_greet(invar_line_process *program)
{
    char title[INVAR_PLUGIN_TITLE_SIZE];
    invar_json_text text = {0};
    uint32_t kinds = 0;
    const char *line;
    size_t bytes;
    invar_status status;

    invar_plugin_greet_write(&text, INVAR_AGENT_NAME, INVAR_PLUGIN_KIND_AGENT);
    status = text.status;
    if (status == INVAR_OK)
        status = invar_line_process_exchange(&line, &bytes, program, text.data, text.bytes);
    if (status == INVAR_OK)
        status = invar_plugin_greet_read(title, &kinds, INVAR_AGENT_NAME, line, bytes);
    invar_json_text_release(&text);
    if (status != INVAR_OK || (kinds & INVAR_PLUGIN_KIND_AGENT))
        return status;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "plug-in " INVAR_AGENT_NAME ": \"%s\" does not offer the kind \"agent\"",
                      title);
}

/* Agents of a run that has failed are not waited for. */
static invar_status check_run_alive(void *payload)
{
    invar_agent_server *d = payload;
    bool failed;

    agent_server_lock(d);
    failed = d->desks.error.status != INVAR_OK;
    agent_server_unlock(d);
    return failed ? INVAR_FAIL(INVAR_E_STATE, 0, "the run has failed") : INVAR_OK;
}

/* The agent of a thread; it is started where there is none, or the last one has failed. */
static invar_status ensure_process(invar_line_process **program, invar_agent_server *d)
{
    if (*program)
        return INVAR_OK;
    INVAR_TRY(invar_line_process_open(program, INVAR_AGENT_NAME, d->options.command,
                                      d->options.session_timeout_s, 2));
    invar_line_process_guard(*program, check_run_alive, d);
    return line_process_greet(*program);
}

static invar_status run_session(const char **reply_out, size_t *bytes_out,
                                const invar_agent_server *d, invar_line_process *program,
                                const invar_live_session *desk)
{
    invar_json_text text = {0};
    invar_status status;

    write_task(&text, d, desk);
    status = text.status;
    if (status == INVAR_OK)
        status = invar_line_process_exchange(reply_out, bytes_out, program, text.data, text.bytes);
    invar_json_text_release(&text);
    return status;
}

/* The reply is that to this task. */
static invar_status check_id(const char *reply, size_t bytes, int64_t id, const char *where)
{
    json_t *value = NULL;
    int64_t given;
    invar_status status;

    INVAR_TRY(invar_json_parse(&value, where, reply, bytes));
    status = invar_json_int(&given, value, "id", where, INT64_MIN, INT64_MAX);
    json_decref(value);
    if (status == INVAR_OK && given != id)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: the reply has id %" PRId64 ", the request had %" PRId64, where,
                          given, id);
    return status;
}

/* What would be refused later must not be durable: it could not be said again. */
static invar_status check_reward(const invar_agent_server *d, const invar_live_session *desk)
{
    const invar_agent_session *session = desk->task.session;
    const invar_agent_batch_options *order = d->desks.batch;
    invar_rl_sample shown = {.index = desk->task.sample->index, .parts = session->parts};

    if (session->error)
        return INVAR_OK;
    if (session->rewarded)
        return invar_reward_select_part(&shown, order->reward_part);
    return order->unrewarded ? order->unrewarded(order->payload, desk->task.sample) : INVAR_OK;
}

/*
 * With the lock: the agent's last words, or those of its failure, unless it never began. Where the
 * run has failed already, its agents could not help it.
 */
static invar_status end_session(invar_agent_server *d, invar_live_session *desk, bool begun,
                                invar_status status, const char *reply, size_t bytes)
{
    invar_agent_session *session = desk->task.session;
    int64_t index = desk->task.sample->index;
    char where[WHERE_SIZE];

    (void)snprintf(where, sizeof where, "plug-in " INVAR_AGENT_NAME ": sample %" PRId64, index);
    desk->ended = true;
    if (d->desks.error.status != INVAR_OK)
        return INVAR_OK;
    if (status == INVAR_OK)
        status = invar_json_as_corrupt(check_id(reply, bytes, index, where));
    if (status == INVAR_OK)
        status = invar_agent_session_end(session, reply, bytes, where);
    if (status == INVAR_OK)
        status = check_reward(d, desk);
    if (status != INVAR_OK && d->options.zero_reward_on_failure && begun && status != INVAR_E_NOMEM)
        status = invar_agent_session_fail(session, invar_error_last()->message);
    if (status == INVAR_OK && session->error && !d->options.zero_reward_on_failure)
        status = INVAR_FAIL(INVAR_E_STATE, 0, "%s: it refuses: %.1000s", where, session->error);
    if (status == INVAR_OK && d->desks.log)
        status = invar_session_journal_end(d->desks.log, index, session);
    return status;
}

/* The error that there is stays. */
static void stop_process_keep_error(invar_line_process **program)
{
    invar_error error;

    invar_error_take(&error);
    invar_line_process_close(*program);
    *program = NULL;
    invar_error_put(&error);
}

/* Leads one session. The program that fails is not asked again. */
static void run_task(invar_agent_server *d, invar_line_process **program, invar_live_session *desk)
{
    const char *reply = NULL;
    size_t bytes = 0;
    invar_status status = ensure_process(program, d);
    bool begun = status == INVAR_OK, failed;

    if (begun)
        status = run_session(&reply, &bytes, d, *program, desk);
    if (status != INVAR_OK)
        stop_process_keep_error(program);
    agent_server_lock(d);
    status = end_session(d, desk, begun, status, reply, bytes);
    failed = status != INVAR_OK || desk->task.session->error;
    if (status != INVAR_OK)
        invar_session_table_fail(&d->desks);
    agent_server_unlock(d);
    if (failed)
        stop_process_keep_error(program);
}

/* ---- threads with a program each ------------------------------------------------------------- */

/* With the lock: a desk is done, and after the last one nobody asks any more. */
static void count_ended(invar_agent_server *d)
{
    d->desks.ended++;
    if (d->desks.ended == d->desks.count || d->desks.error.status != INVAR_OK)
        invar_inference_engine_stop(d->dispatch);
    (void)pthread_cond_broadcast(&d->desks.idle_cond);
}

static void *lead_all(void *payload)
{
    invar_agent_server *d = payload;
    invar_line_process *program = NULL;

    agent_server_lock(d);
    while (!d->closing) {
        invar_live_session *desk;

        if (d->next >= d->desks.count) {
            (void)pthread_cond_wait(&d->work, &d->desks.lock);
            continue;
        }
        desk = &d->desks.sessions[d->next++];
        if (d->desks.error.status == INVAR_OK) {
            agent_server_unlock(d);
            run_task(d, &program, desk);
            agent_server_lock(d);
        }
        desk->ended = true;
        count_ended(d);
    }
    agent_server_unlock(d);
    invar_line_process_close(program);
    return NULL;
}

/* As many as there are sessions for, at most. */
static invar_status start_threads(invar_agent_server *d, int64_t sessions)
{
    int64_t want = invar_min_i64(d->options.max_processes, sessions);

    while (d->n_threads < want) {
        int rc = pthread_create(&d->threads[d->n_threads], NULL, lead_all, d);

        if (rc != 0)
            return INVAR_FAIL(INVAR_E_IO, rc, "no thread for an agent: %s", strerror(rc));
        d->n_threads++;
    }
    return INVAR_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static invar_status tick(void *payload)
{
    invar_agent_server *d = payload;
    const invar_agent_batch_options *order = d->desks.batch;
    int64_t ended, tokens;

    if (!order->tick)
        return INVAR_OK;
    agent_server_lock(d);
    ended = d->desks.ended;
    tokens = d->desks.tokens;
    agent_server_unlock(d);
    return order->tick(order->payload, ended, tokens);
}

static invar_status make_desks(invar_live_session **out, const invar_agent_task *tasks,
                               int64_t count)
{
    INVAR_TRY(invar_alloc((void **)out, (size_t)count, sizeof **out, "sessions"));
    for (int64_t i = 0; i < count; i++) {
        (*out)[i] = (invar_live_session){.task = tasks[i]};
        INVAR_TRY(invar_session_key_new((*out)[i].key));
    }
    return INVAR_OK;
}

static void let_in(invar_agent_server *d, invar_live_session *desks, int64_t count,
                   const invar_agent_batch_options *order, const invar_digest *weights,
                   invar_session_journal *log)
{
    agent_server_lock(d);
    d->desks.batch = order;
    d->options.server_info.weights = *weights;
    d->desks.sessions = desks;
    d->desks.count = count;
    d->desks.ended = d->desks.tokens = d->next = 0;
    d->desks.log = log;
    (void)pthread_cond_broadcast(&d->work);
    agent_server_unlock(d);
}

/* Until the last agent and the last request are gone; then the door is shut. */
static invar_status see_off(invar_agent_server *d, invar_status status)
{
    agent_server_lock(d);
    if (status != INVAR_OK)
        invar_session_table_fail(&d->desks);
    while (d->desks.ended < d->desks.count || d->desks.n_active_requests > 0)
        (void)pthread_cond_wait(&d->desks.idle_cond, &d->desks.lock);
    d->desks.sessions = NULL;
    d->desks.count = d->next = 0;
    agent_server_unlock(d);
    if (d->desks.error.status == INVAR_OK)
        return INVAR_OK;
    invar_error_put(&d->desks.error);
    return d->desks.error.status;
}

invar_status invar_agent_server_run(invar_agent_server *d, const invar_agent_task *tasks,
                                    int64_t count, const invar_agent_batch_options *order,
                                    const invar_digest *weights, invar_session_journal *log)
{
    invar_live_session *desks = NULL;
    invar_status status;

    status = make_desks(&desks, tasks, count);
    if (status == INVAR_OK)
        status = start_threads(d, count);
    if (status == INVAR_OK)
        status = invar_inference_engine_begin(d->dispatch);
    if (status == INVAR_OK) {
        let_in(d, desks, count, order, weights, log);
        status = see_off(d, invar_inference_engine_run(d->dispatch, NULL));
    }
    invar_free(desks);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static invar_status open_parts(invar_agent_server *d)
{
    const invar_agent_server_options *o = &d->options;
    invar_server_session_hooks gate = invar_desks_gate;

    gate.payload = &d->desks;
    INVAR_TRY(invar_alloc((void **)&d->threads, (size_t)o->max_processes, sizeof *d->threads,
                          "threads for agents"));
    INVAR_TRY(invar_prompt_encoder_new(&d->prompter, &o->chat));
    INVAR_TRY(invar_inference_engine_new(
        &d->dispatch,
        &(invar_inference_engine_options){.rollout = o->rollout,
                                          .context = o->chat.context,
                                          .max_requests = o->max_processes * CONNECTIONS_EACH,
                                          .tick = tick,
                                          .payload = d}));
    return invar_server_open(
        &d->server, &(invar_server_options){.host = HOST,
                                            .gate = gate,
                                            .connections = o->max_processes * CONNECTIONS_EACH +
                                                           SPARE_CONNECTIONS,
                                            .most_body = MOST_BODY,
                                            .client_seconds = CLIENT_SECONDS,
                                            .facts = &o->server_info,
                                            .tokenizer = o->chat.tokenizer,
                                            .dispatch = d->dispatch,
                                            .prompter = d->prompter});
}

static int64_t seconds_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec;
}

invar_status invar_agent_server_open(invar_agent_server **out,
                                     const invar_agent_server_options *options)
{
    invar_agent_server *d = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&d, 1, sizeof *d, "a door for agents"));
    memset(d, 0, sizeof *d);
    d->options = *options;
    d->options.server_info.started = seconds_now();
    d->desks.options = &d->options;
    (void)pthread_mutex_init(&d->desks.lock, NULL);
    (void)pthread_cond_init(&d->desks.idle_cond, NULL);
    (void)pthread_cond_init(&d->work, NULL);
    status = open_parts(d);
    if (status != INVAR_OK) {
        invar_agent_server_close(d);
        return status;
    }
    *out = d;
    return INVAR_OK;
}

void invar_agent_server_close(invar_agent_server *d)
{
    if (!d)
        return;
    agent_server_lock(d);
    d->closing = true;
    (void)pthread_cond_broadcast(&d->work);
    agent_server_unlock(d);
    for (int64_t i = 0; i < d->n_threads; i++)
        (void)pthread_join(d->threads[i], NULL);
    invar_server_close(d->server);
    invar_inference_engine_free(d->dispatch);
    invar_prompt_encoder_free(d->prompter);
    invar_free(d->threads);
    (void)pthread_mutex_destroy(&d->desks.lock);
    (void)pthread_cond_destroy(&d->desks.idle_cond);
    (void)pthread_cond_destroy(&d->work);
    invar_free(d);
}
