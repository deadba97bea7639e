/*
 * rank_roles.h - a world whose first ranks train and whose last ranks only sample.
 *
 * The ranks of each role have a layout of their own. Collectives over all ranks use a layout of the
 * world, in which only samples are divided.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_RANK_ROLES_H
#define INVAR_ENGINE_RANKS_LAYOUT_RANK_ROLES_H

#include "engine/ranks/layout/layout.h"

/* Rank roles of a run; zeroed if all ranks train and sample. Close with invar_rank_roles_close. */
typedef struct invar_rank_roles {
    int first_rollout_rank; /* first rank that only samples; 0 if no rank does */
    bool is_rollout_rank;   /* this rank only samples */
    /* sizes of both layouts, without communicators (invar_layout_init_sizes) */
    invar_layout train, rollout;
    invar_layout world;    /* all ranks; its engines are the copies of the model that sample */
    invar_comm *role_comm; /* communicator of the ranks with this rank's role; owned */
} invar_rank_roles;

/* Sizes of both layouts. The last `rollout_ranks` ranks (at least one) only sample. */
typedef struct invar_rank_role_sizes {
    invar_layout_sizes train, rollout;
    int rollout_ranks;
} invar_rank_role_sizes;

/*
 * Sets the sizes of both layouts for a world of `ranks` ranks. Returns INVAR_E_INVALID, with valid
 * numbers in the message, if there are too few ranks, or not a multiple of those that hold one
 * model.
 */
invar_status invar_rank_roles_init_sizes(invar_rank_roles *out, const invar_rank_role_sizes *sizes,
                                         int ranks) INVAR_MUST_USE;

/*
 * Opens the roles and, in *own_out, the layout of this rank's role. Collective: all ranks of the
 * world, which is borrowed, must call it.
 */
invar_status invar_rank_roles_open(invar_rank_roles *out, invar_layout *own_out, invar_comm *world,
                                   double seconds,
                                   const invar_rank_role_sizes *sizes) INVAR_MUST_USE;

/*
 * Builds the roles of rank `rank` of `ranks` ranks with peers that do not exist
 * (invar_comm_simulated). There is no role communicator.
 */
invar_status invar_rank_roles_simulate(invar_rank_roles *out, const invar_rank_role_sizes *sizes,
                                       int ranks, int rank) INVAR_MUST_USE;

/* Closes the roles. Release the layout of this rank's role first. */
void invar_rank_roles_close(invar_rank_roles *roles);

#endif
