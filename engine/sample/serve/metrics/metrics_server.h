/*
 * metrics_server.h - HTTP server on the loopback interface with one route, /metrics, for
 * Prometheus.
 *
 * The owner sets the text of the next response; requests of other threads read it under a lock.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_METRICS_METRICS_SERVER_H
#define INVAR_ENGINE_SAMPLE_SERVE_METRICS_METRICS_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct invar_metrics_server invar_metrics_server;

/*
 * Listens at 127.0.0.1, on `port` (1 to 65535; the header Host of requests must have it). Returns
 * INVAR_E_IO if it cannot listen, INVAR_E_UNSUPPORTED if the HTTP module is not installed. The
 * caller closes *out with invar_metrics_server_close.
 */
invar_status invar_metrics_server_open(invar_metrics_server **out, int64_t port) INVAR_MUST_USE;

/* Sets the text of all further responses, which is copied. */
invar_status invar_metrics_server_set(invar_metrics_server *server, const char *text,
                                      size_t bytes) INVAR_MUST_USE;
/* Closes the server after all responses are sent. `server` may be NULL. */
void invar_metrics_server_close(invar_metrics_server *server);

#endif
