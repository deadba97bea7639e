/*
 * recorded_schedule.h - recorded asynchronous schedule of a run: follows a log and writes its own.
 *
 * The decisions of a tick come from the log of this run, from the log of another run
 * (rollout-record) or the ledger, or else from the clock. The log of a run is a journal in its
 * folder with all ticks. An event must be durable before it takes effect: a batch before it is
 * trained on, token counts before the next weights sample. So a killed run repeats its decisions
 * when it resumes. On several ranks one rank has the file, and all have its content.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_RECORDED_SCHEDULE_H
#define INVAR_ENGINE_SAMPLE_SOURCE_RECORDED_SCHEDULE_H

#include "engine/files/journal.h"
#include "engine/sample/source/schedule_log.h"

#define INVAR_RECORDED_SCHEDULE_FILE "schedule.jsonl" /* file name in the run folder */
#define INVAR_RECORDED_SCHEDULE_REPLY                                                              \
    "rollout-schedule" /* name in the ledger, where it is stored like a reply for each rollout */

/*
 * Zero-initialize before use: then the clock decides, and nothing is written. Release with
 * invar_recorded_schedule_release.
 */
typedef struct invar_recorded_schedule {
    invar_schedule_log own_log;   /* log of this run */
    invar_schedule_log given_log; /* log of rollout-record, for ticks that own_log does not have */
    invar_digest identity;        /* identity of the run that wrote given_log */
    const char *origin;   /* origin of the schedule to follow, for messages; NULL if the clock may
                             decide ticks that no log has */
    bool open_end;        /* in a replay, the last tick may lack its token counts */
    bool unchecked;       /* own_log was read from a file without checksums */
    invar_journal *file;  /* journal of own_log; NULL on other ranks and without a file */
    invar_json_text line; /* buffer of the line being written */
} invar_recorded_schedule;

void invar_recorded_schedule_release(invar_recorded_schedule *schedule);

/*
 * *out = recorded decisions of a tick, borrowed; members that the clock decides are not set.
 * Returns INVAR_E_NOTFOUND if the logs end before the tick and the clock may not decide.
 */
invar_status invar_recorded_schedule_plan(invar_schedule_tick *out,
                                          const invar_recorded_schedule *schedule,
                                          int64_t tick) INVAR_MUST_USE;

/* Returns true if the clock may decide ticks that no log has. */
static inline bool invar_recorded_schedule_may_use_clock(const invar_recorded_schedule *schedule)
{
    return !schedule->origin;
}

/*
 * Append the batch of a tick, or the unfinished samples at its end, to own_log and its journal; the
 * event is durable when they return. An event that own_log has already is not written again;
 * invar_recorded_schedule_drawn then returns INVAR_E_MISMATCH if it differs.
 */
invar_status invar_recorded_schedule_batch(invar_recorded_schedule *schedule, int64_t tick,
                                           const int64_t *groups, int64_t count) INVAR_MUST_USE;
invar_status invar_recorded_schedule_drawn(invar_recorded_schedule *schedule, int64_t tick,
                                           const invar_unfinished_sample *unfinished,
                                           int64_t count) INVAR_MUST_USE;

/*
 * Writes for the ledger the events that the batch of `tick` depends on since the batch before it.
 */
void invar_recorded_schedule_write(invar_json_text *text, const invar_recorded_schedule *schedule,
                                   int64_t tick);

#endif
