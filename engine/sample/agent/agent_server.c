/*
 * agent_server.c - agent programs, the threads that drive them, and the HTTP server that they call.
 *
 * Each thread owns one agent process and runs one session after another, until the batch has none
 * left. The thread that called invar_agent_server_run generates tokens for all of them and stops
 * when the last session has ended.
 *
 * The lock of the session table guards the state that the threads share. It is not held while a
 * thread waits for its process.
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
#define MAX_BODY_BYTES (INT64_C(64) << 20)
#define CLIENT_SECONDS 30
#define CONNECTIONS_PER_AGENT 16 // an agent may send several requests at once
#define SPARE_CONNECTIONS 64
#define WHERE_SIZE 128

struct invar_agent_server {
    invar_agent_server_options options;
    invar_session_table live_sessions;
    pthread_cond_t batch_cond; /* signaled when a batch begins or the server closes */
    int64_t next;              /* index of the first session that no thread has taken */
    bool closing;
    pthread_t *threads; /* (n_threads) each has one agent process */
    int64_t n_threads;
    invar_prompt_encoder *prompter;
    invar_inference_engine *dispatch;
    invar_server *server;
};

static void agent_server_lock(invar_agent_server *server)
{
    (void)pthread_mutex_lock(&server->live_sessions.lock);
}

static void agent_server_unlock(invar_agent_server *server)
{
    (void)pthread_mutex_unlock(&server->live_sessions.lock);
}

/* ---- a session ------------------------------------------------------------------------------- */

/* Writes the line that begins a session. */
static void write_task(invar_json_text *text, const invar_agent_server *server,
                       const invar_live_session *live)
{
    const invar_rl_sample *s = live->task.sample;
    invar_plugin_sample shown;
    char url[64];

    invar_plugin_sample_view(&shown, s);
    (void)snprintf(url, sizeof url, "http://" HOST ":%" PRId64 "/v1",
                   invar_server_port(server->server));
    invar_json_text_open(text, '{');
    invar_json_text_put_int(text, "id", s->index);
    invar_json_text_put_string(text, "call", invar_plugin_kind_name(INVAR_PLUGIN_KIND_AGENT));
    invar_json_text_put_int(text, "rollout", s->rollout);
    invar_json_text_put_int(text, "group", s->group);
    invar_json_text_put_string(text, "prompt", shown.prompt);
    invar_json_text_put_string(text, "label", shown.label);
    invar_json_text_key(text, "metadata");
    invar_json_text_value(text, shown.metadata, strlen(shown.metadata));
    invar_json_text_put_string(text, "base_url", url);
    invar_json_text_put_string(text, "api_key", live->key);
    invar_json_text_put_string(text, "model", server->options.server_info.model);
    if (server->live_sessions.batch->evaluation) {
        invar_json_text_put_bool(text, "evaluation", true);
    }
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
}

static invar_status handshake(invar_line_process *program)
{
    char title[INVAR_PLUGIN_TITLE_SIZE];
    uint32_t kinds = 0;

    INVAR_TRY(
        invar_plugin_greet(title, &kinds, program, INVAR_AGENT_NAME, INVAR_PLUGIN_KIND_AGENT));
    if (kinds & INVAR_PLUGIN_KIND_AGENT)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "plug-in " INVAR_AGENT_NAME ": \"%s\" does not offer the kind \"agent\"",
                      title);
}

/* Ends the wait for an agent if the run has failed. */
static invar_status check_run_alive(void *payload)
{
    invar_agent_server *server = payload;
    bool failed;

    agent_server_lock(server);
    failed = server->live_sessions.error.status != INVAR_OK;
    agent_server_unlock(server);
    return failed ? INVAR_FAIL(INVAR_E_STATE, 0, "the run has failed") : INVAR_OK;
}

