/*
 * session_table.h - a session that is being led: its key, and requests that come with it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_AGENT_SESSION_TABLE_H
#define INVAR_ENGINE_SAMPLE_AGENT_SESSION_TABLE_H

#include <pthread.h>

#include "engine/sample/agent/agent_server.h"
#include "engine/sample/serve/server.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_SESSION_KEY_SIZE 40

typedef struct invar_live_session {
    invar_agent_task task;
    char key[INVAR_SESSION_KEY_SIZE];
    bool ended;
} invar_live_session;

/* The desks of a run, and who waits for them. */
typedef struct invar_session_table {
    const invar_agent_server_options *options;
    pthread_mutex_t lock;         /* of all below, and of the sessions that are not ended */
    pthread_cond_t idle_cond;     /* a session has ended, or a request */
    invar_live_session *sessions; /* (count); NULL: nobody is let in */
    int64_t count;
    int64_t ended;
    int64_t n_active_requests; /* requests that are worked on */
    int64_t tokens;            /* drawn in all */
    const invar_agent_batch_options *batch;
    invar_session_journal *log; /* NULL: nothing is recorded */
    invar_error error;          /* the first that the run fails with; status INVAR_OK: none */
} invar_session_table;

/* With the lock: the run fails with the error that there is, unless it has failed before. */
void invar_session_table_fail(invar_session_table *desks);

/* The functions of a server's gate; their payload is the invar_session_table. */
extern const invar_server_session_hooks invar_desks_gate;

/* A key that nobody guesses. */
invar_status invar_session_key_new(char out[INVAR_SESSION_KEY_SIZE]) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
