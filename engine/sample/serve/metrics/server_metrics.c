/*
 * server_metrics.c - request and token counters of the HTTP server, as Prometheus text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/metrics/server_metrics.h"

#include <stdio.h>

#include "engine/sample/serve/metrics/prometheus.h"

#include "base/invar_banned.h"

void invar_server_metrics_add_response(invar_server_metrics *m, int route, int code)
{
    INVAR_CHECK(route >= 0 && route < INVAR_SERVER_METRICS_ROUTES);
    // the code is 0 if the client disconnected before the response
    if (code > 0 && code < INVAR_SERVER_METRICS_CODES)
        m->replies[route][code]++;
}

void invar_server_metrics_add_request(invar_server_metrics *m,
                                      const invar_generation_request *request)
{
    for (int64_t i = 0; i < request->n_prompts; i++)
        m->prompt_tokens += request->prompts[i].count;
    for (int64_t i = 0; request->choices && i < request->n_prompts * request->n; i++)
        m->generated_tokens += request->choices[i].count;
}

static void write_replies(invar_json_text *out, const invar_server_metrics *m,
                          const char *const *routes, int n_routes)
{
    static const char name[] = "invar_serve_requests_total";
    char code[16];

    invar_prometheus_family(out, name, "counter", "Requests by route and status of the reply.");
    for (int r = 0; r < n_routes; r++)
        for (int i = 0; i < INVAR_SERVER_METRICS_CODES; i++) {
            const invar_prometheus_label labels[] = {{"route", routes[r]}, {"code", code}};

            if (!m->replies[r][i])
                continue;
            (void)snprintf(code, sizeof code, "%d", i);
            invar_prometheus_value(out, name, labels, 2, (double)m->replies[r][i]);
        }
}

static void write_one(invar_json_text *out, const char *name, const char *type, const char *help,
                      double value)
{
    invar_prometheus_family(out, name, type, help);
    invar_prometheus_value(out, name, NULL, 0, value);
}

void invar_server_metrics_write(invar_json_text *out, const invar_server_metrics *m,
                                const char *const *routes, int n_routes,
                                const invar_server_info *server_info, int64_t load)
{
    char weights[INVAR_DIGEST_HEX_SIZE];
    const invar_prometheus_label info[] = {{"model", server_info->model},
                                           {"weights", weights},
                                           {"numerics", server_info->numerics},
                                           {"format", server_info->format}};

    invar_digest_format(weights, &server_info->weights);
    invar_prometheus_family(out, "invar_serve_info", "gauge", "What is served; always 1.");
    invar_prometheus_value(out, "invar_serve_info", info, 4, 1.0);
    write_one(out, "invar_serve_start_timestamp_seconds", "gauge",
              "Unix time at which the server began.", (double)server_info->started);
    write_one(out, "invar_serve_requests_in_flight", "gauge",
              "Requests for tokens that are not done.", (double)load);
    write_one(out, "invar_serve_prompt_tokens_total", "counter",
              "Tokens of the prompts of requests that are over.", (double)m->prompt_tokens);
    write_one(out, "invar_serve_generated_tokens_total", "counter",
              "Tokens that requests which are over were given.", (double)m->generated_tokens);
    write_replies(out, m, routes, n_routes);
}
