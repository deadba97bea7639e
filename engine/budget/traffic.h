/*
 * traffic.h - what a rank moves and multiplies in an optimizer step, known before the run.
 *
 * Nothing is estimated: the very code of the run goes through the step on a device that only
 * counts, in a layout whose other ranks are imagined (engine/layout/layout.h), and the moves are
 * those that it makes. Only which experts tokens choose is not known: all have as many rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_BUDGET_TRAFFIC_H
#define INVAR_ENGINE_BUDGET_TRAFFIC_H

#include "engine/budget/budget.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_TRAFFIC_MOVES 32

typedef enum invar_traffic_axis {
    INVAR_TRAFFIC_TENSOR,
    INVAR_TRAFFIC_CONTEXT,
    INVAR_TRAFFIC_EXPERT,
    INVAR_TRAFFIC_DATA,
    INVAR_TRAFFIC_PIPELINE,
    INVAR_TRAFFIC_AXES
} invar_traffic_axis;

/* "tensor". */
const char *invar_traffic_axis_name(invar_traffic_axis axis);

/* All moves of a kind. */
typedef struct invar_traffic_move {
    invar_traffic_axis axis;
    char name[INVAR_COMM_PHASE_SIZE]; /* as the ledger has it: "weights" */
    uint64_t calls, sent, received;   /* bytes, as invar_comm_count has them */
} invar_traffic_move;

typedef struct invar_traffic {
    invar_traffic_move moves[INVAR_TRAFFIC_MOVES]; /* (count) in the order of their first calls */
    int count;
    double flop;    /* multiplications and additions of products and attention, of this rank */
    int64_t rounds; /* as many units as there are data-parallel ranks each */
} invar_traffic;

/* Bytes that are sent along an axis. */
uint64_t invar_traffic_sent(const invar_traffic *traffic, invar_traffic_axis axis);

/*
 * Of one optimizer step of the actor and the critic with these samples, whose tokens are not read.
 * ask->layout is imagined; `choice` is the plan's (invar_budget_make).
 */
invar_status invar_traffic_make(invar_traffic *out, const invar_budget_ask *ask,
                                const invar_budget_choice *choice, const invar_rl_sample *samples,
                                int64_t count) INVAR_MUST_USE;

/*
 * The same for as many samples as a step has, all of them as long as can be. Units that are alike
 * move alike: few of them are gone through, and the rest is multiplied.
 */
invar_status invar_traffic_make_longest(invar_traffic *out, const invar_budget_ask *ask,
                                        const invar_budget_choice *choice) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
