/*
 * save.c - writes checkpoints and exports of a run, and the checkpoint after a failed rollout.
 *
 * Rank 0 writes the checkpoints. If ranks divide the model, the other ranks send their tensors in
 * the order of the listing. Every rank that takes part must go through the same listing, even after
 * a failure that the run survives.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/files/hf/hf.h"
#include "engine/files/hf/peft.h"
#include "engine/model/shard/full_param.h"
#include "engine/run/train_loop.h"

#include "base/invar_banned.h"

/* ---- what is kept ---------------------------------------------------------------------------- */

int invar_run_parts(invar_checkpoint_part out[INVAR_DISK_PARTS], const invar_run_models *models)
{
    int n;

    if (models->world->roles.is_rollout_rank) // ranks that only sample have no state to save
        return 0;
    n = invar_disk_parts(out, &models->context.models, models->job->config);
    out[0].optimizer = models->actor.optimizer;
    if (models->context.models.critic)
        out[1].optimizer = models->critic.optimizer;
    return n;
}

bool invar_run_keeps_weights_fixed(const invar_run_storage *storage)
{
    return storage->job->config->debug_rollout_only && storage->fork.step < 0;
}

/* Like invar_run_parts, for the next checkpoint, which may have no weights. */
static int kept_parts(invar_checkpoint_part out[INVAR_DISK_PARTS], const invar_run_storage *storage,
                      const invar_run_models *models)
{
    return invar_run_keeps_weights_fixed(storage) ? 0 : invar_run_parts(out, models);
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* The tensors of a checkpoint, and where they come from. */
typedef struct tensor_listing {
    invar_checkpoint_tensor *tensors; /* (count) */
    invar_full_param_source *sources; /* (count) */
    int64_t count;
    bool divided;    /* no rank has complete tensors */
    int64_t fetched; /* number of tensors that rank 0 got from the others */
    bool lost;       /* an exchange with the other ranks failed */
    invar_full_param_reader whole;
} tensor_listing;

static void add_set(tensor_listing *l, const char *set, const invar_model *model,
                    const invar_tensor *of, const invar_device *dev)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        const invar_tensor *tensor = of ? &of[i] : invar_param_f32(p);

        l->tensors[l->count] = (invar_checkpoint_tensor){
            set, p->name, l->divided ? invar_param_full_tensor(p, NULL) : *tensor,
            l->divided ? NULL : dev};
        l->sources[l->count++] = (invar_full_param_source){model, i, tensor, dev};
    }
}

static void add_part(tensor_listing *l, const invar_checkpoint_part *p,
                     const invar_full_masters *masters, bool moments)
{
    const invar_optimizer *o = p->optimizer;

    add_set(l, p->masters, p->model, masters->tensors, masters->tensors ? NULL : &p->model->dev);
    if (!moments || !o)
        return;
    add_set(l, p->m, p->model, o->m, invar_optimizer_device(o));
    add_set(l, p->v, p->model, o->v, invar_optimizer_device(o));
}

static invar_status list_tensors(tensor_listing *out, const invar_run_storage *storage,
                                 const invar_run_models *models)
{
    bool moments = !storage->job->config->no_save_optim;
    invar_checkpoint_part parts[INVAR_DISK_PARTS];
    int n = kept_parts(parts, storage, models);
    size_t most = 0;

    *out = (tensor_listing){.divided = invar_model_is_divided(models->context.models.actor)};
    for (int i = 0; i < n; i++)
        most += 3 * (size_t)parts[i].model->n_params;
    INVAR_TRY(INVAR_ALLOC(out->tensors, most, "the list of a checkpoint's tensors"));
    INVAR_TRY(INVAR_ALLOC(out->sources, most, "the list of a checkpoint's tensors"));
    for (int i = 0; i < n; i++)
        add_part(out, &parts[i], &storage->checkpoints.masters[i], moments);
    return INVAR_OK;
}

