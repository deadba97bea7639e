/*
 * ci.h - bit-exact CI: recipes as cases, each with a golden beside it, run and compared.
 *
 *     FOLDER/NAME.ini          the recipe: what is run
 *     FOLDER/NAME.golden       what its bits were (ledger/view/golden/golden.h)
 *     FOLDER/NAME.points       more of them
 *     FOLDER/NAME.golden.new   what they are now, where that differs, until somebody accepts or
 *     FOLDER/NAME.points.new   rejects it: pending
 *
 * The program under test runs only as a child process. What differs is run once more: a program
 * whose bits are not its own twice in a row is nondeterministic, not changed. Where the difference
 * begins is told from the recorded points; nothing good is run again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_CI_CI_H
#define INVAR_BISECT_CI_CI_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "ledger/view/golden/golden.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- cases ----------------------------------------------------------------------------------- */

typedef struct invar_ci_case {
    char name[INVAR_GOLDEN_NAME];
    char recipe[INVAR_PATH_SIZE], golden[INVAR_PATH_SIZE], points[INVAR_PATH_SIZE];
    char new_golden[INVAR_PATH_SIZE], new_points[INVAR_PATH_SIZE];
} invar_ci_case;

/* `word` is the path of a recipe or golden (NAME.ini, NAME.golden[.new]), or a name in `folder`. */
invar_status invar_ci_case_of(invar_ci_case *out, const char *folder,
                              const char *word) INVAR_MUST_USE;

/* Every name in the folder that has a golden, a pending one or a recipe, sorted; free *out. */
invar_status invar_ci_cases(invar_ci_case **out, size_t *count_out,
                            const char *folder) INVAR_MUST_USE;

/* True when something waits for review. */
bool invar_ci_pending(const invar_ci_case *item);

/* ---- checking -------------------------------------------------------------------------------- */

typedef enum invar_ci_verdict {
    INVAR_CI_SAME,
    INVAR_CI_CHANGED,
    INVAR_CI_NONDETERMINISTIC,
    INVAR_CI_MISSING,  /* there is no golden */
    INVAR_CI_OBSOLETE, /* the golden is of another recipe, of none or of another version */
    INVAR_CI_NOTHING,  /* not one step was compared */
    INVAR_CI_TROUBLE,  /* it could not be run or read: `story` */
    INVAR_CI_STOPPED   /* by the user; without a story */
} invar_ci_verdict;

#define INVAR_CI_STORY INVAR_ERROR_MESSAGE_SIZE
#define INVAR_CI_OPS 512
#define INVAR_CI_COMMIT 65 /* of the longest hash, with the NUL */

typedef struct invar_ci_result {
    const invar_ci_case *item;
    invar_ci_verdict verdict;
    char reason[INVAR_CI_STORY]; /* why, in words; "" where the rest says it */
    char ops[INVAR_CI_OPS];      /* revisions that differ, "adamw 1 -> 2, ..." */
    int64_t compared, steps;     /* of the golden */
    int64_t first;               /* step that differs; -1: none */
    int64_t line;                /* of the golden file that says that step; 1 without one */
    bool same_identity, only_loss;
    invar_digest chain_was, chain_is; /* at `first`; without one both that of the last compared */
    bool has_loss;                    /* at `first`, on both sides */
    double loss_was, loss_is;
    invar_golden_divergence place;        /* not `known` without recorded points */
    char headline[INVAR_GOLDEN_HEADLINE]; /* of the place; "": there is no difference */
    char varied[INVAR_CI_STORY];          /* what the run that differs had otherwise; "" */
    int64_t runs, chaos;                  /* made in all; of them varied ones */
    char *variations;                     /* (chaos) lines, what each of them had otherwise; NULL */
    bool pending;                         /* NAME.golden.new was written */
    double seconds;
    char commit[INVAR_CI_COMMIT]; /* of the program that ran, by its own ledger; "": not known */
    char dirty[16];               /* "clean", or what its sources had beyond the commit; "" */
} invar_ci_result;

typedef enum invar_ci_event { INVAR_CI_BEGINS, INVAR_CI_RAN, INVAR_CI_ENDED } invar_ci_event;

typedef struct invar_ci_options {
    const char *program;   /* file; NULL: this program itself */
    const char *generator; /* for new goldens */
    const char *golden;    /* instead of NAME.golden; NULL: that */
    const char *work;      /* folder for runs; NULL: a temporary one */
    int64_t steps;         /* only so many; 0: all */
    int64_t chaos;         /* so many varied runs of each case */
    int64_t chaos_seed;
    bool write; /* pending goldens */
    /* Another identity is a change, because recipe and golden are inputs of the test. */
    bool identity_is_result;
    int64_t jobs; /* cases at a time */
    double timeout;
    const volatile sig_atomic_t *stop;
    /* From any thread, one at a time: `done` of `total` runs are made. May be NULL. */
    void (*event)(void *payload, invar_ci_event event, const invar_ci_result *result, int64_t done,
                  int64_t total);
    void *payload;
} invar_ci_options;

/* Fails only where no case can be run; what is wrong with one is its verdict. */
invar_status invar_ci_check(invar_ci_result *results, const invar_ci_case *cases, size_t count,
                            const invar_ci_options *options) INVAR_MUST_USE;

/* What the results hold beyond themselves. */
void invar_ci_release(invar_ci_result *results, size_t count);

/* Runs the case twice, the second time varied, and writes its golden when both agree. */
invar_status invar_ci_record(invar_ci_result *out, const invar_ci_case *item,
                             const invar_ci_options *options) INVAR_MUST_USE;

/* "same", "changed", "nondeterministic", ... */
const char *invar_ci_verdict_name(invar_ci_verdict verdict);

/* ---- accepting ------------------------------------------------------------------------------- */

/*
 * Puts the pending golden into its place, with a line of history: who, at which commit, why.
 * INVAR_E_NOTFOUND: nothing is pending. INVAR_E_INVALID: no reason.
 */
invar_status invar_ci_accept(const invar_ci_case *item, const char *reason) INVAR_MUST_USE;

/* Removes the pending files. INVAR_E_NOTFOUND: nothing is pending. */
invar_status invar_ci_reject(const invar_ci_case *item) INVAR_MUST_USE;

/* The pending golden against the one in force, as a result of a check would say it. */
invar_status invar_ci_review(invar_ci_result *out, const invar_ci_case *item) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
