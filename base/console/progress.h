/*
 * progress.h - how far a long job is, for people.
 *
 * On a terminal one line that overwrites itself, at most ten times a second:
 *     train  [==========>         ]  512/1000 steps  51%  3.4/s  ETA 2m23s  loss 0.331
 * elsewhere a whole line at most every `interval_s` seconds, and one at the end:
 *     train: 512/1000 steps, 51%, 3.4/s, ETA 2m23s, loss 0.331
 *
 * Nothing that is shown may enter a result: rates come from the clock. Any thread may update. What
 * cannot be written is dropped: a closed pipe does not stop a run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_CONSOLE_PROGRESS_H
#define INVAR_BASE_CONSOLE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_progress_mode {
    INVAR_PROGRESS_MODE_AUTO, /* TERMINAL when the stream is one, else PLAIN */
    INVAR_PROGRESS_MODE_TERMINAL,
    INVAR_PROGRESS_MODE_PLAIN,
    INVAR_PROGRESS_MODE_SILENT
} invar_progress_mode;

/* A zeroed struct with `stream` and `title` is valid. Strings are copied. */
typedef struct invar_progress_options {
    FILE *stream;      /* borrowed; usually stderr */
    const char *title; /* "train" */
    const char *unit;  /* "steps"; NULL: none */
    int64_t first;     /* done before this job, as after a resume: not in the rate */
    int64_t total;     /* 0: unknown, then no bar and no ETA */
    invar_progress_mode mode;
    double interval_s;                /* between plain lines; 0: 10 seconds */
    int columns;                      /* of the terminal; 0: asked before each line */
    bool colour;                      /* with TERMINAL; AUTO decides by itself */
    uint64_t (*clock)(void *payload); /* nanoseconds; NULL: the monotonic clock */
    void *clock_payload;
} invar_progress_options;

typedef struct invar_progress invar_progress;

invar_status invar_progress_new(invar_progress **out,
                                const invar_progress_options *options) INVAR_MUST_USE;

/*
 * `done` of the total is done; a value below an earlier one is ignored, so that threads may report
 * in any order. `message` is shown from now on, NULL keeps the last. A NULL progress is silent.
 */
void invar_progress_update(invar_progress *progress, int64_t done, const char *message);

/*
 * The job will take so many seconds from now on, by somebody who knows better than the mean rate of
 * all that was done; not finite: nobody does. A NULL progress is silent.
 */
void invar_progress_expect(invar_progress *progress, double seconds);

/* Shows the final state (if there was any update), ends the line and frees. NULL is allowed. */
void invar_progress_free(invar_progress *progress);

#ifdef __cplusplus
}
#endif
#endif
