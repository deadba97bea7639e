/*
 * track.h - reports a run while it trains: TensorBoard, Prometheus, a program of the user.
 *
 *     invar_track_open(&track, &run);         after the run was added to its ledger
 *     invar_track_report_steps(track, 7);     steps up to 7 and their evaluations are recorded
 *     invar_track_close(track, "done");
 *
 * All values are read from the ledger, so every tracker shows what the ledger has. After
 * invar_track_open, a tracker that fails prints a line on the console and never changes or ends a
 * run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACK_TRACK_H
#define INVAR_ENGINE_RECORD_TRACK_TRACK_H

#include <signal.h>
#include <stdbool.h>

#include "engine/config/config.h"
#include "ledger/ledger.h"

/*
 * INVAR_TRACK_BEFORE is the step of evaluations before the first step; INVAR_TRACK_NOTHING is
 * before them.
 */
enum { INVAR_TRACK_BEFORE = -1, INVAR_TRACK_NOTHING = -2 };

typedef struct invar_track_run {
    const invar_config *config; /* borrowed, like all other pointers */
    invar_ledger *ledger;
    int64_t run; /* number of the run in the ledger */
    const char *name, *uuid, *folder;
    int64_t last_step; /* last step that was reported before; INVAR_TRACK_NOTHING for a new run */
    /* set by a signal: stops waiting for the sink; may be NULL */
    const volatile sig_atomic_t *stop;
    void (*say)(void *payload, const char *line); /* prints a line on the console; may be NULL */
    void *payload;
} invar_track_run;

typedef struct invar_track invar_track;

/* Run that is about to begin or to continue. */
typedef struct invar_track_plan {
    const invar_config *config;
    const char *name, *folder; /* the folder need not exist */
    bool begins;               /* the run is new: nothing was reported before */
} invar_track_plan;

/*
 * Checks everything that invar_track_open needs (program, port, module, folders) without writing.
 * Fails if something is missing, or if an output belongs to another run or program.
 */
invar_status invar_track_check(const invar_track_plan *plan) INVAR_MUST_USE;

/*
 * Opens the trackers of the recipe. *out is NULL if the recipe has none; all functions do nothing
 * for NULL. Close with invar_track_close.
 */
invar_status invar_track_open(invar_track **out, const invar_track_run *run) INVAR_MUST_USE;

/* Reports the steps up to `step` that were not reported yet. Never fails and never waits. */
void invar_track_report_steps(invar_track *track, int64_t step);

/*
 * Reports how the run ended: "done", "stopped" or "failed". Waits for the sink up to sink-timeout.
 */
void invar_track_close(invar_track *track, const char *how);

#endif
