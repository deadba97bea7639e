/*
 * history.h - commits as plain data, and the search among them.
 *
 * A history is the commits between good and bad, parents before children; it knows nothing of git.
 * A search marks commits good, bad or skipped and says which to test next: the one whose number of
 * candidate ancestors is nearest to half of the candidates. A candidate is an ancestor of (or is)
 * the bad commit and no ancestor of a good one.
 *
 * Which of several equally near commits, and what to do about skipped ones, is as in git, so that
 * both tools test the same commits: docs/bisect.md, "Algorithm". It depends on the graph, the dates
 * and the ids alone, not on where a commit lies in the arrays.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_SEARCH_HISTORY_H
#define INVAR_BISECT_SEARCH_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_OID_SIZE 41 /* 40 hexadecimal digits and the terminating NUL */

typedef struct invar_history_commit {
    char id[INVAR_OID_SIZE];
    bool relevant;  /* touches the paths that were asked for; others are never tested */
    int32_t parent; /* first of n_parents in invar_history.parents */
    int32_t n_parents;
    int64_t date; /* of the committer, Unix seconds: tells equally near commits apart */
} invar_history_commit;

/*
 * Parents outside the range are not listed, the others in the commit's own order. The last commit
 * is the bad one. The struct and both arrays are blocks of invar_alloc.
 */
typedef struct invar_history {
    invar_history_commit *commits; /* (count) parents before children */
    int32_t count;
    int32_t *parents; /* indices into commits */
    int32_t n_links;  /* of parents */
} invar_history;

void invar_history_free(invar_history *history); /* NULL is allowed */

/* The index of a commit; -1: not in the range. */
int32_t invar_history_find(const invar_history *history, const char *id);

/* ---- the search ------------------------------------------------------------------------------ */

typedef enum invar_commit_mark {
    INVAR_COMMIT_MARK_NONE,
    INVAR_COMMIT_MARK_GOOD,
    INVAR_COMMIT_MARK_BAD,
    INVAR_COMMIT_MARK_SKIP
} invar_commit_mark;

typedef struct invar_search invar_search;

/* Borrows the history. At first its last commit is bad and nothing else is known. */
invar_status invar_search_new(invar_search **out, const invar_history *history) INVAR_MUST_USE;
void invar_search_free(invar_search *search);

/*
 * A fact about a commit, used at once. A bad commit that is no candidate any more changes nothing.
 * INVAR_E_MISMATCH: it is good and an ancestor of it is bad and tested, or the reverse.
 */
invar_status invar_search_mark(invar_search *search, int32_t commit,
                               invar_commit_mark mark) INVAR_MUST_USE;

/*
 * The result of a trial, used when the search comes to that commit, which may be now. So the answer
 * is that of one trial at a time, whatever ran beside it and ended first, also where good and bad
 * alternate. A result for a commit that is no candidate any more changes nothing.
 * INVAR_E_MISMATCH: the commit has another result already.
 */
invar_status invar_search_add_result(invar_search *search, int32_t commit,
                                     invar_commit_mark mark) INVAR_MUST_USE;

#define INVAR_SEARCH_JOBS 64

typedef enum invar_search_state {
    INVAR_SEARCH_TEST,    /* `commits` are to be tested, the most useful first */
    INVAR_SEARCH_FOUND,   /* commits[0] is the first bad one */
    INVAR_SEARCH_SUSPECTS /* only skipped commits are left: one of the suspects is it */
} invar_search_state;

typedef struct invar_search_next {
    invar_search_state state;
    int32_t commits[INVAR_SEARCH_JOBS];
    int32_t count;
    int32_t candidates; /* relevant commits that may still be the first bad one */
    int32_t trials;     /* about so many more, one at a time */
} invar_search_next;

/*
 * What to do next, for `jobs` (1 to INVAR_SEARCH_JOBS) trials at a time: the midpoint, then the
 * midpoints that would follow if it were bad and if it were good, and so on. What is noted already
 * is not asked for again. INVAR_E_NOTFOUND: no relevant commit is a candidate.
 */
invar_status invar_search_next_commits(invar_search_next *out, const invar_search *search,
                                       int32_t jobs) INVAR_MUST_USE;

/* True while a trial of the commit would tell something: a candidate without mark or note. */
bool invar_search_useful(const invar_search *search, int32_t commit);

/* The commits that may still be it, by index; the caller owns *out (invar_free). */
invar_status invar_search_suspects(int32_t **out, int32_t *count_out,
                                   const invar_search *search) INVAR_MUST_USE;

/* Candidates reachable from `commit` (itself included) that are relevant, for tests and views. */
int32_t invar_search_weight(const invar_search *search, int32_t commit);

#ifdef __cplusplus
}
#endif
#endif
