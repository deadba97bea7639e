/*
 * memory.c - a run's memory: planned before it has any weights, given to its parts at the end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/run/setup/internal.h"

#include "base/invar_banned.h"

/* How many ranks have the same memory as this one. */
static invar_status count_sharers(int *out, const invar_train_loop *loop)
{
    const invar_device *dev = &loop->session.dev;
    invar_rank_outlier found;
    invar_digest memory;

    *out = invar_setup_crowd(loop).host_ranks;
    if (!dev->backend->memory.identify)
        return INVAR_OK;
    dev->backend->memory.identify(dev, &memory);
    INVAR_TRY(invar_ranks_compare_digests(&found, loop->world, "memory", &memory));
    *out = found.n_same;
    return INVAR_OK;
}

/* What each rank may take, the same for all that do the same, measured by each before any of them
   takes it. */
static invar_status find_room(size_t *out, const invar_train_loop *loop)
{
    const invar_device *dev = &loop->session.dev;
    size_t own = invar_memory_planning_available(dev);
    int64_t least;
    int sharers;

    INVAR_TRY(count_sharers(&sharers, loop));
    own /= (size_t)sharers;
    INVAR_TRY(
        invar_ranks_min(&least, loop->ranks, "memory", own > INT64_MAX ? INT64_MAX : (int64_t)own));
    *out = loop->ranks ? (size_t)least : own;
    return INVAR_OK;
}

/* Ranks that divide layers take the same rows at a time: as many as all of them have room for. */
static invar_status agree_choice(invar_memory_plan_choice *choice, const invar_layout *ranks)
{
    int64_t *const chosen[] = {&choice->head_rows, &choice->max_tokens, &choice->pages,
                               &choice->concurrency};

    if (!ranks || ranks->data.size == invar_ranks_size(ranks))
        return INVAR_OK;
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
        INVAR_TRY(invar_ranks_min(chosen[i], ranks, "the plan of memory", *chosen[i]));
    return INVAR_OK;
}

/* Ranks that only sample, and those that leave it to them, ask for less. */
static void take_side(invar_memory_workload *ask, const invar_train_loop *loop)
{
    if (loop->roles.first_rollout_rank == 0)
        return;
    ask->sides = &loop->roles;
    if (loop->roles.is_rollout_rank)
        invar_memory_planning_sample_alone(ask);
    else {
        memset(ask->rollouts, 0, sizeof ask->rollouts);
        ask->verify_inflight = false;
    }
}

invar_status invar_setup_plan_memory(invar_memory_plan *out, invar_train_loop *loop)
{
    invar_memory_workload *ask = &loop->ask;
    size_t room;

    INVAR_TRY(find_room(&room, loop));
    *ask = invar_memory_planning_ask(&loop->session, &loop->settings, &loop->identity.data);
    ask->layout = loop->ranks;
    take_side(ask, loop);
    INVAR_TRY(invar_setup_find_together(loop, invar_memory_plan_make(out, ask, room)));
    INVAR_TRY(invar_memory_plan_check_fits(out, ask));
    INVAR_TRY(agree_choice(&out->choice, loop->ranks));
    ask->head_rows = out->choice.head_rows;
    ask->plan.max_tokens = out->choice.max_tokens;
    ask->limits.pages = out->choice.pages;
    ask->limits.concurrency = out->choice.concurrency;
    return INVAR_OK;
}

invar_status invar_setup_settle_memory(invar_train_loop *loop)
{
    const invar_run_context *s = &loop->session;
    invar_dry_run_objects parts = {.rollout = loop->rollout,
                                   .trainer = loop->trainer,
                                   .checker = loop->async_verifier,
                                   .sampler = invar_run_context_sampler(s),
                                   .actor = s->actor,
                                   .critic = s->critic,
                                   .reference = s->ref_has_own_spec ? s->reference : NULL,
                                   .teacher = s->teacher_apart ? s->teacher : NULL,
                                   .actor_grads = loop->actor.grads,
                                   .critic_grads = loop->critic.grads};

    return invar_phase_memory_activate(&loop->block, &parts, &loop->ask);
}
