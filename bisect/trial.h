/*
 * trial.h - trials of a bisect: one commit is built, run and evaluated by the criterion.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_TRIAL_H
#define INVAR_BISECT_TRIAL_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "bisect/bisect.h"
#include "bisect/state/state.h"
#include "bisect/workspace/workspace.h"

/* Shared context of all trials of a bisect. All pointers are borrowed. */
typedef struct invar_trial_context {
    const invar_bisect_case *what;
    invar_criterion question; /* criterion, with `until` as far as it is known so far */
    invar_workspace *workspace;
    const char *folder; /* bisects/ID in the workspace */
    const char *recipe; /* pinned copy of the recipe; NULL if a command is run */
    int64_t threads;    /* threads of a build */
    const volatile sig_atomic_t *stop;
    /* Finds an earlier trial of the same binary, for commands. Called on any thread. */
    bool (*find_known_result)(void *payload, invar_bisect_state_trial *out, const char *binary);
    void *payload;
} invar_trial_context;

/* One trial of a batch. The caller sets `commit` and `attempt`. */
typedef struct invar_trial_job {
    char commit[INVAR_OID_SIZE];
    int64_t attempt;
    invar_bisect_state_trial result; /* trial.value is empty if the commit could not be tested */
    bool stopped;                    /* stopped before a result was known */
} invar_trial_job;

/* Returns how a tree is built in this case. */
invar_build_plan invar_trial_build(const invar_trial_context *context);

/*
 * Returns the request to run a program on the recipe. With `attempt` above 0 the cache is not used.
 */
invar_run_request invar_trial_request(const invar_trial_context *context,
                                      const invar_revision_build *build, int64_t attempt);

/*
 * Runs all jobs at the same time, each on a thread and in a worktree of its own. `done` is called
 * on the calling thread for each result. `useful` is called there after each result and returns
 * false to stop a trial that still runs. Both may be NULL. Returns INVAR_E_STATE if a command asked
 * to stop the search (exit code 128 and above).
 */
invar_status invar_trial_batch(invar_trial_job *jobs, size_t count,
                               const invar_trial_context *context,
                               invar_status (*done)(void *payload, invar_trial_job *job),
                               bool (*useful)(void *payload, const invar_trial_job *job),
                               void *payload) INVAR_MUST_USE;

/* Runs the trial in a free worktree and fills job->result and job->stopped. Polls *stop. */
invar_status invar_trial_one(invar_trial_job *job, const invar_trial_context *context,
                             const volatile sig_atomic_t *stop) INVAR_MUST_USE;

#endif
