/*
 * bisect.h - searches a range of commits for the one that changed the result of a run.
 *
 * Both ends are tested first. The search (search/history.h) then tests commits until one candidate
 * is left, and runs that commit and its parents a second time: a result that does not repeat gives
 * the verdict NONDETERMINISTIC instead of a culprit. Every result is written to the state file
 * (state/state.h) as soon as it is known, so the same call after a kill resumes where it was.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_BISECT_H
#define INVAR_BISECT_BISECT_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/status.h"
#include "bisect/criterion.h"
#include "bisect/divergence.h"
#include "bisect/git/repo.h"

/* Everything that the result of a bisect depends on. Strings are borrowed. */
typedef struct invar_bisect_case {
    const char *repo;       /* folder of the repository */
    const char *good, *bad; /* revisions; object ids inside a running bisect */
    bool first_parent;
    bool all_changes;         /* find every change of the value in the range, not only the first */
    const char *const *paths; /* paths that a commit must touch to be tested; NULL-terminated, or
                                 NULL for all commits */
    const char *const *skip;  /* revisions that are not tested unless they are ends;
                                 NULL-terminated, or NULL */
    invar_criterion question;
    const char *recipe;       /* recipe file; NULL if `run` is set */
    const char *recipe_text;  /* text used instead of the recipe file; NULL to read the file */
    const char *inputs;       /* hash of the files that the recipe names; NULL to hash them as they
                                 are now */
    const char *const *flags; /* recipe keys as words; NULL-terminated, or NULL */
    const char *golden;       /* golden that the good end must agree with, or NULL */
    const char *run;          /* command for sh -c in the tree; NULL to run the recipe */
    const char *build;        /* build command for sh -c in the tree; NULL for the build of Invar if
                                 there is a recipe */
    const char *program;      /* program as in invar_build_plan; NULL for "@invar" if there is a
                                 recipe */
    double timeout;           /* time limit of a build and of a run, in seconds; 0 for no limit */
} invar_bisect_case;

typedef struct invar_bisect_trial {
    char commit[INVAR_OID_SIZE];
    const char *role;              /* "good end", "bad end", "merge base", "search", "again" or
                                      "change" */
    const char *verdict;           /* "good", "bad", "third" or "skip" */
    char value[INVAR_VALUE_SIZE];  /* value of the criterion; empty if the commit cannot be
                                      tested */
    const char *source;            /* "ran", "program" (result of an equal binary) or "tree" (result
                                      of an equal tree) */
    int64_t diverged_at;           /* first step that differs from the good end, or -1 */
    int64_t position;              /* index in the range, 1 for the oldest commit; 0 if outside or
                                      unknown */
    char subject[INVAR_REPO_TEXT]; /* first line of the commit message; only set in a result */
    int exit_code;
    double build_s, run_s;
    char ledger[INVAR_PATH_SIZE]; /* ledger of the run; empty if it has no ledger */
    char failure_reason
        [INVAR_CHILD_REASON_SIZE]; /* why the commit could not be tested, or what a failing
                                            command printed last */
} invar_bisect_trial;

typedef struct invar_bisect_options {
    const char *work;                  /* workspace folder; NULL for the default */
    const char *log;                   /* state file whose trials are imported, or NULL */
    int64_t jobs;                      /* trials at a time, 1 to INVAR_SEARCH_JOBS */
    int64_t threads;                   /* threads of a build */
    const volatile sig_atomic_t *stop; /* the bisect stops if this is nonzero; may be NULL */
    /*
     * Progress callback for the begin and the end of each trial, may be NULL. `left` is the number
     * of candidates and `more` the expected number of trials. With all_changes, `left` is the
     * number of trials planned next, and `more` is 0.
     */
    void (*event)(void *payload, bool ended, const invar_bisect_trial *trial, int64_t left,
                  int64_t more);
    void *payload;
} invar_bisect_options;

