/*
 * server.h - HTTP server with OpenAI's API: routes, API keys, limits, responses.
 *
 * HTTP itself is handled by the module invar-serve.so (module/serve_module.h), which is loaded when
 * a server is opened. Threads of the module parse requests and wait for their tokens; the thread
 * that owns the model generates them (inference_engine.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_SERVER_H
#define INVAR_ENGINE_SAMPLE_SERVE_SERVER_H

#include "engine/sample/serve/inference_engine.h"
#include "engine/sample/serve/module/serve_module.h"
#include "engine/sample/serve/prompt_encoder.h"
#include "engine/sample/serve/server_info.h"

typedef struct invar_server invar_server;

/*
 * Callbacks for the requests of agent sessions. Each session has an API key of its own, and its
 * responses are recorded before they are sent. Called by many threads at once. Zeroed if the server
 * has no sessions.
 */
typedef struct invar_server_session_hooks {
    void *payload;
    /* Returns whether `key` is the API key of a session. */
    bool (*is_session_key)(void *payload, const char *key);
    /* Returns the sampling parameters that apply unless the request sets them. */
    invar_status (*get_sampling)(invar_sampling_params *out, void *payload, const char *key);
    /*
     * Called before a request is submitted. Rejects it, or sets its coordinates, or completes
     * `ticket` (sets its `done`) with a response that was recorded earlier. The caller ends
     * *visit_out with `end`, unless it is NULL.
     */
    invar_status (*begin)(void **visit_out, void *payload, const char *key,
                          invar_completion_request *ask, invar_generation_request *ticket);
    /*
     * Called when a submitted generation request is done, before the response is sent. If it fails,
     * the failure is sent instead. Not called for a response that `begin` completed.
     */
    invar_status (*record)(void *visit, const invar_generation_request *ticket);
    /* Called when the request has ended, also after a failure. */
    void (*end)(void *visit);
} invar_server_session_hooks;

typedef struct invar_server_options {
    const char *host; /* numeric address or "localhost"; this and the other pointers are borrowed */
    int64_t port;     /* 0 for any free port */
    const char *key;  /* API key of the server; NULL if it has none, or if each session has its
                         own */
    invar_server_session_hooks session_hooks;
    int64_t connections;       /* largest number of connections at a time */
    int64_t max_body_bytes;    /* limit of a request body, in bytes */
    int64_t max_memory_bytes;  /* bytes for all requests in flight; 0 for no limit */
    int64_t request_timeout_s; /* time limit of a request, in seconds; 0 for no limit */
    int64_t client_timeout_s;  /* time limit for a client to send its request and to read the next
                               bytes of a response, in seconds */
    const invar_server_info *server_info;
    /* Parameters that apply unless a request sets them. Not used if session_hooks.get_sampling is
       set. */
    const invar_sampling_params *sampling;
    const invar_tokenizer *tokenizer;
    invar_inference_engine *engine;
    invar_prompt_encoder *prompt_encoder;
    const char *module; /* file of the HTTP module; NULL for the one installed with the program */
} invar_server_options;

/*
 * Returns whether a header Host names 127.0.0.1:PORT, localhost:PORT or [::1]:PORT, in any case.
 * `host` may be NULL. A page of another site in a browser on this machine has that site's name in
 * the header, even if the name resolves to a loopback address (DNS rebinding).
 */
bool invar_server_host_is_loopback(const char *host, uint16_t port);

/* Writes the error message for a request whose header Host is not allowed. */
#define INVAR_SERVER_HOST_ERROR_SIZE 160
void invar_server_host_error(char out[INVAR_SERVER_HOST_ERROR_SIZE], uint16_t port);

/*
 * Starts a listener on 127.0.0.1 for a handler whose responses are never streams. Ignores `host`
 * and the callbacks `release` and `next` of the settings; response bodies are freed with
 * invar_free. Returns NULL, with the reason in `why` (INVAR_SERVE_REASON_SIZE bytes), if it cannot
 * start.
 */
void *invar_server_start_loopback(const invar_serve_table *http,
                                  const invar_serve_settings *settings, uint16_t *port_out,
                                  char *why);

/*
 * Opens a server and answers requests from now on. Returns INVAR_E_INVALID if the host is not a
 * valid address, or is not local and there is no key; INVAR_E_IO if it cannot listen;
 * INVAR_E_UNSUPPORTED if the HTTP module is not installed.
 */
invar_status invar_server_open(invar_server **out,
                               const invar_server_options *options) INVAR_MUST_USE;

/*
 * Loads the HTTP module `file`; NULL for the one installed with the program. Returns
 * INVAR_E_UNSUPPORTED if it does not exist or has another ABI.
 */
invar_status invar_server_load(const invar_serve_table **out, const char *file) INVAR_MUST_USE;

/* Returns the port that the server listens on. */
int64_t invar_server_port(const invar_server *server);

/*
 * Accepts no more requests, waits until all responses are sent, and frees the server. Stop the
 * inference engine before. `server` may be NULL.
 */
void invar_server_close(invar_server *server);

#endif
