/*
 * ab_internal.h - context of a running A/B experiment, its runs and comparisons. Private to
 * bisect/ab.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_AB_AB_INTERNAL_H
#define INVAR_BISECT_AB_AB_INTERNAL_H

#include <pthread.h>

#include "bisect/ab/ab.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_ab_context {
    const invar_ab_case *what;
    const invar_ab_options *options;
    invar_ab_result *result;
    invar_repo *repo; /* NULL if there is no repository and no side needs one */
    invar_workspace *workspace;
    char *recipes[INVAR_AB_SIDES]; /* texts of the pinned recipes; owned */
    size_t recipe_bytes[INVAR_AB_SIDES];
    int lock;              /* descriptor of the experiment's lock file; -1 if not locked */
    pthread_mutex_t mutex; /* serializes calls of options->say */
} invar_ab_context;

extern const char *const invar_ab_capitals[INVAR_AB_SIDES]; /* "A", "B" */
extern const char *const invar_ab_letters[INVAR_AB_SIDES];  /* "a", "b" */

/* Prints a progress line through options->say. Any thread may call it. */
void invar_ab_say(invar_ab_context *context, const char *format, ...) INVAR_PRINTF(2, 3);

/* ---- ab_runs.c ------------------------------------------------------------------------------- */

/* A recipe key whose value the experiment sets. */
typedef struct invar_ab_varied_key {
    const char *key;
    int64_t value;
} invar_ab_varied_key;

typedef struct invar_ab_run_job {
    int side;
    const invar_ab_pair *pair;
    const char *again;           /* suffix that distinguishes a further run of the pair, such as
                                    "-again"; empty for the first run */
    invar_ab_varied_key free[2]; /* free keys with varied values; unused entries have a NULL key */
    invar_run_result *ran;
} invar_ab_run_job;

/* Runs the jobs, options->jobs at a time. */
invar_status invar_ab_jobs_run(invar_ab_context *context, const invar_ab_run_job *jobs,
                               int64_t count) INVAR_MUST_USE;

/* Refines the divergence of the result to the op: runs the pair again with every point recorded. */
invar_status invar_ab_refine(invar_ab_context *context, const invar_ab_pair *pair) INVAR_MUST_USE;

/* ---- ab_compare.c ---------------------------------------------------------------------------- */

/* Compares both runs of a pair. */
invar_status invar_ab_compare_pair(invar_ab_pair *pair) INVAR_MUST_USE;

/* Compares both runs of an A/A check. */
invar_status invar_ab_compare_aa_check(invar_aa_check *check) INVAR_MUST_USE;

/* Collects the facts that differ between both runs of the first pair. */
invar_status invar_ab_compare_facts(invar_ab_result *result) INVAR_MUST_USE;

/* Merges all runs into ab.db and computes the effects from it. */
invar_status invar_ab_measure(invar_ab_result *result) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
