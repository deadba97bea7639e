/*
 * scalars.h - iterates over the scalars of a run: metrics, gauges and evaluation results.
 *
 * Used by the exports, and by programs that show a run while it is written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_EXPORT_SCALARS_H
#define INVAR_LEDGER_VIEW_EXPORT_SCALARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "ledger/ledger.h"

typedef struct invar_export_run {
    char name[INVAR_LEDGER_NAME_BYTES + 1];
    char uuid[INVAR_LEDGER_UUID_SIZE];
    int64_t created_ns;
} invar_export_run;

/* Reads name, uuid and beginning of a run. Returns INVAR_E_NOTFOUND if there is no such run. */
invar_status invar_export_find(invar_export_run *out, invar_ledger *ledger,
                               int64_t run) INVAR_MUST_USE;

typedef struct invar_export_scalar {
    int64_t step;     /* -1 for an evaluation before the first step */
    int64_t seg;      /* segment that recorded the value */
    int64_t ns;       /* Unix time of the transaction */
    const char *name; /* (name_bytes) name of the series; eval/DATASET/METRIC for an evaluation */
    size_t name_bytes;
    uint64_t bits; /* IEEE pattern of `value` */
    double value;
} invar_export_scalar;

/* Callback for a scalar, which is valid during the call only. A failure ends the iteration. */
typedef invar_status (*invar_export_scalar_fn)(void *payload, const invar_export_scalar *scalar);

/* A selection of scalars. */
typedef struct invar_export_range {
    bool gauges; /* include gauges */
    int64_t after,
        upto; /* the steps after < step <= upto; evaluations before step 0 have step -1 */
} invar_export_range;

/*
 * Calls `take` for each selected scalar, ordered by step and name: metrics of the newest segment
 * that executed the step, results of the newest segment that evaluated there.
 */
invar_status invar_export_scalars(invar_ledger *ledger, int64_t run,
                                  const invar_export_range *range, invar_export_scalar_fn take,
                                  void *payload) INVAR_MUST_USE;

#endif
