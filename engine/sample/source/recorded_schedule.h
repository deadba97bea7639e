/*
 * recorded_schedule.h - who decides at a tick: this run's record, that of another run, or the
 * clock.
 *
 * The record of a run is a file of its folder, with all ticks since the run began. An event is
 * durable before it has an effect: a batch before it is trained on, what was drawn before the next
 * weights draw. So a run that was killed obeys what it has decided, as far as its record goes. Of
 * several ranks one has the file, and all have what is in it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_RECORDED_SCHEDULE_H
#define INVAR_ENGINE_SAMPLE_SOURCE_RECORDED_SCHEDULE_H

#include "engine/files/journal.h"
#include "engine/sample/source/schedule_log.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_RECORDED_SCHEDULE_FILE "schedule.jsonl" /* in the run's folder */
#define INVAR_RECORDED_SCHEDULE_REPLY                                                              \
    "rollout-schedule" /* in the ledger, as a reply to each rollout */

/* Zeroed at first: the clock decides, and nothing is kept. Release. */
typedef struct invar_recorded_schedule {
    invar_schedule_log own_log;   /* of this run */
    invar_schedule_log given_log; /* of rollout-record, obeyed where this run has none */
    invar_digest identity;        /* of the run that `other` is of */
    const char *name;     /* of the other one, or of the ledger, in messages; NULL: the clock */
                          /* decides what no record has */
    bool open_end;        /* a replay: nobody knows, nor needs, what the last tick has drawn */
    bool unchecked;       /* `own` was read from a file without sums */
    invar_journal *file;  /* NULL: another rank has it, or there is none */
    invar_json_text line; /* being written */
} invar_recorded_schedule;

void invar_recorded_schedule_release(invar_recorded_schedule *table);

/* What the records say of a tick, borrowed. INVAR_E_NOTFOUND: they end before it, and the clock
   may not decide. */
invar_status invar_recorded_schedule_plan(invar_schedule_tick *out,
                                          const invar_recorded_schedule *table,
                                          int64_t tick) INVAR_MUST_USE;

/* Whether the clock may decide. */
static inline bool invar_recorded_schedule_free(const invar_recorded_schedule *table)
{
    return !table->name;
}

/*
 * What happened; durable where there is a file. What this run's record has already stays;
 * INVAR_E_MISMATCH: it has something else.
 */
invar_status invar_recorded_schedule_batch(invar_recorded_schedule *table, int64_t tick,
                                           const int64_t *groups, int64_t count) INVAR_MUST_USE;
invar_status invar_recorded_schedule_drawn(invar_recorded_schedule *table, int64_t tick,
                                           const invar_unfinished_sample *left,
                                           int64_t count) INVAR_MUST_USE;

/* For the ledger: the events since the weights of tick - 1 that the batch of `tick` depends on. */
void invar_recorded_schedule_show(invar_json_text *text, const invar_recorded_schedule *table,
                                  int64_t tick);

#ifdef __cplusplus
}
#endif
#endif