static void listing_release(tensor_listing *l)
{
    invar_full_param_reader_release(&l->whole);
    invar_free(l->tensors);
    invar_free(l->sources);
}

static invar_status fetch_tensor(const void **out, void *payload, int64_t number)
{
    tensor_listing *l = payload;
    const invar_full_param_source *from = &l->sources[number];
    invar_status status = invar_full_param_reader_read((const float **)out, &l->whole, from, 0,
                                                       from->model->params[from->param].stack);

    l->fetched = number + 1;
    l->lost = status != INVAR_OK;
    return status;
}

/* Sends the tensors that rank 0 writes; the other ranks call it. */
static invar_status send_tensors(const invar_run_storage *storage, const invar_run_models *models)
{
    tensor_listing l;
    invar_status status = list_tensors(&l, storage, models);
    const void *none;

    for (int64_t i = 0; i < l.count && status == INVAR_OK; i++)
        status = fetch_tensor(&none, &l, i);
    listing_release(&l);
    return status;
}

static void describe_optimizer(invar_checkpoint_optimizer *out, const invar_optimizer *o)
{
    if (o)
        *out = (invar_checkpoint_optimizer){o->steps, o->beta1_power, o->beta2_power};
}

static void describe_state(invar_checkpoint_state *out, const invar_train_loop *loop)
{
    const invar_config *c = loop->job.config;

    *out = (invar_checkpoint_state){.step = loop->storage.position.step - 1,
                                    .rollout = loop->storage.position.rollout,
                                    .weights = loop->storage.position.weights,
                                    .samples = loop->flow.source.position.samples,
                                    .groups = loop->flow.source.position.groups,
                                    .identity = loop->storage.identity.digest,
                                    .n_cursors = 1};
    describe_optimizer(&out->actor, loop->models.actor.optimizer);
    describe_optimizer(&out->critic, loop->models.critic.optimizer);
    (void)snprintf(out->uuid, sizeof out->uuid, "%s", loop->storage.recorder.uuid);
    (void)snprintf(out->name, sizeof out->name, "%s", loop->storage.dirs.paths.recipe_name);
    (void)snprintf(out->format, sizeof out->format, "%s",
                   invar_format_name(loop->models.context.format));
    (void)snprintf(out->numerics, sizeof out->numerics, "%s", invar_numerics_name(c->numerics));
    if (invar_model_is_adapted(loop->models.context.models.actor))
        invar_run_context_describe_adapters(&out->adapters, &loop->models.context);
    (void)snprintf(out->cursors[0].name, sizeof out->cursors[0].name, "train");
    out->cursors[0].position = loop->flow.source.position.cursor;
}

/*
 * Called after a failure to write to `path`. True if the folder was moved meanwhile, which explains
 * the failure; the loop then has the new path. Otherwise the error is kept as it was.
 */
static bool was_moved(invar_run_storage *storage, const char *path)
{
    char before[INVAR_PATH_SIZE];
    invar_error first;

    // a copy, because `path` may be a field of storage->dirs, which changes
    (void)snprintf(before, sizeof before, "%s", path);
    invar_error_take(&first);
    if (invar_run_refresh_paths(storage) == INVAR_OK &&
        strcmp(before, storage->dirs.paths.save) != 0)
        return true;
    invar_error_put(&first);
    return false;
}

static invar_status write_now(invar_run_storage *storage, const invar_checkpoint_content *content,
                              const invar_checkpoint_options *options)
{
    invar_status status = invar_checkpoint_write(NULL, storage->dirs.paths.save, content, options);

    // other ranks do not send their tensors a second time
    if (status != INVAR_OK && !content->fetch && was_moved(storage, storage->dirs.paths.save))
        status = invar_checkpoint_write(NULL, storage->dirs.paths.save, content, options);
    return status;
}

/*
 * Decides whether device memory is copied, and written from the copy while training continues. The
 * last checkpoint is not copied, and neither is memory that the host addresses directly. A writer
 * that exists already has memory for its copy.
 */
