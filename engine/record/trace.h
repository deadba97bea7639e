/*
 * trace.h - what the run did when: phases for chrome://tracing, ui.perfetto.dev and the ledger.
 *
 *     invar_trace_open(&trace, "runs/a/trace.json");
 *     invar_trace_begin(trace, "rollout");  ...  invar_trace_end(trace);     may be nested
 *     step.timings = invar_trace_timings(trace, &step.n_timings);
 *     invar_trace_close(trace);
 *
 * The file is a JSON array of events, one a line, written as phases end: what a killed run leaves
 * is still loaded, since the format does not insist on the closing bracket. Each name of a phase is
 * a track of its own. Of several ranks each has a trace, and rank 0 writes the file: it has a track
 * for every rank, too, with its phases and waits, and in a window of steps its ops. Nothing here is
 * part of a result. A NULL trace is silent. One thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACE_H
#define INVAR_ENGINE_RECORD_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/record/op_trace.h"
#include "engine/record/rank_time.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_trace invar_trace;

#define INVAR_TRACE_DEPTH 16  /* of nested phases */
#define INVAR_TRACE_TRACKS 64 /* names of phases; those beyond share the last track */

/*
 * Before a run whose folder `home` need not be there yet: fails where no file can be made, or where
 * something lies that is neither empty nor an older trace: a link, a pipe, somebody's file.
 */
invar_status invar_trace_check_path(const char *path, const char *home) INVAR_MUST_USE;

/* Replaces the file, where it may be replaced. `path` NULL or "": no file, timings only. */
invar_status invar_trace_open(invar_trace **out, const char *path) INVAR_MUST_USE;
void invar_trace_close(invar_trace *trace);

/* Phases are told to `work`, too, which is owned from now on; NULL: to nobody. */
void invar_trace_watch(invar_trace *trace, invar_rank_timer *work);

/* In a window of steps, ops and memory are measured, too. A call of all ranks; origin_ns is set. */
invar_status invar_trace_profile(invar_trace *trace,
                                 const invar_op_trace_options *options) INVAR_MUST_USE;

/* Phases are told to the vendor's profilers, too, by a function of the device
 * (invar_device_timers). */
void invar_trace_range(invar_trace *trace, void (*range)(const char *name));

/* Why the file or the timings are not complete: a full disk does not end a run by its trace. */
invar_status invar_trace_check(const invar_trace *trace) INVAR_MUST_USE;

/* Events from now on carry this number; -1: none. */
void invar_trace_step(invar_trace *trace, int64_t step);

/* `phase` is borrowed until close: a constant. end is for the last one begun. */
void invar_trace_begin(invar_trace *trace, const char *phase);
void invar_trace_end(invar_trace *trace);

/*
 * What another thread did, from one time of invar_trace_clock to another: in the file alone, for in
 * the ledger no phases of a step overlap.
 */
void invar_trace_beside(invar_trace *trace, const char *phase, int64_t begin_ns, int64_t end_ns);
int64_t invar_trace_clock(void);

/* A number over time; what is not finite is left out. */
void invar_trace_count(invar_trace *trace, const char *name, double value);

/*
 * The phases that have ended since this was last asked, each name once: the first start and the sum
 * of the durations. Borrowed until the next end.
 */
const invar_ledger_timing *invar_trace_timings(invar_trace *trace, size_t *count_out);

/*
 * A call of all ranks that have work: what each did since this was last called, on rank 0, whose
 * file gets the tracks of all. None without work. Borrowed until the next call.
 */
invar_status invar_trace_work(const invar_ledger_rank_time **out, size_t *count_out,
                              invar_trace *trace) INVAR_MUST_USE;

/* Likewise: the ops that they ran, where they were measured. */
invar_status invar_trace_ops(const invar_ledger_op_time **out, size_t *count_out,
                             invar_trace *trace) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
