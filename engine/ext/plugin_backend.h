/*
 * plugin_backend.h - the four functions by which a plug-in is reached.
 *
 * A back end is a shared object, a child program, a server of rewards, or a server of a teacher.
 * plugin.c chooses one when it opens a plug-in, and knows nothing else about it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_PLUGIN_BACKEND_H
#define INVAR_ENGINE_EXT_PLUGIN_BACKEND_H

#include "engine/ext/plugin.h"

typedef struct invar_plugin_backend invar_plugin_backend;

/* A plug-in as its back end sees it. */
typedef struct invar_plugin_peer {
    const invar_plugin_backend *backend; /* NULL if nothing is called */
    void *self;                          /* owned by the back end */
    char name[INVAR_PLUGIN_TITLE_SIZE];
    char title[INVAR_PLUGIN_TITLE_SIZE];
    bool identify_by_title; /* see invar_plugin_options */
    bool hashed;
    invar_digest hash; /* see invar_plugin_hash; valid if `hashed` */
    uint32_t kinds;    /* kinds required when opened */
    int64_t restarts, max_restarts;
    invar_json_text text; /* request, then the reply */
} invar_plugin_peer;

struct invar_plugin_backend {
    /*
     * Sets `self` and `title`, and *offered_out to the kinds that the plug-in offers. `close` is
     * called also after a failure.
     */
    invar_status (*open)(invar_plugin_peer *peer, uint32_t *offered_out,
                         const invar_plugin_options *options);
    /*
     * Makes a call: fills the buffers of its answer, which is checked, and leaves the reply as the
     * ledger keeps it in `text`.
     */
    invar_status (*ask)(invar_plugin_peer *peer, const invar_plugin_call *call);
    /* Sets a callback for the time of a wait (invar_plugin_set_wait_callback); may be NULL. */
    void (*watch)(invar_plugin_peer *peer, void (*waits)(void *payload), void *payload);
    void (*close)(invar_plugin_peer *peer);
};

extern const invar_plugin_backend invar_shared_object_backend;
extern const invar_plugin_backend invar_child_program_backend;
extern const invar_plugin_backend invar_remote_reward_backend;
extern const invar_plugin_backend invar_remote_teacher_backend;

#endif
