/*
 * http.h - HTTP client: posts JSON texts, many at a time, with retries.
 *
 * Requests that get no response, or a status that means "later", are repeated a few times with
 * delays that double. Every other failure is an error that names the server. The client library is
 * the module invar-http.so (http_module.h), loaded when a client is opened.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_HTTP_HTTP_H
#define INVAR_ENGINE_EXT_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json/text.h"
#include "base/status.h"

typedef struct invar_http invar_http;

/*
 * Returns true for the URL of a server: http:// or https://, HOST or HOST:PORT, at most 2000 bytes.
 * Recipe checks call this, so that a run is rejected before it starts.
 */
bool invar_http_is_url(const char *url);

typedef struct invar_http_options {
    const char *name;     /* purpose of the server, used in error messages: "rm-url"; copied */
    const char *url;      /* see invar_http_is_url; copied */
    const char *route;    /* path appended to the URL, copied; NULL if there is nothing to append */
    double timeout;       /* time limit of a call in seconds; 0 for no limit */
    int attempts;         /* attempts per request, at least 1 */
    double retry_delay_s; /* seconds before the second attempt; doubles afterwards */
    size_t max_concurrency;    /* concurrent calls, at least 1 */
    size_t max_response_bytes; /* largest response body */
    const char *api_key; /* sent as "Authorization: Bearer", copied; NULL or empty if absent */
    const char *module;  /* file of the module; NULL for the default */
} invar_http_options;

/*
 * Opens a client. Returns INVAR_E_INVALID if the URL or the key is invalid, and INVAR_E_UNSUPPORTED
 * if the module is missing. Close with invar_http_close.
 */
invar_status invar_http_open(invar_http **out, const invar_http_options *options) INVAR_MUST_USE;
void invar_http_close(invar_http *http);

/*
 * Sets a callback that runs at least once per second while responses are awaited; NULL removes it.
 */
void invar_http_set_wait_callback(invar_http *http, void (*waits)(void *payload), void *payload);

/* A request and its response: a body with a status of 200 to 299. */
typedef struct invar_http_exchange {
    const char *body;
    size_t bytes;
    size_t max_response_bytes; /* largest response body; 0 for the client's limit */
    /* Zero-initialize the rest; `reply` is then owned by the caller, also after a failure. */
    char *reply;
    size_t reply_bytes, reply_capacity;
    bool too_long; /* the response is longer than max_response_bytes */
} invar_http_exchange;

/*
 * Posts all requests. Returns an error after one has failed for good, or all attempts have; other
 * requests may have no reply then.
 */
invar_status invar_http_post(invar_http *http, invar_http_exchange *exchanges,
                             size_t count) INVAR_MUST_USE;

/* ---- many requests --------------------------------------------------------------------------- */

/* Limits for reward servers and teachers; see invar_http_options. */
#define INVAR_HTTP_BATCH_ATTEMPTS 5  /* attempts per request */
#define INVAR_HTTP_BATCH_PAUSE 0.25  /* seconds before the second attempt; doubles afterwards */
#define INVAR_HTTP_BATCH_PARALLEL 32 /* concurrent requests */

typedef struct invar_http_batch {
    size_t count;
    /*
     * Writes request i; failures stay in `body`. Returns the largest size of its response, in
     * bytes.
     */
    size_t (*write)(invar_json_text *body, size_t i, void *payload);
    /* parses the response to request i, borrowed; called in the order of requests */
    invar_status (*read)(size_t i, const char *answer, size_t bytes, void *payload);
    void *payload;
} invar_http_batch;

/*
 * Posts all requests of a batch, a limited number at a time. Stops at the first response that is
 * missing or that `read` rejects.
 */
invar_status invar_http_batch_run(invar_http *server, const invar_http_batch *batch) INVAR_MUST_USE;

#endif
