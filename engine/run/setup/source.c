/*
 * source.c - makes the rollout, the agents and the sample source of a run.
 *
 * The source has many options, and most follow from one key each. A few must not depend on
 * debugging or on checkpoints, because they decide which calls a plug-in gets: see `multi_turn` in
 * invar_setup_open_source.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/rl/estimator.h"
#include "engine/run/setup/internal.h"

#include "base/invar_banned.h"

/* True if loaded rollouts are run through the model to record their points. */
static bool recomputes_points(const invar_train_loop *loop)
{
    return loop->recorder.options.level > INVAR_PROBE_STEP && loop->identity.saved.on_policy &&
           !loop->settings.sft && !loop->config->debug_train_only &&
           loop->config->load_debug_rollout_data[0];
}

invar_status invar_setup_make_rollout(invar_train_loop *loop)
{
    invar_run_context *s = &loop->session;
    const char *loads = loop->config->load_debug_rollout_data;

    if (loop->roles.first_rollout_rank > 0 && !loop->roles.is_rollout_rank)
        return INVAR_OK;
    if (!loop->identity.evaluates && !recomputes_points(loop) && (loop->settings.sft || loads[0]))
        return INVAR_OK;
    // the draft model was not loaded when the memory was planned
    loop->workload.limits.speculation.model = s->draft;
    return invar_rollout_new(&loop->rollout, invar_run_context_sampler(s), s->tokenizer,
                             invar_phase_memory_dev(&loop->block, INVAR_MEMORY_PLAN_SAMPLING),
                             &loop->workload.limits);
}

static invar_status report_progress(void *payload, int64_t samples_done, int64_t tokens_done)
{
    const invar_train_loop *loop = payload;
    if (loop->options->progress)
        loop->options->progress(
            loop->options->payload,
            &(invar_train_progress){.rollout = loop->position.rollout,
                                    .rollouts = loop->settings.run_schedule.rollouts,
                                    .step = loop->position.step,
                                    .phase = "rollout",
                                    .samples_done = samples_done,
                                    .samples = loop->rollout ? loop->source.active : 0,
                                    .tokens_done = tokens_done});
    return INVAR_OK;
}

/*
 * True if later rollouts are sampled during training: by a thread, or by ranks that only sample.
 * Those ranks cannot if in-flight samples must first be scored with weights that training changes,
 * unless the sampler verifies them itself.
 */
static bool samples_during_training(const invar_train_loop *loop)
{
    const invar_train_settings *set = &loop->settings;

    return loop->config->rollout_overlap ||
           (loop->roles.first_rollout_rank > 0 && set->lag.rollouts > 0 &&
            (!set->checks_flight || set->sampler_verifies));
}

/* Records an event of the agents, at the step that trains on the rollout. */
static invar_status record_agent_event(void *payload, const char *kind, const char *text)
{
    invar_train_loop *loop = payload;

    if (strcmp(kind, INVAR_JOURNAL_UNCHECKED) == 0)
        return invar_train_loop_report_unchecked(loop, text);
    return invar_recorder_event(&loop->recorder, loop->position.step, "warning", kind, text);
}

static invar_agent_server_options agent_server_options(invar_train_loop *loop)
{
    const invar_config *c = loop->config;
    const invar_run_context *s = &loop->session;
    invar_sampling_params sampling = invar_run_context_sampling(s);
    int64_t context = sampling.max_context ? sampling.max_context : s->spec.max_positions;

    return (invar_agent_server_options){
        .command = c->custom_agent_path,
        .session_timeout_s = (double)c->plugin_timeout,
        .max_processes = c->agent_concurrency,
        .max_calls = c->agent_max_calls,
        .max_branches = c->agent_max_branches,
        .zero_reward_on_failure = c->agent_failure == INVAR_AGENT_FAILURE_ZERO,
        .rollout = loop->rollout,
        .chat = {.tokenizer = s->tokenizer,
                 .hf_dir = c->hf_checkpoint,
                 .template_path = c->chat_template_path,
                 .template_kwargs = c->apply_chat_template_kwargs,
                 .vocab = s->spec.vocab,
                 .context = context,
                 .cut_responses = true},
        .server_info = {.model = "invar",
                        .base = s->base_weights,
                        .adapted = s->spec.lora.rank > 0,
                        .numerics = invar_numerics_name(s->dev.numerics),
                        .format = invar_format_name(s->rollout_format),
                        .context = context}};
}

