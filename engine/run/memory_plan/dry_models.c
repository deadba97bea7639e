/*
 * dry_models.c - measures the resident memory of a run, and what each phase adds to it.
 *
 * The models and learners of the run are made in the run's own order on one counting device, so its
 * allocations are the resident memory. Each phase then runs on a second counting device, whose high
 * water mark is the size of the phase. Norms and hashes allocate on the first device in between.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_plan/dry_models.h"

#include "base/alloc.h"
#include "engine/model/graph/dataflow.h"
#include "engine/model/probe/leaf_hasher.h"
#include "engine/model/shard/master_weights.h"
#include "engine/model/tensor_hasher.h"

#include "base/invar_banned.h"

/* ---- resident -------------------------------------------------------------------------------- */

/* Adds an item with the bytes that were allocated since the last one. */
static void add_item(invar_memory_plan *out, const invar_dry_models *models, const char *name)
{
    size_t bytes = models->resident.allocated_bytes - out->resident;

    INVAR_CHECK(out->n_items < INVAR_MEMORY_PLAN_ITEMS);
    out->items[out->n_items++] = (invar_memory_plan_item){name, bytes};
    out->resident += bytes;
}

/* Adds the teacher. While it is loaded there are also its masters, and its weights twice. */
static invar_status add_teacher(invar_memory_plan *out, invar_dry_models *models)
{
    const invar_memory_workload *workload = models->workload;
    invar_model *whole;
    invar_status status = invar_model_set_make_teacher(
        &models->run, &whole, &workload->models, workload->ranks.layout, &models->resident.dev);

    out->load_peak_bytes = models->resident.allocated_bytes;
    invar_model_free(whole);
    if (models->run.teacher)
        add_item(out, models, "teacher: weights");
    return status;
}

/* Adds the other models. A model that the rank does not have takes no memory and is no item. */
static invar_status add_models(invar_memory_plan *out, invar_dry_models *models)
{
    static const char *const names[INVAR_MODEL_ROLES] = {[INVAR_MODEL_ACTOR] = "actor: weights",
                                                         [INVAR_MODEL_SAMPLER] = "rollout: weights",
                                                         [INVAR_MODEL_REFERENCE] =
                                                             "reference: weights",
                                                         [INVAR_MODEL_CRITIC] = "critic: weights",
                                                         [INVAR_MODEL_DRAFT] = "draft: weights"};
    const invar_memory_workload *workload = models->workload;

    INVAR_TRY(add_teacher(out, models));
    for (int i = INVAR_MODEL_ACTOR; i < INVAR_MODEL_ROLES; i++) {
        INVAR_TRY(invar_model_set_make(&models->run, (invar_model_role)i, &workload->models,
                                       workload->ranks.layout, &models->resident.dev));
        if (models->resident.allocated_bytes > out->resident)
            add_item(out, models, names[i]);
    }
    return INVAR_OK;
}

static invar_status add_learner(invar_learner *learner, invar_memory_plan *out,
                                invar_dry_models *models, invar_model *model, const char *grads,
                                const char *moments)
{
    const invar_learner_options o = {.dev = &models->resident.dev,
                                     .prefix = "",
                                     .adamw = models->workload->adamw,
                                     .offload_chunk_bytes = models->workload->offload_chunk_bytes};

    INVAR_TRY(invar_learner_open(learner, model, models->workload->learns, &o));
    if (!learner->grads)
        return INVAR_OK;
    out->items[out->n_items++] = (invar_memory_plan_item){grads, learner->grads->bytes};
    out->resident += learner->grads->bytes;
    add_item(out, models, moments);
    return INVAR_OK;
}

static invar_status add_sync(invar_memory_plan *out, invar_dry_models *models)
{
    const invar_weight_sync_options o = {.roles = models->workload->ranks.roles,
                                         .model = invar_model_set_sampler(&models->run),
                                         .dev = &models->resident.dev,
                                         .bucket_bytes = models->workload->ranks.bucket_bytes};

    if (!o.roles)
        return INVAR_OK;
    INVAR_TRY(invar_weight_sync_new(&models->sync, &o));
    if (!invar_device_is_local(models->workload->dev))
        add_item(out, models, "actor: weights on their way");
    return INVAR_OK;
}

/*
 * Adds the tensors that a checkpoint hashes on the device. Divided tensors are not: they go to a
 * checkpoint through host memory.
 */
static invar_status list_all(invar_tensor_hasher *hasher, const invar_learner *l)
{
    if (l->model && (invar_model_is_divided(l->model) || invar_full_masters_scattered(l->model)))
        return INVAR_OK;
    for (int64_t i = 0; l->model && i < l->model->n_params; i++) {
        const invar_param *p = &l->model->params[i];

        INVAR_TRY(invar_tensor_hasher_add_cut(hasher, invar_param_f32(p), &p->split));
        if (!l->optimizer || !invar_optimizer_device(l->optimizer))
            continue;
        INVAR_TRY(invar_tensor_hasher_add(hasher, &l->optimizer->m[i], 1));
        INVAR_TRY(invar_tensor_hasher_add(hasher, &l->optimizer->v[i], 1));
    }
    return INVAR_OK;
}

