/*
 * server_metrics.h - what a server has done since it began, as text that Prometheus scrapes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_METRICS_SERVER_METRICS_H
#define INVAR_ENGINE_SAMPLE_SERVE_METRICS_SERVER_METRICS_H

#include "base/json/text.h"
#include "engine/sample/serve/inference_engine.h"
#include "engine/sample/serve/server_info.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_SERVER_METRICS_ROUTES 8 /* at most, with the one for requests of no route */
#define INVAR_SERVER_METRICS_CODES 600

/* Zeroed at first; whoever has it locks it. */
typedef struct invar_server_metrics {
    int64_t replies[INVAR_SERVER_METRICS_ROUTES]
                   [INVAR_SERVER_METRICS_CODES]; /* by route and status of HTTP */
    int64_t prompt_tokens, generated_tokens;
} invar_server_metrics;

void invar_server_metrics_reply(invar_server_metrics *meter, int route, int code);

/* A ticket that nobody works on any more. */
void invar_server_metrics_ticket(invar_server_metrics *meter,
                                 const invar_generation_request *ticket);

/* `routes` (n_routes) are the paths of routes, the last one for all others; `load`: tickets. */
void invar_server_metrics_write(invar_json_text *out, const invar_server_metrics *meter,
                                const char *const *routes, int n_routes,
                                const invar_server_info *facts, int64_t load);

#ifdef __cplusplus
}
#endif
#endif
