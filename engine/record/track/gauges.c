/*
 * gauges.c - the newest metrics of a run in the text format of Prometheus.
 *
 * Ledger gauges that have a Prometheus name with a unit are families of their own; all other
 * metrics are values of the family invar_metric, with their ledger name as a label.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/track/gauges.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/sample/serve/metrics/prometheus.h"

#include "base/invar_banned.h"

/* Ledger gauges with a Prometheus name and unit. */
static const struct {
    const char *name, *family, *help;
    double factor;
} known_families[] = {
    {"perf/step_time", "invar_step_duration_seconds", "Time of the last step.", 1.0},
    {"perf/rollout_time", "invar_rollout_duration_seconds", "Time of the last rollout.", 1.0},
    {"perf/train_time", "invar_train_duration_seconds", "Training time of the last step.", 1.0},
    {"perf/eta", "invar_eta_seconds", "Time until the run is done, at its recent pace.", 1.0},
    {"perf/tokens_per_s", "invar_tokens_per_second", "Tokens of the last step by its time.", 1.0},
    {"perf/rollout_tok_per_s", "invar_rollout_tokens_per_second",
     "Tokens drawn by the time of the rollout.", 1.0},
    {"perf/train_tok_per_s", "invar_train_tokens_per_second",
     "Tokens of the last step by its training time.", 1.0},
    {"perf/train_tflops", "invar_train_flops_per_second",
     "Floating-point operations by training time.", 1e12},
    {"perf/train_mfu", "invar_train_mfu_ratio", "The same by the peak of the devices.", 1.0},
};

enum { FAMILIES = sizeof known_families / sizeof *known_families };

void invar_gauges_release(invar_gauges *g)
{
    for (int64_t i = 0; i < g->count; i++)
        invar_free(g->items[i].name);
    invar_free(g->items);
    *g = (invar_gauges){0};
}

static invar_status add_gauge(invar_gauges *g, const invar_export_scalar *scalar)
{
    invar_gauge *to;

    INVAR_TRY(INVAR_GROW(g->items, g->capacity, g->count, g->count + 1, "numbers of a run"));
    to = &g->items[g->count];
    INVAR_TRY(INVAR_ALLOC(to->name, scalar->name_bytes + 1, "a name"));
    memcpy(to->name, scalar->name, scalar->name_bytes);
    to->name[scalar->name_bytes] = '\0';
    to->value = scalar->value;
    g->count++;
    return INVAR_OK;
}

invar_status invar_gauges_set(invar_gauges *g, const invar_export_scalar *scalar)
{
    if (scalar->step != g->step || g->ns == 0)
        g->steps += scalar->step >= 0;
    g->step = scalar->step;
    g->ns = scalar->ns;
    for (int64_t i = 0; i < g->count; i++)
        if (strcmp(g->items[i].name, scalar->name) == 0) {
            g->items[i].value = scalar->value;
            return INVAR_OK;
        }
    return add_gauge(g, scalar);
}

static int family_of(const char *name)
{
    int i = 0;

    while (i < FAMILIES && strcmp(known_families[i].name, name) != 0)
        i++;
    return i;
}

static void write_family(invar_json_text *out, const invar_gauges *g, int family,
                         const invar_prometheus_label *run)
{
    for (int64_t i = 0; i < g->count; i++)
        if (family_of(g->items[i].name) == family) {
            invar_prometheus_family(out, known_families[family].family, "gauge",
                                    known_families[family].help);
            invar_prometheus_value(out, known_families[family].family, run, 1,
                                   g->items[i].value * known_families[family].factor);
        }
}

/* Appends all other metrics, with their ledger names. */
static void write_metrics(invar_json_text *out, const invar_gauges *g,
                          const invar_prometheus_label *run)
{
    invar_prometheus_label labels[2] = {*run, {"name", NULL}};

    invar_prometheus_family(out, "invar_metric", "gauge",
                            "Newest value of a metric of the ledger, by its name there.");
    for (int64_t i = 0; i < g->count; i++) {
        if (family_of(g->items[i].name) < FAMILIES)
            continue;
        labels[1].value = g->items[i].name;
        invar_prometheus_value(out, "invar_metric", labels, 2, g->items[i].value);
    }
}

void invar_gauges_write(invar_json_text *out, const invar_gauges *g, const char *name,
                        const char *uuid)
{
    const invar_prometheus_label info[] = {{"run", name}, {"uuid", uuid}};

    invar_prometheus_family(out, "invar_run_info", "gauge", "The run that trains; always 1.");
    invar_prometheus_value(out, "invar_run_info", info, 2, 1.0);
    invar_prometheus_family(out, "invar_steps_total", "counter",
                            "Steps that this process has recorded.");
    invar_prometheus_value(out, "invar_steps_total", info, 1, (double)g->steps);
    if (g->ns == 0)
        return;
    invar_prometheus_family(out, "invar_step", "gauge", "Number of the last step; -1: none yet.");
    invar_prometheus_value(out, "invar_step", info, 1, (double)g->step);
    invar_prometheus_family(out, "invar_step_timestamp_seconds", "gauge",
                            "Unix time at which the last step was recorded.");
    invar_prometheus_value(out, "invar_step_timestamp_seconds", info, 1, (double)g->ns / 1e9);
    for (int i = 0; i < FAMILIES; i++)
        write_family(out, g, i, info);
    write_metrics(out, g, info);
}
