/*
 * prometheus.h - writes metrics in the text format 0.0.4 of Prometheus.
 *
 *     invar_prometheus_family(&text, "invar_step_duration_seconds", "gauge", "Time of a step.");
 *     invar_prometheus_value(&text, "invar_step_duration_seconds", labels, 1, 0.25);
 *
 * Write each family once, before all of its values. Names must be valid metric and label names;
 * they are not escaped. Label values may be any UTF-8.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_METRICS_PROMETHEUS_H
#define INVAR_ENGINE_SAMPLE_SERVE_METRICS_PROMETHEUS_H

#include "base/json/text.h"

#define INVAR_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* First bytes of every metrics text that Invar writes. */
#define INVAR_PROMETHEUS_MARK "# HELP invar_"

typedef struct invar_prometheus_label {
    const char *name, *value;
} invar_prometheus_label;

/*
 * Writes the HELP and TYPE lines of a metric. `type` is "counter" or "gauge"; the name of a counter
 * ends in _total.
 */
void invar_prometheus_family(invar_json_text *out, const char *name, const char *type,
                             const char *help);

/* Writes one value with `n_labels` labels, which may be 0. */
void invar_prometheus_value(invar_json_text *out, const char *name,
                            const invar_prometheus_label *labels, size_t n_labels, double value);

#endif
