/*
 * ab_internal.h - an A/B experiment in the making: its runs, and how they compare. Inside ab only.
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
    invar_ab_result *answer;
    invar_repo *repo; /* NULL: there is none, and none is needed */
    invar_workspace *workshop;
    char *recipes[INVAR_AB_SIDES]; /* their texts */
    size_t recipe_bytes[INVAR_AB_SIDES];
    int lock; /* of the experiment; -1: not yet */
    pthread_mutex_t mutex;
} invar_ab_context;

extern const char *const invar_ab_capitals[INVAR_AB_SIDES]; /* "A", "B" */
extern const char *const invar_ab_letters[INVAR_AB_SIDES];  /* "a", "b" */

/* To the user, from any thread. */
void invar_ab_say(invar_ab_context *work, const char *format, ...) INVAR_PRINTF(2, 3);

/* ---- ab_runs.c ------------------------------------------------------------------------------- */

/* A key that the experiment sets. */
typedef struct invar_ab_varied_key {
    const char *key;
    int64_t value;
} invar_ab_varied_key;

typedef struct invar_ab_run_job {
    int side;
    const invar_ab_pair *pair;
    const char *again;           /* what tells it from the run of the pair; "": it is that */
    invar_ab_varied_key free[2]; /* keys of no effect on bits; without a key: none */
    invar_run_result *ran;
} invar_ab_run_job;

/* As many at a time as the options say. */
invar_status invar_ab_jobs_run(invar_ab_context *work, const invar_ab_run_job *jobs,
                               int64_t count) INVAR_MUST_USE;

/* The answer's place to the op: the pair again, with every point recorded. */
invar_status invar_ab_refine(invar_ab_context *work, const invar_ab_pair *pair) INVAR_MUST_USE;

/* ---- ab_compare.c ---------------------------------------------------------------------------- */

/* The pair's runs against each other. */
invar_status invar_ab_compare_pair(invar_ab_pair *pair) INVAR_MUST_USE;

/* A run of the gate against the same again. */
invar_status invar_ab_compare_gate(invar_aa_check *gate) INVAR_MUST_USE;

/* What the runs of the first pair say differently about themselves. */
invar_status invar_ab_compare_facts(invar_ab_result *answer) INVAR_MUST_USE;

/* All runs into one ledger, and from that the effects. */
invar_status invar_ab_measure(invar_ab_result *answer) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