/* Starts the agent process of a thread, if it is not running or the last one has failed. */
static invar_status ensure_process(invar_line_process **program, invar_agent_server *server)
{
    if (*program)
        return INVAR_OK;
    INVAR_TRY(invar_line_process_open(program, INVAR_AGENT_NAME, server->options.command,
                                      server->options.session_timeout_s, 2));
    invar_line_process_set_check(*program, check_run_alive, server);
    return handshake(*program);
}

static invar_status run_session(const char **reply_out, size_t *bytes_out,
                                const invar_agent_server *server, invar_line_process *program,
                                const invar_live_session *live)
{
    invar_json_text text = {0};
    invar_status status;

    write_task(&text, server, live);
    status = text.status;
    if (status == INVAR_OK)
        status = invar_line_process_exchange(reply_out, bytes_out, program, text.data, text.bytes);
    invar_json_text_release(&text);
    return status;
}

/* Fails unless the reply has the id of the task. */
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

/*
 * Checks the reward before the end is recorded: a recorded end that a later check rejects would
 * fail every resume.
 */
static invar_status check_reward(const invar_agent_server *server, const invar_live_session *live)
{
    const invar_agent_session *session = live->task.session;
    const invar_agent_batch_options *order = server->live_sessions.batch;
    invar_rl_sample shown = {.index = live->task.sample->index, .parts = session->parts};

    if (session->error)
        return INVAR_OK;
    if (session->rewarded)
        return invar_reward_select_part(&shown, order->reward_part);
    return order->on_unrewarded ? order->on_unrewarded(order->payload, live->task.sample)
                                : INVAR_OK;
}

/*
 * Ends a session with the final reply of the agent or, if the agent has started, with its failure,
 * and records the end. Does nothing else if the run has failed already. Caller holds `lock`.
 */
static invar_status end_session(invar_agent_server *server, invar_live_session *live, bool begun,
                                invar_status status, const char *reply, size_t bytes)
{
    invar_agent_session *session = live->task.session;
    int64_t index = live->task.sample->index;
    char where[WHERE_SIZE];

    (void)snprintf(where, sizeof where, "plug-in " INVAR_AGENT_NAME ": sample %" PRId64, index);
    live->ended = true;
    if (server->live_sessions.error.status != INVAR_OK)
        return INVAR_OK;
    if (status == INVAR_OK)
        status = invar_json_as_corrupt(check_id(reply, bytes, index, where));
    if (status == INVAR_OK)
        status = invar_agent_session_end(session, reply, bytes, where);
    if (status == INVAR_OK)
        status = check_reward(server, live);
    if (status != INVAR_OK && server->options.zero_reward_on_failure && begun &&
        status != INVAR_E_NOMEM)
        status = invar_agent_session_fail(session, invar_error_last()->message);
    if (status == INVAR_OK && session->error && !server->options.zero_reward_on_failure)
        status = INVAR_FAIL(INVAR_E_STATE, 0, "%s: it refuses: %.1000s", where, session->error);
    if (status == INVAR_OK && server->live_sessions.journal)
        status = invar_session_journal_end(server->live_sessions.journal, index, session);
    return status;
}

/* Stops the process and keeps the current error. */
static void stop_process_keep_error(invar_line_process **program)
{
    invar_error error;

    invar_error_take(&error);
    invar_line_process_close(*program);
    *program = NULL;
    invar_error_put(&error);
}

/* Runs one session. A process that has failed is stopped; the next session starts another. */
static void run_task(invar_agent_server *server, invar_line_process **program,
                     invar_live_session *live)
{
    const char *reply = NULL;
    size_t bytes = 0;
    invar_status status = ensure_process(program, server);
    bool begun = status == INVAR_OK, failed;

    if (begun)
        status = run_session(&reply, &bytes, server, *program, live);
    if (status != INVAR_OK)
        stop_process_keep_error(program);
    agent_server_lock(server);
    status = end_session(server, live, begun, status, reply, bytes);
    failed = status != INVAR_OK || live->task.session->error;
    if (status != INVAR_OK)
        invar_session_table_fail(&server->live_sessions);
    agent_server_unlock(server);
    if (failed)
        stop_process_keep_error(program);
}

