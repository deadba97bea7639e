/*
 * setup.c - sets up a training run from its recipe, in the order in which failures are cheapest.
 *
 * First everything that is only read (recipe, ranks, config, data), then the memory plan, then
 * models and weights, and last what is written: folders, ledger, trace, trackers. A run that cannot
 * begin thus leaves no folder. Rank 0 opens the outputs; the other ranks only load the checkpoint.
 * invar_train_loop_close releases the parts in reverse order of their dependence.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "engine/model/graph/host_staging.h"
#include "engine/run/admission.h"
#include "engine/run/setup/internal.h"

#include "base/invar_banned.h"

static invar_status open_recorder(invar_train_loop *loop)
{
    const invar_config *c = loop->job.config;
    invar_recorder_options o = {.level = c->debug_determinism,
                                .stats = c->debug_stats,
                                .dump = c->debug_dump,
                                .dump_dir = c->debug_dump_dir,
                                .pool = loop->models.context.pool,
                                .dev = &loop->models.context.dev,
                                .sampler = invar_run_context_sampler_dev(&loop->models.context),
                                .layout = loop->world.roles.is_rollout_rank ? loop->world.all
                                                                            : loop->world.ranks,
                                .n_keep_samples = loop->job.options->replay ? 0 : c->keep_samples,
                                .tokenizer = loop->models.context.tokenizer,
                                .replay = loop->job.options->replay,
                                .print_line = invar_run_print,
                                .payload = &loop->storage};

    return invar_recorder_open(&loop->storage.recorder, &o);
}

/* Prints what the user may not expect of the data, the models and the files beside them. */
static void print_notes(const invar_run_storage *storage, const invar_run_models *models)
{
    const invar_run_context *s = &models->context;
    int64_t dropped = s->data ? invar_dataset_dropped_count(s->data) : 0;
    char line[INVAR_HF_WARNING_SIZE];

    if (storage->job->options->replay)
        return;
    if (dropped)
        invar_recorder_print(&storage->recorder,
                             "prompt-data: %" PRId64 " of %" PRId64
                             " prompts are too long and are left out (rollout-max-prompt-len)",
                             dropped, dropped + invar_dataset_size(s->data));
    invar_hf_files_warning(line, &storage->checkpoints.hf_files);
    if (line[0])
        invar_recorder_print(&storage->recorder, "%s", line);
    if (s->reference.own_spec) // the actor usually begins with ref-load
        invar_recorder_print(&storage->recorder,
                             "ref-load: another model than the actor; it is the reference, and the "
                             "actor begins with the weights of %s",
                             s->config->hf_checkpoint[0] ? "hf-checkpoint" : "its seed");
}

/* Opens the trace and the rank timer. `path` is "" on ranks other than 0. */
static invar_status open_trace(invar_run_storage *storage, invar_run_models *models,
                               const char *path)
{
    const invar_op_trace_options ops = {.layout = storage->world->all,
                                        .device = models->context.profile,
                                        .sampler_profile = models->context.sampler.profile,
                                        .first = storage->job->config->profile_step_start,
                                        .end = storage->job->config->profile_step_end};
    bool slices = storage->job->config->trace[0] != '\0';
    invar_rank_timer *timer;

    INVAR_TRY(invar_trace_open(&storage->recorder.trace, path));
    invar_trace_range(storage->recorder.trace, models->context.dev.backend->timers.range);
    if (models->context.profile)
        INVAR_TRY(invar_trace_profile(storage->recorder.trace, &ops));
    if (!storage->world->all)
        return INVAR_OK;
    INVAR_TRY(invar_rank_timer_new(&timer, storage->world->all, slices));
    invar_trace_set_rank_timer(storage->recorder.trace, timer);
    return INVAR_OK;
}

/* Sends a heartbeat while a plug-in computes, so that other ranks do not time out. */
static void send_heartbeat(void *payload)
{
    const invar_run_world *world = payload;

    invar_layout_heartbeat(world->all);
}

static invar_status open_plugins(invar_run_models *models, invar_run_flow *flow)
{
    INVAR_TRY(invar_run_plugins_open(&flow->plugins, models->job->config, models->context.tokenizer,
                                     models->job->options->replay));
    for (int i = 0; i < INVAR_PLUGINS; i++)
        invar_plugin_set_wait_callback(flow->plugins.by_role[i], send_heartbeat, models->world);
    return INVAR_OK;
}

