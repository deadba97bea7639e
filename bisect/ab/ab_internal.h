/*
 * ab_internal.h - context of a running A/B experiment, its sides, runs and comparisons.
 *
 * Private to bisect/ab. The calling thread owns the context; jobs run on worker threads, read it
 * and write only their own result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_AB_AB_INTERNAL_H
#define INVAR_BISECT_AB_AB_INTERNAL_H

#include <pthread.h>

#include "bisect/ab/ab.h"

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

/* Compares both runs of a pair, and collects the facts that differ unless `facts` is NULL. */
invar_status invar_ab_compare_pair(invar_ab_pair *pair, invar_ab_result *facts) INVAR_MUST_USE;

/* Compares both runs of an A/A check. */
invar_status invar_ab_compare_aa_check(invar_aa_check *check) INVAR_MUST_USE;

/* Merges all runs into ab.db and computes the effects from it. */
invar_status invar_ab_measure(invar_ab_result *result) INVAR_MUST_USE;

/* ---- ab_side.c ------------------------------------------------------------------------------- */

/* Sets kind and given from the text. Reads the file system, but not the repository. */
invar_status invar_ab_side_read(invar_ab_side *out, const char *text) INVAR_MUST_USE;

/*
 * Resolves the commit of a revision; does nothing for other kinds. Returns INVAR_E_INVALID if the
 * revision does not exist.
 */
invar_status invar_ab_side_resolve(invar_ab_side *side, invar_repo *repo) INVAR_MUST_USE;

/* Builds the program of the side and stores the result in side->built. */
invar_status invar_ab_side_build(invar_ab_side *side, invar_workspace *workspace,
                                 invar_worktree *worktree, invar_repo *repo,
                                 const invar_ab_case *what,
                                 const invar_ab_options *options) INVAR_MUST_USE;

/* Returns the recipe path that the case gives for a side, INVAR_AB_A or INVAR_AB_B. */
const char *invar_ab_side_names(const invar_ab_case *what, int side);

/*
 * Reads the flattened recipe text from `path`, in the side's own tree if own_recipe is set. The
 * caller frees *out with invar_free.
 */
invar_status invar_ab_side_recipe(char **out, size_t *bytes_out, const invar_ab_side *side,
                                  const char *path, bool own_recipe, invar_worktree *worktree,
                                  invar_repo *repo) INVAR_MUST_USE;

/*
 * Reads the value of a key, from the flags or else from the recipe text: an integer of at least 0.
 * *out is `fallback` if the key is absent.
 */
invar_status invar_ab_number(int64_t *out, const char *const *flags, const char *recipe,
                             const char *key, int64_t fallback) INVAR_MUST_USE;

#endif
