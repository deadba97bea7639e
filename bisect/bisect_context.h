/*
 * bisect_context.h - what a bisect holds while it works; shared by the search and by the changelog.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_bisect_context {
    const invar_bisect_case *what; /* as the state has it */
    const invar_bisect_options *options;
    invar_repo *repo;
    invar_workspace *workshop;
    invar_bisect_state *state;
    pthread_mutex_t mutex; /* around the state: workers look programs up in it */
    invar_trial_context scene;
    char recipe[INVAR_PATH_SIZE], golden[INVAR_PATH_SIZE]; /* pinned; "": none */
    char good_value[INVAR_VALUE_SIZE], bad_value[INVAR_VALUE_SIZE];
    struct invar_bisect_cost {
        double build_s, run_s;
    } spent[2]; /* on the ends, good and bad, before their trials: to find where they part */
    invar_bisect_result *answer;
    int64_t left, trials_left; /* for events */
    bool stopped;              /* by the user */
} invar_bisect_context;

/* The trial of a commit that is known; NULL: none. */
const invar_bisect_state_trial *invar_bisect_context_find(const invar_bisect_context *driver,
                                                          const char *commit, int64_t attempt);

/* Named as one that is never to be tested. */
bool invar_bisect_context_skipped(const invar_bisect_context *driver, const char *commit);

/* Tells that a trial begins. */
void invar_bisect_context_begin(const invar_bisect_context *driver, const char *commit,
                                const char *role);

/* The verdict on a value: good, bad, third; skip for "". */
const char *invar_bisect_context_judge(const invar_bisect_context *driver, const char *value);

/* A trial has its result: verdict and parting are added, and the state has it. */
invar_status invar_bisect_context_record(invar_bisect_context *driver,
                                         invar_bisect_state_trial *result,
                                         const char *role) INVAR_MUST_USE;

/*
 * Makes sure that each commit has a trial with this attempt: from the state, from a commit with the
 * same tree, or by running it, options->jobs at a time. driver->stopped says that some are still
 * missing because the user wants to stop. `useful` as in invar_trial_batch.
 */
invar_status invar_bisect_context_test(invar_bisect_context *driver,
                                       const char (*commits)[INVAR_OID_SIZE], size_t count,
                                       int64_t attempt, const char *role,
                                       bool (*useful)(void *payload, const invar_trial_job *job),
                                       void *payload) INVAR_MUST_USE;

/*
 * Runs culprit and parents again and says whether both keep to their values. *who_out names the
 * commit that does not; "": all do.
 */
invar_status invar_bisect_context_repeat(char who_out[INVAR_OID_SIZE], invar_bisect_context *driver,
                                         const char (*commits)[INVAR_OID_SIZE],
                                         size_t count) INVAR_MUST_USE;

/* Where the runs of two commits part; not known when there are no ledgers. */
invar_status invar_bisect_context_place(invar_divergence *out, invar_bisect_context *driver,
                                        const char *before, const char *after,
                                        bool fine) INVAR_MUST_USE;

/* Adds a change to the answer. */
invar_status invar_bisect_context_add_change(invar_bisect_context *driver,
                                             const invar_bisect_change *change) INVAR_MUST_USE;

/* The verdict, the commit it is about ("": none) and why. */
void invar_bisect_set_verdict(invar_bisect_context *driver, invar_bisect_verdict verdict,
                              const char *who, const char *story);

/* ---- the way of a bisect; each leaves the verdict FOUND as long as nothing is in the way ----- */

/* Tests the ends, and the step at which they part where the question is about chains. */
invar_status invar_bisect_test_endpoints(invar_bisect_context *driver) INVAR_MUST_USE;

/* Tests the merge base where good is no ancestor of bad. */
invar_status invar_bisect_test_merge_bases(invar_bisect_context *driver) INVAR_MUST_USE;

/* Searches the first bad commit and runs it and its parents again. */
invar_status invar_bisect_search_first_bad(invar_bisect_context *driver) INVAR_MUST_USE;

/* Every change along the first parents from good to bad, and inside the merges among them. */
invar_status invar_bisect_context_changes(invar_bisect_context *driver) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
