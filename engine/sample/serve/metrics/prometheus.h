/*
 * prometheus.h - numbers in Prometheus' text format 0.0.4, for whoever scrapes them.
 *
 *     invar_prometheus_family(&text, "invar_step_duration_seconds", "gauge", "Time of a step.");
 *     invar_prometheus_value(&text, "invar_step_duration_seconds", labels, 1, 0.25);
 *
 * A family is announced once, before all of its values. Names are constants of the program; values
 * of labels may be any UTF-8.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_METRICS_PROMETHEUS_H
#define INVAR_ENGINE_SAMPLE_SERVE_METRICS_PROMETHEUS_H

#include "base/json/text.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* What every text of Invar begins with. */
#define INVAR_PROMETHEUS_MARK "# HELP invar_"

typedef struct invar_prometheus_label {
    const char *name, *value;
} invar_prometheus_label;

/* `type` is counter or gauge; a counter's name ends in _total. */
void invar_prometheus_family(invar_json_text *out, const char *name, const char *type,
                             const char *help);

void invar_prometheus_value(invar_json_text *out, const char *name,
                            const invar_prometheus_label *labels, size_t n_labels, double value);

#ifdef __cplusplus
}
#endif
#endif
