/*
 * scalars.h - what several exports read of a run, and whoever shows one while it is written.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_export_run {
    char name[INVAR_LEDGER_NAME_BYTES + 1];
    char uuid[INVAR_LEDGER_UUID_SIZE];
    int64_t created_ns;
} invar_export_run;

/* INVAR_E_NOTFOUND when there is no such run. */
invar_status invar_export_find(invar_export_run *out, invar_ledger *ledger,
                               int64_t run) INVAR_MUST_USE;

typedef struct invar_export_scalar {
    int64_t step; /* -1: before the first */
    int64_t seg;
    int64_t ns;       /* wall clock of its transaction */
    const char *name; /* of an evaluation: eval/DATASET/METRIC */
    size_t name_bytes;
    uint64_t bits;
    double value; /* the same */
} invar_export_scalar;

typedef invar_status (*invar_export_scalar_fn)(void *payload, const invar_export_scalar *scalar);

/* Which numbers: those of steps behind `after`, up to `upto`. */
typedef struct invar_export_range {
    bool gauges;         /* these, too */
    int64_t after, upto; /* results before the first step have the step -1 */
} invar_export_range;

/*
 * Calls `take` for each number of the timeline, ordered by step and name: metrics of the newest
 * segment that did the step, results of the newest that evaluated there.
 */
invar_status invar_export_scalars(invar_ledger *ledger, int64_t run,
                                  const invar_export_range *range, invar_export_scalar_fn take,
                                  void *payload) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
