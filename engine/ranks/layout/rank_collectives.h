/*
 * rank_collectives.h - small collectives over all ranks: broadcast, gather, minimum, majority.
 *
 * All ranks run the same loop on the same data and reach the same decisions. Rank 0 decides what
 * only one process can know: it alone writes files, calls plug-ins and interacts with the user, and
 * broadcasts the result. Events that any rank may see, such as signals, are gathered first. Except
 * for the getters and invar_ranks_find_outlier, every function is collective: all ranks of the
 * world must call it.
 *
 * Without a layout (NULL) there is one rank: nothing is sent, and only an allocation can fail.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_RANK_COLLECTIVES_H
#define INVAR_ENGINE_RANKS_LAYOUT_RANK_COLLECTIVES_H

#include "base/hash.h"
#include "engine/ranks/layout/layout.h"

/* Returns true on rank 0, the rank that writes files and calls plug-ins. */
bool invar_ranks_is_leader(const invar_layout *layout);

/* Number of ranks in the world, and number of ranks on this rank's host, this one included. */
int invar_ranks_size(const invar_layout *layout);
int invar_ranks_local_size(const invar_layout *layout);

/* Index of this rank among the ranks of its host. */
int invar_ranks_local_rank(const invar_layout *layout);

/* Overwrites `data` with the bytes that rank `from` has there. */
invar_status invar_ranks_broadcast(const invar_layout *layout, const char *phase, int from,
                                   void *data, size_t bytes) INVAR_MUST_USE;

/* Fills out (size, bytes) with `own` of every rank, in rank order. */
invar_status invar_ranks_all_gather(const invar_layout *layout, const char *phase, const void *own,
                                    size_t bytes, void *out) INVAR_MUST_USE;

/*
 * Bytes gathered on rank 0, concatenated in rank order; empty on other ranks. Release with
 * invar_rank_gathered_release.
 */
typedef struct invar_rank_gathered {
    char *data;
    size_t *bytes; /* (size) bytes of each rank */
} invar_rank_gathered;

/*
 * Gathers `bytes` bytes of each rank on rank 0; `bytes` may differ between ranks. Release *out also
 * after a failure.
 */
invar_status invar_ranks_gather(invar_rank_gathered *out, const invar_layout *layout,
                                const char *phase, const void *own, size_t bytes) INVAR_MUST_USE;
void invar_rank_gathered_release(invar_rank_gathered *gathered);

/* *out = `own` of the lowest rank on which it is not 0; 0 if it is 0 on every rank. */
invar_status invar_ranks_first_nonzero(int64_t *out, const invar_layout *layout, const char *phase,
                                       int64_t own) INVAR_MUST_USE;

/* *out = smallest `own` of all ranks. Also a barrier: returns after every rank has called it. */
invar_status invar_ranks_min(int64_t *out, const invar_layout *layout, const char *phase,
                             int64_t own) INVAR_MUST_USE;

/* Result of comparing one digest per rank: which rank differs from the majority. */
typedef struct invar_rank_outlier {
    int differing_rank; /* lowest rank that differs from majority_rank; -1 if all agree */
    /*
     * Lowest rank that holds the most frequent value; in a tie, the lowest rank that holds one of
     * them.
     */
    int majority_rank;
    int n_same; /* ranks that hold the value of this rank, this one included; set by compare only */
} invar_rank_outlier;

/* Finds the outlier among the digests `all` (size). Local, not collective. */
invar_rank_outlier invar_ranks_find_outlier(const invar_digest *all, int size);

/* Gathers `own` of all ranks and finds the outlier. */
invar_status invar_ranks_compare_digests(invar_rank_outlier *out, const invar_layout *layout,
                                         const char *phase, const invar_digest *own) INVAR_MUST_USE;

#endif
