/*
 * trial.h - one commit put to the question, and several at a time.
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

#ifdef __cplusplus
extern "C" {
#endif

/* What all trials of a bisect share. Borrowed. */
typedef struct invar_trial_context {
    const invar_bisect_case *what;
    invar_criterion question; /* `until` as far as it is known by now */
    invar_workspace *workshop;
    const char *folder; /* bisects/ID */
    const char *recipe; /* the pinned copy; NULL: a command is run */
    int64_t threads;    /* of builds */
    const volatile sig_atomic_t *stop;
    /* An earlier trial of the same program, for commands; any thread calls it. */
    bool (*find_known_result)(void *payload, invar_bisect_state_trial *out, const char *binary);
    void *payload;
} invar_trial_context;

/* One trial of a batch: `commit` and `attempt` go in. */
typedef struct invar_trial_job {
    char commit[INVAR_OID_SIZE];
    int64_t attempt;
    invar_bisect_state_trial result; /* trial.value "": it could not be tested */
    bool stopped;                    /* nothing is known about it */
} invar_trial_job;

/* How a tree becomes a program in this case. */
invar_build_plan invar_trial_build(const invar_trial_context *scene);

/* The run that a program makes of the recipe. `attempt` above 0 is always made anew. */
invar_run_request invar_trial_request(const invar_trial_context *scene,
                                      const invar_revision_build *built, int64_t attempt);

/*
 * Runs the jobs, all at a time, each in a slot of its own. `done` is called on this thread when one
 * has its result; `useful` says whether one that is at work still is. Both may be NULL.
 * INVAR_E_STATE: a command asked to stop the whole search (exit code 128 and above).
 */
invar_status invar_trial_batch(invar_trial_job *jobs, size_t count,
                               const invar_trial_context *scene,
                               invar_status (*done)(void *payload, invar_trial_job *job),
                               bool (*useful)(void *payload, const invar_trial_job *job),
                               void *payload) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
