/*
 * gauges.h - the newest numbers of a run, as text that Prometheus scrapes.
 *
 * A number stays until the run has a newer one: an evaluation is there between two of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACK_GAUGES_H
#define INVAR_ENGINE_RECORD_TRACK_GAUGES_H

#include "base/json/text.h"
#include "ledger/view/export/scalars.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_gauge {
    char *name; /* owned */
    double value;
} invar_gauge;

/* Zeroed: there are none yet. */
typedef struct invar_gauges {
    invar_gauge *items; /* (count) in the order in which they came */
    int64_t count, room;
    int64_t step, ns; /* of the newest */
    int64_t steps;    /* that were told */
} invar_gauges;

void invar_gauges_release(invar_gauges *gauges);

/* A number of the ledger; those of a step come after those of the steps before. */
invar_status invar_gauges_take(invar_gauges *gauges,
                               const invar_export_scalar *scalar) INVAR_MUST_USE;

/* Appends all of them, of the run with this name and number. */
void invar_gauges_write(invar_json_text *out, const invar_gauges *gauges, const char *name,
                        const char *uuid);

#ifdef __cplusplus
}
#endif
#endif