static invar_status decide_copy(bool *out, const invar_run_storage *storage,
                                const invar_run_models *models,
                                const invar_checkpoint_content *content,
                                invar_train_loop_saving kind)
{
    int64_t bytes;

    *out = kind != INVAR_TRAIN_LOOP_SAVE_LAST && !content->fetch &&
           invar_device_is_local(&models->context.dev) && storage->job->config->async_save;
    if (!*out || kind != INVAR_TRAIN_LOOP_SAVE_BY_TIME || storage->checkpoints.writer)
        return INVAR_OK;
    INVAR_TRY(invar_checkpoint_measure(&bytes, content));
    *out = invar_run_may_copy(bytes, invar_memory_planning_host());
    return INVAR_OK;
}

static invar_status write_content(invar_run_storage *storage, invar_run_models *models,
                                  const invar_checkpoint_content *content,
                                  invar_train_loop_saving kind)
{
    const invar_config *c = storage->job->config;
    invar_checkpoint_options options = {.ledger = storage->recorder.ledger,
                                        .keep = c->keep_checkpoints,
                                        .by_time = kind == INVAR_TRAIN_LOOP_SAVE_BY_TIME,
                                        // not if a signal or `until` ends the run
                                        .is_last = kind == INVAR_TRAIN_LOOP_SAVE_LAST &&
                                                   storage->position.rollout >=
                                                       storage->job->settings.run_schedule.rollouts,
                                        .pool = models->context.pool,
                                        .save_exists = storage->dirs.claim.locked};
    bool copy;

    INVAR_TRY(decide_copy(&copy, storage, models, content, kind));
    if (!copy) {
        INVAR_TRY(write_now(storage, content, &options));
        if (options.by_time)
            storage->checkpoints.failures = 0;
        return INVAR_OK;
    }
    if (!storage->checkpoints.writer)
        INVAR_TRY(invar_checkpoint_writer_new(&storage->checkpoints.writer, &models->context.dev));
    INVAR_TRY(invar_checkpoint_writer_begin(storage->checkpoints.writer, storage->dirs.paths.save,
                                            content, &options));
    storage->checkpoints.by_time = options.by_time;
    return INVAR_OK;
}

/* Formats the in-flight samples; *out stays NULL if nothing is in flight. */
static invar_status format_flight(char **out, size_t *bytes_out, const invar_run_storage *storage,
                                  const invar_run_flow *flow)
{
    const invar_sample_source_options *o = &flow->source.options;
    invar_rollout_header header = {.rollout = storage->position.rollout,
                                   .run = storage->identity.digest,
                                   .weights = storage->position.weights,
                                   .n_samples_per_prompt = o->generate.per_prompt,
                                   .sampling = o->generate.sampling};

    if (flow->source.inflight.count == 0 && flow->source.inflight.surplus.count == 0)
        return INVAR_OK;
    invar_tokenizer_hash(&header.tokenizer, o->tokenizer);
    return invar_inflight_format(out, bytes_out, &flow->source.inflight, &header);
}

static invar_status write_checkpoint(invar_train_loop *loop, tensor_listing *l,
                                     invar_train_loop_saving kind)
{
    invar_checkpoint_state state;
    invar_checkpoint_blob blobs[2 + INVAR_HF_FILES] = {{.name = "config.json"}};
    invar_checkpoint_content content = {.state = &state,
                                        .tensors = l->tensors,
                                        .n_tensors = l->count,
                                        .blobs = blobs,
                                        .n_blobs = 1 + loop->storage.checkpoints.hf_files.count,
                                        .fetch = l->divided ? fetch_tensor : NULL,
                                        .payload = l};
    invar_checkpoint_blob *flight = &blobs[content.n_blobs];
    char *text = NULL, *flying = NULL;
    invar_status status;

    describe_state(&state, loop);
    INVAR_TRY(invar_ledger_chain(&state.step, &state.chain, loop->storage.recorder.ledger));
    memcpy(&blobs[1], loop->storage.checkpoints.hf_files.items,
           (size_t)loop->storage.checkpoints.hf_files.count * sizeof *blobs);
    INVAR_TRY(invar_model_spec_json(&text, &blobs[0].bytes, &loop->models.context.spec, "float32"));
    blobs[0].data = text;
    status = format_flight(&flying, &flight->bytes, &loop->storage, &loop->flow);
    *flight = (invar_checkpoint_blob){INVAR_INFLIGHT_FILE, flying, flight->bytes};
    content.n_blobs += flying != NULL;
    if (status == INVAR_OK)
        status = write_content(&loop->storage, &loop->models, &content, kind);
    invar_free(flying);
    invar_free(text);
    return status;
}

