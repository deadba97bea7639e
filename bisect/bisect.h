/*
 * bisect.h - which commit changed the answer.
 *
 * The ends are tested first, then the search (history.h) goes on until one commit is left, and that
 * commit and its parents are run again: an answer that does not repeat is "nondeterministic" and
 * not a culprit. Everything that was found out is in the state file the moment it is known; the
 * same call after a kill goes on from there.
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

#ifdef __cplusplus
extern "C" {
#endif

/* What is asked, in full: everything that an answer depends on. Strings are borrowed. */
typedef struct invar_bisect_case {
    const char *repo;       /* folder */
    const char *good, *bad; /* revisions; later ids */
    bool first_parent;
    bool all_changes;         /* every change of the value in the range, not only the first */
    const char *const *paths; /* ended by NULL; NULL: all */
    const char *const *skip;  /* revisions not to be tested, unless ends; ended by NULL, or NULL */
    invar_criterion question;
    const char *recipe;       /* file; NULL with a command */
    const char *recipe_text;  /* instead of the file's; NULL: the file is read */
    const char *inputs;       /* names the files that the recipe names; NULL: as they are now */
    const char *const *flags; /* keys of the recipe, as words; ended by NULL; NULL: none */
    const char *golden;       /* file that the good end must agree with; NULL: none */
    const char *run;          /* for sh -c in the tree; NULL: the recipe */
    const char *build;        /* for sh -c in the tree; NULL: with a recipe that of Invar */
    const char *program;      /* as invar_build_plan; NULL: with a recipe "@invar" */
    double timeout;           /* of a build and of a run, seconds */
} invar_bisect_case;

typedef enum invar_bisect_event_kind {
    INVAR_BISECT_EVENT_BEGIN, /* a trial begins */
    INVAR_BISECT_EVENT_END    /* a trial has ended */
} invar_bisect_event_kind;

typedef struct invar_bisect_trial {
    char commit[INVAR_OID_SIZE];
    const char *role;              /* "good end", "bad end", "merge base", "search", "again" ... */
    const char *verdict;           /* good bad third skip */
    char value[INVAR_VALUE_SIZE];  /* "": untestable */
    const char *source;            /* ran, program (equal binary), tree (equal tree) */
    int64_t diverged_at;           /* first step that differs from the good end's; -1: none */
    int64_t position;              /* in the range, 1 its oldest commit; 0: outside, or not known */
    char subject[INVAR_REPO_TEXT]; /* of the commit; only in an answer */
    int exit_code;
    double build_s, run_s;
    char ledger[INVAR_PATH_SIZE];        /* of its run; "": none */
    char story[INVAR_CHILD_REASON_SIZE]; /* why it could not be tested */
} invar_bisect_trial;

typedef struct invar_bisect_options {
    const char *work; /* folder of the workshop; NULL: the usual place */
    const char *log;  /* a state file whose trials are taken over; NULL: none */
    int64_t jobs;     /* trials at a time */
    int64_t threads;  /* of builds */
    const volatile sig_atomic_t *stop;
    /* `left` candidates, about `more` trials. May be NULL. */
    void (*event)(void *payload, invar_bisect_event_kind kind, const invar_bisect_trial *trial,
                  int64_t left, int64_t more);
    void *payload;
} invar_bisect_options;

typedef enum invar_bisect_verdict {
    INVAR_BISECT_FOUND,
    INVAR_BISECT_CHANGES,          /* of all_changes: the list */
    INVAR_BISECT_SUSPECTS,         /* only untestable commits are left */
    INVAR_BISECT_NONDETERMINISTIC, /* a commit answered in two ways */
    INVAR_BISECT_SAME_ENDS,        /* both ends give the same value */
    INVAR_BISECT_WRONG_END,        /* an end is not what it was said to be */
    INVAR_BISECT_FIXED,      /* good is no ancestor; their merge base is bad: good has a fix */
    INVAR_BISECT_UNTESTABLE, /* an end cannot be built or run */
    INVAR_BISECT_STOPPED     /* by the user; the same command goes on */
} invar_bisect_verdict;

/* A commit whose value is another than that of its parents. */
typedef struct invar_bisect_change {
    invar_repo_commit commit;
    char parent[INVAR_OID_SIZE]; /* that it was compared with */
    char before[INVAR_VALUE_SIZE], after[INVAR_VALUE_SIZE];
    int depth;                 /* 0: on the way from good to bad; 1: inside a merge of it ... */
    bool merge;                /* a merge whose value no parent has */
    int64_t n_untested_before; /* commits that could not be tested, so that it may be one of them */
    invar_divergence place;    /* of all_changes: where, from the runs that were made */
} invar_bisect_change;

typedef struct invar_bisect_result {
    invar_bisect_verdict verdict;
    char id[33];                  /* of this bisect: bisects/ID in the workshop */
    char folder[INVAR_PATH_SIZE]; /* bisects/ID */
    char question[INVAR_CRITERION_TEXT];
    char repo[INVAR_PATH_SIZE]; /* folder */
    char good[INVAR_OID_SIZE], bad[INVAR_OID_SIZE];
    char base[INVAR_OID_SIZE]; /* merge base that was tested; "": good is an ancestor of bad */
    int64_t range;             /* commits between the ends */
    int64_t first_parted;      /* step at which the ends part; -1: not a question of steps */

    invar_bisect_change *changes; /* FOUND: one; CHANGES: all, oldest first */
    size_t n_changes;
    char *patch;                 /* FOUND: what the commit changes; NULL: not known */
    bool patch_cut;              /* there is more of it */
    invar_repo_commit *suspects; /* SUSPECTS: at most 64 of them, the last is the first bad one */
    size_t n_suspects;
    int64_t all_suspects;
    invar_divergence place;      /* FOUND, when there are ledgers to compare */
    bool confirmed;              /* FOUND: culprit and parents gave the same again */
    bool has_third_value;        /* a value that is neither end's was seen: more than one change */
    char commit[INVAR_OID_SIZE]; /* NONDETERMINISTIC, WRONG_END, UNTESTABLE: the commit */
    char reason[INVAR_CHILD_REASON_SIZE]; /* why, in words */

    invar_bisect_trial *trials; /* in order */
    size_t n_trials;
    int64_t search_trials; /* of them: those of the search itself */
    int64_t built, from_tree, ran, from_program, skipped;
    double build_s, run_s; /* of this and of earlier calls */
    double wall_s;         /* of this call */
} invar_bisect_result;

/* Fails only when something outside the question is wrong: repository, disk, usage. */
invar_status invar_bisect_run(invar_bisect_result **out, const invar_bisect_case *what,
                              const invar_bisect_options *options) INVAR_MUST_USE;
void invar_bisect_result_free(invar_bisect_result *answer); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
