/*
 * run_schedule.h - what a run does after which rollout, and when it ends.
 *
 * Functions of numbers alone: every rank that has the same numbers decides alike.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_RUN_SCHEDULE_H
#define INVAR_ENGINE_RUN_RUN_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_run_schedule {
    int64_t rollouts;     /* of the whole run */
    int64_t until;        /* it ends after the rollout of this step; -1: when it is done */
    int64_t max_rollouts; /* rollouts of one process; 0: no limit */
    /* Rollouts between two of these; 0: never */
    int64_t ref_interval, eval_interval, save_interval;
} invar_run_schedule;

/* How far it is. */
typedef struct invar_run_progress {
    int64_t rollout; /* the next one */
    int64_t step;    /* the next one */
    int64_t done;    /* rollouts by this process */
} invar_run_progress;

typedef struct invar_run_actions {
    bool move_reference, evaluate, save;
    bool last;   /* no rollout follows */
    int stopped; /* by this signal; 0: by none */
} invar_run_actions;

/* All that was asked for is done. */
bool invar_run_schedule_ended(const invar_run_schedule *course, const invar_run_progress *place);

/* The number of steps after which it ends, with so many in a rollout, unless a signal comes. */
int64_t invar_run_schedule_steps(const invar_run_schedule *course, const invar_run_progress *place,
                                 int64_t per_rollout);

/* What follows a rollout; `signal` asks for the end, 0: none does. */
invar_run_actions invar_run_schedule_after(const invar_run_schedule *course,
                                           const invar_run_progress *place, int signal);

#ifdef __cplusplus
}
#endif
#endif
