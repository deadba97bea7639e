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

#include "engine/config/check_internal.h"
#include "engine/model/graph/host_staging.h"
#include "engine/run/admission.h"
#include "engine/run/setup/internal.h"

#include "base/invar_banned.h"

static invar_status open_recorder(invar_train_loop *loop)
{
    const invar_config *c = loop->config;
    invar_recorder_options o = {.level = c->debug_determinism,
                                .stats = c->debug_stats,
                                .dump = c->debug_dump,
                                .dump_dir = c->debug_dump_dir,
                                .pool = loop->session.pool,
                                .dev = &loop->session.dev,
                                .sampler = invar_run_context_sampler_dev(&loop->session),
                                .layout = loop->roles.is_rollout_rank ? loop->world : loop->ranks,
                                .n_keep_samples = loop->options->replay ? 0 : c->keep_samples,
                                .tokenizer = loop->session.tokenizer,
                                .replay = loop->options->replay,
                                .print_line = invar_train_loop_print,
                                .payload = loop};

    return invar_recorder_open(&loop->recorder, &o);
}

static void print_dropped(const invar_train_loop *loop)
{
    const invar_dataset *data = loop->session.data;

    if (!data || !invar_dataset_dropped_count(data) || loop->options->replay)
        return;
    invar_recorder_print(&loop->recorder,
                         "prompt-data: %" PRId64 " of %" PRId64
                         " prompts are too long and are left out (rollout-max-prompt-len)",
                         invar_dataset_dropped_count(data),
                         invar_dataset_dropped_count(data) + invar_dataset_size(data));
}

/* Prints that ref-load names another model than the actor, which usually begins with ref-load. */
static void print_reference(const invar_train_loop *loop)
{
    const invar_run_context *s = &loop->session;

    if (s->ref_has_own_spec && !loop->options->replay)
        invar_recorder_print(&loop->recorder,
                             "ref-load: another model than the actor; it is the reference, and the "
                             "actor begins with the weights of %s",
                             s->config->hf_checkpoint[0] ? "hf-checkpoint" : "its seed");
}

static void print_left_out(const invar_train_loop *loop)
{
    char line[INVAR_HF_WARNING_SIZE];

    invar_hf_files_warning(line, &loop->store.hf_files);
    if (line[0] && !loop->options->replay)
        invar_recorder_print(&loop->recorder, "%s", line);
}

static invar_status open_profile(invar_train_loop *loop)
{
    const invar_op_trace_options options = {.layout = loop->world,
                                            .device = loop->session.profile,
                                            .sampler_profile = loop->session.sampler_profile,
                                            .first = loop->config->profile_step_start,
                                            .end = loop->config->profile_step_end};

    return invar_trace_profile(loop->recorder.trace, &options);
}

/* Opens the trace and the rank timer. `path` is "" on ranks other than 0. */
static invar_status open_trace(invar_train_loop *loop, const char *path)
{
    bool slices = loop->config->trace[0] != '\0';
    invar_rank_timer *timer;

    INVAR_TRY(invar_trace_open(&loop->recorder.trace, path));
    invar_trace_range(loop->recorder.trace, loop->session.dev.backend->timers.range);
    if (loop->session.profile)
        INVAR_TRY(open_profile(loop));
    if (!loop->world)
        return INVAR_OK;
    INVAR_TRY(invar_rank_timer_new(&timer, loop->world, slices));
    invar_trace_set_rank_timer(loop->recorder.trace, timer);
    return INVAR_OK;
}

/* Sends a heartbeat while a plug-in computes, so that other ranks do not time out. */
static void send_heartbeat(void *payload)
{
    const invar_train_loop *loop = payload;

    invar_layout_heartbeat(loop->world);
}

static invar_status open_plugins(invar_train_loop *loop)
{
    INVAR_TRY(invar_run_plugins_open(&loop->plugins, loop->config, loop->session.tokenizer,
                                     loop->options->replay));
    for (int i = 0; i < INVAR_PLUGINS; i++)
        invar_plugin_set_wait_callback(loop->plugins.by_role[i], send_heartbeat, loop);
    return INVAR_OK;
}

/* Checks the output paths that the user has given. Creates nothing. */
static invar_status check_outputs(const invar_train_loop *loop)
{
    const char *trace = loop->config->trace;
    const char *rollouts = loop->config->save_debug_rollout_data;
    const invar_track_plan plan = {.config = loop->config,
                                   .name = loop->dirs.paths.name,
                                   .folder = loop->dirs.paths.run,
                                   .begins = loop->options->fresh ||
                                             !invar_path_exists(loop->dirs.paths.ledger)};

    if (!loop->options->replay) {
        INVAR_TRY(invar_run_paths_check(&loop->dirs.paths, loop->config, loop->options->fresh));
        INVAR_TRY(invar_train_loop_check_home(loop));
    }
    if (trace[0])
        INVAR_TRY(invar_error_of_key(invar_trace_check_path(trace, loop->dirs.paths.run), "trace"));
    if (loop->options->replay)
        return INVAR_OK;
    if (rollouts[0])
        INVAR_TRY(invar_error_of_key(
            invar_rollout_file_check(rollouts, loop->settings.run_schedule.rollouts),
            "save-debug-rollout-data"));
    return invar_track_check(&plan);
}

