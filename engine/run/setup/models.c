/*
 * models.c - makes the large parts of a run: models, trainers, learners and weight sync.
 *
 * The models and their hashes come first, since the identity depends on them. Then one block of
 * device memory is allocated by the plan, and rollout and trainers are made in it. Data-parallel
 * ranks also compare a checksum of what their copies of the models have read, since hashes of
 * weights are gathered from the owners of rows and are equal even if another copy differs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/alloc.h"
#include "engine/run/setup/internal.h"

#include "base/invar_banned.h"

unsigned invar_setup_wants(const invar_run_world *world)
{
    return INVAR_RUN_CONTEXT_DATA |
           (world->roles.is_rollout_rank ? INVAR_RUN_CONTEXT_SAMPLE : INVAR_RUN_CONTEXT_LEARN);
}

/* ---- weights --------------------------------------------------------------------------------- */

/*
 * Broadcasts the hashes of the weights. A rank that only samples has no weights yet and takes them.
 */
static invar_status broadcast_hashes(invar_run_models *models)
{
    invar_run_context *s = &models->context;
    invar_digest hashes[] = {s->weights,     s->teacher_weights, s->critic_weights,
                             s->ref_weights, s->base_weights,    s->filled};

    if (models->world->roles.first_rollout_rank == 0)
        return INVAR_OK;
    INVAR_TRY(invar_ranks_broadcast(models->world->all, "identity", 0, hashes, sizeof hashes));
    if (!models->world->roles.is_rollout_rank)
        return INVAR_OK;
    s->weights = hashes[0];
    s->teacher_weights = hashes[1];
    s->critic_weights = hashes[2];
    s->ref_weights = hashes[3];
    if (s->rollout_format != s->format)
        s->base_weights = hashes[4];
    s->filled = hashes[5];
    return INVAR_OK;
}

/* Checksums of the values that were loaded into the models of a rank. */
enum { FILLED = 4 };
typedef struct load_checksums {
    uint64_t of[FILLED][2];
} load_checksums;

static load_checksums checksums_of(const invar_run_context *s)
{
    const invar_model *models[FILLED] = {s->models.actor, s->models.teacher, s->models.critic,
                                         s->ref_has_own_spec ? s->models.reference : NULL};
    load_checksums out = {{{0}}};

    for (int i = 0; i < FILLED; i++)
        for (int k = 0; k < 2; k++)
            out.of[i][k] = models[i] ? models[i]->load_checksum[k] : 0;
    return out;
}

static void add_checksums(load_checksums *to, const load_checksums *more)
{
    for (int i = 0; i < FILLED; i++)
        for (int k = 0; k < 2; k++)
            to->of[i][k] += more->of[i][k];
}

/*
 * Sums the checksums of the ranks that hold one copy of the models together, into context.filled.
 * Hashes of weights are made of the rows that each rank owns, so they do not show a difference
 * between the copies.
 */
static invar_status sum_checksums(invar_run_models *models)
{
    const invar_layout *ranks = models->world->ranks;
    load_checksums own = checksums_of(&models->context), sum = {{{0}}}, *all = NULL;
    invar_status status;

    if (!invar_layout_has_data_parallel(ranks) || models->world->roles.is_rollout_rank)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(all, (size_t)invar_ranks_size(ranks), "what ranks have read"));
    status = invar_ranks_all_gather(ranks, "identity", &own, sizeof own, all);
    for (int r = 0; status == INVAR_OK && r < invar_ranks_size(ranks); r++)
        if (invar_rank_coords_of(ranks, r).data == ranks->data.rank)
            add_checksums(&sum, &all[r]);
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
                                         .bucket_bytes = models->workload.bucket_bytes};

    models->synced = -1;
    return models->world->roles.first_rollout_rank > 0
               ? invar_weight_sync_new(&models->weight_sync, &o)
               : INVAR_OK;
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
    INVAR_TRY(invar_setup_settle_memory(&loop->models));
    return make_sync(&loop->models);
}
