/*
 * ab.h - A/B experiment: two programs on one recipe, or two recipes, compared over several seeds.
 *
 * Side A is first checked against itself: its first seed runs twice, the second time with other
 * free keys, which must not change a bit. If they do, no comparison with A means anything, and the
 * experiment ends as nondeterministic. If A and B differ, B is checked the same way before the
 * difference is reported. Everything else is computed from the ledgers of the runs, which are kept:
 * the same call again, also after a kill, runs only what is missing.
 *     WORKSPACE/experiments/ID/   ID = hash of programs, recipes, flags and steps
 *       a/NAME, b/NAME            pinned recipes
 *       ab.db                     ledger with the runs of all seeds
 *       lock                      held by the process that runs the experiment
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_AB_AB_H
#define INVAR_BISECT_AB_AB_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "bisect/ab/ab_effect.h"
#include "bisect/divergence.h"
#include "bisect/git/repo.h"
#include "bisect/workspace/workspace.h"
#include "ledger/view/diff/diff.h"

enum { INVAR_AB_A, INVAR_AB_B, INVAR_AB_SIDES };

/* Everything that the result of an experiment depends on. Strings are borrowed. */
typedef struct invar_ab_case {
    const char *repo; /* folder of the repository; only needed for revisions */
    /*
     * A folder, an executable file, or else a revision of the repository. The prefixes "rev:",
     * "dir:" and "file:" select one of these.
     */
    const char *sides[INVAR_AB_SIDES];
    const char *recipe;       /* recipe file; relative to the root of each side's tree if own_recipe
                                 is set */
    const char *recipe_b;     /* recipe of side B, which still runs on the seeds of A; NULL for
                                 `recipe` */
    bool own_recipe;          /* each side runs the recipe of its own tree */
    const char *const *flags; /* recipe keys as words; NULL-terminated, or NULL */
    const char *build;        /* build command for sh -c in the tree; NULL for the build of Invar */
    const char *program;      /* program that the build makes; NULL for "@invar" */
    int64_t seeds;            /* number of seeds, 1 to INVAR_AB_SEEDS */
    int64_t steps;            /* steps of each run; 0 for all steps of the recipe */
    double timeout;           /* time limit of a build and of a run, in seconds; 0 for no limit */
} invar_ab_case;

typedef struct invar_ab_options {
    const char *work; /* workspace folder; NULL for the default */
    int64_t jobs;     /* runs at a time */
    int64_t threads;  /* threads of a build */
    const volatile sig_atomic_t *stop;
    void (*say)(void *payload, const char *line); /* progress callback, never called concurrently;
                                                     may be NULL */
    void *payload;
} invar_ab_options;

typedef enum invar_ab_verdict {
    INVAR_AB_IDENTICAL,
    INVAR_AB_DIFFERENT,
    INVAR_AB_NONDETERMINISTIC, /* `side` does not repeat itself */
    INVAR_AB_UNTESTABLE,       /* `side` cannot be built or run */
    INVAR_AB_STOPPED           /* stopped by the user; the same call resumes the experiment */
} invar_ab_verdict;

typedef enum invar_ab_kind { INVAR_AB_COMMIT, INVAR_AB_FOLDER, INVAR_AB_FILE } invar_ab_kind;

typedef struct invar_ab_side {
    invar_ab_kind kind;
    char given[INVAR_PATH_SIZE]; /* text of the user without the prefix */
    invar_repo_commit commit;    /* commit, if the side is a revision */
    invar_revision_build built;
    char
        recipe_path[INVAR_PATH_SIZE]; /* path of the recipe as the user gave it; empty if both sides
                                     share one */
    char recipe[INVAR_PATH_SIZE];     /* path of the pinned copy */
    double seconds;                   /* total time of the runs of all seeds */
    int64_t peak_bytes;               /* largest peak memory of a run */
    int64_t cached;                   /* runs that came from the cache, with their recorded times */
} invar_ab_side;

/* Result of running one side twice (A/A check). */
typedef struct invar_aa_check {
    bool ran;
    bool same;
    bool varied;           /* the second run had other free keys; false if the program rejected
                              them */
    char varied_keys[128]; /* text such as "threads 1, micro-batch-size 2" */
    int64_t seed, steps;
    char headline[INVAR_DIFF_HEADLINE_SIZE];
    char ledger[INVAR_PATH_SIZE], second_ledger[INVAR_PATH_SIZE];
} invar_aa_check;

typedef struct invar_ab_pair {
    int64_t seed, rollout_seed;
    invar_run_result ran[INVAR_AB_SIDES];
    bool compared, same;          /* both runs were compared, and are equal in all steps of both */
    int64_t steps;                /* number of common steps */
    int64_t only[INVAR_AB_SIDES]; /* number of steps that only this side has */
    bool diverged;
    int64_t first; /* first divergent step, if `diverged` */
    char headline[INVAR_DIFF_HEADLINE_SIZE];
} invar_ab_pair;

#define INVAR_AB_FACTS 64
#define INVAR_AB_VALUE 160

/* A fact that differs between the runs of the first seed. Identity facts come first. */
typedef struct invar_ab_fact {
    bool is_key; /* the fact is a recipe key */
    char scope[INVAR_AB_VALUE], key[INVAR_AB_VALUE];
    char values[INVAR_AB_SIDES][INVAR_AB_VALUE]; /* values, truncated if long; empty if absent */
} invar_ab_fact;

typedef struct invar_ab_result {
    invar_ab_verdict verdict;
    char id[INVAR_DIGEST_HEX_SIZE];
    char folder[INVAR_PATH_SIZE]; /* experiments/ID; empty if the experiment ended before it
                                            was created */
    int side;                     /* side that NONDETERMINISTIC or UNTESTABLE is about */
    char failure_reason[INVAR_CHILD_REASON_SIZE]; /* UNTESTABLE: the reason */
    char log[INVAR_PATH_SIZE];                    /* UNTESTABLE: log of the failed build or run */
    invar_ab_side sides[INVAR_AB_SIDES];
    invar_aa_check aa_checks[INVAR_AB_SIDES];
    invar_ab_pair *pairs; /* (n_pairs) one per seed */
    size_t n_pairs;
    int64_t n_different;         /* number of differing pairs */
    invar_divergence divergence; /* DIFFERENT: earliest divergence; unknown if two_models */
    bool two_models;             /* the recipes describe models of different shapes */
    invar_ab_fact facts[INVAR_AB_FACTS];
    size_t n_facts;
    int64_t all_facts;            /* number of differing facts, listed or not */
    char ledger[INVAR_PATH_SIZE]; /* path of ab.db; empty if it was not written */
    invar_ab_effects effects;
} invar_ab_result;

/*
 * Runs an experiment or resumes it. Verdicts are part of *out; the function fails only if the
 * arguments, the repository or the disk are wrong. The caller frees *out with invar_ab_result_free.
 */
invar_status invar_ab_run(invar_ab_result **out, const invar_ab_case *what,
                          const invar_ab_options *options) INVAR_MUST_USE;
void invar_ab_result_free(invar_ab_result *result); /* `result` may be NULL */

#endif
