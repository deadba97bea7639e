/*
 * comm_volume.h - what a rank moves and multiplies in an optimizer step, known before the run.
 *
 * Nothing is estimated: the very code of the run goes through the step on a device that only
 * counts, in a layout whose other ranks are imagined (engine/ranks/layout/layout.h), and the moves
 * are those that it makes. Only which experts tokens choose is not known: all have as many rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_MEMORY_PLAN_COMM_VOLUME_H
#define INVAR_ENGINE_RUN_MEMORY_PLAN_COMM_VOLUME_H

#include "engine/run/memory_plan/memory_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_COMM_VOLUME_MOVES 32

typedef enum invar_parallel_axis {
    INVAR_COMM_VOLUME_TENSOR,
    INVAR_COMM_VOLUME_CONTEXT,
    INVAR_COMM_VOLUME_EXPERT,
    INVAR_COMM_VOLUME_DATA,
    INVAR_COMM_VOLUME_PIPELINE,
    INVAR_COMM_VOLUME_AXES
} invar_parallel_axis;

/* "tensor". */
const char *invar_parallel_axis_name(invar_parallel_axis axis);

/* All moves of a kind. */
typedef struct invar_comm_volume_item {
    invar_parallel_axis axis;
    char name[INVAR_COMM_PHASE_SIZE]; /* as the ledger has it: "weights" */
    uint64_t calls, sent, received;   /* bytes, as invar_comm_stats has them */
} invar_comm_volume_item;

typedef struct invar_comm_volume {
    /* (count) in the order of their first calls */
    invar_comm_volume_item moves[INVAR_COMM_VOLUME_MOVES];
    int count;
    double flop;    /* multiplications and additions of products and attention, of this rank */
    int64_t rounds; /* as many units as there are data-parallel ranks each */
} invar_comm_volume;

/* Bytes that are sent along an axis. */
uint64_t invar_comm_volume_sent(const invar_comm_volume *traffic, invar_parallel_axis axis);

/*
 * Of one optimizer step of the actor and the critic with these samples, whose tokens are not read.
 * ask->layout is imagined; `choice` is the plan's (invar_memory_plan_make).
 */
invar_status invar_comm_volume_make(invar_comm_volume *out, const invar_memory_workload *ask,
                                    const invar_memory_plan_choice *choice,
                                    const invar_rl_sample *samples, int64_t count) INVAR_MUST_USE;

/*
 * The same for as many samples as a step has, all of them as long as can be. Units that are alike
 * move alike: few of them are gone through, and the rest is multiplied.
 */
invar_status invar_comm_volume_make_longest(invar_comm_volume *out,
                                            const invar_memory_workload *ask,
                                            const invar_memory_plan_choice *choice) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
