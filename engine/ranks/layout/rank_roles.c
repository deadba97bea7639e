/*
 * rank_roles.c - layouts of a world in which the last ranks only sample.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/rank_roles.h"

#include <stdio.h>

#include "base/invar_banned.h"

static invar_status check_role_sizes(const invar_rank_role_sizes *sizes, int ranks)
{
    int parts = invar_layout_model_ranks(&sizes->train),
        each = invar_layout_model_ranks(&sizes->rollout);
    int rest = ranks - sizes->rollout_ranks;
    int right = sizes->rollout_ranks + parts * (rest > parts ? rest / parts + 1 : 1);
    char why[96] = "";

    if (sizes->rollout_ranks % each != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout-num-gpus = %d: engines of %d ranks each "
                          "(rollout-num-gpus-per-engine) need a multiple of %d",
                          sizes->rollout_ranks, each, each);
    if (rest >= parts && rest % parts == 0)
        return INVAR_OK;
    if (parts > 1)
        (void)snprintf(why, sizeof why, ", and a model cut into %d parts needs a multiple of %d",
                       parts, parts);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "rollout-num-gpus = %d leaves %d of %d ranks to train%s: start with --ranks "
                      "%d or mpirun -n %d, or set another rollout-num-gpus (docs/scale-out.md)",
                      sizes->rollout_ranks, rest > 0 ? rest : 0, ranks, why, right, right);
}

invar_status invar_rank_roles_init_sizes(invar_rank_roles *out, const invar_rank_role_sizes *sizes,
                                         int ranks)
{
    *out = (invar_rank_roles){.first_rollout_rank = ranks - sizes->rollout_ranks};
    INVAR_TRY(check_role_sizes(sizes, ranks));
    INVAR_TRY(invar_layout_init_sizes(&out->train, &sizes->train, out->first_rollout_rank));
    return invar_layout_init_sizes(&out->rollout, &sizes->rollout, sizes->rollout_ranks);
}

/* Initializes the world layout. Its engines are groups of the last ranks. */
static void init_world_layout(invar_rank_roles *sides, invar_comm *world, double seconds,
                              const invar_rank_role_sizes *sizes)
{
    sides->is_rollout_rank = invar_comm_rank(world) >= sides->first_rollout_rank;
    invar_layout_init(&sides->world, world, seconds);
    sides->world.engines = (invar_layout_engines){sides->first_rollout_rank,
                                                  invar_layout_model_ranks(&sizes->rollout)};
}

invar_status invar_rank_roles_simulate(invar_rank_roles *out, const invar_rank_role_sizes *sizes,
                                       int ranks, int rank)
{
    invar_comm *world;

    INVAR_TRY(invar_rank_roles_init_sizes(out, sizes, ranks));
    INVAR_TRY(invar_comm_simulated(&world, rank, ranks));
    init_world_layout(out, world, 0, sizes);
    out->world.simulated_peers = true;
    return INVAR_OK;
}

invar_status invar_rank_roles_open(invar_rank_roles *out, invar_layout *own_out, invar_comm *world,
                                   double seconds, const invar_rank_role_sizes *sizes)
{
    INVAR_TRY(invar_rank_roles_init_sizes(out, sizes, invar_comm_size(world)));
    init_world_layout(out, world, seconds, sizes);
    INVAR_TRY(invar_comm_split(&out->role_comm, world, out->is_rollout_rank, 0,
                               "ranks that train, ranks that sample", seconds));
    invar_layout_init(own_out, out->role_comm, seconds);
    return invar_layout_divide(own_out, out->is_rollout_rank ? &sizes->rollout : &sizes->train);
}

void invar_rank_roles_close(invar_rank_roles *roles)
{
    invar_comm_free(roles->role_comm);
    invar_layout_release(&roles->world);
    *roles = (invar_rank_roles){0};
}
