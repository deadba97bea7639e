/*
 * ranks.c - opens the layout of a run's ranks, and compares the errors that all of them find.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/run/admission.h"
#include "engine/run/setup/internal.h"

#include "base/invar_banned.h"

invar_status invar_setup_find_together(invar_run_world *world, invar_status status)
{
    invar_rank_outlier outlier;
    invar_digest said = {{0}};
    invar_error own;

    if (!world->all || (status != INVAR_OK && status != INVAR_E_INVALID))
        return status;
    if (status == INVAR_OK)
        return invar_ranks_compare_digests(&outlier, world->all, "what was found", &said);
    invar_error_take(&own);
    invar_hash_bytes(&said, own.message, strlen(own.message));
    world->all_failed =
        invar_ranks_compare_digests(&outlier, world->all, "what was found", &said) == INVAR_OK &&
        outlier.differing_rank < 0;
    invar_error_put(&own);
    return status;
}

invar_local_ranks invar_setup_local_ranks(const invar_run_world *world, const invar_run_job *job)
{
    return (invar_local_ranks){job->options->threads_for > 1 ? job->options->threads_for : 1,
                               invar_ranks_local_size(world->all),
                               invar_ranks_local_rank(world->all), world->ranks};
}

static invar_status divide_model(invar_run_world *world, const invar_run_job *job)
{
    const invar_admission facts = {.config = job->config,
                                   .ranks = invar_ranks_size(world->all),
                                   .replay = job->options->replay};
    invar_rank_role_sizes sizes;

    INVAR_TRY(invar_admission_check(&facts));
    INVAR_TRY(invar_train_settings_roles(&sizes, job->config));
    if (!world->all)
        return INVAR_OK;
    if (sizes.rollout_ranks == 0)
        return invar_layout_divide(&world->layout, &sizes.train);
    INVAR_TRY(invar_rank_roles_open(&world->roles, &world->layout, job->options->comm,
                                    world->layout.timeout_s, &sizes));
    world->ranks = invar_comm_size(world->roles.role_comm) > 1 ? &world->layout : NULL;
    world->all = &world->roles.world;
    return INVAR_OK;
}

/* Joins all ranks in a layout that divides nothing yet. */
static void join_world(invar_run_world *world, const invar_run_job *job)
{
    invar_comm *comm = job->options->comm;

    if (!comm || invar_comm_size(comm) == 1)
        return;
    invar_layout_init(&world->layout, comm,
                      60.0 * (double)job->config->distributed_timeout_minutes);
    world->all = world->ranks = &world->layout;
}

invar_status invar_setup_open_layout(invar_run_storage *storage)
{
    join_world(storage->world, storage->job);
    INVAR_TRY(invar_run_compare_recipes(storage));
    return invar_setup_find_together(storage->world, divide_model(storage->world, storage->job));
}

invar_status invar_run_renew_layout(invar_run_models *models)
{
    if (!models->world->all || models->world->layout.data.comm == models->job->options->comm)
        return INVAR_OK;
    invar_layout_close_transport(&models->world->layout, &models->context.dev);
    invar_layout_release(&models->world->layout);
    invar_rank_roles_close(&models->world->roles);
    join_world(models->world, models->job);
    return divide_model(models->world, models->job);
}
