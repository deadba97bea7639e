/*
 * rank_collectives.h - what the ranks of a run decide together, and whether they hold the same.
 *
 * Every rank runs the same loop on the same data and so decides the same. What only one can know is
 * decided by rank 0, which leads: it alone writes, asks plug-ins and talks to people. What any rank
 * may be told, such as a signal, is gathered first. All calls but those that only look are calls of
 * all ranks of the world.
 *
 * Without a layout (NULL) there is one rank: nothing moves, and nothing can fail.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_RANK_COLLECTIVES_H
#define INVAR_ENGINE_RANKS_LAYOUT_RANK_COLLECTIVES_H

#include "base/hash.h"
#include "engine/ranks/layout/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Is this the rank that writes? */
bool invar_ranks_is_leader(const invar_layout *layout);

/* Ranks of the world, and those of them on this rank's host; itself included. */
int invar_ranks_size(const invar_layout *layout);
int invar_ranks_local_size(const invar_layout *layout);

/* This rank's number among those of its host. */
int invar_ranks_local_rank(const invar_layout *layout);

/* `data` becomes what rank `from` has there. */
invar_status invar_ranks_broadcast(const invar_layout *layout, const char *phase, int from,
                                   void *data, size_t bytes) INVAR_MUST_USE;

/* out (size, bytes) is what each rank has in `own`. */
invar_status invar_ranks_all_gather(const invar_layout *layout, const char *phase, const void *own,
                                    size_t bytes, void *out) INVAR_MUST_USE;

/* What ranks have given to rank 0, one after the other. On other ranks empty; release. */
typedef struct invar_rank_gathered {
    char *data;
    size_t *bytes; /* (size) of each */
} invar_rank_gathered;

/* Any number of bytes of each rank, to rank 0. */
invar_status invar_ranks_gather(invar_rank_gathered *out, const invar_layout *layout,
                                const char *phase, const void *own, size_t bytes) INVAR_MUST_USE;
void invar_ranks_pile_release(invar_rank_gathered *pile);

/* What the first rank has whose number is not 0. */
invar_status invar_ranks_first_nonzero(int64_t *out, const invar_layout *layout, const char *phase,
                                       int64_t own) INVAR_MUST_USE;

/* The smallest number of all ranks; no rank goes on before each has said its own. */
invar_status invar_ranks_min(int64_t *out, const invar_layout *layout, const char *phase,
                             int64_t own) INVAR_MUST_USE;

/* Who holds something else than most. */
typedef struct invar_rank_outlier {
    int differing_rank; /* the first rank that does; -1: none */
    /* First rank that holds the value of most ranks; in a tie, rank 0 or the next. */
    int majority_rank;
    int n_same; /* how many hold the same as the one that asks, itself included */
} invar_rank_outlier;

/* Among the digests of `size` ranks; no call of theirs. */
invar_rank_outlier invar_ranks_find_odd(const invar_digest *all, int size);

invar_status invar_ranks_compare_digests(invar_rank_outlier *out, const invar_layout *layout,
                                         const char *phase, const invar_digest *own) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
