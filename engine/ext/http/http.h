/*
 * http.h - questions to an HTTP server: JSON texts that are posted, many at a time.
 *
 * What a busy network does is borne: a call that gets no answer, or one that says "later", is made
 * again a few times, with pauses that double. Everything else is an error that names the server.
 * The client is the module invar-http.so (http_module.h), loaded when one is opened.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_HTTP_HTTP_H
#define INVAR_ENGINE_EXT_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_http invar_http;

/* True if it is the address of a server: http:// or https://, HOST or HOST:PORT, at most 2000
   bytes. The rules of a recipe ask this, so that a run is refused before it starts. */
bool invar_http_is_url(const char *url);

typedef struct invar_http_options {
    const char *name;          /* what the server is for, in messages: "rm-url" */
    const char *url;           /* as invar_http_is_url says; both are copied */
    const char *route;         /* behind the address, copied; NULL: nothing */
    double timeout;            /* seconds that a call may take; 0: no limit */
    int attempts;              /* calls for one question, at least 1 */
    double retry_delay_s;      /* seconds before the second call */
    size_t max_concurrency;    /* calls at a time, at least 1 */
    size_t max_response_bytes; /* of an answer */
    const char *api_key;       /* shown to the server ("Bearer"), copied; NULL or "": none */
    const char *module;        /* file of the client; NULL: the program's */
} invar_http_options;

/* INVAR_E_INVALID: it is no such URL. INVAR_E_UNSUPPORTED: there is no client. */
invar_status invar_http_open(invar_http **out, const invar_http_options *options) INVAR_MUST_USE;
void invar_http_close(invar_http *http);

/* Called at least every second while answers are awaited; NULL: nothing is. */
void invar_http_watch(invar_http *http, void (*waits)(void *payload), void *payload);

/* A question, and its answer: a body with a status of 200 to 299. */
typedef struct invar_http_exchange {
    const char *body;
    size_t bytes;
    size_t most_bytes; /* of its answer; 0: as of all */
    char *reply; /* zeroed before; then owned by the caller (invar_free), also after a failure */
    size_t reply_bytes;
} invar_http_exchange;

/* All of them, or an error: that of the first question without an answer. */
invar_status invar_http_post(invar_http *http, invar_http_exchange *exchanges,
                             size_t count) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
