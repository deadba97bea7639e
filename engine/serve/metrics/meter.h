/*
 * meter.h - what a server has done since it began, as text that Prometheus scrapes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SERVE_METRICS_METER_H
#define INVAR_ENGINE_SERVE_METRICS_METER_H

#include "base/json/text.h"
#include "engine/serve/dispatch.h"
#include "engine/serve/facts.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_METER_ROUTES 8 /* at most, with the one for requests of no route */
#define INVAR_METER_CODES 600

/* Zeroed at first; whoever has it locks it. */
typedef struct invar_serve_meter {
    int64_t replies[INVAR_METER_ROUTES][INVAR_METER_CODES]; /* by route and status of HTTP */
    int64_t prompt_tokens, generated_tokens;
} invar_serve_meter;

void invar_serve_meter_reply(invar_serve_meter *meter, int route, int code);

/* A ticket that nobody works on any more. */
void invar_serve_meter_ticket(invar_serve_meter *meter, const invar_ticket *ticket);

/* `routes` (n_routes) are the paths of routes, the last one for all others; `load`: tickets. */
void invar_serve_meter_write(invar_json_text *out, const invar_serve_meter *meter,
                             const char *const *routes, int n_routes,
                             const invar_serve_facts *facts, int64_t load);

#ifdef __cplusplus
}
#endif
#endif
