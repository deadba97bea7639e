/*
 * schedule_log.h - log of the timing decisions of a run with rollout-schedule = recorded.
 *
 * Tick v is the time in which weight version v samples. Two decisions of a tick depend on the speed
 * of sampling: which groups form batch v, and how many tokens unfinished samples had when the
 * weights changed. With both in the log, a tick can be reproduced exactly.
 *
 * The text form is JSON lines, for each tick its batch and then its unfinished samples, without
 * gaps:
 *
 *     {"tick":7,"batch":[26,29,30,31]}              group numbers, ascending
 *     {"tick":7,"drawn":[[81,5],[82,0]]}            sample index and number of response tokens
 *
 * This file checks everything that can be checked without the run; the rest is checked by
 * engine/sample/source/recorded_schedule_source.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_SCHEDULE_LOG_H
#define INVAR_ENGINE_SAMPLE_SOURCE_SCHEDULE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/json/text.h"
#include "base/status.h"

/* A sample that was not finished at the end of a tick. */
typedef struct invar_unfinished_sample {
    int64_t sample; /* index of the sample in the run */
    int64_t tokens; /* response tokens so far */
} invar_unfinished_sample;

/* Decisions of one tick. The arrays are owned by the log that has the tick. */
typedef struct invar_schedule_tick {
    bool has_batch, has_unfinished; /* `groups` is known, `unfinished` is known */
    int64_t *groups;                /* (n_groups) groups of the batch, ascending */
    int64_t n_groups;
    invar_unfinished_sample *unfinished; /* (n_unfinished) unfinished samples, ascending */
    int64_t n_unfinished;
} invar_schedule_tick;

/* Consecutive ticks. Zero-initialize before use. Release with invar_schedule_log_release. */
typedef struct invar_schedule_log {
    int64_t first;              /* number of the first tick */
    invar_schedule_tick *items; /* (count) all ticks except the last one are complete */
    int64_t count, capacity;
} invar_schedule_log;

void invar_schedule_log_release(invar_schedule_log *log);

/* Returns a tick, borrowed until the next one is added; NULL if the log does not have it. */
const invar_schedule_tick *invar_schedule_log_find(const invar_schedule_log *log, int64_t tick);

/* Removes the ticks before tick `before`, if the log has that tick. */
void invar_schedule_log_trim(invar_schedule_log *log, int64_t before);

/* Returns the number of the tick after the last complete one; `first` in an empty log. */
int64_t invar_schedule_log_end(const invar_schedule_log *log);

/*
 * Append a copy of the next event: the batch of a tick, or its unfinished samples. Return
 * INVAR_E_INVALID if it is not the next event, numbers do not ascend, or a sample has fewer tokens
 * than in the previous tick. `where` names the log in messages.
 */
invar_status invar_schedule_log_add_batch(invar_schedule_log *log, int64_t tick,
                                          const int64_t *groups, int64_t count,
                                          const char *where) INVAR_MUST_USE;
invar_status invar_schedule_log_add_drawn(invar_schedule_log *log, int64_t tick,
                                          const invar_unfinished_sample *unfinished, int64_t count,
                                          const char *where) INVAR_MUST_USE;

/* ---- text ------------------------------------------------------------------------------------ */

/* Header of a file: its first line. */
typedef struct invar_schedule_log_head {
    bool found;        /* the file has a first line */
    bool checked;      /* lines have checksums (version 2) */
    invar_digest run;  /* identity of the run */
    invar_digest uuid; /* uuid of the run; zeros in version 1 */
} invar_schedule_log_head;

/* Writes the header and all ticks, without the checksums that a journal adds. */
void invar_schedule_log_write(invar_json_text *text, const invar_schedule_log *log,
                              const invar_digest *run, const invar_digest *uuid);

/* Writes the line of one event of tick `number`. */
void invar_schedule_log_write_batch(invar_json_text *text, int64_t number,
                                    const invar_schedule_tick *tick);
void invar_schedule_log_write_drawn(invar_json_text *text, int64_t number,
                                    const invar_schedule_tick *tick);

/*
 * Parses lines without a header and appends their events. The first line may be a "drawn" event
 * whose batch is not in the text. Returns INVAR_E_CORRUPT for invalid lines.
 */
invar_status invar_schedule_log_read(invar_schedule_log *log, const char *text, size_t bytes,
                                     const char *where) INVAR_MUST_USE;

/*
 * Parses a journal file (engine/files/journal.h) with its header. A last line without a newline is
 * dropped, because the run was killed while it was written. Returns INVAR_E_CORRUPT for other
 * invalid lines.
 */
invar_status invar_schedule_log_read_file(invar_schedule_log *log,
                                          invar_schedule_log_head *head_out, const char *text,
                                          size_t bytes, const char *where) INVAR_MUST_USE;

#endif
