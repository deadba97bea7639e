/*
 * metrics_server.h - a server on this machine's loopback with one route, /metrics, for Prometheus.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_METRICS_METRICS_SERVER_H
#define INVAR_ENGINE_SAMPLE_SERVE_METRICS_METRICS_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_metrics_server invar_metrics_server;

/* Listens at 127.0.0.1. INVAR_E_IO: it cannot. INVAR_E_UNSUPPORTED: there is no HTTP server. */
invar_status invar_metrics_server_open(invar_metrics_server **out, int64_t port) INVAR_MUST_USE;

/* What is answered from now on, copied. */
invar_status invar_metrics_server_set(invar_metrics_server *scrape, const char *text,
                                      size_t bytes) INVAR_MUST_USE;
void invar_metrics_server_close(invar_metrics_server *scrape);

#ifdef __cplusplus
}
#endif
#endif