/*
 * Fails if the export folder of the rollout is not empty. If the ledger had the rollout when the
 * run was started, the folder may contain the run's own earlier export.
 */
static invar_status check_export(const invar_run_storage *storage, const char *pattern,
                                 int64_t rollout)
{
    char path[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    int64_t steps = storage->job->settings.steps_per_rollout;
    bool empty;

    if ((rollout + 1) * steps <= storage->recorder.last_recorded_step + 1)
        return INVAR_OK;
    INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, rollout));
    INVAR_TRY(invar_held_folder_is_empty(&empty, path));
    if (empty)
        return INVAR_OK;
    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "save-hf: %s is not empty, and this run did not write it; remove it, or give "
                      "another name",
                      shown);
}

invar_status invar_run_check_exports(const invar_run_storage *storage)
{
    const char *pattern = storage->job->config->save_hf;
    int64_t interval = storage->job->config->save_interval;

    if (!pattern[0] || storage->job->options->replay)
        return INVAR_OK;
    for (int64_t end = interval; interval > 0 && end < storage->job->settings.run_schedule.rollouts;
         end += interval)
        INVAR_TRY(check_export(storage, pattern, end - 1));
    return check_export(storage, pattern, storage->job->settings.run_schedule.rollouts - 1);
}

static invar_status export_hf(invar_run_storage *storage, invar_run_models *models)
{
    const char *pattern = storage->job->config->save_hf;
    char path[INVAR_PATH_SIZE];

    if (!pattern[0])
        return INVAR_OK;
    if (invar_ranks_is_leader(storage->world->all)) // a stopped run exports any rollout
        INVAR_TRY(check_export(storage, pattern, storage->position.rollout - 1));
    INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, storage->position.rollout - 1));
    if (!storage->checkpoints.masters[0].tensors) // no checkpoint has them already
        INVAR_TRY(invar_full_masters_collect(&storage->checkpoints.masters[0],
                                             models->context.models.actor));
    if (invar_model_is_adapted(models->context.models.actor))
        return invar_peft_save(models->context.models.actor,
                               storage->checkpoints.masters[0].tensors, path,
                               storage->job->config->hf_checkpoint);
    return invar_hf_save(
        models->context.models.actor, storage->checkpoints.masters[0].tensors, path,
        models->context.format == INVAR_FORMAT_FP32 ? INVAR_DTYPE_F32 : INVAR_DTYPE_BF16, 0,
        &storage->checkpoints.hf_files);
}

/* Receives the remaining tensors of other ranks, which send them even if rank 0 cannot write. */
static invar_status fetch_rest(tensor_listing *l)
{
    invar_status status = INVAR_OK;
    const void *none;

    while (l->divided && l->fetched < l->count && status == INVAR_OK)
        status = fetch_tensor(&none, l, l->fetched);
    return status;
}

