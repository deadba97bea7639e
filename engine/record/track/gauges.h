/*
 * gauges.h - the newest metrics of a run in the text format of Prometheus.
 *
 * A metric keeps its value until the run has a newer one, so evaluations are shown between two of
 * them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACK_GAUGES_H
#define INVAR_ENGINE_RECORD_TRACK_GAUGES_H

#include "base/json/text.h"
#include "ledger/view/export/scalars.h"

typedef struct invar_gauge {
    char *name; /* owned */
    double value;
} invar_gauge;

/* Newest value of each metric. Zero-initialize before use. Release with invar_gauges_release. */
typedef struct invar_gauges {
    invar_gauge *items; /* (count) in the order of first appearance */
    int64_t count, capacity;
    int64_t step, ns; /* step and Unix time of the newest value */
    int64_t steps;    /* number of training steps that were added */
} invar_gauges;

void invar_gauges_release(invar_gauges *gauges);

/* Sets the value of a metric. Values must come in ascending order of steps. */
invar_status invar_gauges_set(invar_gauges *gauges,
                              const invar_export_scalar *scalar) INVAR_MUST_USE;

/* Appends all metrics of the run with this name and UUID. */
void invar_gauges_write(invar_json_text *out, const invar_gauges *gauges, const char *name,
                        const char *uuid);

#endif