/* ---- threads --------------------------------------------------------------------------------- */

/*
 * Counts a session as ended. After the last one, or if the run has failed, stops the inference
 * engine. Caller holds `lock`.
 */
static void count_ended_session(invar_agent_server *server)
{
    server->live_sessions.n_ended++;
    if (server->live_sessions.n_ended == server->live_sessions.count ||
        server->live_sessions.error.status != INVAR_OK)
        invar_inference_engine_stop(server->dispatch);
    (void)pthread_cond_broadcast(&server->live_sessions.idle_cond);
}

static void *agent_thread(void *payload)
{
    invar_agent_server *server = payload;
    invar_line_process *program = NULL;

    agent_server_lock(server);
    while (!server->closing) {
        invar_live_session *live;

        if (server->next >= server->live_sessions.count) {
            (void)pthread_cond_wait(&server->batch_cond, &server->live_sessions.lock);
            continue;
        }
        live = &server->live_sessions.sessions[server->next++];
        if (server->live_sessions.error.status == INVAR_OK) {
            agent_server_unlock(server);
            run_task(server, &program, live);
            agent_server_lock(server);
        }
        live->ended = true;
        count_ended_session(server);
    }
    agent_server_unlock(server);
    invar_line_process_close(program);
    return NULL;
}

/* Starts threads until each session, up to max_processes, has one. */
static invar_status start_threads(invar_agent_server *server, int64_t sessions)
{
    int64_t want = invar_min_i64(server->options.max_processes, sessions);

    while (server->n_threads < want) {
        int rc = pthread_create(&server->threads[server->n_threads], NULL, agent_thread, server);

        if (rc != 0)
            return INVAR_FAIL(INVAR_E_IO, rc, "no thread for an agent: %s", strerror(rc));
        server->n_threads++;
    }
    return INVAR_OK;
}

/* ---- batch ----------------------------------------------------------------------------------- */

static invar_status report_progress(void *payload)
{
    invar_agent_server *server = payload;
    const invar_agent_batch_options *order = server->live_sessions.batch;
    int64_t ended, tokens;

    if (!order->on_progress)
        return INVAR_OK;
    agent_server_lock(server);
    ended = server->live_sessions.n_ended;
    tokens = server->live_sessions.tokens;
    agent_server_unlock(server);
    return order->on_progress(order->payload, ended, tokens);
}

static invar_status init_live_sessions(invar_live_session **out, const invar_agent_task *tasks,
                                       int64_t count)
{
    INVAR_TRY(INVAR_ALLOC(*out, (size_t)count, "sessions"));
    for (int64_t i = 0; i < count; i++) {
        (*out)[i] = (invar_live_session){.task = tasks[i]};
        INVAR_TRY(invar_session_key_new((*out)[i].key));
    }
    return INVAR_OK;
}

static void begin_batch(invar_agent_server *server, invar_live_session *live_sessions,
                        int64_t count, const invar_agent_batch_options *order,
                        const invar_digest *weights, invar_session_journal *journal)
{
    agent_server_lock(server);
    server->live_sessions.batch = order;
    server->options.server_info.weights = *weights;
    server->live_sessions.sessions = live_sessions;
    server->live_sessions.count = count;
    server->live_sessions.n_ended = server->live_sessions.tokens = server->next = 0;
    server->live_sessions.journal = journal;
    (void)pthread_cond_broadcast(&server->batch_cond);
    agent_server_unlock(server);
}

/* Waits until the last session and the last request have ended, then rejects all requests. */
static invar_status end_batch(invar_agent_server *server, invar_status status)
{
    agent_server_lock(server);
    if (status != INVAR_OK)
        invar_session_table_fail(&server->live_sessions);
    while (server->live_sessions.n_ended < server->live_sessions.count ||
           server->live_sessions.n_active_requests > 0)
        (void)pthread_cond_wait(&server->live_sessions.idle_cond, &server->live_sessions.lock);
    server->live_sessions.sessions = NULL;
    server->live_sessions.count = server->next = 0;
    agent_server_unlock(server);
    if (server->live_sessions.error.status == INVAR_OK)
        return INVAR_OK;
    invar_error_put(&server->live_sessions.error);
    return server->live_sessions.error.status;
}

