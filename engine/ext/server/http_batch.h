/*
 * http_batch.h - posts many JSON requests to a server, each with a response of its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_SERVER_HTTP_BATCH_H
#define INVAR_ENGINE_EXT_SERVER_HTTP_BATCH_H

#include "base/json/text.h"
#include "engine/ext/http/http.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits for reward servers and teachers; see invar_http_options. */
#define INVAR_HTTP_BATCH_ATTEMPTS 5  /* attempts per request */
#define INVAR_HTTP_BATCH_PAUSE 0.25  /* seconds before the second attempt; doubles afterwards */
#define INVAR_HTTP_BATCH_PARALLEL 32 /* concurrent requests */

typedef struct invar_http_batch {
    size_t count;
    /* writes request i; failures stay in `body` */
    void (*write)(invar_json_text *body, size_t i, void *payload);
    /* largest response to request i, in bytes; NULL for the limit of the client */
    size_t (*max_response_bytes)(size_t i, const void *payload);
    /* parses the response to request i, borrowed; called in the order of requests */
    invar_status (*read)(size_t i, const char *answer, size_t bytes, void *payload);
    void *payload;
} invar_http_batch;

/* Posts all requests. Stops at the first response that is missing or that `read` rejects. */
invar_status invar_http_batch_run(invar_http *server, const invar_http_batch *batch) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
