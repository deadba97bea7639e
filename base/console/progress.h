/*
 * progress.h - progress display of a long job on a terminal or in a log.
 *
 * On a terminal one line that overwrites itself, at most ten times a second:
 *     train  [==========>         ]  512/1000 steps  51%  3.4/s  ETA 2m23s  loss 0.331
 * otherwise a line at most every `interval_s` seconds, and one at the end:
 *     train: 512/1000 steps, 51%, 3.4/s, ETA 2m23s, loss 0.331
 *
 * No displayed value may affect a result, because rates come from the clock. Any thread may update.
 * Write errors are ignored, so that a closed pipe does not stop a run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_CONSOLE_PROGRESS_H
#define INVAR_BASE_CONSOLE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

typedef enum invar_progress_mode {
    INVAR_PROGRESS_MODE_AUTO, /* TERMINAL if the stream is one, else PLAIN */
    INVAR_PROGRESS_MODE_TERMINAL,
    INVAR_PROGRESS_MODE_PLAIN,
    INVAR_PROGRESS_MODE_SILENT
} invar_progress_mode;

/*
 * Options of a display. Zero values are valid, except for `stream` and `title`. Strings are copied.
 */
typedef struct invar_progress_options {
    FILE *stream;      /* borrowed; usually stderr */
    const char *title; /* name of the job, such as "train" */
    const char *unit;  /* plural of what is counted, such as "steps"; NULL if unnamed */
    int64_t first;     /* number done before this job, as after a resume; excluded from the rate */
    int64_t total;     /* number of all; 0 if unknown: no bar and no ETA are shown */
    invar_progress_mode mode;
    double interval_s;                /* seconds between plain lines; 0 for 10 */
    int columns;                      /* width of the terminal; 0 to query it for each line */
    bool color;                       /* use color with TERMINAL; AUTO decides by itself */
    uint64_t (*clock)(void *payload); /* returns nanoseconds; NULL for the monotonic clock */
    void *clock_payload;              /* payload of `clock` */
} invar_progress_options;

typedef struct invar_progress invar_progress;

/* Creates a display; nothing is shown before the first update. Free it with invar_progress_free. */
invar_status invar_progress_new(invar_progress **out,
                                const invar_progress_options *options) INVAR_MUST_USE;

/*
 * Reports that `done` of the total are done. A value below an earlier one is ignored, so that
 * threads may report in any order. `message` replaces the shown message; NULL keeps it. `progress`
 * may be NULL.
 */
void invar_progress_update(invar_progress *progress, int64_t done, const char *message);

/*
 * Sets the expected remaining time in seconds, for callers that know better than the mean rate. A
 * value that is not finite returns to the mean rate. `progress` may be NULL.
 */
void invar_progress_expect(invar_progress *progress, double seconds);

/* Shows the final state if there was an update, and frees the display. `progress` may be NULL. */
void invar_progress_free(invar_progress *progress);

#endif