/* Hashes weights and moments as a checkpoint does. */
static invar_status dry_models_hash(const invar_dry_models *models)
{
    invar_digest *of = NULL;
    invar_tensor_hasher hasher;
    invar_status status;

    invar_tensor_hasher_init(&hasher, &models->resident.dev);
    status = list_all(&hasher, &models->actor_learner);
    if (status == INVAR_OK)
        status = list_all(&hasher, &models->critic_learner);
    if (status == INVAR_OK)
        status = INVAR_ALLOC(of, (size_t)hasher.count + 1, "digests");
    if (status == INVAR_OK)
        status = invar_tensor_hasher_read(of, &hasher);
    invar_tensor_hasher_release(&hasher);
    invar_free(of);
    return status;
}

/* Computes the gradient norm and an AdamW step. */
static invar_status learner_step(invar_learner *learner)
{
    float norm = 0.0f, clip = 0.0f;

    if (!learner->grads)
        return INVAR_OK;
    INVAR_TRY(invar_optimizer_norm(&norm, &clip, learner->model, learner->grads, true, 0.0f,
                                   learner->options.dev));
    return invar_learner_step(learner, 0, false);
}

/* Counts the hashes twice: the points of a step keep their hasher's memory. */
invar_status invar_dry_models_measure_overhead(const invar_memory_plan *out,
                                               invar_dry_models *models)
{
    invar_phase_arena *s = &models->resident;

    invar_phase_arena_mark(s);
    INVAR_TRY(dry_models_hash(models));
    models->overhead_bytes = s->peak_bytes - out->resident;
    INVAR_TRY(learner_step(&models->actor_learner));
    INVAR_TRY(learner_step(&models->critic_learner));
    models->overhead_bytes += s->peak_bytes - out->resident;
    return INVAR_OK;
}

/*
 * Returns the elements of the parameters of a rank that differs from this one in the tensor axis
 * only.
 */
static int64_t elements_of(const invar_model *model, int tensor)
{
    invar_model_partition part = model->part;
    int64_t elements = 0;

    part.tensor = tensor;
    for (int64_t i = 0; i < model->n_params; i++) {
        invar_param_shard box = invar_model_partition_shard(&part, &model->spec, &model->params[i]);
        elements += box.experts * box.rows * (model->params[i].cols ? box.cols : 1);
    }
    return elements;
}

/* Returns the elements of the parameters' rows that a data-parallel rank owns. */
static int64_t elements_owned(const invar_model *model, int data)
{
    int64_t elements = 0;

    for (int64_t i = 0; i < model->n_params; i++)
        elements += invar_zero_partition_rows(model, i, data).count *
                    invar_param_row_elements(&model->params[i]);
    return elements;
}

/*
 * Returns the rank of this pipeline stage that holds the most. Logical shards and owned rows may be
 * uneven; of experts, contexts and samples the first rank has the most. This rank does not know
 * what ranks of another tensor index own, but they do.
 */
static int model_heaviest(const invar_model *model)
{
    invar_rank_coords place = {.tensor = 0};
    int64_t most = elements_of(model, 0);

    if (!model->layout)
        return 0;
    place.pipeline = model->part.stage;
    for (int t = 1; t < model->part.tensors; t++)
        if (elements_of(model, t) > most) {
            most = elements_of(model, t);
            place.tensor = t;
        }
    for (int d = 1; invar_zero_partition_is_divided(model) && d < model->layout->data.size; d++)
        if (elements_owned(model, d) > elements_owned(model, place.data))
            place.data = d;
    return invar_layout_rank_of(model->layout, &place);
}

invar_status invar_dry_models_make(invar_dry_models *models, invar_memory_plan *out,
                                   const invar_memory_workload *workload)
{
    const invar_model_set *run = &models->run;

    *out = (invar_memory_plan){0};
    models->workload = workload;
    invar_phase_arena_init(&models->resident, workload->dev, 0);
    models->resident.backend.memory.exact_size = false; // allocate like the real device
    INVAR_TRY(add_models(out, models));
    INVAR_TRY(add_learner(&models->actor_learner, out, models, run->actor, "actor: gradients",
                          "actor: moments"));
    if (run->critic)
        INVAR_TRY(add_learner(&models->critic_learner, out, models, run->critic,
                              "critic: gradients", "critic: moments"));
    INVAR_TRY(add_sync(out, models));
    out->host = models->resident.host;
    out->peak_rank = model_heaviest(run->actor);
    if (workload->models.samples_alone)
        out->weights = invar_model_weight_bytes(run->actor);
    return INVAR_OK;
}

void invar_dry_models_release(invar_dry_models *models)
{
    invar_weight_sync_free(models->sync);
    invar_learner_close(&models->critic_learner);
    invar_learner_close(&models->actor_learner);
    invar_model_set_release(&models->run);
}

/* ---- phases ---------------------------------------------------------------------------------- */