/* Checks the output paths that the user has given. Creates nothing. */
static invar_status check_outputs(const invar_run_storage *storage, const invar_run_models *models)
{
    const char *trace = storage->job->config->trace;
    const char *rollouts = storage->job->config->save_debug_rollout_data;
    const invar_track_plan plan = {.config = storage->job->config,
                                   .name = storage->dirs.paths.name,
                                   .folder = storage->dirs.paths.run,
                                   .begins = storage->job->options->fresh ||
                                             !invar_path_exists(storage->dirs.paths.ledger)};

    if (!storage->job->options->replay) {
        INVAR_TRY(invar_run_paths_check(&storage->dirs.paths, storage->job->config,
                                        storage->job->options->fresh));
        INVAR_TRY(invar_run_check_home(storage, models));
    }
    if (trace[0])
        INVAR_TRY(
            invar_error_of_key(invar_trace_check_path(trace, storage->dirs.paths.run), "trace"));
    if (storage->job->options->replay)
        return INVAR_OK;
    if (rollouts[0])
        INVAR_TRY(invar_error_of_key(
            invar_rollout_file_check(rollouts, storage->job->settings.run_schedule.rollouts),
            "save-debug-rollout-data"));
    return invar_track_check(&plan);
}

/*
 * Makes the checks of open_outputs about files, for invar_train_loop_read. Starts no plug-in and
 * writes nothing.
 */
static invar_status check_files(invar_train_loop *loop)
{
    INVAR_TRY(invar_run_plugins_locate(loop->job.config));
    INVAR_TRY(invar_setup_open_source(loop));
    INVAR_TRY(check_outputs(&loop->storage, &loop->models));
    INVAR_TRY(invar_train_loop_find_checkpoint(loop));
    return invar_path_exists(loop->storage.dirs.paths.ledger)
               ? INVAR_OK
               : invar_run_check_exports(&loop->storage);
}

/* Opens plug-ins, folders, ledger, trace and trackers, which only rank 0 has. */
static invar_status open_outputs(invar_train_loop *loop)
{
    const char *trace = loop->job.config->trace;
    invar_plugin_event started = {.hook = INVAR_PLUGIN_AFTER_INIT, .step = -1, .rollout = -1};

    // before the ledger has a run with a wrong plug-in or folder
    INVAR_TRY(open_plugins(&loop->models, &loop->flow));
    INVAR_TRY(invar_setup_open_source(loop));
    INVAR_TRY(check_outputs(&loop->storage, &loop->models));
    INVAR_TRY(invar_train_loop_find_checkpoint(loop));
    // late, so that a run that cannot begin, without a GPU or its weights, leaves no folder
    INVAR_TRY(invar_run_open_dirs(&loop->storage, &loop->models));
    INVAR_TRY(invar_train_loop_resume(loop));
    if (loop->storage.summary->finished)
        return INVAR_OK;
    INVAR_TRY(invar_run_write_run_files(&loop->storage));
    INVAR_TRY(open_trace(&loop->storage, &loop->models, trace));
    INVAR_TRY(invar_run_open_track(&loop->storage));
    started.run = loop->storage.dirs.paths.name;
    started.folder = loop->storage.dirs.paths.run;
    return invar_run_plugins_hook(&loop->flow.plugins, &started, NULL);
}

/*
 * Opens the transport between devices before memory is planned, since it takes some, as NCCL does.
 */
static invar_status connect_devices(invar_run_models *models)
{
    const invar_device *dev = &models->context.dev;
    invar_distributed_backend wanted = models->job->config->distributed_backend;

    if (!models->world->all)
        return INVAR_OK;
    INVAR_TRY(
        invar_layout_choose_transport(&models->world->transport, models->world->all, dev, wanted));
    return invar_layout_open_transport(&models->world->layout, dev, &models->world->transport);
}

/*
 * Warns if the disk cannot hold all checkpoints. The run may continue nevertheless: the user may
 * move checkpoints away, or end the run earlier.
 */