/* Makes the agents. A replay has recorded sessions, and no folder to write to. */
static invar_status make_agents(invar_train_loop *loop)
{
    bool replay = loop->options->replay;
    bool recorded = !replay && loop->config->agent_record[0];
    const invar_agents_options o = {.plugin = loop->plugins.by_role[INVAR_RUN_PLUGINS_AGENTS],
                                    .server = agent_server_options(loop),
                                    .recorded = recorded,
                                    .folder = replay || recorded ? NULL : loop->dirs.paths.run,
                                    .run = loop->identity.digest,
                                    .uuid = loop->recorder.uuid,
                                    .on_event = record_agent_event,
                                    .payload = loop};

    return o.plugin ? invar_agents_new(&loop->agents, &o) : INVAR_OK;
}

invar_status invar_setup_open_source(invar_train_loop *loop)
{
    const invar_config *c = loop->config;
    const invar_run_context *s = &loop->session;
    const invar_train_settings *set = &loop->settings;
    // the calls that a plug-in gets must not depend on probes or checkpoints
    const bool multi_turn = set->lag.rollouts > 0 && c->custom_generate_function_path[0];
    invar_sample_source_options o = {
        .layout = loop->world,
        .data = s->data,
        .tokenizer = s->tokenizer,
        .spec = &s->spec,
        .rollout = loop->rollout,
        .sampling = invar_run_context_sampling(s),
        .groups = {c->dynamic_sampling_filter_path[0],
                   loop->plugins.by_role[INVAR_RUN_PLUGINS_GROUPS]},
        .samples = {c->rollout_sample_filter_path[0],
                    loop->plugins.by_role[INVAR_RUN_PLUGINS_FILTER]},
        .buffer = {c->buffer_filter_path[0], loop->plugins.by_role[INVAR_RUN_PLUGINS_BUFFER]},
        .prompt_selector = {c->data_source_path[0],
                            loop->plugins.by_role[INVAR_RUN_PLUGINS_PROMPTS]},
        .drop_zero_std = c->dynamic_sampling_filter == INVAR_GROUP_FILTER_NONZERO_STD,
        .shuffle = c->rollout_shuffle,
        .use_data_answers = set->sft,
        .prompts = c->rollout_batch_size,
        .per_prompt = c->n_samples_per_prompt,
        .round = set->round,
        .keep_surplus = c->over_sampling_keep_surplus,
        .lag = set->lag,
        .recorded_schedule = set->recorded ? &loop->recorded_schedule : NULL,
        .max_delay = c->rollout_max_delay,
        .separate_async_phase = loop->recorder.options.level > INVAR_PROBE_STEP ||
                                samples_during_training(loop) || multi_turn,
        .async = samples_during_training(loop),
        .use_thread = c->rollout_overlap,
        .verify = {c->rollout_overlap || loop->async_verifier ? invar_train_loop_verify_async
                                                              : NULL,
                   loop},
        .stop_rollout = loop->dirs.paths.save[0] || multi_turn || set->recorded
                            ? 0
                            : set->run_schedule.rollouts,
        .tick = report_progress,
        .payload = loop,
        .load = c->load_debug_rollout_data,
        .saved = &loop->identity.saved,
        .run = loop->identity.digest,
        .replay = loop->options->replay,
        .recompute_points = recomputes_points(loop),
        .needs_logp = c->use_tis || c->use_mis || c->use_rollout_logprobs,
        .needs_routing = c->use_rollout_routing_replay};

    o.turns = invar_multi_turn_read(c, loop->plugins.by_role[INVAR_RUN_PLUGINS_TURNS], &s->spec,
                                    s->tokenizer);
    INVAR_TRY(invar_reward_source_read(&o.reward_source, c,
                                       loop->plugins.by_role[INVAR_RUN_PLUGINS_REWARD], false));
    INVAR_TRY(invar_run_context_policy(&o.policy, s));
    INVAR_TRY(make_agents(loop));
    o.agents_lead = c->custom_agent_path[0];
    o.agents = loop->agents;
    o.needs_reward = invar_estimator_traits_of(set->rl.estimator)->needs_reward;
    invar_sample_source_open(&loop->source, &o);
    return INVAR_OK;
}
