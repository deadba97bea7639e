/*
 * track.h - a run, shown elsewhere while it trains: TensorBoard, Prometheus, a program of the user.
 *
 *     invar_track_open(&track, &run);      once the run stands in its ledger
 *     invar_track_report_steps(track, 7);          steps up to 7 and their evaluations are recorded
 *     invar_track_close(track, "done");
 *
 * All that is told is read from the ledger, so whoever listens has what the ledger has. Nobody who
 * listens changes a run: what cannot be told is said in a line, and the run goes on without.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACK_TRACK_H
#define INVAR_ENGINE_RECORD_TRACK_TRACK_H

#include <signal.h>
#include <stdbool.h>

#include "base/recipe/recipe.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The step of evaluations before the first step, and what comes before that. */
enum { INVAR_TRACK_BEFORE = -1, INVAR_TRACK_NOTHING = -2 };

typedef struct invar_track_run {
    const invar_recipe *recipe; /* borrowed, as all of it */
    invar_ledger *ledger;
    int64_t run; /* its number there */
    const char *name, *uuid, *folder;
    int64_t last_step; /* it goes on behind this step; INVAR_TRACK_NOTHING: it begins */
    const volatile sig_atomic_t *stop; /* once it is not 0, a sink is not waited for; may be NULL */
    void (*say)(void *payload, const char *line); /* a line for people; may be NULL */
    void *payload;
} invar_track_run;

typedef struct invar_track invar_track;

/* A run that is about to begin or to go on. */
typedef struct invar_track_plan {
    const invar_recipe *recipe;
    const char *name, *folder; /* the folder need not be there */
    bool begins;               /* nothing was told before */
} invar_track_plan;

/*
 * Before anything is written: fails where _open would, since there is no such program, port, module
 * or folder, or since what lies there is another's.
 */
invar_status invar_track_check(const invar_track_plan *plan) INVAR_MUST_USE;

/* NULL where the recipe names nobody who listens; a NULL track is silent. */
invar_status invar_track_open(invar_track **out, const invar_track_run *run) INVAR_MUST_USE;

/* Steps up to this one are told, each once. Never fails, and waits for nobody. */
void invar_track_report_steps(invar_track *track, int64_t step);

/* How the run ended: "done", "stopped" or "failed". */
void invar_track_close(invar_track *track, const char *how);

#ifdef __cplusplus
}
#endif
#endif
