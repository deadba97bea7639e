/*
 * bisect_context.h - state of a running bisect, shared by endpoints, search and list of changes.
 *
 * invar_bisect_run fills the context; each stage below reads and extends it. The calling thread
 * owns it. Trials run on worker threads and only read `trial_context`; through its callback
 * find_known_result they read the trials in `state`, and therefore invar_bisect_context_record
 * holds `mutex` while it adds one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_BISECT_CONTEXT_H
#define INVAR_BISECT_BISECT_CONTEXT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "bisect/bisect.h"
#include "bisect/state/state.h"
#include "bisect/trial.h"
#include "bisect/workspace/workspace.h"

typedef struct invar_bisect_context {
    const invar_bisect_case *what; /* case as the state file has it */
    const invar_bisect_options *options;
    invar_repo *repo;
    invar_workspace *workspace;
    invar_bisect_state *state;
    pthread_mutex_t mutex; /* guards `state`, in which worker threads look up known programs */
    invar_trial_context trial_context;
    char recipe[INVAR_PATH_SIZE],
        golden[INVAR_PATH_SIZE]; /* paths of the pinned copies, or empty */
    char good_value[INVAR_VALUE_SIZE], bad_value[INVAR_VALUE_SIZE];
    struct {
        double build_s, run_s;
    } spent[2]; /* seconds spent on finding the diverging step, for the good and the bad end; added
                   to the trials of the ends */
    invar_bisect_result *result;
    const char *role; /* role of the trials that run */
    /* Returns false to stop a trial that cannot change the search any more; NULL outside of it. */
    bool (*useful)(void *search, const invar_trial_job *job);
    void *search;
    int64_t left, trials_left; /* numbers that the event callback reports */
    bool stopped;              /* stopped by the user */
} invar_bisect_context;

/* Returns true if the user excluded the commit from testing. */
bool invar_bisect_context_skipped(const invar_bisect_context *context, const char *commit);

/* Reports the begin of a trial to the event callback. */
void invar_bisect_context_begin(const invar_bisect_context *context, const char *commit,
                                const char *role);

/* Returns the verdict on a value: "good", "bad" or "third"; "skip" for an empty value. */
const char *invar_bisect_context_verdict(const invar_bisect_context *context, const char *value);

/* Adds verdict and first diverging step to a result and appends it to the state file. */
invar_status invar_bisect_context_record(invar_bisect_context *context,
                                         invar_bisect_state_trial *result,
                                         const char *role) INVAR_MUST_USE;

/*
 * Ensures that each commit has a trial with this attempt number: from the state, from a commit with
 * the same tree, or by running it, options->jobs at a time. If context->stopped is set afterwards,
 * trials are missing because the user stopped the bisect.
 */
invar_status invar_bisect_context_test(invar_bisect_context *context,
                                       const char (*commits)[INVAR_OID_SIZE], size_t count,
                                       int64_t attempt, const char *role) INVAR_MUST_USE;

/*
 * Runs each commit a second time and compares the values. *who_out is the first commit whose value
 * differs, or empty if all values repeat.
 */
invar_status invar_bisect_context_repeat(char who_out[INVAR_OID_SIZE],
                                         invar_bisect_context *context,
                                         const char (*commits)[INVAR_OID_SIZE],
                                         size_t count) INVAR_MUST_USE;

/*
 * Finds the first divergence between the runs of two commits, which run again with every point
 * recorded. out->known is false if they have no ledgers.
 */
invar_status invar_bisect_context_find_divergence(invar_divergence *out,
                                                  invar_bisect_context *context, const char *before,
                                                  const char *after) INVAR_MUST_USE;

/* Appends a change to the result. */
invar_status invar_bisect_context_add_change(invar_bisect_context *context,
                                             const invar_bisect_change *change) INVAR_MUST_USE;

/* Sets the verdict, the commit that it is about (may be empty) and the reason. */
void invar_bisect_set_verdict(invar_bisect_context *context, invar_bisect_verdict verdict,
                              const char *commit, const char *reason);

/* ---- stages; each leaves the verdict FOUND unless it ends the bisect ------------------------- */

/* Tests both ends. If the criterion is the chain, first finds the step at which they diverge. */
invar_status invar_bisect_test_endpoints(invar_bisect_context *context) INVAR_MUST_USE;

/* Tests the merge bases if good is not an ancestor of bad. */
invar_status invar_bisect_test_merge_bases(invar_bisect_context *context) INVAR_MUST_USE;

/* Searches for the first bad commit and runs it and its parents again. */
invar_status invar_bisect_search_first_bad(invar_bisect_context *context) INVAR_MUST_USE;

/*
 * Lists every change of the value on the first-parent line from good to bad, and inside its merges.
 */
invar_status invar_bisect_context_changes(invar_bisect_context *context) INVAR_MUST_USE;

#endif
