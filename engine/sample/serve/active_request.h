/*
 * active_request.h - one completion or chat request from its body to the last byte of its response.
 *
 * Order of calls: _new, _begin, then _write_response once, or for a stream _read_stream until it
 * returns 0, then _cancel and _free. One thread at a time may use an active request.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_ACTIVE_REQUEST_H
#define INVAR_ENGINE_SAMPLE_SERVE_ACTIVE_REQUEST_H

#include "engine/sample/serve/completion_response.h"
#include "engine/sample/serve/server.h"

typedef struct invar_active_request {
    const invar_server_options *options;
    const invar_serve_table *http;
    const void *connection;
    invar_completion_request completion;
    invar_generation_request generation;
    invar_completion_response response;
    bool has_generation, submitted;
    void *session_request; /* request of an agent session, begun by the session hooks; NULL for
                              other requests */
    int64_t deadline_ms;   /* end of the time limit, by invar_process_clock_ms; 0 for no limit */
    invar_json_text text;  /* events of a stream that are not sent yet */
    size_t sent;
} invar_active_request;

/*
 * Allocates a request of the client at `connection`, a connection of `http`. Options, `http` and
 * connection are borrowed. The caller frees *out with invar_active_request_free.
 */
invar_status invar_active_request_new(invar_active_request **out,
                                      const invar_server_options *options,
                                      const invar_serve_table *http,
                                      const void *connection) INVAR_MUST_USE;

/*
 * Parses the body, encodes the prompts and submits the request to the inference engine. `key` is
 * the API key of the request, or NULL. For a request of an agent session it also waits until the
 * response is complete and recorded. `memory` is borrowed until the function returns.
 */
invar_status invar_active_request_begin(invar_active_request *request, invar_completion_kind kind,
                                        const char *key, const char *body, size_t bytes,
                                        const invar_serve_memory *memory) INVAR_MUST_USE;

/* Waits for the complete response and writes it to `out`. */
invar_status invar_active_request_write_response(invar_json_text *out,
                                                 invar_active_request *request) INVAR_MUST_USE;

/*
 * Copies up to `capacity` bytes of the event stream to `out`; waits for the next event if all were
 * copied. Returns their number, 0 at the end of the stream, -1 if there is no memory. A failure is
 * sent as the last event.
 */
int64_t invar_active_request_read_stream(invar_active_request *request, char *out, size_t capacity);

/*
 * Cancels the generation request, so that no thread of the engine uses it any more, and returns it,
 * borrowed. Returns NULL if nothing was submitted.
 */
const invar_generation_request *invar_active_request_cancel(invar_active_request *request);

/* Frees the request and all that it has allocated. Call _cancel first. NULL is ignored. */
void invar_active_request_free(invar_active_request *request);

/*
 * Returns the error object for `error`, with its HTTP status in *http_out. `param` is the field
 * that the error is about, or NULL. All strings are borrowed.
 */
invar_response_error invar_active_request_error(int *http_out, const invar_error *error,
                                                const char *param);

#endif
