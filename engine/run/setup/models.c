/*
 * models.c - plans the memory of a run, and makes its large parts: models, trainers, learners and
 * weight sync.
 *
 * The memory is planned before there are weights. Ranks of one device or host share its free memory
 * equally. If ranks divide layers, the settings that the plan chooses are reduced to their minimum
 * over all ranks, since these must process the same rows at a time.
 *
 * The models and their hashes come first, since the identity depends on them. Then one block of
 * device memory is allocated by the plan, and rollout and trainers are made in it. Data-parallel
 * ranks also compare a checksum of what their copies of the models have read, since hashes of
 * weights are gathered from the owners of rows and are equal even if another copy differs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/run/setup/internal.h"

#include "base/invar_banned.h"

/* ---- the plan of memory ---------------------------------------------------------------------- */

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
    workload->ranks.roles = &world->roles;
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
    workload->ranks.layout = storage->world->ranks;
    apply_role(workload, storage->world);
    INVAR_TRY(
        invar_setup_find_together(storage->world, invar_memory_plan_make(out, workload, room)));
    INVAR_TRY(invar_memory_plan_check_fits(out, workload));
    INVAR_TRY(reduce_choice(&out->choice, storage->world->ranks));
    invar_memory_plan_settle(workload, &out->choice);
    return INVAR_OK;
}

/* ---- weights --------------------------------------------------------------------------------- */

/*
 * Broadcasts the hashes of the weights. A rank that only samples has no weights yet and takes them.
 */
static invar_status broadcast_hashes(invar_run_models *models)
{
    invar_run_context *s = &models->context;
    invar_digest hashes[] = {s->weights,           s->teacher.weights, s->critic.weights,
                             s->reference.weights, s->base.weights,    s->filled};

    if (models->world->roles.first_rollout_rank == 0)
        return INVAR_OK;
    INVAR_TRY(invar_ranks_broadcast(models->world->all, "identity", 0, hashes, sizeof hashes));
    if (!models->world->roles.is_rollout_rank)
        return INVAR_OK;
    s->weights = hashes[0];
    s->teacher.weights = hashes[1];
    s->critic.weights = hashes[2];
    s->reference.weights = hashes[3];
    if (s->rollout_format != s->format)
        s->base.weights = hashes[4];
    s->filled = hashes[5];
    return INVAR_OK;
}

/* Checksums of the values that were loaded into the models of a rank, two of each model. */
enum { FILLED = 4 };
typedef struct load_checksums {
    uint64_t of[2 * FILLED];
} load_checksums;

static load_checksums checksums_of(const invar_run_context *s)
{
    const invar_model *models[FILLED] = {s->models.actor, s->models.teacher, s->models.critic,
                                         s->reference.own_spec ? s->models.reference : NULL};
    load_checksums out = {{0}};

    for (int i = 0; i < 2 * FILLED; i++)
        out.of[i] = models[i / 2] ? models[i / 2]->load_checksum[i % 2] : 0;
    return out;
}

/*
 * Sums the checksums of the ranks that hold one copy of the models together, into context.filled.
 * Hashes of weights are made of the rows that each rank owns, so they do not show a difference
 * between the copies.
 */
static invar_status sum_checksums(invar_run_models *models)
{
    const invar_layout *ranks = models->world->ranks;
    load_checksums own = checksums_of(&models->context), sum = {{0}}, *all = NULL;
    invar_status status;

    if (!invar_layout_has_data_parallel(ranks) || models->world->roles.is_rollout_rank)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(all, (size_t)invar_ranks_size(ranks), "what ranks have read"));
    status = invar_ranks_all_gather(ranks, "identity", &own, sizeof own, all);
    for (int r = 0; status == INVAR_OK && r < invar_ranks_size(ranks); r++)
        for (int i = 0; i < 2 * FILLED; i++)
            if (invar_rank_coords_of(ranks, r).data == ranks->data.rank)
                sum.of[i] += all[r].of[i];
    invar_hash_bytes(&models->context.filled, &sum, sizeof sum);
    invar_free(all);
    return status;
}

invar_status invar_setup_make_models(invar_run_storage *storage, invar_run_models *models)
{
    INVAR_TRY(invar_run_context_make_models(&models->context, &models->workload.models));
    INVAR_TRY(sum_checksums(models));
    INVAR_TRY(broadcast_hashes(models));
    INVAR_TRY(invar_run_identify(storage, models));
    return invar_run_compare_files(storage, models);
}

