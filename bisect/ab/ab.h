/*
 * ab.h - two programs on the same recipe, or two recipes, seed by seed: the same bits, or where
 * they part and what that does to the metrics.
 *
 * First A against A: its first seed twice, the second time with other free keys, which must not
 * change a bit. When they do, nothing that A is compared with can be trusted, and the experiment is
 * refused. When A and B differ, B is asked the same before it is said. Everything else is made from
 * the ledgers of the runs, which are kept: the same call again, also after a kill, makes only what
 * is missing.
 *
 *     WORKSHOP/experiments/ID/   ID = hash of programs, recipes, flags and steps
 *       a/NAME, b/NAME           the recipe, pinned
 *       ab.db                    the runs of all seeds in one ledger
 *       lock
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

#ifdef __cplusplus
extern "C" {
#endif

enum { INVAR_AB_A, INVAR_AB_B, INVAR_AB_SIDES };

/* What is asked, in full. Strings are borrowed. */
typedef struct invar_ab_case {
    const char *repo; /* folder; only needed for revisions */
    /*
     * A folder, an executable file, or else a revision of the repository. "rev:", "dir:" and
     * "file:" before it say which.
     */
    const char *sides[INVAR_AB_SIDES];
    const char *recipe;   /* file; with own_recipe relative to the root of each side's tree */
    const char *recipe_b; /* another one for side B, whose seeds are still A's; NULL: the same */
    bool own_recipe;      /* each side runs the recipe that its own tree has */
    const char *const *flags; /* keys of the recipe, as words; ended by NULL; NULL: none */
    const char *build;        /* for sh -c in the tree; NULL: that of Invar */
    const char *program;      /* that the build makes; NULL: "@invar" */
    int64_t seeds;            /* 1 to INVAR_AB_SEEDS */
    int64_t steps;            /* of each run; 0: all of the recipe */
    double timeout;           /* of a build and of a run, seconds; 0: none */
} invar_ab_case;

typedef struct invar_ab_options {
    const char *work; /* folder of the workshop; NULL: the usual place */
    int64_t jobs;     /* runs at a time */
    int64_t threads;  /* of builds */
    const volatile sig_atomic_t *stop;
    void (*say)(void *payload, const char *line); /* what is being done; one at a time; or NULL */
    void *payload;
} invar_ab_options;

typedef enum invar_ab_verdict {
    INVAR_AB_IDENTICAL,
    INVAR_AB_DIFFERENT,
    INVAR_AB_NONDETERMINISTIC, /* a side does not repeat itself: `who` */
    INVAR_AB_UNTESTABLE,       /* a side cannot be built or run: `who` */
    INVAR_AB_STOPPED           /* by the user; the same call goes on */
} invar_ab_verdict;

typedef enum invar_ab_kind { INVAR_AB_COMMIT, INVAR_AB_FOLDER, INVAR_AB_FILE } invar_ab_kind;

typedef struct invar_ab_side {
    invar_ab_kind kind;
    char given[INVAR_PATH_SIZE]; /* as it was named, less the prefix */
    invar_repo_commit commit;    /* of a revision */
    invar_revision_build built;
    char named[INVAR_PATH_SIZE];  /* its recipe as it was named; "": that of both */
    char recipe[INVAR_PATH_SIZE]; /* the pinned one */
    double seconds;               /* of the runs of all seeds */
    int64_t peak_bytes;           /* of memory, the largest of them */
    int64_t cached;               /* runs that were there already, with their times */
} invar_ab_side;

/* One side, run again. */
typedef struct invar_aa_check {
    bool ran;
    bool same;
    bool varied;           /* with other free keys; else the program refused those */
    char varied_keys[128]; /* "threads 1, micro-batch-size 2" */
    int64_t seed, steps;
    char headline[INVAR_DIFF_HEADLINE_SIZE];
    char ledger[INVAR_PATH_SIZE], second_ledger[INVAR_PATH_SIZE];
} invar_aa_check;

typedef struct invar_ab_pair {
    int64_t seed, rollout_seed;
    invar_run_result ran[INVAR_AB_SIDES];
    bool compared, same;
    int64_t steps; /* that both have */
    int64_t only[INVAR_AB_SIDES];
    bool parted;
    int64_t first; /* the first divergent step, when parted */
    char headline[INVAR_DIFF_HEADLINE_SIZE];
} invar_ab_pair;

#define INVAR_AB_FACTS 64
#define INVAR_AB_VALUE 160

/* What the runs of the first seed say differently about themselves; identity first. */
typedef struct invar_ab_fact {
    bool is_key; /* of a recipe */
    char scope[INVAR_AB_VALUE], key[INVAR_AB_VALUE];
    char values[INVAR_AB_SIDES][INVAR_AB_VALUE]; /* cut where long; "": not there */
} invar_ab_fact;

typedef struct invar_ab_result {
    invar_ab_verdict verdict;
    char id[INVAR_DIGEST_HEX_SIZE];
    char folder[INVAR_PATH_SIZE];        /* experiments/ID; "": it did not come so far */
    int side;                            /* NONDETERMINISTIC, UNTESTABLE: the side */
    char story[INVAR_CHILD_REASON_SIZE]; /* UNTESTABLE: why */
    char log[INVAR_PATH_SIZE];           /* UNTESTABLE: what it printed */
    invar_ab_side sides[INVAR_AB_SIDES];
    invar_aa_check gates[INVAR_AB_SIDES];
    invar_ab_pair *pairs; /* (n_pairs) one a seed */
    size_t n_pairs;
    int64_t n_different;    /* of the pairs */
    invar_divergence place; /* DIFFERENT: the earliest; not known of two models */
    bool two_models;        /* the recipes ask for models of other shapes */
    invar_ab_fact facts[INVAR_AB_FACTS];
    size_t n_facts;
    int64_t all_facts;            /* that differ */
    char ledger[INVAR_PATH_SIZE]; /* ab.db; "": not made */
    invar_ab_effects effects;
} invar_ab_result;

/* Fails only when something outside the question is wrong: usage, repository, disk. */
invar_status invar_ab_run(invar_ab_result **out, const invar_ab_case *what,
                          const invar_ab_options *options) INVAR_MUST_USE;
void invar_ab_result_free(invar_ab_result *answer); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
