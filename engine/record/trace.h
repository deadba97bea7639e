/*
 * trace.h - records the phases of a run for chrome://tracing, ui.perfetto.dev and the ledger.
 *
 *     invar_trace_open(&trace, "runs/a/trace.json");
 *     invar_trace_begin(trace, "rollout");  ...  invar_trace_end(trace);     may be nested
 *     step.timings = invar_trace_timings(trace, &step.n_timings);
 *     invar_trace_close(trace);
 *
 * The file is a JSON array with one event per line, written as phases end. Viewers also load the
 * file of a killed run, because the format does not require the closing bracket. Each phase name
 * has a track. Every rank has a trace, and rank 0 writes the file, with a track per rank for phases
 * and waits, and in a window of steps for ops. No result depends on a trace. If `trace`
 * is NULL, all functions do nothing, except those that set a trace up: invar_trace_set_rank_timer,
 * invar_trace_profile and invar_trace_range need one. Not thread-safe.
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

typedef struct invar_trace invar_trace;

#define INVAR_TRACE_DEPTH 16  /* largest number of nested phases */
#define INVAR_TRACE_TRACKS 64 /* phase names with a track; further ones share a nameless one */

/*
 * Checks before a run that the trace can be written; the run folder `home` need not exist yet.
 * Fails if the file cannot be created, or if `path` is something else than an empty file, an older
 * trace or a character device: it is then never overwritten.
 */
invar_status invar_trace_check_path(const char *path, const char *home) INVAR_MUST_USE;

/*
 * Creates or replaces the file. If `path` is NULL or empty, only timings are recorded. Close with
 * invar_trace_close.
 */
invar_status invar_trace_open(invar_trace **out, const char *path) INVAR_MUST_USE;
void invar_trace_close(invar_trace *trace);

/* Passes the phases to `timer` too, which the trace owns from now on; NULL for no timer. */
void invar_trace_set_rank_timer(invar_trace *trace, invar_rank_timer *timer);

/*
 * Measures ops and memory too, in a window of steps; origin_ns of the options is ignored.
 * Collective: all ranks must call it.
 */
invar_status invar_trace_profile(invar_trace *trace,
                                 const invar_op_trace_options *options) INVAR_MUST_USE;

/*
 * Passes the phases to the vendor's profilers too, through a function of the device
 * (invar_device_timers); NULL if the device has none.
 */
void invar_trace_range(invar_trace *trace, void (*range)(const char *name));

/*
 * Returns the first failure of the file or the timings. The run continues without a complete trace,
 * for example if the disk is full.
 */
invar_status invar_trace_check(const invar_trace *trace) INVAR_MUST_USE;

/* Sets the step of the following events; -1 for no step. */
void invar_trace_step(invar_trace *trace, int64_t step);

/*
 * Begins a phase, a constant string that must live until close. invar_trace_end ends the last one.
 */
void invar_trace_begin(invar_trace *trace, const char *phase);
void invar_trace_end(invar_trace *trace);

/*
 * Writes a phase of another thread to the file, from one time of invar_trace_clock to another. It
 * is not in the timings, since phases of the ledger do not overlap within a step.
 */
void invar_trace_add_phase(invar_trace *trace, const char *phase, int64_t begin_ns, int64_t end_ns);
/* Returns the monotonic time in ns. */
int64_t invar_trace_clock(void);

/*
 * Returns the phases that ended since the last call, each name once: the first start, the sum of
 * the durations. Borrowed until the next phase ends.
 */
const invar_ledger_timing *invar_trace_timings(invar_trace *trace, size_t *count_out);

/*
 * Gathers the rank times since the last call and adds them to the file of rank 0; empty on other
 * ranks and without a timer. Borrowed until the next call. Collective: all ranks with a timer must
 * call it.
 */
invar_status invar_trace_collect_rank_times(const invar_ledger_rank_time **out, size_t *count_out,
                                            invar_trace *trace) INVAR_MUST_USE;

/*
 * Gathers the ops measured since the last call, like invar_trace_collect_rank_times does the rank
 * times. Collective: all ranks that measure must call it.
 */
invar_status invar_trace_collect_op_times(const invar_ledger_op_time **out, size_t *count_out,
                                          invar_trace *trace) INVAR_MUST_USE;

#endif
