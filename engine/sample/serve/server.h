/*
 * server.h - an HTTP server with OpenAI's API over a dispatch: routes, keys, limits, replies.
 *
 * The HTTP itself is the module invar-serve.so (module/serve_module.h), loaded when a server is
 * opened. Its threads read requests and wait for their tickets; the thread that opened the server
 * works them off (inference_engine.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_SERVER_H
#define INVAR_ENGINE_SAMPLE_SERVE_SERVER_H

#include "engine/sample/serve/inference_engine.h"
#include "engine/sample/serve/module/serve_module.h"
#include "engine/sample/serve/prompt_encoder.h"
#include "engine/sample/serve/server_info.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_server invar_server;

/*
 * Who else has a say in requests: sessions, each with a key of its own, whose replies are kept
 * before anybody sees them. Called by many threads at once. Zeroed: there is none.
 */
typedef struct invar_server_session_hooks {
    void *payload;
    /* Is this the key of a session? */
    bool (*knows)(void *payload, const char *key);
    /* What holds where a request says nothing. */
    invar_status (*settings)(invar_sampling_params *out, void *payload, const char *key);
    /* Before a request is worked on: may refuse it, sets its coordinates, or completes the ticket
       (`done`) with what was replied to it before. The visit ends with `leave`. */
    invar_status (*begin)(void **visit_out, void *payload, const char *key,
                          invar_completion_request *ask, invar_generation_request *ticket);
    /* The ticket is done. After a failure there is no reply but that. */
    invar_status (*keep)(void *visit, const invar_generation_request *ticket);
    void (*leave)(void *visit);
} invar_server_session_hooks;

typedef struct invar_server_options {
    const char *host; /* borrowed, as all of them: a number, or "localhost" */
    int64_t port;     /* 0: any that is free */
    const char *key;  /* that requests must bring; NULL: none, or that of a session */
    invar_server_session_hooks gate;
    int64_t connections;
    int64_t most_body;      /* bytes */
    int64_t memory;         /* bytes for all requests in flight; 0 for no limit */
    int64_t seconds;        /* that a request may take; 0: no limit */
    int64_t client_seconds; /* for a client to send a request, and to take the next of a reply */
    const invar_server_info *facts;
    /* what holds where a request says nothing; or the gate's */
    const invar_sampling_params *sampling;
    const invar_tokenizer *tokenizer;
    invar_inference_engine *dispatch;
    invar_prompt_encoder *prompter;
    const char *module; /* file of the HTTP server; NULL: the program's */
} invar_server_options;

/* Is this an address that no other machine reaches? */
bool invar_server_is_local(const char *host);

/*
 * Whether a request's header Host is 127.0.0.1:PORT, localhost:PORT or [::1]:PORT, in any case.
 * `host` may be NULL. A foreign page in a browser on this machine has its own name there, wherever
 * that name leads.
 */
bool invar_server_asked_here(const char *host, uint16_t port);

/* What is said to who asked for another place. */
#define INVAR_SERVER_NOT_HERE_SIZE 160
void invar_server_not_here(char out[INVAR_SERVER_NOT_HERE_SIZE], uint16_t port);

/*
 * A listener on the loopback whose replies are whole blocks, which it frees: host, release and next
 * of the settings are set. NULL: `why` (INVAR_SERVE_WHY_SIZE) says why there is none.
 */
void *invar_server_start_here(const invar_serve_table *http, const invar_serve_settings *settings,
                              uint16_t *port_out, char *why);

/*
 * Listens, and answers from now on. INVAR_E_INVALID: the host is no address, or not local and there
 * is no key. INVAR_E_IO: it cannot listen there. INVAR_E_UNSUPPORTED: there is no HTTP server.
 */
invar_status invar_server_open(invar_server **out,
                               const invar_server_options *options) INVAR_MUST_USE;

/* The HTTP server of a module; NULL: the program's. INVAR_E_UNSUPPORTED: there is none. */
invar_status invar_server_load(const invar_serve_table **out, const char *file) INVAR_MUST_USE;

/* Where it listens. */
int64_t invar_server_port(const invar_server *server);

/* Takes no more requests, and waits until all replies are sent. The dispatch has ended before. */
void invar_server_close(invar_server *server);

#ifdef __cplusplus
}
#endif
#endif
