/*
 * source.c - makes the rollout, the agents and the sample source of a run.
 *
 * The source has many options, and most follow from one key each. A few must not depend on
 * debugging or on checkpoints, because they decide which calls a plug-in gets: see `turns` in
 * invar_setup_open_source.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/rl/estimator.h"
#include "engine/run/setup/internal.h"

#include "base/invar_banned.h"

/* True if loaded rollouts are run through the model to record their points. */
static bool recomputes_points(const invar_run_storage *storage)
{
    return storage->recorder.options.level > INVAR_PROBE_STEP &&
           storage->identity.saved.on_policy && !storage->job->settings.sft &&
           !storage->job->config->debug_train_only &&
           storage->job->config->load_debug_rollout_data[0];
}

invar_status invar_setup_make_rollout(invar_run_storage *storage, invar_run_models *models)
{
    invar_run_context *s = &models->context;
    const char *loads = storage->job->config->load_debug_rollout_data;

    if (storage->world->roles.first_rollout_rank > 0 && !storage->world->roles.is_rollout_rank)
        return INVAR_OK;
    if (!storage->identity.evaluates && !recomputes_points(storage) &&
        (storage->job->settings.sft || loads[0]))
        return INVAR_OK;
    // the draft model was not loaded when the memory was planned
    models->workload.limits.speculation.model = s->models.draft;
    return invar_rollout_new(
        &models->rollout, invar_model_set_sampler(&s->models), s->tokenizer,
        invar_phase_memory_dev(&models->phase_memory, INVAR_MEMORY_PLAN_SAMPLING),
        &models->workload.limits);
}

static invar_status report_progress(void *payload, int64_t samples_done, int64_t tokens_done)
{
    const invar_train_loop *loop = payload;
    if (loop->job.options->progress)
        loop->job.options->progress(
            loop->job.options->payload,
            &(invar_train_progress){.rollout = loop->storage.position.rollout,
                                    .rollouts = loop->job.settings.run_schedule.rollouts,
                                    .step = loop->storage.position.step,
                                    .phase = "rollout",
                                    .samples_done = samples_done,
                                    .samples = loop->models.rollout ? loop->flow.source.active : 0,
                                    .tokens_done = tokens_done});
    return INVAR_OK;
}

/* Records an event of the agents, at the step that trains on the rollout. */
static invar_status record_agent_event(void *payload, const char *kind, const char *text)
{
    invar_run_storage *storage = payload;

    if (strcmp(kind, INVAR_JOURNAL_UNCHECKED) == 0)
        return invar_run_report_unchecked(storage, text);
    return invar_recorder_event(&storage->recorder, storage->position.step, "warning", kind, text);
}

static invar_agent_server_options agent_server_options(invar_run_models *models)
{
    const invar_config *c = models->job->config;
    const invar_run_context *s = &models->context;
    invar_sampling_params sampling = invar_run_context_sampling(s);
    int64_t context = sampling.max_context ? sampling.max_context : s->spec.max_positions;

    return (invar_agent_server_options){
        .command = c->custom_agent_path,
        .session_timeout_s = (double)c->plugin_timeout,
        .max_processes = c->agent_concurrency,
        .max_calls = c->agent_max_calls,
        .max_branches = c->agent_max_branches,
        .zero_reward_on_failure = c->agent_failure == INVAR_AGENT_FAILURE_ZERO,
        .rollout = models->rollout,
        .chat = {.tokenizer = s->tokenizer,
                 .hf_dir = c->hf_checkpoint,
                 .template_path = c->chat_template_path,
                 .template_kwargs = c->apply_chat_template_kwargs,
                 .vocab = s->spec.vocab,
                 .context = context,
                 .cut_responses = true},
        .server_info = {.model = "invar",
                        .base = s->base.weights,
                        .adapted = s->spec.lora.rank > 0,
                        .numerics = invar_numerics_name(s->dev.numerics),
                        .format = invar_format_name(s->rollout_format),
                        .context = context}};
}

/* Makes the agents. A replay has recorded sessions, and no folder to write to. */
static invar_status make_agents(invar_train_loop *loop)
{
    bool replay = loop->job.options->replay;
    bool recorded = !replay && loop->job.config->agent_record[0];
    const invar_agents_options o = {.plugin = loop->flow.plugins.by_role[INVAR_RUN_PLUGINS_AGENTS],
                                    .server = agent_server_options(&loop->models),
                                    .recorded = recorded,
                                    .folder =
                                        replay || recorded ? NULL : loop->storage.dirs.paths.run,
                                    .run = loop->storage.identity.digest,
                                    .uuid = loop->storage.recorder.uuid,
                                    .on_event = record_agent_event,
                                    .payload = &loop->storage};

    return o.plugin ? invar_agents_new(&loop->flow.agents, &o) : INVAR_OK;
}

invar_status invar_setup_open_source(invar_train_loop *loop)
{
    const invar_config *c = loop->job.config;
    const invar_run_context *s = &loop->models.context;
    const invar_train_settings *set = &loop->job.settings;
    const bool threaded = set->sampling.ahead == INVAR_AHEAD_IN_THREAD;
    // the calls that a plug-in gets must not depend on checkpoints
    const bool turns = set->sampling.lag > 0 && c->custom_generate_function_path[0];
    invar_plugin *const *plugins = loop->flow.plugins.by_role;
    invar_sample_source_options o = {
        .config = c,
        .generate = {.layout = loop->world.all,
                     .rollout = loop->models.rollout,
                     .sampling = invar_run_context_sampling(s),
                     .turns = invar_multi_turn_read(c, plugins[INVAR_RUN_PLUGINS_TURNS], &s->spec,
                                                    s->tokenizer),
                     .agents_lead = c->custom_agent_path[0],
                     .needs_reward = invar_estimator_traits_of(set->rl.estimator)->needs_reward,
                     .per_prompt = c->n_samples_per_prompt,
                     .tick = report_progress,
                     .payload = loop},
        .data = s->data,
        .tokenizer = s->tokenizer,
        .spec = &s->spec,
        .plugins = {.groups = plugins[INVAR_RUN_PLUGINS_GROUPS],
                    .samples = plugins[INVAR_RUN_PLUGINS_FILTER],
                    .buffer = plugins[INVAR_RUN_PLUGINS_BUFFER],
                    .prompts = plugins[INVAR_RUN_PLUGINS_PROMPTS]},
        .use_data_answers = set->sft,
        .round = set->round,
        .schedule = set->sampling,
        .recorded_schedule = set->sampling.recorded ? &loop->flow.recorded_schedule : NULL,
        .verify = {threaded || loop->models.async_verifier ? invar_train_loop_verify_async : NULL,
                   loop},
        .stop_rollout = loop->storage.dirs.paths.save[0] || turns || set->sampling.recorded
                            ? 0
                            : set->run_schedule.rollouts,
        .saved = &loop->storage.identity.saved,
        .run = loop->storage.identity.digest,
        .replay = loop->job.options->replay,
        .recompute_points = recomputes_points(&loop->storage)};

    INVAR_TRY(invar_reward_source_read(&o.generate.reward_source, c,
                                       plugins[INVAR_RUN_PLUGINS_REWARD], false));
    INVAR_TRY(invar_run_context_policy(&o.policy, s));
    INVAR_TRY(make_agents(loop));
    o.generate.agents = loop->flow.agents;
    invar_sample_source_open(&loop->flow.source, &o);
    return INVAR_OK;
}
