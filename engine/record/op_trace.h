/*
 * op_trace.h - the ops of all ranks in a window of steps: tracks of the trace, rows of the ledger.
 *
 *     invar_op_trace_new(&tracks, &options);                 a call of all ranks
 *     invar_op_trace_step(tracks, step);                     in the window ops are measured
 *     invar_op_trace_phase(tracks, "train");
 *     invar_op_trace_collect(&all, tracks);                  a call of all ranks, once a step
 *
 * Every rank writes its own events and rank 0 gets the text, so that a trace has a process for each
 * rank and a track for each of its streams. A NULL is silent.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_OP_TRACE_H
#define INVAR_ENGINE_RECORD_OP_TRACE_H

#include "engine/ranks/layout/layout.h"
#include "engine/record/profile.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_op_trace invar_op_trace;

#define INVAR_OP_TRACE_PROCESS 10 /* of rank 0 in the trace; the others follow */

typedef struct invar_op_trace_options {
    const invar_layout *layout; /* borrowed; NULL: one rank */
    invar_profile *device,
        *sampler_profile; /* borrowed; beside NULL: nothing is sampled beside training */
    int64_t first, end;   /* the steps of the window: first <= step < end */
    int64_t origin_ns;    /* Unix time at which rank 0's trace begins */
} invar_op_trace_options;

/* Of all ranks; on ranks other than 0 there are no ops. Borrowed until the next call. */
typedef struct invar_op_trace_result {
    const char *text; /* events, one a line, each with its comma in front */
    size_t bytes;
    const invar_ledger_op_time *rows;
    size_t n_rows;
    /* of any rank: why its own ops are not complete; no reason to end a run */
    invar_status local_status;
} invar_op_trace_result;

invar_status invar_op_trace_new(invar_op_trace **out,
                                const invar_op_trace_options *options) INVAR_MUST_USE;
void invar_op_trace_free(invar_op_trace *tracks);

/* Work for this step begins. */
void invar_op_trace_step(invar_op_trace *tracks, int64_t step);

/* The innermost phase is now this one: a constant. NULL: none. */
void invar_op_trace_phase(invar_op_trace *tracks, const char *phase);

/* What has ended since the last call; nothing moves for steps far from the window. */
invar_status invar_op_trace_collect(invar_op_trace_result *out,
                                    invar_op_trace *tracks) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
