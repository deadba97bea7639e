/*
 * ranks.c - opens the layout of a run's ranks, and compares the errors that all of them find.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/run/admission.h"
#include "engine/run/setup/internal.h"

#include "base/invar_banned.h"

invar_status invar_setup_find_together(invar_train_loop *loop, invar_status status)
{
    invar_rank_outlier outlier;
    invar_digest said = {{0}};
    invar_error own;

    if (!loop->world || (status != INVAR_OK && status != INVAR_E_INVALID))
        return status;
    if (status == INVAR_OK)
        return invar_ranks_compare_digests(&outlier, loop->world, "what was found", &said);
    invar_error_take(&own);
    invar_hash_bytes(&said, own.message, strlen(own.message));
    loop->all_ranks_failed =
        invar_ranks_compare_digests(&outlier, loop->world, "what was found", &said) == INVAR_OK &&
        outlier.differing_rank < 0;
    invar_error_put(&own);
    return status;
}

invar_local_ranks invar_setup_local_ranks(const invar_train_loop *loop)
{
    return (invar_local_ranks){loop->options->threads_for > 1 ? loop->options->threads_for : 1,
                               invar_ranks_local_size(loop->world),
                               invar_ranks_local_rank(loop->world), loop->ranks};
}

static invar_status open_roles(invar_train_loop *loop, const invar_rank_role_sizes *sizes)
{
    double seconds = loop->layout.timeout_s;

    INVAR_TRY(
        invar_rank_roles_open(&loop->roles, &loop->layout, loop->options->comm, seconds, sizes));
    loop->ranks = invar_comm_size(loop->roles.role_comm) > 1 ? &loop->layout : NULL;
    loop->world = &loop->roles.world;
    return INVAR_OK;
}

static invar_status divide_model(invar_train_loop *loop)
{
    const invar_admission facts = {.config = loop->config,
                                   .ranks = invar_ranks_size(loop->world),
                                   .replay = loop->options->replay};
    invar_rank_role_sizes sizes;

    INVAR_TRY(invar_admission_check(&facts));
    INVAR_TRY(invar_train_settings_roles(&sizes, loop->config));
    if (!loop->world)
        return INVAR_OK;
    if (sizes.rollout_ranks > 0)
        return open_roles(loop, &sizes);
    return invar_layout_divide(&loop->layout, &sizes.train);
}

/* Joins all ranks in a layout that divides nothing yet. */
static void join_world(invar_train_loop *loop)
{
    invar_comm *comm = loop->options->comm;

    if (!comm || invar_comm_size(comm) == 1)
        return;
    invar_layout_init(&loop->layout, comm,
                      60.0 * (double)loop->config->distributed_timeout_minutes);
    loop->world = loop->ranks = &loop->layout;
}

invar_status invar_setup_open_layout(invar_train_loop *loop)
{
    join_world(loop);
    INVAR_TRY(invar_train_loop_compare_recipes(loop));
    return invar_setup_find_together(loop, divide_model(loop));
}

invar_status invar_train_loop_renew_layout(invar_train_loop *loop)
{
    if (!loop->world || loop->layout.data.comm == loop->options->comm)
        return INVAR_OK;
    invar_layout_close_transport(&loop->layout, &loop->session.dev);
    invar_layout_release(&loop->layout);
    invar_rank_roles_close(&loop->roles);
    join_world(loop);
    return divide_model(loop);
}
