/*
 * midpoint.h - chooses the commit that a bisection search tests next.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_SEARCH_MIDPOINT_H
#define INVAR_BISECT_SEARCH_MIDPOINT_H

#include "bisect/search/history.h"

/* State of a search at one moment, real or speculative. */
typedef struct invar_search_scope {
    uint8_t *candidate; /* (count) 1 if the commit may be the first bad one */
    uint8_t *mark;      /* (count) invar_commit_mark */
    int32_t bad;        /* index of the last candidate */
    bool skips;         /* a commit has been skipped */
} invar_search_scope;

/* Scratch memory for choices in one history; its size is linear in the number of commits. */
typedef struct invar_midpoint invar_midpoint;

/* Allocates the memory, which the caller frees with invar_free. */
invar_status invar_midpoint_new(invar_midpoint **out, const invar_history *history) INVAR_MUST_USE;

/*
 * *out is the candidate to test; the bad commit itself if no other is left; -1 if all others are
 * skipped or no candidate is relevant. *candidates_out is the number of relevant candidates.
 */
invar_status invar_midpoint_choose(int32_t *out, int32_t *candidates_out, invar_midpoint *midpoint,
                                   const invar_search_scope *scope) INVAR_MUST_USE;

#endif