/*
 * Makes the checks of open_outputs about files, for invar_train_loop_read. Starts no plug-in and
 * writes nothing.
 */
static invar_status check_files(invar_train_loop *loop)
{
    INVAR_TRY(invar_run_plugins_locate(loop->config));
    INVAR_TRY(invar_setup_open_source(loop));
    INVAR_TRY(check_outputs(loop));
    INVAR_TRY(invar_train_loop_find_checkpoint(loop));
    return invar_path_exists(loop->dirs.paths.ledger) ? INVAR_OK
                                                      : invar_train_loop_check_exports(loop);
}

/* Opens plug-ins, folders, ledger, trace and trackers, which only rank 0 has. */
static invar_status open_outputs(invar_train_loop *loop)
{
    const char *trace = loop->config->trace;
    invar_plugin_event started = {.hook = INVAR_PLUGIN_AFTER_INIT, .step = -1, .rollout = -1};

    // before the ledger has a run with a wrong plug-in or folder
    INVAR_TRY(open_plugins(loop));
    INVAR_TRY(invar_setup_open_source(loop));
    INVAR_TRY(check_outputs(loop));
    INVAR_TRY(invar_train_loop_find_checkpoint(loop));
    // late, so that a run that cannot begin, without a GPU or its weights, leaves no folder
    INVAR_TRY(invar_train_loop_open_dirs(loop));
    INVAR_TRY(invar_train_loop_resume(loop));
    if (loop->summary->finished)
        return INVAR_OK;
    INVAR_TRY(invar_train_loop_write_run_files(loop));
    INVAR_TRY(open_trace(loop, trace));
    INVAR_TRY(invar_train_loop_open_track(loop));
    started.run = loop->dirs.paths.name;
    started.folder = loop->dirs.paths.run;
    return invar_run_plugins_hook(&loop->plugins, &started, NULL);
}

/*
 * Opens the transport between devices before memory is planned, since it takes some, as NCCL does.
 */
static invar_status connect_devices(invar_train_loop *loop)
{
    const invar_device *dev = &loop->session.dev;
    invar_distributed_backend wanted = loop->config->distributed_backend;

    if (!loop->world)
        return INVAR_OK;
    INVAR_TRY(invar_layout_choose_transport(&loop->transport, loop->world, dev, wanted));
    return invar_layout_open_transport(&loop->layout, dev, &loop->transport);
}

/*
 * Warns if the disk cannot hold all checkpoints. The run may continue nevertheless: the user may
 * move checkpoints away, or end the run earlier.
 */
static void warn_disk(const invar_train_loop *loop, const invar_disk *disk)
{
    char text[INVAR_DISK_TEXT_SIZE];

    if (invar_disk_fits_all(disk))
        return;
    invar_disk_describe(text, disk, disk->n_remaining);
    invar_recorder_print(&loop->recorder,
                         "warning: %s: when the disk is full the run ends with an error; "
                         "keep-checkpoints removes old ones, a larger save-interval makes fewer",
                         text);
}

/* Repeats the admission check with the disk space, on rank 0. */
static invar_status check_disk(const invar_train_loop *loop)
{
    invar_admission facts = {.config = loop->config, .replay = loop->options->replay};
    invar_disk disk;

    if (facts.replay || !invar_ranks_is_leader(loop->world))
        return INVAR_OK;
    INVAR_TRY(invar_train_loop_plan_disk(&disk, loop));
    facts.disk = &disk;
    INVAR_TRY(invar_admission_check(&facts));
    warn_disk(loop, &disk);
    return INVAR_OK;
}

/* Repeats the admission check with config.json and the data. */
static invar_status check_admission(const invar_train_loop *loop)
{
    const invar_run_context *s = &loop->session;
    invar_admission facts = {.config = loop->config,
                             .ranks = invar_ranks_size(loop->world),
                             .data_known = true,
                             .prompts = s->data ? invar_dataset_size(s->data) : 0,
                             .replay = loop->options->replay};

    invar_admission_take_models(&facts, s);
    return invar_admission_check(&facts);
}

/* Checks the prompts on rank 0, for all ranks. */
static invar_status check_prompts(invar_train_loop *loop)
{
    const invar_admission_prompts prompts = {.session = &loop->session,
                                             .settings = &loop->settings,
                                             .forked = loop->fork.step >= 0,
                                             .say = invar_train_loop_print,
                                             .payload = loop};

    if (loop->options->replay || !invar_ranks_is_leader(loop->world))
        return INVAR_OK;
    return invar_admission_check_prompts(&prompts);
}

