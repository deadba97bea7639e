/*
 * server_metrics.h - request and token counters of the HTTP server, as Prometheus text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_METRICS_SERVER_METRICS_H
#define INVAR_ENGINE_SAMPLE_SERVE_METRICS_SERVER_METRICS_H

#include "base/json/text.h"
#include "engine/sample/serve/inference_engine.h"
#include "engine/sample/serve/server_info.h"

#define INVAR_SERVER_METRICS_ROUTES 8 /* limit, including the row for requests of no route */
#define INVAR_SERVER_METRICS_CODES 600

/* Zero-initialize before use. The functions do not lock; the owner does. */
typedef struct invar_server_metrics {
    /* responses by route and HTTP status, 0 to 599 */
    int64_t replies[INVAR_SERVER_METRICS_ROUTES][INVAR_SERVER_METRICS_CODES];
    int64_t prompt_tokens, generated_tokens;
} invar_server_metrics;

/* Counts a response with HTTP status `code`. Does nothing if `code` is 0, because
   the client has disconnected. */
void invar_server_metrics_add_response(invar_server_metrics *metrics, int route, int code);

/* Adds the tokens of a request, which must have ended. */
void invar_server_metrics_add_request(invar_server_metrics *metrics,
                                      const invar_generation_request *request);

/*
 * Writes all metrics. `routes` (n_routes, at most INVAR_SERVER_METRICS_ROUTES) are the paths of the
 * routes; the last one stands for all other paths. `load` is the number of generation requests in
 * progress.
 */
void invar_server_metrics_write(invar_json_text *out, const invar_server_metrics *metrics,
                                const char *const *routes, int n_routes,
                                const invar_server_info *server_info, int64_t load);

#endif
