/*
 * schedule_log.h - what a clock decided in a run with rollout-schedule = recorded, tick by tick.
 *
 * Tick v is sampling with version v of the weights, as far as rollouts were trained on. Two things
 * of it depend on how fast samples were drawn: which groups made batch v, and how many tokens those
 * samples had that were not finished when the weights changed. With both known, a tick is declared.
 *
 * As text they are JSON lines, a batch before what was drawn, tick after tick without a gap:
 *
 *     {"tick":7,"batch":[26,29,30,31]}              numbers of groups, ascending
 *     {"tick":7,"drawn":[[81,5],[82,0]]}            samples by index, and their response tokens
 *
 * Here is what can be said of them without knowing the run;
 * engine/sample/source/recorded_schedule_source.c knows it.
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

#ifdef __cplusplus
extern "C" {
#endif

/* A sample that was not finished at the end of a tick. */
typedef struct invar_unfinished_sample {
    int64_t sample; /* index */
    int64_t tokens; /* of its response so far */
} invar_unfinished_sample;

/* Arrays are owned by the list that has the tick. */
typedef struct invar_schedule_tick {
    bool batched, drawn; /* which of the two is known */
    int64_t *groups;     /* (n_groups) of its batch, ascending */
    int64_t n_groups;
    invar_unfinished_sample *left; /* (n_left) ascending */
    int64_t n_left;
} invar_schedule_tick;

/* Zeroed at first, there are none; release. */
typedef struct invar_schedule_log {
    int64_t first;              /* number of the first one */
    invar_schedule_tick *items; /* (count); all but the last one are whole */
    int64_t count, capacity;
} invar_schedule_log;

void invar_schedule_log_release(invar_schedule_log *ticks);

/* NULL: nothing is known of it. Borrowed until the next one is added. */
const invar_schedule_tick *invar_schedule_log_find(const invar_schedule_log *ticks, int64_t tick);

/* Ticks before this one leave the list, if it has it. */
void invar_schedule_log_trim(invar_schedule_log *ticks, int64_t before);

/* The tick that follows the last whole one; that of `first` where there is none. */
int64_t invar_schedule_log_end(const invar_schedule_log *ticks);

/*
 * Copies, of the next event. INVAR_E_INVALID: it is not the next one, numbers do not ascend, or a
 * sample has fewer tokens than a tick before. `where` names the list in messages.
 */
invar_status invar_schedule_log_add_batch(invar_schedule_log *ticks, int64_t tick,
                                          const int64_t *groups, int64_t count,
                                          const char *where) INVAR_MUST_USE;
invar_status invar_schedule_log_add_drawn(invar_schedule_log *ticks, int64_t tick,
                                          const invar_unfinished_sample *left, int64_t count,
                                          const char *where) INVAR_MUST_USE;

/* ---- text ------------------------------------------------------------------------------------ */

/* The first line of a file. */
typedef struct invar_schedule_log_head {
    bool found;        /* the file has a first line */
    bool checked;      /* its lines have sums: version 2 */
    invar_digest run;  /* identity of the run */
    invar_digest uuid; /* uuid of the run; zeros in version 1 */
} invar_schedule_log_head;

/* Writes the lines of a file, without the sums that a journal adds: the head and all ticks. */
void invar_schedule_log_write(invar_json_text *text, const invar_schedule_log *ticks,
                              const invar_digest *run, const invar_digest *uuid);
void invar_schedule_log_write_batch(invar_json_text *text, int64_t number,
                                    const invar_schedule_tick *tick);
void invar_schedule_log_write_drawn(invar_json_text *text, int64_t number,
                                    const invar_schedule_tick *tick);

/* Adds all events of the lines; the very first may say what was drawn before the first batch.
   INVAR_E_CORRUPT. */
invar_status invar_schedule_log_read(invar_schedule_log *ticks, const char *text, size_t bytes,
                                     const char *where) INVAR_MUST_USE;

/*
 * Reads a file (engine/files/journal.h), its head and its events. A last line without its newline
 * was being written when the run was killed, and is dropped.
 */
invar_status invar_schedule_log_read_file(invar_schedule_log *ticks,
                                          invar_schedule_log_head *head_out, const char *text,
                                          size_t bytes, const char *where) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