/* ---- trainers and learners ------------------------------------------------------------------- */

static invar_trainer_options trainer_options(const invar_run_models *models,
                                             const invar_model *model)
{
    invar_trainer_options o = invar_memory_plan_trainer(&models->workload, model);

    o.temperature = (float)models->job->config->rollout_temperature;
    return o;
}

/* Sends a heartbeat while the trainer computes, so that other ranks do not time out. */
static invar_status send_heartbeat(void *payload)
{
    const invar_run_world *world = payload;

    invar_layout_heartbeat(world->all);
    return INVAR_OK;
}

static invar_status make_trainer(invar_run_models *models)
{
    invar_trainer_options o = trainer_options(models, models->context.models.actor);

    o.scoring = invar_phase_memory_dev(&models->phase_memory, INVAR_MEMORY_PLAN_SCORING);
    o.on_progress = send_heartbeat;
    o.payload = models->world;
    return invar_trainer_new(
        &models->trainer, invar_phase_memory_dev(&models->phase_memory, INVAR_MEMORY_PLAN_LEARNING),
        &o);
}

/* Makes the trainer that verifies samples drawn during training. */
static invar_status make_async_verifier(invar_run_models *models, invar_run_flow *flow)
{
    invar_trainer_options o =
        trainer_options(models, invar_model_set_sampler(&models->context.models));

    if (!models->workload.verify_inflight)
        return INVAR_OK;
    o.layout = NULL; // a rank verifies without the others
    o.on_progress = invar_run_async_progress;
    o.payload = flow;
    return invar_trainer_new(
        &models->async_verifier,
        invar_phase_memory_dev(&models->phase_memory, INVAR_MEMORY_PLAN_CHECKING), &o);
}

/* Opens the learners. Without training, the actor's learner only computes hashes. */
static invar_status make_learners(invar_run_models *models)
{
    const invar_run_context *s = &models->context;
    bool learns = !models->job->config->debug_rollout_only;
    invar_learner_options o = {.dev = &s->dev,
                               .prefix = "",
                               .schedule = models->job->settings.schedule,
                               .adamw = models->job->settings.adamw,
                               .offload_chunk_bytes = models->workload.offload_chunk_bytes};

    INVAR_TRY(invar_learner_open(&models->actor, s->models.actor, learns, &o));
    o.prefix = "critic.";
    o.schedule = models->job->settings.critic_schedule;
    return s->models.critic && learns
               ? invar_learner_open(&models->critic, s->models.critic, true, &o)
               : INVAR_OK;
}

static invar_status make_sync(invar_run_models *models)
{
    const invar_weight_sync_options o = {.roles = &models->world->roles,
                                         .model = invar_model_set_sampler(&models->context.models),
                                         .dev = &models->context.dev,
                                         .bucket_bytes = models->workload.ranks.bucket_bytes};

    models->synced = -1;
    return models->world->roles.first_rollout_rank > 0
               ? invar_weight_sync_new(&models->weight_sync, &o)
               : INVAR_OK;
}

/* Lets rollout and trainer allocate all their memory, by a dry run, and activates the devices. */
static invar_status settle_memory(invar_run_models *models)
{
    invar_dry_run_objects parts = {.rollout = models->rollout,
                                   .trainer = models->trainer,
                                   .checker = models->async_verifier,
                                   .models = &models->context.models,
                                   .actor_grads = models->actor.grads,
                                   .critic_grads = models->critic.grads};

    return invar_phase_memory_activate(&models->phase_memory, &parts, &models->workload);
}

invar_status invar_setup_take_memory(invar_train_loop *loop, const invar_memory_plan *plan)
{
    INVAR_TRY(invar_setup_make_models(&loop->storage, &loop->models));
    if (loop->job.options->identified)
        INVAR_TRY(loop->job.options->identified(loop->job.options->payload,
                                                &loop->storage.identity.digest));
    INVAR_TRY(invar_phase_memory_alloc(&loop->models.phase_memory, &loop->models.context.dev,
                                       invar_run_context_sampler_dev(&loop->models.context), plan));
    if (!loop->world.roles.is_rollout_rank) {
        INVAR_TRY(make_trainer(&loop->models));
        INVAR_TRY(make_learners(&loop->models));
    }
    INVAR_TRY(invar_setup_make_rollout(&loop->storage, &loop->models));
    INVAR_TRY(make_async_verifier(&loop->models, &loop->flow));
    INVAR_TRY(settle_memory(&loop->models));
    return make_sync(&loop->models);
}
