/*
 * comm_volume.h - communication volume and FLOP of one optimizer step on one rank, before the run.
 *
 * Nothing is estimated: the code of the run itself executes the step on a counting device, in a
 * layout with simulated other ranks (engine/ranks/layout/layout.h), and its transfers are counted.
 * Only the routing of tokens is unknown: all experts are assumed to get equally many rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_MEMORY_PLAN_COMM_VOLUME_H
#define INVAR_ENGINE_RUN_MEMORY_PLAN_COMM_VOLUME_H

#include "engine/run/memory_plan/memory_plan.h"

#define INVAR_COMM_VOLUME_MOVES 32

typedef enum invar_parallel_axis {
    INVAR_COMM_VOLUME_TENSOR,
    INVAR_COMM_VOLUME_CONTEXT,
    INVAR_COMM_VOLUME_EXPERT,
    INVAR_COMM_VOLUME_DATA,
    INVAR_COMM_VOLUME_PIPELINE,
    INVAR_COMM_VOLUME_AXES
} invar_parallel_axis;

/* Totals of one kind of transfer. */
typedef struct invar_comm_volume_item {
    invar_parallel_axis axis;
    char name[INVAR_COMM_PHASE_SIZE]; /* name as in the ledger, such as "weights" */
    uint64_t calls, sent, received;   /* number of calls; bytes as in invar_comm_stats */
} invar_comm_volume_item;

typedef struct invar_comm_volume {
    /* (count) kinds, in the order of their first calls */
    invar_comm_volume_item moves[INVAR_COMM_VOLUME_MOVES];
    int count;
    double flop;    /* multiplications and additions of matrix products and attention, on this
                       rank */
    int64_t rounds; /* data-parallel rounds; each has a unit per data-parallel rank */
} invar_comm_volume;

/* Returns the bytes that are sent along an axis. */
uint64_t invar_comm_volume_sent(const invar_comm_volume *volume, invar_parallel_axis axis);

/*
 * *out = volume of one optimizer step of actor and critic with these samples, whose tokens are not
 * read. The workload must learn, and its layout be simulated; `choice` is that of the plan
 * (invar_memory_plan_make).
 */
invar_status invar_comm_volume_make(invar_comm_volume *out, const invar_memory_workload *workload,
                                    const invar_memory_plan_choice *choice,
                                    const invar_rl_sample *samples, int64_t count) INVAR_MUST_USE;

/*
 * Like invar_comm_volume_make, for as many samples as a step has, all of the largest length. Equal
 * units have equal transfers, so only a few are executed and the rest is multiplied.
 */
invar_status invar_comm_volume_make_longest(invar_comm_volume *out,
                                            const invar_memory_workload *workload,
                                            const invar_memory_plan_choice *choice) INVAR_MUST_USE;

#endif
