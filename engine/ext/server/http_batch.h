/*
 * http_batch.h - many questions to a server, each a JSON text that gets an answer of its own.
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

/* How both kinds of servers are asked: so often and so many at a time. */
#define INVAR_HTTP_BATCH_ATTEMPTS 5
#define INVAR_HTTP_BATCH_PAUSE 0.25 /* seconds before the second call; then it doubles */
#define INVAR_HTTP_BATCH_PARALLEL 32

typedef struct invar_http_batch {
    size_t count;
    void (*write)(invar_json_text *body, size_t i, void *payload); /* failures stay in `body` */
    size_t (*most)(size_t i, const void *payload); /* bytes of the answer; NULL: as of all */
    /* Told of every answer, in order. */
    invar_status (*read)(size_t i, const char *answer, size_t bytes, void *payload);
    void *payload;
} invar_http_batch;

/* All of them; the first answer that is missing, or that `read` refuses, ends it. */
invar_status invar_http_batch_run(invar_http *server,
                                  const invar_http_batch *questions) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
