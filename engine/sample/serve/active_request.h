/*
 * active_request.h - a request for choices while it is worked on, and its reply: whole, or as
 * events.
 *
 * new, begin, then whole or next until it is over, withdraw, free. One thread at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_ACTIVE_REQUEST_H
#define INVAR_ENGINE_SAMPLE_SERVE_ACTIVE_REQUEST_H

#include "engine/sample/serve/completion_response.h"
#include "engine/sample/serve/server.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_active_request invar_active_request;

/* With the client of a connection of `http`. Options and connection are borrowed. */
invar_status invar_active_request_new(invar_active_request **out,
                                      const invar_server_options *options,
                                      const invar_serve_table *http,
                                      const void *connection) INVAR_MUST_USE;

/*
 * Reads the request and hands it to the dispatch. `key` is the one that it brings; NULL: none. What
 * a session gets is whole and kept before this returns. `memory` is used until then.
 */
invar_status invar_active_request_begin(invar_active_request *talk, invar_completion_kind kind,
                                        const char *key, const char *body, size_t bytes,
                                        const invar_serve_memory *memory) INVAR_MUST_USE;

/* The member of the request that a failure is about; NULL: none. Borrowed. */
const char *invar_active_request_param(const invar_active_request *talk);

/* Does the client want events? */
bool invar_active_request_is_stream(const invar_active_request *talk);

/* Waits for all of it. */
invar_status invar_active_request_whole(invar_json_text *out,
                                        invar_active_request *talk) INVAR_MUST_USE;

/* The next bytes of the events, a failure among them; 0: that was all. -1: there is no memory. */
int64_t invar_active_request_next(invar_active_request *talk, char *out, size_t most);

/* Nothing is drawn for it any more. The ticket, borrowed; NULL: nothing was submitted. */
const invar_generation_request *invar_active_request_withdraw(invar_active_request *talk);

void invar_active_request_free(invar_active_request *talk);

/* How a failure is told, and the status of HTTP that says so. */
invar_response_error invar_active_request_error(int *http_out, const invar_error *error,
                                                const char *param);

#ifdef __cplusplus
}
#endif
#endif