static invar_status write_listed(invar_train_loop *loop, tensor_listing *l,
                                 invar_train_loop_saving kind)
{
    invar_status status = write_checkpoint(loop, l, kind);

    if (status == INVAR_OK)
        loop->storage.checkpoints.next = loop->storage.position.step;
    if (status == INVAR_OK || kind != INVAR_TRAIN_LOOP_SAVE_BY_TIME || l->lost)
        return status;
    INVAR_TRY(invar_run_forgive_save(&loop->storage, status));
    return fetch_rest(l);
}

static invar_status save_checkpoint(invar_train_loop *loop, invar_train_loop_saving kind)
{
    tensor_listing l;
    invar_status status;

    INVAR_TRY(invar_run_finish_save(&loop->storage));
    INVAR_TRY(invar_run_refresh_paths(&loop->storage));
    status = list_tensors(&l, &loop->storage, &loop->models);
    if (status == INVAR_OK)
        status = write_listed(loop, &l, kind);
    listing_release(&l);
    return status;
}

/* Collects masters and moments on the rank that writes. An earlier checkpoint may still be read
   from the buffers, so it is finished first. */
static invar_status collect_masters(invar_run_storage *storage, invar_run_models *models)
{
    invar_checkpoint_part parts[INVAR_DISK_PARTS];
    int n = kept_parts(parts, storage, models);

    INVAR_TRY(invar_run_finish_save(storage));
    for (int i = 0; i < n; i++) {
        INVAR_TRY(invar_full_masters_collect(&storage->checkpoints.masters[i], parts[i].model));
        if (parts[i].optimizer && !storage->job->config->no_save_optim)
            INVAR_TRY(invar_optimizer_collect(parts[i].optimizer, parts[i].model));
    }
    return INVAR_OK;
}

/* Rank 0 writes; the other ranks that divide the model send their tensors. */
static invar_status save_together(invar_train_loop *loop, invar_train_loop_saving kind)
{
    INVAR_TRY(collect_masters(&loop->storage, &loop->models));
    return invar_ranks_is_leader(loop->world.all) ? save_checkpoint(loop, kind)
                                                  : send_tensors(&loop->storage, &loop->models);
}

invar_status invar_train_loop_save(invar_train_loop *loop, invar_train_loop_saving kind)
{
    if (loop->storage.dirs.paths.save[0])
        INVAR_TRY(save_together(loop, kind));
    return kind == INVAR_TRAIN_LOOP_SAVE_BY_TIME ? INVAR_OK
                                                 : export_hf(&loop->storage, &loop->models);
}

invar_status invar_train_loop_keep_fork(invar_train_loop *loop)
{
    return loop->storage.fork.starting && !loop->world.roles.is_rollout_rank
               ? save_together(loop, INVAR_TRAIN_LOOP_SAVE_LAST)
               : INVAR_OK;
}

/* ---- after a failure ------------------------------------------------------------------------- */

invar_status invar_run_save_rescue_point(invar_run_storage *storage, invar_run_flow *flow)
{
    invar_run_clear_rescue_point(storage, flow);
    storage->restore_inflight = true;
    if (storage->dirs.paths.save[0] && invar_ranks_is_leader(storage->world->all))
        INVAR_TRY(invar_inflight_copy(&storage->inflight, &flow->source.inflight));
    storage->can_save_previous = true;
    return INVAR_OK;
}

void invar_run_clear_rescue_point(invar_run_storage *storage, invar_run_flow *flow)
{
    storage->position_before = flow->source.position;
    storage->restore_inflight = false;
    invar_inflight_release(&storage->inflight);
}

/* Restores the sample source to its state before the rollout. */
static void restore_source(invar_run_storage *storage, invar_run_flow *flow)
{
    invar_sample_source *source = &flow->source;

    source->position = storage->position_before;
    if (!storage->restore_inflight)
        return;
    invar_inflight_release(&source->inflight);
    invar_rl_samples_reset(&source->active_ahead);
    source->inflight = storage->inflight;
    storage->inflight = (invar_inflight){.count = 0};
}

bool invar_run_has_rescue_point(const invar_run_storage *storage)
{
    return storage->can_save_previous && storage->dirs.paths.save[0] &&
           !storage->job->options->replay;
}