static void warn_disk(const invar_run_storage *storage, const invar_disk *disk)
{
    char text[INVAR_DISK_TEXT_SIZE];

    if (invar_disk_fits(disk, disk->n_remaining))
        return;
    invar_disk_describe(text, disk, disk->n_remaining);
    invar_recorder_print(&storage->recorder,
                         "warning: %s: when the disk is full the run ends with an error; "
                         "keep-checkpoints removes old ones, a larger save-interval makes fewer",
                         text);
}

/* Repeats the admission check with the disk space, on rank 0. */
static invar_status check_disk(const invar_run_storage *storage, const invar_run_models *models)
{
    invar_admission facts = {.config = storage->job->config,
                             .replay = storage->job->options->replay};
    invar_disk disk;

    if (facts.replay || !invar_ranks_is_leader(storage->world->all))
        return INVAR_OK;
    INVAR_TRY(invar_run_plan_disk(&disk, storage, models));
    facts.disk = &disk;
    INVAR_TRY(invar_admission_check(&facts));
    warn_disk(storage, &disk);
    return INVAR_OK;
}

/* Checks the prompts on rank 0, for all ranks. */
static invar_status check_prompts(invar_run_storage *storage, invar_run_models *models)
{
    const invar_admission_prompts prompts = {.session = &models->context,
                                             .settings = &storage->job->settings,
                                             .forked = storage->fork.step >= 0,
                                             .say = invar_run_print,
                                             .payload = storage};

    if (storage->job->options->replay || !invar_ranks_is_leader(storage->world->all))
        return INVAR_OK;
    return invar_admission_check_prompts(&prompts);
}

/* Opens everything that is read, except weights, and plans the memory. */
static invar_status open_inputs(invar_memory_plan *plan, invar_train_loop *loop)
{
    const char *hf = loop->job.config->hf_checkpoint;
    const invar_local_ranks crowd = invar_setup_local_ranks(&loop->world, &loop->job);
    invar_status status;

    status = invar_run_context_open_rank(&loop->models.context, loop->job.config,
                                         INVAR_RUN_CONTEXT_DATA | INVAR_RUN_CONTEXT_NO_WEIGHTS |
                                             // a rank that only samples needs the actor alone
                                             (loop->world.roles.is_rollout_rank
                                                  ? INVAR_RUN_CONTEXT_SAMPLE
                                                  : INVAR_RUN_CONTEXT_LEARN),
                                         &crowd);
    if (status == INVAR_OK)
        status = invar_admission_check_context(
            &(invar_admission){.config = loop->job.config,
                               .ranks = invar_ranks_size(loop->world.all),
                               .data_known = true,
                               .replay = loop->job.options->replay},
            &loop->models.context);
    // replays are exempt: version 0.1.0 sampled longer responses, up to the model's positions
    if (status == INVAR_OK && !loop->job.options->replay)
        status = invar_run_context_check_rollouts(&loop->models.context);
    INVAR_TRY(invar_setup_find_together(&loop->world, status));
    INVAR_TRY(connect_devices(&loop->models));
    if (hf[0]) { // an export gets the template that the model was trained with
        INVAR_TRY(invar_hf_files_read(&loop->storage.checkpoints.hf_files, hf,
                                      loop->job.config->chat_template_path));
        INVAR_TRY(invar_hf_files_read_config(&loop->storage.checkpoints.hf_files, hf));
    }
    INVAR_TRY(open_recorder(loop));
    invar_train_settings_read(
        &loop->job.settings, loop->job.config,
        loop->models.context.data ? invar_dataset_size(loop->models.context.data) : 0,
        loop->job.options->until, loop->world.roles.first_rollout_rank > 0);
    INVAR_TRY(invar_run_read_record(&loop->storage, &loop->flow));
    print_notes(&loop->storage, &loop->models);
    INVAR_TRY(check_disk(&loop->storage, &loop->models));
    INVAR_TRY(invar_run_read_sets(&loop->storage, &loop->models));
    INVAR_TRY(check_prompts(&loop->storage, &loop->models));
    return invar_setup_plan_memory(plan, &loop->storage, &loop->models);
}

static invar_status advise_memory(const invar_run_models *models, invar_status status)
{
    return invar_host_staging_advise_oom(
        status, invar_device_is_local(&models->context.dev),
        "the run was planned to fit: something else takes memory there");
}

