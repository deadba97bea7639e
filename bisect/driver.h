/*
 * driver.h - what a bisect holds while it works; shared by the search and by the changelog.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_DRIVER_H
#define INVAR_BISECT_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "bisect/bisect.h"
#include "bisect/state/state.h"
#include "bisect/trial.h"
#include "bisect/workshop/workshop.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_driver {
    const invar_bisect_case *what; /* as the state has it */
    const invar_bisect_options *options;
    invar_repo *repo;
    invar_workshop *workshop;
    invar_state *state;
    pthread_mutex_t mutex; /* around the state: workers look programs up in it */
    invar_trial_scene scene;
    char recipe[INVAR_PATH_SIZE], golden[INVAR_PATH_SIZE]; /* pinned; "": none */
    char good_value[INVAR_VALUE_SIZE], bad_value[INVAR_VALUE_SIZE];
    struct invar_driver_spent {
        double build_s, run_s;
    } spent[2]; /* on the ends, good and bad, before their trials: to find where they part */
    invar_bisect_answer *answer;
    int64_t left, more; /* for events */
    bool stopped;       /* by the user */
} invar_driver;

/* The trial of a commit that is known; NULL: none. */
const invar_state_trial *invar_driver_find(const invar_driver *driver, const char *commit,
                                           int64_t attempt);

/* Named as one that is never to be tested. */
bool invar_driver_skipped(const invar_driver *driver, const char *commit);

/* Tells that a trial begins. */
void invar_driver_begin(const invar_driver *driver, const char *commit, const char *role);

/* The verdict on a value: good, bad, third; skip for "". */
const char *invar_driver_judge(const invar_driver *driver, const char *value);

/* A trial has its result: verdict and parting are added, and the state has it. */
invar_status invar_driver_record(invar_driver *driver, invar_state_trial *result,
                                 const char *role) INVAR_MUST_USE;

/*
 * Makes sure that each commit has a trial with this attempt: from the state, from a commit with the
 * same tree, or by running it, options->jobs at a time. driver->stopped says that some are still
 * missing because the user wants to stop. `useful` as in invar_trial_batch.
 */
invar_status invar_driver_test(invar_driver *driver, const char (*commits)[INVAR_OID_SIZE],
                               size_t count, int64_t attempt, const char *role,
                               bool (*useful)(void *payload, const invar_trial_job *job),
                               void *payload) INVAR_MUST_USE;

/*
 * Runs culprit and parents again and says whether both keep to their values. *who_out names the
 * commit that does not; "": all do.
 */
invar_status invar_driver_repeat(char who_out[INVAR_OID_SIZE], invar_driver *driver,
                                 const char (*commits)[INVAR_OID_SIZE],
                                 size_t count) INVAR_MUST_USE;

/* Where the runs of two commits part; not known when there are no ledgers. */
invar_status invar_driver_place(invar_place *out, invar_driver *driver, const char *before,
                                const char *after, bool fine) INVAR_MUST_USE;

/* Adds a change to the answer. */
invar_status invar_driver_add_change(invar_driver *driver,
                                     const invar_bisect_change *change) INVAR_MUST_USE;

/* The verdict, the commit it is about ("": none) and why. */
void invar_driver_say(invar_driver *driver, invar_bisect_verdict verdict, const char *who,
                      const char *story);

/* ---- the way of a bisect; each leaves the verdict FOUND as long as nothing is in the way ----- */

/* Tests the ends, and the step at which they part where the question is about chains. */
invar_status invar_driver_ends(invar_driver *driver) INVAR_MUST_USE;

/* Tests the merge base where good is no ancestor of bad. */
invar_status invar_driver_bases(invar_driver *driver) INVAR_MUST_USE;

/* Searches the first bad commit and runs it and its parents again. */
invar_status invar_driver_hunt(invar_driver *driver) INVAR_MUST_USE;

/* Every change along the first parents from good to bad, and inside the merges among them. */
invar_status invar_driver_changes(invar_driver *driver) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