/* Progress of a rank, exchanged with the other ranks. */
typedef struct rescue_state {
    int64_t whole, step; /* `whole`: the rank has a complete rescue point; `step`: its next step */
    int64_t next;        /* step after the newest checkpoint; only that of rank 0 is used */
} rescue_state;

/*
 * Sets *out if all ranks are at the same step with a complete state, and that step is later than
 * the newest checkpoint. Collective.
 */
static invar_status can_rescue(bool *out, const invar_run_world *world, const rescue_state *own)
{
    size_t size = (size_t)invar_ranks_size(world->all);
    rescue_state *all = NULL;
    invar_status status;

    *out = false;
    INVAR_TRY(INVAR_ALLOC(all, size, "what ranks have"));
    status = invar_ranks_all_gather(world->all, "rescue", own, sizeof *own, all);
    if (status == INVAR_OK)
        *out = all[0].step > all[0].next;
    for (size_t r = 0; r < size && status == INVAR_OK; r++)
        *out = *out && all[r].whole && all[r].step == all[0].step;
    invar_free(all);
    return status;
}

invar_status invar_train_loop_emergency_save(bool *saved_out, invar_train_loop *loop, bool sound)
{
    const rescue_state own = {sound && invar_run_has_rescue_point(&loop->storage),
                              loop->storage.position.step, loop->storage.checkpoints.next};
    int64_t unused;

    *saved_out = false;
    if (loop->world.all && !invar_comm_recover(loop->world.all->world))
        return INVAR_OK; // a rank is gone, and its part of the moments with it
    INVAR_TRY(can_rescue(saved_out, &loop->world, &own));
    if (!*saved_out)
        return INVAR_OK;
    restore_source(&loop->storage, &loop->flow);
    INVAR_TRY(invar_run_renew_layout(&loop->models));
    if (!loop->world.roles.is_rollout_rank)
        INVAR_TRY(save_together(loop, INVAR_TRAIN_LOOP_SAVE_LAST));
    // wait for rank 0, since a launcher ends all ranks as soon as one has ended
    return invar_ranks_min(&unused, loop->world.all, "rescue", 0);
}

void invar_run_release_masters(invar_run_storage *storage)
{
    for (size_t i = 0;
         i < sizeof storage->checkpoints.masters / sizeof *storage->checkpoints.masters; i++)
        invar_full_masters_release(&storage->checkpoints.masters[i]);
}

/* ---- a checkpoint that is being written ------------------------------------------------------ */

void invar_run_before_change(invar_run_storage *storage)
{
    storage->can_save_previous = false;
    if (storage->checkpoints.writer &&
        invar_checkpoint_writer_copying(storage->checkpoints.writer)) {
        invar_trace_begin(storage->recorder.trace, "save");
        invar_checkpoint_writer_await_copy(storage->checkpoints.writer);
        invar_trace_end(storage->recorder.trace);
    }
    invar_run_release_masters(storage);
}

invar_status invar_run_finish_save(invar_run_storage *storage)
{
    bool by_time = storage->checkpoints.by_time;
    invar_status status;

    if (!storage->checkpoints.writer)
        return INVAR_OK;
    INVAR_TRY(invar_run_refresh_paths(storage));
    status = invar_checkpoint_writer_finish(NULL, storage->checkpoints.writer);
    storage->checkpoints.by_time = false; // no checkpoint is in progress any more
    if (status == INVAR_OK && by_time)
        storage->checkpoints.failures = 0;
    if (status == INVAR_OK)
        return INVAR_OK;
    if (!was_moved(storage, invar_checkpoint_writer_save(storage->checkpoints.writer)))
        return by_time ? invar_run_forgive_save(storage, status) : status;
    invar_recorder_print(&storage->recorder,
                         "a checkpoint is missing: the run was moved while it was written");
    return INVAR_OK;
}
