/*
 * memory.c - plans the memory of a run before it has weights, and activates it at the end.
 *
 * Ranks of one device or host share its free memory equally. If ranks divide layers, the settings
 * that the plan chooses are reduced to their minimum over all ranks, since these must process the
 * same rows at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/run/setup/internal.h"

#include "base/invar_banned.h"

/* *out = number of ranks that share the memory of this rank's device. Collective. */
static invar_status count_sharers(int *out, const invar_run_models *models)
{
    const invar_device *dev = &models->context.dev;
    invar_rank_outlier found;
    invar_digest memory;

    *out = invar_setup_local_ranks(models->world, models->job).host_ranks;
    if (!dev->backend->memory.identify)
        return INVAR_OK;
    dev->backend->memory.identify(dev, &memory);
    INVAR_TRY(invar_ranks_compare_digests(&found, models->world->all, "memory", &memory));
    *out = found.n_same;
    return INVAR_OK;
}

/*
 * *out = bytes that this rank may take: its part of the free memory, as the minimum over the ranks
 * of its role. Every rank measures before any rank allocates. Collective.
 */
static invar_status measure_available(size_t *out, const invar_run_models *models)
{
    const invar_device *dev = &models->context.dev;
    size_t own = invar_memory_planning_available(dev);
    int64_t least;
    int sharers;

    INVAR_TRY(count_sharers(&sharers, models));
    own /= (size_t)sharers;
    INVAR_TRY(invar_ranks_min(&least, models->world->ranks, "memory",
                              own > INT64_MAX ? INT64_MAX : (int64_t)own));
    *out = models->world->ranks ? (size_t)least : own;
    return INVAR_OK;
}

/* Reduces the choice to its minimum over all ranks, if these divide layers. Collective. */
static invar_status reduce_choice(invar_memory_plan_choice *choice, const invar_layout *ranks)
{
    int64_t *const chosen[] = {&choice->head_rows, &choice->max_tokens, &choice->pages,
                               &choice->concurrency};

    if (!ranks || ranks->data.size == invar_ranks_size(ranks))
        return INVAR_OK;
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
        INVAR_TRY(invar_ranks_min(chosen[i], ranks, "the plan of memory", *chosen[i]));
    return INVAR_OK;
}

/* Adapts the workload to the rank's role, if some ranks only sample. */
static void apply_role(invar_memory_workload *workload, const invar_run_world *world)
{
    if (world->roles.first_rollout_rank == 0)
        return;
    workload->roles = &world->roles;
    if (world->roles.is_rollout_rank)
        invar_memory_planning_sample_alone(workload);
    else {
        memset(workload->rollouts, 0, sizeof workload->rollouts);
        workload->models.draft = NULL;
        workload->verify_inflight = false;
    }
}

invar_status invar_setup_plan_memory(invar_memory_plan *out, invar_run_storage *storage,
                                     invar_run_models *models)
{
    invar_memory_workload *workload = &models->workload;
    size_t room;

    INVAR_TRY(measure_available(&room, models));
    *workload = invar_memory_planning_workload(&models->context, &storage->job->settings,
                                               &storage->identity.data);
    workload->layout = storage->world->ranks;
    apply_role(workload, storage->world);
    INVAR_TRY(
        invar_setup_find_together(storage->world, invar_memory_plan_make(out, workload, room)));
    INVAR_TRY(invar_memory_plan_check_fits(out, workload));
    INVAR_TRY(reduce_choice(&out->choice, storage->world->ranks));
    invar_memory_plan_settle(workload, &out->choice);
    return INVAR_OK;
}

invar_status invar_setup_settle_memory(invar_run_models *models)
{
    invar_dry_run_objects parts = {.rollout = models->rollout,
                                   .trainer = models->trainer,
                                   .checker = models->async_verifier,
                                   .models = &models->context.models,
                                   .actor_grads = models->actor.grads,
                                   .critic_grads = models->critic.grads};

    return invar_phase_memory_activate(&models->phase_memory, &parts, &models->workload);
}