static invar_status open_parts(invar_train_loop *loop)
{
    invar_memory_plan plan;

    INVAR_TRY(open_inputs(&plan, loop));
    INVAR_TRY(advise_memory(&loop->models, invar_setup_take_memory(loop, &plan)));
    INVAR_TRY(invar_run_attach_audit(&loop->storage, &loop->models));
    if (invar_ranks_is_leader(loop->world.all)) {
        INVAR_TRY(open_outputs(loop));
    } else {
        INVAR_TRY(invar_setup_open_source(loop));
        INVAR_TRY(invar_train_loop_resume(loop));
        if (!loop->storage.summary->finished)
            INVAR_TRY(open_trace(&loop->storage, &loop->models, ""));
    }
    loop->models.custom_loss = (invar_loss_custom){invar_run_ask_loss, &loop->flow};
    loop->job.settings.rl.custom = &loop->models.custom_loss;
    return INVAR_OK;
}

static invar_status prepare_loop(invar_train_loop *loop, const invar_config *config,
                                 const invar_train_options *options, invar_train_summary *summary)
{
    *loop = (invar_train_loop){
        .job = {.config = config, .options = options},
        .world = {.job = &loop->job},
        .models = {.job = &loop->job, .world = &loop->world},
        .storage = {.job = &loop->job, .world = &loop->world, .summary = summary},
        .flow = {.job = &loop->job, .world = &loop->world}};
    INVAR_TRY(invar_run_paths_find(&loop->storage.dirs.paths, config, options->recipe_path));
    INVAR_TRY(invar_setup_open_layout(&loop->storage));
    INVAR_TRY(invar_run_find_fork(&loop->storage));
    return options->replay ? INVAR_OK // a replay keeps the facts of the recorded run
                           : invar_user_facts_read(&loop->storage.identity.facts);
}

invar_status invar_train_loop_open(invar_train_loop *loop, const invar_config *config,
                                   const invar_train_options *options, invar_train_summary *summary)
{
    INVAR_TRY(prepare_loop(loop, config, options, summary));
    return open_parts(loop);
}

invar_status invar_train_loop_read(invar_train_loop *loop, const invar_config *config,
                                   const invar_train_options *options)
{
    invar_memory_plan plan;

    INVAR_TRY(prepare_loop(loop, config, options, NULL));
    INVAR_TRY(open_inputs(&plan, loop));
    INVAR_TRY(advise_memory(&loop->models, invar_setup_make_models(&loop->storage, &loop->models)));
    if (!invar_ranks_is_leader(loop->world.all))
        return INVAR_OK;
    return check_files(loop);
}

void invar_train_loop_close(invar_train_loop *loop)
{
    invar_sample_source_close(&loop->flow.source);
    invar_recorded_schedule_release(&loop->flow.recorded_schedule);
    invar_agents_free(loop->flow.agents);
    invar_inflight_release(&loop->storage.inflight);
    invar_weight_sync_free(loop->models.weight_sync);
    invar_run_plugins_close(&loop->flow.plugins);
    invar_rl_samples_reset(&loop->flow.batch.samples);
    invar_token_arrays_release(&loop->flow.arrays);
    invar_rollout_free(loop->models.rollout);
    invar_trainer_free(loop->models.async_verifier);
    invar_trainer_free(loop->models.trainer);
    invar_audit_free(loop->storage.audit);
    invar_checkpoint_close(loop->storage.checkpoints.resume_from);
    invar_checkpoint_writer_free(loop->storage.checkpoints.writer);
    invar_run_release_masters(&loop->storage);
    invar_learner_close(&loop->models.actor);
    invar_learner_close(&loop->models.critic);
    invar_phase_memory_release(&loop->models.phase_memory);
    invar_recorder_close(&loop->storage.recorder);
    invar_saved_rollouts_release(&loop->storage.identity.saved);
    invar_user_facts_release(&loop->storage.identity.facts);
    invar_checkpoint_lock_release(&loop->storage.dirs.claim);
    invar_held_folder_release(&loop->storage.dirs.folder);
    invar_hf_files_release(&loop->storage.checkpoints.hf_files);
    invar_layout_close_transport(&loop->world.layout, &loop->models.context.dev);
    invar_run_context_close(&loop->models.context);
    invar_layout_release(&loop->world.layout);
    invar_rank_roles_close(&loop->world.roles);
}
