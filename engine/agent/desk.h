/*
 * desk.h - a session that is being led: its key, and requests that come with it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_AGENT_DESK_H
#define INVAR_ENGINE_AGENT_DESK_H

#include <pthread.h>

#include "engine/agent/door.h"
#include "engine/serve/server.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_DESK_KEY_SIZE 40

typedef struct invar_desk {
    invar_door_task task;
    char key[INVAR_DESK_KEY_SIZE];
    bool ended;
} invar_desk;

/* The desks of a run, and who waits for them. */
typedef struct invar_desks {
    const invar_door_options *options;
    pthread_mutex_t lock; /* of all below, and of the sessions that are not ended */
    pthread_cond_t quiet; /* a session has ended, or a request */
    invar_desk *of;       /* (count); NULL: nobody is let in */
    int64_t count;
    int64_t ended;
    int64_t visits; /* requests that are worked on */
    int64_t tokens; /* drawn in all */
    const invar_door_order *order;
    invar_agent_log *log; /* NULL: nothing is recorded */
    invar_error error;    /* the first that the run fails with; status INVAR_OK: none */
} invar_desks;

/* With the lock: the run fails with the error that there is, unless it has failed before. */
void invar_desks_fail(invar_desks *desks);

/* The functions of a server's gate; their payload is the invar_desks. */
extern const invar_server_gate invar_desks_gate;

/* A key that nobody guesses. */
invar_status invar_desk_key(char out[INVAR_DESK_KEY_SIZE]) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
