/*
 * run_schedule.h - decides what a run does after each rollout, and when it ends.
 *
 * Pure functions of numbers: ranks with the same numbers make the same decision.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_RUN_SCHEDULE_H
#define INVAR_ENGINE_RUN_RUN_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct invar_run_schedule {
    int64_t rollouts;     /* rollouts of the complete run */
    int64_t until;        /* end after the rollout of this step; -1 for no limit */
    int64_t max_rollouts; /* rollouts of one process; 0 for no limit */
    /* number of rollouts between two of these actions; 0 for never */
    int64_t ref_interval, eval_interval, save_interval;
} invar_run_schedule;

/* Progress of a run. */
typedef struct invar_run_progress {
    int64_t rollout; /* next rollout */
    int64_t step;    /* next optimizer step */
    int64_t done;    /* rollouts done by this process */
} invar_run_progress;

typedef struct invar_run_actions {
    bool move_reference, evaluate, save;
    bool last;   /* no rollout follows */
    int stopped; /* signal that stops the run, or 0 */
} invar_run_actions;

/* True if the run has done everything that was asked for. */
bool invar_run_schedule_ended(const invar_run_schedule *schedule,
                              const invar_run_progress *progress);

/*
 * Returns the number of steps at which the run ends, unless a signal stops it. A rollout has
 * `per_rollout` steps.
 */
int64_t invar_run_schedule_steps(const invar_run_schedule *schedule,
                                 const invar_run_progress *progress, int64_t per_rollout);

/* Returns the actions after a rollout. `signal` is the signal that stops the run, or 0. */
invar_run_actions invar_run_schedule_after(const invar_run_schedule *schedule,
                                           const invar_run_progress *progress, int signal);

#endif
