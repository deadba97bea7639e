/*
 * session_table.h - live agent sessions of a batch, their API keys and the checks of their
 * requests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_AGENT_SESSION_TABLE_H
#define INVAR_ENGINE_SAMPLE_AGENT_SESSION_TABLE_H

#include <pthread.h>

#include "engine/sample/agent/agent_server.h"
#include "engine/sample/serve/server.h"

#define INVAR_SESSION_KEY_SIZE 40

/* A session of the current batch. */
typedef struct invar_live_session {
    invar_agent_task task;
    char key[INVAR_SESSION_KEY_SIZE]; /* API key of its requests */
    bool ended;                       /* its requests are rejected */
} invar_live_session;

/* All sessions of the current batch, and the state that its threads share. */
typedef struct invar_session_table {
    const invar_agent_server_options *options;
    pthread_mutex_t lock;         /* guards all fields below, and sessions that have not ended */
    pthread_cond_t idle_cond;     /* signaled when a session or a request has ended */
    invar_live_session *sessions; /* (count) sessions of the current batch; NULL between batches,
                                     when every request is rejected */
    int64_t count;
    int64_t n_ended;
    int64_t n_active_requests; /* HTTP requests in progress */
    int64_t tokens;            /* response tokens of all sessions of the batch */
    const invar_agent_batch_options *batch;
    invar_session_journal *journal; /* NULL if sessions are not recorded */
    invar_error error; /* first error of the batch; status INVAR_OK if it has not failed */
} invar_session_table;

/* Fails the batch with the current error, unless it has failed before. Caller holds `lock`. */
void invar_session_table_fail(invar_session_table *table);

/* Session hooks for invar_server_options; set their payload to the invar_session_table. */
extern const invar_server_session_hooks invar_session_table_hooks;

/* Writes a new API key: "invar-" and 128 random bits from getrandom(2) in hexadecimal. */
invar_status invar_session_key_new(char out[INVAR_SESSION_KEY_SIZE]) INVAR_MUST_USE;

#endif