invar_status invar_agent_server_run(invar_agent_server *server, const invar_agent_task *tasks,
                                    int64_t count, const invar_agent_batch_options *options,
                                    const invar_digest *weights, invar_session_journal *journal)
{
    invar_live_session *live_sessions = NULL;
    invar_status status;

    status = init_live_sessions(&live_sessions, tasks, count);
    if (status == INVAR_OK)
        status = start_threads(server, count);
    if (status == INVAR_OK)
        status = invar_inference_engine_begin(server->dispatch);
    if (status == INVAR_OK) {
        begin_batch(server, live_sessions, count, options, weights, journal);
        status = end_batch(server, invar_inference_engine_run(server->dispatch, NULL));
    }
    invar_free(live_sessions);
    return status;
}

/* ---- creation -------------------------------------------------------------------------------- */

static invar_status open_services(invar_agent_server *server)
{
    const invar_agent_server_options *o = &server->options;
    invar_server_session_hooks gate = invar_session_table_hooks;

    gate.payload = &server->live_sessions;
    INVAR_TRY(INVAR_ALLOC(server->threads, (size_t)o->max_processes, "threads for agents"));
    INVAR_TRY(invar_prompt_encoder_new(&server->prompter, &o->chat));
    INVAR_TRY(invar_inference_engine_new(
        &server->dispatch,
        &(invar_inference_engine_options){.rollout = o->rollout,
                                          .context = o->chat.context,
                                          .max_requests = o->max_processes * CONNECTIONS_PER_AGENT,
                                          .on_progress = report_progress,
                                          .payload = server}));
    return invar_server_open(
        &server->server,
        &(invar_server_options){.host = HOST,
                                .session_hooks = gate,
                                .connections =
                                    o->max_processes * CONNECTIONS_PER_AGENT + SPARE_CONNECTIONS,
                                .max_body_bytes = MAX_BODY_BYTES,
                                .client_timeout_s = CLIENT_SECONDS,
                                .server_info = &o->server_info,
                                .tokenizer = o->chat.tokenizer,
                                .engine = server->dispatch,
                                .prompt_encoder = server->prompter});
}

static int64_t unix_time(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec;
}

invar_status invar_agent_server_open(invar_agent_server **out,
                                     const invar_agent_server_options *options)
{
    invar_agent_server *server = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(server, 1, "a door for agents"));
    server->options = *options;
    server->options.server_info.started = unix_time();
    server->live_sessions.options = &server->options;
    (void)pthread_mutex_init(&server->live_sessions.lock, NULL);
    (void)pthread_cond_init(&server->live_sessions.idle_cond, NULL);
    (void)pthread_cond_init(&server->batch_cond, NULL);
    status = open_services(server);
    if (status != INVAR_OK) {
        invar_agent_server_close(server);
        return status;
    }
    *out = server;
    return INVAR_OK;
}

void invar_agent_server_close(invar_agent_server *server)
{
    if (!server)
        return;
    agent_server_lock(server);
    server->closing = true;
    (void)pthread_cond_broadcast(&server->batch_cond);
    agent_server_unlock(server);
    for (int64_t i = 0; i < server->n_threads; i++)
        (void)pthread_join(server->threads[i], NULL);
    invar_server_close(server->server);
    invar_inference_engine_free(server->dispatch);
    invar_prompt_encoder_free(server->prompter);
    invar_free(server->threads);
    (void)pthread_mutex_destroy(&server->live_sessions.lock);
    (void)pthread_cond_destroy(&server->live_sessions.idle_cond);
    (void)pthread_cond_destroy(&server->batch_cond);
    invar_free(server);
}