invar_status invar_dry_models_sample(invar_memory_plan *out, invar_dry_models *models)
{
    invar_rollout_exec_options limits = models->workload->limits;
    invar_rollout *rollout = NULL;
    invar_status status;

    limits.pages = out->choice.pages;
    limits.concurrency = out->choice.concurrency;
    limits.speculation.model = models->run.draft;
    invar_phase_arena_init(&models->work, models->workload->dev, 1);
    status = invar_rollout_new(&rollout, invar_model_set_sampler(&models->run), NULL,
                               &models->work.dev, &limits);
    if (status == INVAR_OK)
        status = invar_dry_run_rollout(rollout, models->workload);
    out->sampling = models->work.high_water;
    invar_rollout_free(rollout);
    return status;
}

/* Dry-runs the verification of in-flight samples, which a rank does without other ranks. */
invar_status invar_dry_models_check(invar_memory_plan *out, invar_dry_models *models)
{
    invar_memory_workload workload = *models->workload;
    invar_dry_run_objects parts = {.models = &models->run};
    invar_trainer_options o;
    invar_status status;

    if (!workload.verify_inflight)
        return INVAR_OK;
    invar_memory_plan_settle(&workload, &out->choice);
    o = invar_memory_plan_trainer(&workload, invar_model_set_sampler(&models->run));
    o.layout = NULL;
    invar_phase_arena_init(&models->work, workload.dev, 1);
    INVAR_TRY(invar_trainer_new(&parts.checker, &models->work.dev, &o));
    status = invar_dry_run_check(&parts, &workload);
    out->verify_bytes = models->work.high_water;
    invar_trainer_free(parts.checker);
    return status;
}

typedef struct hash_observer {
    invar_leaf_hasher leaves;
    bool full;    /* hash every value, not only the residual stream */
    int64_t most; /* largest number of rows of a value */
} hash_observer;

/* Hashes a value as the probe of the run does. */
static invar_status hash_rows(void *payload, const invar_observed_value *value)
{
    const invar_row_offsets *samples = value->samples;
    hash_observer *w = payload;
    const invar_digest *read;
    invar_tensor rows;
    int64_t count;

    if (!w->full && !value->is_residual)
        return INVAR_OK;
    INVAR_TRY(invar_dataflow_rows(&rows, value));
    rows = invar_tensor_rows(&rows, 0, samples->offsets[samples->count]);
    w->most = rows.shape[0] > w->most ? rows.shape[0] : w->most;
    count = invar_hash_leaf_count(&rows, samples);
    if (invar_leaf_hasher_full(&w->leaves, count))
        INVAR_TRY(invar_leaf_hasher_read(&read, &w->leaves));
    return invar_leaf_hasher_add(&w->leaves, &rows, value->device_samples, count);
}

/* Dry-runs learning, observed by a hasher if the points are fine. */
static invar_status dry_models_learn(invar_memory_plan *out, invar_dry_models *models,
                                     invar_dry_run_objects *parts,
                                     const invar_memory_workload *workload)
{
    bool far = invar_device_is_local(workload->dev);
    hash_observer w = {.full = workload->level >= INVAR_PROBE_FULL};
    const invar_forward_hooks show = {.on_value = hash_rows, .payload = &w, .parts = w.full};
    invar_status status;

    if (workload->level > INVAR_PROBE_STEP)
        parts->probe = &show;
    invar_phase_arena_mark(&models->resident);
    invar_leaf_hasher_init(&w.leaves, &models->resident.dev);
    status = invar_dry_run_learn(parts, workload);
    invar_leaf_hasher_release(&w.leaves);
    // the points of the rollout need as much again; on a device without its own memory, the points
    // of learning are hashed on the host
    out->outside_block_bytes =
        models->overhead_bytes + (models->resident.peak_bytes - out->resident) * (far ? 2 : 1);
    // indices of the hashed rows
    out->outside_block_bytes += (size_t)(2 * w.most) * sizeof(int64_t) + INVAR_ALIGN;
    out->learning = models->work.high_water;
    return status;
}

invar_status invar_dry_models_train(invar_memory_plan *out, invar_dry_models *models)
{
    invar_memory_workload workload = *models->workload;
    invar_dry_run_objects parts = {.models = &models->run,
                                   .actor_grads = models->actor_learner.grads,
                                   .critic_grads = models->critic_learner.grads};
    invar_trainer_options o;
    invar_status status;

    invar_memory_plan_settle(&workload, &out->choice);
    o = invar_memory_plan_trainer(&workload, models->run.actor);
    invar_phase_arena_init(&models->work, workload.dev, 1);
    INVAR_TRY(invar_trainer_new(&parts.trainer, &models->work.dev, &o));
    status = invar_dry_run_score(&parts, &workload);
    out->scoring = models->work.high_water;
    invar_trainer_free(parts.trainer);
    INVAR_TRY(status);
    invar_phase_arena_init(&models->work, workload.dev, 1);
    INVAR_TRY(invar_trainer_new(&parts.trainer, &models->work.dev, &o));
    status = dry_models_learn(out, models, &parts, &workload);
    invar_trainer_free(parts.trainer);
    return status;
}
