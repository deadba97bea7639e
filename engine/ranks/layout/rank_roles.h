/*
 * rank_roles.h - a world whose first ranks train, and whose last ranks only sample.
 *
 * Each side has a layout of its own. What all ranks do together goes by a layout of the world, in
 * which nothing is divided but samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_RANK_ROLES_H
#define INVAR_ENGINE_RANKS_LAYOUT_RANK_ROLES_H

#include "engine/ranks/layout/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed, there is one side; close. */
typedef struct invar_rank_roles {
    int first_rollout_rank;      /* the first rank that only samples */
    bool is_rollout_rank;        /* this rank does */
    invar_layout train, rollout; /* sizes of both, and no calls (invar_layout_init_sizes) */
    invar_layout world;          /* all ranks; its engines are the rollout's copies */
    invar_comm *role_comm;       /* the ranks of this one's side; owned */
} invar_rank_roles;

/* How both divide the model; the last `rollout_ranks`, at least one, only sample. */
typedef struct invar_rank_role_sizes {
    invar_layout_sizes train, rollout;
    int rollout_ranks;
} invar_rank_role_sizes;

/*
 * Both outlines of a world of `ranks` ranks. INVAR_E_INVALID where ranks are too few, or no
 * multiple of those that hold a model together, says which numbers would be right.
 */
invar_status invar_rank_roles_outline(invar_rank_roles *out, const invar_rank_role_sizes *sizes,
                                      int ranks) INVAR_MUST_USE;

/* A call of all ranks of the world, which is borrowed; `own_out` is the layout of this side. */
invar_status invar_rank_roles_open(invar_rank_roles *out, invar_layout *own_out, invar_comm *world,
                                   double seconds,
                                   const invar_rank_role_sizes *sizes) INVAR_MUST_USE;

/* As one of `ranks` ranks would have it that are not there: no groups (invar_comm_simulated). */
invar_status invar_rank_roles_imagine(invar_rank_roles *out, const invar_rank_role_sizes *sizes,
                                      int ranks, int rank) INVAR_MUST_USE;

/* After the layout of the side has been released. */
void invar_rank_roles_close(invar_rank_roles *sides);

#ifdef __cplusplus
}
#endif
#endif
