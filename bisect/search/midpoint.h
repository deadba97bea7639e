/*
 * midpoint.h - which of the candidates to test next.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_SEARCH_MIDPOINT_H
#define INVAR_BISECT_SEARCH_MIDPOINT_H

#include "bisect/search/history.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is known at one moment of a search. */
typedef struct invar_search_scope {
    uint8_t *candidate; /* (count) 1: may be the first bad commit */
    uint8_t *mark;      /* (count) invar_commit_mark */
    int32_t bad;        /* the last candidate */
    bool skips;         /* a commit has been skipped */
} invar_search_scope;

/* Space for choices in one history, linear in it. */
typedef struct invar_midpoint invar_midpoint;

invar_status invar_midpoint_new(invar_midpoint **out, const invar_history *history) INVAR_MUST_USE;
void invar_midpoint_free(invar_midpoint *midpoint); /* NULL is allowed */

/*
 * *out is the candidate to test; the bad commit itself when it alone is left; -1 when all others
 * are skipped or there is none. *candidates_out counts the relevant ones.
 */
invar_status invar_midpoint_choose(int32_t *out, int32_t *candidates_out, invar_midpoint *midpoint,
                                   const invar_search_scope *scope) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