/* Opens everything that is read, except weights, and plans the memory. */
static invar_status open_inputs(invar_memory_plan *plan, invar_train_loop *loop)
{
    const char *hf = loop->config->hf_checkpoint;
    const invar_local_ranks crowd = invar_setup_local_ranks(loop);
    invar_status status;

    status =
        invar_run_context_open_rank(&loop->session, loop->config,
                                    invar_setup_wants(loop) | INVAR_RUN_CONTEXT_NO_WEIGHTS, &crowd);
    if (status == INVAR_OK)
        status = check_admission(loop);
    // replays are exempt: version 0.1.0 sampled longer responses, up to the model's positions
    if (status == INVAR_OK && !loop->options->replay)
        status = invar_run_context_check_rollouts(&loop->session);
    INVAR_TRY(invar_setup_find_together(loop, status));
    INVAR_TRY(connect_devices(loop));
    if (hf[0]) { // an export gets the template that the model was trained with
        INVAR_TRY(invar_hf_files_read(&loop->store.hf_files, hf, loop->config->chat_template_path));
        INVAR_TRY(invar_hf_files_read_config(&loop->store.hf_files, hf));
    }
    INVAR_TRY(open_recorder(loop));
    invar_train_settings_read(&loop->settings, loop->config,
                              loop->session.data ? invar_dataset_size(loop->session.data) : 0,
                              loop->options->until);
    INVAR_TRY(invar_train_loop_read_record(loop));
    print_dropped(loop);
    print_left_out(loop);
    print_reference(loop);
    INVAR_TRY(check_disk(loop));
    INVAR_TRY(invar_train_loop_read_sets(loop));
    INVAR_TRY(check_prompts(loop));
    return invar_setup_plan_memory(plan, loop);
}

static invar_status advise_memory(const invar_train_loop *loop, invar_status status)
{
    return invar_host_staging_advise_oom(
        status, invar_device_is_local(&loop->session.dev),
        "the run was planned to fit: something else takes memory there");
}

static invar_status open_parts(invar_train_loop *loop)
{
    invar_memory_plan plan;

    INVAR_TRY(open_inputs(&plan, loop));
    INVAR_TRY(advise_memory(loop, invar_setup_take_memory(loop, &plan)));
    INVAR_TRY(invar_train_loop_attach_audit(loop));
    if (invar_ranks_is_leader(loop->world)) {
        INVAR_TRY(open_outputs(loop));
    } else {
        INVAR_TRY(invar_setup_open_source(loop));
        INVAR_TRY(invar_train_loop_resume(loop));
        if (!loop->summary->finished)
            INVAR_TRY(open_trace(loop, ""));
    }
    loop->custom = (invar_loss_custom){invar_train_loop_ask_loss, loop};
    loop->settings.rl.custom = &loop->custom;
    return INVAR_OK;
}

static invar_status prepare_loop(invar_train_loop *loop, const invar_config *config,
                                 const invar_train_options *options, invar_train_summary *summary)
{
    *loop = (invar_train_loop){.config = config, .options = options, .summary = summary};
    INVAR_TRY(invar_run_paths_find(&loop->dirs.paths, config, options->recipe_path));
    INVAR_TRY(invar_setup_open_layout(loop));
    INVAR_TRY(invar_train_loop_find_fork(loop));
    return options->replay ? INVAR_OK // a replay keeps the facts of the recorded run
                           : invar_user_facts_read(&loop->identity.facts);
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
    INVAR_TRY(advise_memory(loop, invar_setup_make_models(loop)));
    if (!invar_ranks_is_leader(loop->world))
        return INVAR_OK;
    return check_files(loop);
}

void invar_train_loop_close(invar_train_loop *loop)
{
    invar_sample_source_close(&loop->source);
    invar_recorded_schedule_release(&loop->recorded_schedule);
    invar_agents_free(loop->agents);
    invar_inflight_release(&loop->inflight);
    invar_weight_sync_free(loop->sync);
    invar_run_plugins_close(&loop->plugins);
    invar_rl_samples_reset(&loop->batch.samples);
    invar_token_arrays_release(&loop->arrays);
    invar_rollout_free(loop->rollout);
    invar_trainer_free(loop->async_verifier);
    invar_trainer_free(loop->trainer);
    invar_audit_free(loop->audit);
    invar_checkpoint_close(loop->store.resume_from);
    invar_checkpoint_writer_free(loop->store.writer);
    invar_train_loop_release_masters(loop);
    invar_learner_close(&loop->actor);
    invar_learner_close(&loop->critic);
    invar_phase_memory_release(&loop->block);
    invar_recorder_close(&loop->recorder);
    invar_saved_rollouts_release(&loop->identity.saved);
    invar_user_facts_release(&loop->identity.facts);
    invar_checkpoint_lock_release(&loop->dirs.claim);
    invar_held_folder_release(&loop->dirs.folder);
    invar_hf_files_release(&loop->store.hf_files);
    invar_layout_close_transport(&loop->layout, &loop->session.dev);
    invar_run_context_close(&loop->session);
    invar_layout_release(&loop->layout);
    invar_rank_roles_close(&loop->roles);
}
