/*
 * history.h - commit history as plain data, and the bisection search on it.
 *
 * A history is the list of commits between good and bad, parents before children. It does not
 * depend on git. A search marks commits as good, bad or skipped and returns the commits to test
 * next: first the one whose number of candidate ancestors is nearest to half of the candidates. A
 * candidate is the bad commit or an ancestor of it that is not an ancestor of a good commit.
 *
 * Ties between equally near commits, and the choice around skipped commits, follow git bisect, so
 * that both tools test the same commits (docs/bisect.md, "Algorithm"). They depend only on the
 * graph, the dates and the ids, not on positions in the arrays.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_SEARCH_HISTORY_H
#define INVAR_BISECT_SEARCH_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define INVAR_OID_SIZE 41 /* 40 hexadecimal digits and a terminating NUL */

typedef struct invar_history_commit {
    char id[INVAR_OID_SIZE];
    bool relevant;  /* touches the paths of the case; commits that do not are never tested */
    int32_t parent; /* index of the first of n_parents entries in invar_history.parents */
    int32_t n_parents;
    int64_t date; /* committer date in Unix seconds; breaks ties between equally near commits */
} invar_history_commit;

/*
 * Commits of a range. Parents outside the range are omitted; the others keep the order of the
 * commit. The last commit is the bad end. The struct and both arrays are allocated with
 * invar_alloc.
 */
typedef struct invar_history {
    invar_history_commit *commits; /* (count) parents before children */
    int32_t count;
    int32_t *parents; /* (n_links) indices into commits */
    int32_t n_links;  /* length of parents */
} invar_history;

void invar_history_free(invar_history *history); /* `history` may be NULL */

/* Returns the index of a commit, or -1 if it is not in the range. */
int32_t invar_history_find(const invar_history *history, const char *id);

/* ---- the search ------------------------------------------------------------------------------ */

typedef enum invar_commit_mark {
    INVAR_COMMIT_MARK_NONE,
    INVAR_COMMIT_MARK_GOOD,
    INVAR_COMMIT_MARK_BAD,
    INVAR_COMMIT_MARK_SKIP
} invar_commit_mark;

typedef struct invar_search invar_search;

/*
 * Begins a search with the last commit marked bad. Borrows the history. The caller frees *out with
 * invar_search_free.
 */
invar_status invar_search_new(invar_search **out, const invar_history *history) INVAR_MUST_USE;
void invar_search_free(invar_search *search);

/*
 * Applies a known mark at once. A bad mark has no effect unless the commit is still a candidate.
 * Returns INVAR_E_MISMATCH if a good commit would get a bad ancestor that was tested.
 */
invar_status invar_search_mark(invar_search *search, int32_t commit,
                               invar_commit_mark mark) INVAR_MUST_USE;

/*
 * Adds the result of a trial, which is applied when the search reaches that commit, possibly now.
 * The outcome is therefore that of one trial at a time, regardless of how many trials run in
 * parallel and which ends first, even if good and bad alternate in the history. A result has no
 * effect unless the commit is still a candidate. Returns INVAR_E_MISMATCH if the commit has a
 * different result already.
 */
invar_status invar_search_add_result(invar_search *search, int32_t commit,
                                     invar_commit_mark mark) INVAR_MUST_USE;

#define INVAR_SEARCH_JOBS 64

typedef enum invar_search_state {
    INVAR_SEARCH_TEST,    /* test `commits`, the most useful first */
    INVAR_SEARCH_FOUND,   /* commits[0] is the first bad commit */
    INVAR_SEARCH_SUSPECTS /* only skipped commits are left; one of the suspects is the first bad
                             commit */
} invar_search_state;

typedef struct invar_search_next {
    invar_search_state state;
    int32_t commits[INVAR_SEARCH_JOBS];
    int32_t count;
    int32_t candidates; /* number of relevant candidates */
    int32_t trials;     /* expected number of further trials, one at a time */
} invar_search_next;

/*
 * Chooses up to `jobs` (1 to INVAR_SEARCH_JOBS) commits to test at the same time: the midpoint,
 * then the midpoints that follow if it is bad and if it is good, and so on. Commits with a result
 * are never chosen. Returns INVAR_E_NOTFOUND if no relevant commit is a candidate.
 */
invar_status invar_search_next_commits(invar_search_next *out, const invar_search *search,
                                       int32_t jobs) INVAR_MUST_USE;

/* Returns true if the commit is a candidate without mark or result, so that a trial is useful. */
bool invar_search_useful(const invar_search *search, int32_t commit);

/* Lists the remaining relevant candidates by index. The caller frees *out with invar_free. */
invar_status invar_search_suspects(int32_t **out, int32_t *count_out,
                                   const invar_search *search) INVAR_MUST_USE;

#endif
