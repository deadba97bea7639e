/*
 * op_trace.h - collects op times of all ranks in a window of steps, for the trace and the ledger.
 *
 *     invar_op_trace_new(&trace, &options);                  collective
 *     invar_op_trace_step(trace, step);                      ops are measured within the window
 *     invar_op_trace_phase(trace, "train");
 *     invar_op_trace_collect(&all, trace);                   collective, once per step
 *
 * Every rank formats its own events and rank 0 gathers the text, so a trace has one process per
 * rank and one track per stream. All functions except invar_op_trace_new do nothing if `trace`
 * is NULL.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_OP_TRACE_H
#define INVAR_ENGINE_RECORD_OP_TRACE_H

#include "engine/ranks/layout/layout.h"
#include "engine/record/profile.h"
#include "ledger/ledger.h"

typedef struct invar_op_trace invar_op_trace;

#define INVAR_OP_TRACE_PROCESS 10 /* process number of rank 0 in the trace; rank r has 10 + r */

typedef struct invar_op_trace_options {
    const invar_layout *layout; /* borrowed; NULL if there is one rank */
    /* Borrowed. sampler_profile is NULL if sampling does not overlap training. */
    invar_profile *device, *sampler_profile;
    int64_t first, end; /* window of steps: first <= step < end */
    int64_t origin_ns;  /* Unix time at which rank 0's trace begins */
} invar_op_trace_options;

/* Ops of all ranks; empty on ranks other than 0. Borrowed until the next call. */
typedef struct invar_op_trace_result {
    const char *text; /* trace events, one per line, each with a leading comma */
    size_t bytes;
    const invar_ledger_op_time *rows;
    size_t n_rows;
    /* why this rank's ops are incomplete; the run continues */
    invar_status local_status;
} invar_op_trace_result;

/*
 * Makes the collector. Collective: all ranks must call it, rank 0's origin_ns is used. Free with
 * invar_op_trace_free.
 */
invar_status invar_op_trace_new(invar_op_trace **out,
                                const invar_op_trace_options *options) INVAR_MUST_USE;
void invar_op_trace_free(invar_op_trace *trace);

/* Sets the step of the following ops, and switches measuring on or off. */
void invar_op_trace_step(invar_op_trace *trace, int64_t step);

/*
 * Sets the innermost phase of the following ops of `device`; a constant, or NULL outside of phases.
 * Ops of `sampler_profile` always have the phase "ahead".
 */
void invar_op_trace_phase(invar_op_trace *trace, const char *phase);

/*
 * Gathers the ops that ended since the last call. Sends nothing for steps outside of the window and
 * the step after it. Collective: all ranks must call it.
 */
invar_status invar_op_trace_collect(invar_op_trace_result *out,
                                    invar_op_trace *trace) INVAR_MUST_USE;

#endif
