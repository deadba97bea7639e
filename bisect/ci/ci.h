/*
 * ci.h - bit-exact CI: runs recipes as test cases and compares them with goldens.
 *     FOLDER/NAME.ini          the recipe of the case
 *     FOLDER/NAME.golden       the expected bits (ledger/view/golden/golden.h)
 *     FOLDER/NAME.points       digests of the points of that run
 *     FOLDER/NAME.golden.new   the bits of now, if they differ: pending until accepted or
 *     FOLDER/NAME.points.new   rejected
 *
 * The program under test runs only as a child process. A case that differs runs once more: a
 * program that does not repeat its own bits is nondeterministic, not changed. The begin of a
 * difference is located by the recorded points, without running the old program.
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

/* ---- cases ----------------------------------------------------------------------------------- */

typedef struct invar_ci_case {
    char name[INVAR_GOLDEN_NAME];
    char recipe[INVAR_PATH_SIZE], golden[INVAR_PATH_SIZE], points[INVAR_PATH_SIZE];
    char new_golden[INVAR_PATH_SIZE], new_points[INVAR_PATH_SIZE];
} invar_ci_case;

/*
 * Builds a case from `word`: the path of a recipe or golden (NAME.ini, NAME.golden[.new]), or a
 * name in `folder`.
 */
invar_status invar_ci_case_of(invar_ci_case *out, const char *folder,
                              const char *word) INVAR_MUST_USE;

/*
 * Lists all cases of a folder, sorted by name: every NAME with a recipe, a golden or a pending
 * golden. The caller frees *out with invar_free.
 */
invar_status invar_ci_cases(invar_ci_case **out, size_t *count_out,
                            const char *folder) INVAR_MUST_USE;

/* Returns true if the case has a pending golden. */
bool invar_ci_pending(const invar_ci_case *item);

/* ---- checking -------------------------------------------------------------------------------- */

typedef enum invar_ci_verdict {
    INVAR_CI_SAME,
    INVAR_CI_CHANGED,
    INVAR_CI_NONDETERMINISTIC,
    INVAR_CI_MISSING,  /* the golden does not exist */
    INVAR_CI_OBSOLETE, /* the golden belongs to another recipe or version, or its recipe was
                          removed */
    INVAR_CI_NOTHING,  /* no step was compared */
    INVAR_CI_TROUBLE,  /* the case could not be run or read; see `reason` */
    INVAR_CI_STOPPED   /* stopped by the user; `reason` is empty */
} invar_ci_verdict;

#define INVAR_CI_REASON_SIZE INVAR_ERROR_MESSAGE_SIZE
#define INVAR_CI_OPS 512
#define INVAR_CI_COMMIT 65 /* size of the longest commit id, with the NUL */

typedef struct invar_ci_result {
    const invar_ci_case *item;
    invar_ci_verdict verdict;
    char reason[INVAR_CI_REASON_SIZE]; /* explanation; empty if the other fields say everything */
    char ops[INVAR_CI_OPS];  /* op revisions that differ, for example "adamw 1 -> 2, ..." */
    int64_t compared, steps; /* steps compared, and steps of the golden */
    int64_t first;           /* first differing step, or -1 */
    int64_t line;            /* line of that step in the golden file; 1 without a difference */
    bool same_identity, only_loss;
    invar_digest chain_was, chain_is; /* chains at `first`; without a difference, at the last
                                         compared step */
    bool has_loss;                    /* both sides have a loss at `first` */
    double loss_was, loss_is;
    invar_golden_divergence divergence;   /* `known` is false without recorded points */
    char headline[INVAR_GOLDEN_HEADLINE]; /* description of the divergence; empty without a
                                             difference */
    char varied[INVAR_CI_REASON_SIZE];    /* variations of the run that differs or failed; empty
                                             without chaos */
    int64_t runs, chaos;                  /* all runs, and chaos runs among them */
    char *variations;                     /* (chaos) lines with the variations of each chaos run, or
                                             NULL; owned */
    bool pending;                         /* NAME.golden.new was written */
    double seconds;
    char commit[INVAR_CI_COMMIT]; /* commit of the program, from the ledger of the run; empty if
                                     unknown */
    char dirty[16];               /* "clean" or the kind of uncommitted changes of the program; may
                                     be empty */
} invar_ci_result;

typedef enum invar_ci_event { INVAR_CI_BEGINS, INVAR_CI_RAN, INVAR_CI_ENDED } invar_ci_event;

typedef struct invar_ci_options {
    const char *program;   /* program file; NULL for the running program */
    const char *generator; /* program name and version, written to new goldens */
    const char *golden;    /* path used instead of NAME.golden, or NULL */
    const char *work;      /* folder for runs; NULL for a temporary one */
    int64_t steps;         /* number of steps to run; 0 for all */
    int64_t chaos;         /* number of chaos runs per case */
    int64_t chaos_seed;
    bool write; /* write pending goldens */
    /*
     * Report a changed identity as CHANGED instead of OBSOLETE: recipe and golden are both inputs
     * of the test.
     */
    bool identity_is_result;
    int64_t jobs;                      /* cases at a time, at least 1 */
    double timeout;                    /* time limit of a run in seconds; 0 for no limit */
    const volatile sig_atomic_t *stop; /* the check stops if this is nonzero; may be NULL */
    /*
     * Progress callback, may be NULL. Any thread calls it, never concurrently. `done` of `total`
     * runs are finished.
     */
    void (*event)(void *payload, invar_ci_event event, const invar_ci_result *result, int64_t done,
                  int64_t total);
    void *payload;
} invar_ci_options;

/*
 * Runs and compares all cases. Problems of single cases are their verdicts; the function fails only
 * if no case can be run. Release the results with invar_ci_release.
 */
invar_status invar_ci_check(invar_ci_result *results, const invar_ci_case *cases, size_t count,
                            const invar_ci_options *options) INVAR_MUST_USE;

/* Frees the memory that the results own, but not the array. */
void invar_ci_release(invar_ci_result *results, size_t count);

/*
 * Runs the case twice, the second time with chaos, and writes its golden if both agree. Uses
 * program, generator, work, steps, chaos_seed, timeout, stop and event of the options. Release *out
 * with invar_ci_release.
 */
invar_status invar_ci_record(invar_ci_result *out, const invar_ci_case *item,
                             const invar_ci_options *options) INVAR_MUST_USE;

/* Returns "same", "changed", "nondeterministic" and so on. */
const char *invar_ci_verdict_name(invar_ci_verdict verdict);

/* ---- accepting ------------------------------------------------------------------------------- */

/*
 * Makes the pending golden the golden of the case and adds a line to its history: author, commit
 * and reason. Returns INVAR_E_NOTFOUND if nothing is pending, and INVAR_E_INVALID without a reason.
 */
invar_status invar_ci_accept(const invar_ci_case *item, const char *reason) INVAR_MUST_USE;

/* Removes the pending files. Returns INVAR_E_NOTFOUND if nothing is pending. */
invar_status invar_ci_reject(const invar_ci_case *item) INVAR_MUST_USE;

/* Compares the pending golden with the current one. *out is like the result of a check. */
invar_status invar_ci_review(invar_ci_result *out, const invar_ci_case *item) INVAR_MUST_USE;

#endif