typedef enum invar_bisect_verdict {
    INVAR_BISECT_FOUND,
    INVAR_BISECT_CHANGES,          /* all_changes is set: `changes` lists them */
    INVAR_BISECT_SUSPECTS,         /* only commits that cannot be tested are left */
    INVAR_BISECT_NONDETERMINISTIC, /* a commit gave two values */
    INVAR_BISECT_SAME_ENDS,        /* both ends give the same value */
    INVAR_BISECT_WRONG_END,        /* an end does not have the value that the user claims */
    INVAR_BISECT_FIXED,            /* a merge base or other ancestor of the good end is bad, so that
                                      end has a fix that the bad end does not have */
    INVAR_BISECT_UNTESTABLE,       /* an end cannot be built or run */
    INVAR_BISECT_STOPPED           /* stopped by the user; the same command resumes the search */
} invar_bisect_verdict;

/* A commit whose value differs from the value of its parent. */
typedef struct invar_bisect_change {
    invar_repo_commit commit;
    char parent[INVAR_OID_SIZE]; /* parent that the commit was compared with */
    char before[INVAR_VALUE_SIZE], after[INVAR_VALUE_SIZE];
    int depth;                   /* 0 on the line from good to bad; 1 inside a merge of it, and so
                                  on */
    bool merge;                  /* a merge with a value that differs from the values of all its
                                  parents */
    int64_t n_untested_before;   /* untestable commits just before this one; any may be the cause */
    invar_divergence divergence; /* first divergence of the recorded runs */
} invar_bisect_change;

typedef struct invar_bisect_cost {
    int64_t search_trials; /* trials of the search itself, without ends and confirmation */
    /*
     * Numbers of trials: those that built a program, those with source "tree", those with source
     * "ran" and a value, those with source "program", those without a value.
     */
    int64_t built, from_tree, ran, from_program, skipped;
    double build_s, run_s; /* totals of this call and earlier ones */
    double wall_s;         /* seconds of this call */
} invar_bisect_cost;

typedef struct invar_bisect_result {
    invar_bisect_verdict verdict;
    char id[33];                  /* id of this bisect */
    char folder[INVAR_PATH_SIZE]; /* bisects/ID in the workspace */
    char question[INVAR_CRITERION_TEXT];
    char repo[INVAR_PATH_SIZE]; /* folder of the repository */
    char good[INVAR_OID_SIZE], bad[INVAR_OID_SIZE];
    char base[INVAR_OID_SIZE]; /* merge base that was tested; empty if good is an ancestor of bad */
    int64_t range;             /* number of commits between the ends */
    int64_t first_diverging_step; /* first step at which the ends diverge; -1 if unknown or the
                                  criterion is not the chain */

    invar_bisect_change *changes; /* FOUND: one change; CHANGES: all, oldest first */
    size_t n_changes;
    char *patch;                 /* FOUND: the diff of the commit; NULL if unknown */
    bool patch_cut;              /* the patch was truncated */
    invar_repo_commit *suspects; /* SUSPECTS: the newest candidates, at most 64; the last one is
                                    known to be bad */
    size_t n_suspects;
    int64_t all_suspects;                 /* SUSPECTS: number of all candidates, listed or not */
    invar_divergence divergence;          /* FOUND: first divergence, if there are ledgers to
                                             compare */
    bool confirmed;                       /* FOUND: the parents are good, and culprit and parents
                                             gave the same values twice; CHANGES: so did every
                                             change and its parent */
    bool has_third_value;                 /* a value other than those of the ends was seen, so there
                                             is more than one change */
    char commit[INVAR_OID_SIZE];          /* commit that NONDETERMINISTIC, WRONG_END, FIXED or
                                             UNTESTABLE is about; else empty */
    char reason[INVAR_CHILD_REASON_SIZE]; /* explanation of the verdict */

    invar_bisect_trial *trials; /* trials in the order in which they ended */
    size_t n_trials;
    invar_bisect_cost cost;
} invar_bisect_result;

/*
 * Runs a bisect or resumes it. Verdicts are part of *out; the function fails only if the
 * repository, the disk or the arguments are wrong. The caller frees *out with
 * invar_bisect_result_free.
 */
invar_status invar_bisect_run(invar_bisect_result **out, const invar_bisect_case *what,
                              const invar_bisect_options *options) INVAR_MUST_USE;
void invar_bisect_result_free(invar_bisect_result *result); /* `result` may be NULL */

#endif
