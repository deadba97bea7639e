/*
 * train.c - the training loop: one rollout and its optimizer steps, and what follows each.
 *
 * The sections follow the life of a rollout: sample, score, learn, record, then evaluate and save;
 * run_step, run_rollout and invar_train_loop_run at their ends put them in order. Each step is in
 * the ledger before the next begins. Rank 0 alone writes files and calls plug-ins. Scoring and
 * training compare their log-probs with those of the rollout (train_step.c): with the same weights
 * and format, all must be equal.
 *
 * Invariants: all ranks take the same decisions, so a signal or a time that only one rank knows is
 * exchanged before it is acted on; a rank that fails leaves the loop, and its caller aborts the
 * others. can_save_previous is true only while no state that a checkpoint contains has changed
 * since the last step (invar_run_before_change): a failure then still leaves a checkpoint of that
 * step.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/process/process.h"
#include "engine/record/gather_points.h"
#include "engine/run/evaluate.h"
#include "engine/run/train_loop.h"

#include "base/invar_banned.h"

/* Begins a phase of the loop in the trace and the audit. Call end_phase with its status. */
static void begin_phase(const invar_run_storage *storage, const char *name, invar_audit_part part)
{
    invar_trace_step(storage->recorder.trace, storage->position.step);
    invar_trace_begin(storage->recorder.trace, name);
    invar_audit_begin(storage->audit, storage->position.step, part);
}

static invar_status end_phase(invar_run_storage *storage, invar_status status)
{
    invar_audit_end(storage->audit);
    if (status == INVAR_OK)
        status = invar_run_report_findings(storage);
    invar_trace_end(storage->recorder.trace);
    return status;
}

/* ---- sample ---------------------------------------------------------------------------------- */

/* Sends the weights to the ranks that only sample, and compares them on all ranks. */
static invar_status transfer_weights(invar_run_storage *storage, invar_run_models *models)
{
    invar_recorder_sync done = {.version = storage->position.weights};
    invar_weight_sync_result result;
    int64_t begin = invar_process_clock_ms();
    invar_status status;

    INVAR_TRY(invar_weight_sync_transfer(models->weight_sync));
    status = invar_weight_sync_compare(&result, models->weight_sync);
    storage->world->all_failed = result.differ;
    INVAR_TRY(status);
    done.bytes = result.bytes;
    done.seconds = (double)(invar_process_clock_ms() - begin) / 1e3;
    done.hash = result.hash;
    return invar_recorder_record_weight_sync(&storage->recorder, storage->position.step, &done);
}

/*
 * Brings the sampling weights up to date, once per rollout: models->synced is the rollout for which
 * that was done. Call before anything is sampled.
 */
static invar_status sync_weights(invar_run_storage *storage, invar_run_models *models)
{
    invar_status status;

    if ((!models->weight_sync && !models->context.models.sampler) ||
        models->synced == storage->position.rollout)
        return INVAR_OK;
    invar_trace_begin(storage->recorder.trace, "sync");
    status = invar_run_context_refresh_sampler(&models->context);
    if (status == INVAR_OK && models->weight_sync)
        status = transfer_weights(storage, models);
    invar_trace_end(storage->recorder.trace);
    models->synced = storage->position.rollout;
    return status;
}

/* Draws the samples of the rollout, with their rewards, into loop->flow.batch. */
static invar_status collect_batch(invar_train_loop *loop)
{
    const char *to = loop->job.config->save_debug_rollout_data;
    invar_rollout_request order = {.rollout = loop->storage.position.rollout,
                                   .weights = loop->storage.position.weights};
    bool ready = false;

    // the training ranks set the digest on samples of sampling ranks
    if (!loop->world.roles.is_rollout_rank)
        INVAR_TRY(invar_learner_hash(&order.weights_hash, &loop->models.actor));
    for (int i = INVAR_RUN_PLUGINS_REWARD; i < INVAR_RUN_PLUGINS_LOSS; i++)
        INVAR_TRY(invar_run_plugins_begin(&loop->flow.plugins, i, &loop->storage.recorder,
                                          loop->storage.position.step));
    invar_rl_samples_reset(&loop->flow.batch.samples);
    INVAR_TRY(invar_sample_source_start(&loop->flow.source, &order));
    while (!ready)
        INVAR_TRY(invar_sample_source_poll(&ready, &loop->flow.source));
    invar_sample_source_take(&loop->flow.batch, &loop->flow.source);
    INVAR_TRY(invar_run_hook(&loop->storage, &loop->flow, INVAR_PLUGIN_AFTER_ROLLOUT, NULL,
                             &loop->flow.batch.samples));
    INVAR_TRY(invar_gather_points_rollout(&loop->storage.recorder, loop->world.all));
    if (!to[0] || !invar_ranks_is_leader(loop->world.all))
        return INVAR_OK;
    return invar_sample_source_save(&loop->flow.source, &loop->flow.batch, to);
}

static invar_status sample_rollout(invar_train_loop *loop)
{
    invar_run_storage *storage = &loop->storage;
    invar_status status;

    INVAR_TRY(sync_weights(storage, &loop->models));
    invar_recorder_watch_rollout(&storage->recorder, loop->models.rollout, true);
    begin_phase(storage, "rollout", INVAR_AUDIT_ROLLOUT);
    status = end_phase(storage, collect_batch(loop));
    if (status != INVAR_OK)
        status = invar_recorder_fail(&storage->recorder, storage->position.step, status);
    invar_recorder_watch_rollout(&storage->recorder, loop->models.rollout, false);
    return status;
}

/*
 * Samples tokens of later rollouts with the weights of this one: now, or in a thread while this
 * rollout is trained on. There are none without a lag, or if they were sampled with the batch.
 */
static invar_status sample_later_rollouts(invar_run_storage *storage, invar_run_flow *flow)
{
    if (flow->job->settings.sampling.ahead == INVAR_AHEAD_WITH_BATCH ||
        flow->source.inflight.count == 0)
        return INVAR_OK;
    flow->async_status.begin_ns = invar_trace_clock();
    begin_phase(storage, "rollout", INVAR_AUDIT_ROLLOUT);
    return end_phase(storage, invar_sample_source_prefetch(&flow->source));
}

/*
 * On a rank that only samples, instead of training: closes the times of each step, which rank 0
 * collects, and counts steps and weight versions like the ranks that train.
 */
static invar_status report_sampling_times(invar_run_storage *storage)
{
    int64_t steps = storage->job->settings.steps_per_rollout;
    const invar_ledger_rank_time *work;
    const invar_ledger_op_time *ops;
    size_t count;

    for (int64_t i = 0; i < steps; i++) {
        invar_trace_step(storage->recorder.trace, storage->position.step);
        INVAR_TRY(invar_trace_collect_rank_times(&work, &count, storage->recorder.trace));
        INVAR_TRY(invar_trace_collect_op_times(&ops, &count, storage->recorder.trace));
        storage->position.step++;
        storage->position.weights += !invar_run_skips_actor(storage);
    }
    return INVAR_OK;
}

/* ---- score ----------------------------------------------------------------------------------- */

/* Computes log-probs and values of all samples with every model, and then the advantages. */
static invar_status score_rollout(invar_train_loop *loop)
{
    invar_status status;

    begin_phase(&loop->storage, "score", INVAR_AUDIT_SCORE);
    status = invar_train_loop_score(loop);
    if (status == INVAR_OK)
        status = invar_run_compute_advantages(&loop->flow);
    return end_phase(&loop->storage, status);
}

/* ---- learn ----------------------------------------------------------------------------------- */

/*
 * Begins the plug-ins of the loss and the hook before the step, and sets the factor of the loss
 * that the hook returned on rank 0.
 */
static invar_status call_step_hook(invar_step_report *report, invar_run_storage *storage,
                                   invar_run_flow *flow)
{
    const int roles[] = {INVAR_RUN_PLUGINS_LOSS,
                         INVAR_RUN_PLUGINS_HOOKS + INVAR_PLUGIN_BEFORE_TRAIN_STEP};

    for (int i = 0; i < 2; i++)
        INVAR_TRY(invar_run_plugins_begin(&flow->plugins, roles[i], &storage->recorder,
                                          storage->position.step));
    INVAR_TRY(invar_run_hook(storage, flow, INVAR_PLUGIN_BEFORE_TRAIN_STEP, NULL, NULL));
    report->factor = 1.0f;
    if (flow->job->config->custom_before_train_step_hook_path[0]) {
        report->factor = (float)flow->plugins.factor;
        INVAR_TRY(invar_ranks_broadcast(flow->world->ranks, "loss factor", 0, &report->factor,
                                        sizeof report->factor));
    }
    report->has_loss_factor = report->factor != 1.0f;
    return INVAR_OK;
}

/* Updates the critic with its gradients: norm, clipping, AdamW. */
static invar_status update_critic(invar_run_storage *storage, invar_run_models *models)
{
    bool skip = storage->job->config->debug_disable_optimizer;

    if (!skip)
        invar_run_before_change(storage);
    return invar_learner_step(&models->critic, storage->position.step, skip);
}

/* Like update_critic, for the actor, whose weights get a new version. */
static invar_status update_actor(invar_run_storage *storage, invar_run_models *models)
{
    bool skip = invar_run_skips_actor(storage);

    if (!skip) {
        storage->position.weights++;
        invar_run_before_change(storage);
    }
    return invar_learner_step(&models->actor, storage->position.step, skip);
}

/* Runs forward, loss, backward and the update, of the actor and of the critic if there is one. */
static invar_status learn_from_step(invar_train_step *step, invar_train_loop *loop)
{
    INVAR_TRY(call_step_hook(&step->report, &loop->storage, &loop->flow));
    INVAR_TRY(invar_train_loop_policy_gradients(step, loop));
    // fail while a checkpoint of the previous step is still possible
    INVAR_TRY(invar_sample_source_poll_error(&loop->flow.source));
    if (loop->models.critic.model) {
        INVAR_TRY(invar_train_loop_value_gradients(step, loop));
        INVAR_TRY(update_critic(&loop->storage, &loop->models));
    }
    return update_actor(&loop->storage, &loop->models);
}

/* ---- record ---------------------------------------------------------------------------------- */

invar_status invar_run_record_restarts(invar_run_storage *storage, invar_run_flow *flow)
{
    return invar_run_plugins_report_restarts(&flow->plugins, &storage->recorder,
                                             storage->position.step);
}

/*
 * Writes the step to the ledger, with the replies of plug-ins and the tick of the recorded
 * schedule, which a replay needs.
 */
static invar_status write_step(invar_run_storage *storage, invar_run_flow *flow,
                               invar_step_report *step)
{
    invar_json_text tick = {0};
    invar_ledger_plugin_reply *replies = NULL;
    invar_status status = INVAR_OK;

    if (step->first == 0)
        status = invar_run_write_tick(&tick, storage, flow);
    if (status == INVAR_OK)
        status = invar_run_plugins_replies(&replies, &step->n_replies, &flow->plugins, &tick,
                                           step->first == 0);
    if (status == INVAR_OK)
        status = invar_run_record_restarts(storage, flow);
    if (status == INVAR_OK) {
        step->replies = replies;
        step->measures = flow->plugins.measures;
        step->n_measures = INVAR_PLUGINS - INVAR_RUN_PLUGINS_HOOKS;
        status = invar_recorder_end(&storage->recorder);
    }
    invar_free(replies);
    invar_json_text_release(&tick);
    return status;
}

/* Writes the step to the ledger and reports it. The next step may begin afterwards. */
static invar_status record_step(invar_train_loop *loop, invar_step_report *step)
{
    invar_status status;

    loop->storage.can_save_previous = false; // the ledger may contain the step from here on
    status = write_step(&loop->storage, &loop->flow, step);
    invar_run_plugins_clear_metrics(&loop->flow.plugins);
    INVAR_TRY(status);
    INVAR_TRY(invar_recorder_chain(&loop->storage.summary->last_step, &loop->storage.summary->chain,
                                   &loop->storage.recorder));
    loop->storage.position.step++;
    // an evaluation of the newest step may still follow
    invar_track_report_steps(loop->storage.track, loop->storage.position.step - 2);
    invar_run_show_step(&loop->storage, &loop->models, step);
    // a background checkpoint ends as soon as its files are written, not when the next one begins
    return loop->storage.checkpoints.writer &&
                   invar_checkpoint_writer_ready(loop->storage.checkpoints.writer)
               ? invar_run_finish_save(&loop->storage)
               : INVAR_OK;
}

/* ---- one rollout ----------------------------------------------------------------------------- */

/* Prepares optimizer step `number` of the rollout with its samples, and begins to record it. */
static invar_status begin_step(invar_train_step *out, invar_train_loop *loop, int64_t number)
{
    const int64_t count = loop->job.settings.global_batch;
    invar_step_report *report = &out->report;

    INVAR_TRY(invar_train_loop_step_make(out, loop, number * count, count));
    report->policy.on_policy =
        number == 0 && report->policy.own_weights && !report->policy.other_format;
    report->learners[report->n_learners++].learner = &loop->models.actor;
    if (loop->models.critic.model)
        report->learners[report->n_learners++].learner = &loop->models.critic;
    return invar_recorder_begin(&loop->storage.recorder, report, loop->storage.dirs.paths.run);
}

/* One optimizer step: learns from its samples and records the result. */
static invar_status run_step(invar_train_loop *loop, int64_t number)
{
    invar_recorder *recorder = &loop->storage.recorder;
    invar_train_step step = {0};
    invar_status status = begin_step(&step, loop, number);

    if (status == INVAR_OK) {
        begin_phase(&loop->storage, "train", INVAR_AUDIT_TRAIN);
        invar_recorder_watch(recorder, loop->models.trainer, loop->models.actor.options.prefix);
        status = learn_from_step(&step, loop);
        invar_recorder_watch(recorder, loop->models.trainer, NULL);
        status = end_phase(&loop->storage, status);
    }
    if (status == INVAR_OK)
        status = record_step(loop, &step.report);
    if (status != INVAR_OK)
        status = invar_recorder_fail(recorder, loop->storage.position.step, status);
    invar_train_loop_step_release(&step);
    return status;
}

/* Records a rollout as one step of the ledger, if nothing is trained. */
static invar_status record_rollout_step(invar_train_loop *loop)
{
    const invar_token_arrays *f = &loop->flow.arrays;
    invar_train_step step = {0};
    invar_step_report *is = &step.report;
    invar_status status = invar_train_loop_step_make(&step, loop, 0, f->samples);

    is->policy.on_policy = true;
    is->comparison.compared = !f->copied;
    if (status == INVAR_OK)
        status = invar_token_arrays_logp_diff(&is->comparison.logp_diff, f, 0, f->samples,
                                              f->rollout_logp, f->score_logp);
    if (status == INVAR_OK)
        status = invar_recorder_begin(&loop->storage.recorder, is, loop->storage.dirs.paths.run);
    if (status == INVAR_OK)
        status = record_step(loop, is);
    invar_train_loop_step_release(&step);
    return status;
}

static invar_status reset_optimizers(invar_run_storage *storage, invar_run_models *models)
{
    if (!storage->job->config->reset_optimizer_states)
        return INVAR_OK;
    invar_run_before_change(storage);
    INVAR_TRY(invar_learner_reset(&models->actor));
    return invar_learner_reset(&models->critic);
}

/* One rollout: samples, scores, and trains in one or more optimizer steps. */
static invar_status run_rollout(invar_train_loop *loop)
{
    INVAR_TRY(invar_run_refresh_paths(&loop->storage));
    INVAR_TRY(reset_optimizers(&loop->storage, &loop->models)); // at each rollout, if asked for
    INVAR_TRY(invar_run_save_rescue_point(&loop->storage, &loop->flow));
    INVAR_TRY(sample_rollout(loop));
    INVAR_TRY(sample_later_rollouts(&loop->storage, &loop->flow));
    if (loop->world.roles.is_rollout_rank)
        return report_sampling_times(&loop->storage);
    invar_run_show_sample(&loop->storage, &loop->flow);
    INVAR_TRY(score_rollout(loop));
    if (loop->job.config->debug_rollout_only)
        return record_rollout_step(loop);
    invar_run_warn_equal_rewards(&loop->storage, &loop->flow);
    for (int64_t i = 0; i < loop->job.settings.steps_per_rollout; i++)
        INVAR_TRY(run_step(loop, i));
    return INVAR_OK;
}

/* ---- evaluate -------------------------------------------------------------------------------- */

static invar_status record_evaluation(void *payload, const char *set,
                                      const invar_ledger_metric *results, size_t count)
{
    const invar_recorder *recorder = &((const invar_train_loop *)payload)->storage.recorder;

    return recorder->ledger ? invar_ledger_add_evaluation(recorder->ledger, set, results, count)
                            : INVAR_OK;
}

static invar_status call_eval_hook(void *payload, const char *set, const invar_rl_samples *samples)
{
    invar_train_loop *loop = payload;

    return invar_run_hook(&loop->storage, &loop->flow, INVAR_PLUGIN_AFTER_EVAL, set, samples);
}

static invar_status evaluate_sets(invar_train_loop *loop)
{
    invar_evaluation e = {.layout = loop->world.all,
                          .session = &loop->models.context,
                          .rollout = loop->models.rollout,
                          .number = loop->storage.position.rollout,
                          .take = record_evaluation,
                          .look = call_eval_hook,
                          .payload = loop};
    invar_status status;

    if (loop->job.options->replay)
        return INVAR_OK;
    e.plugin = loop->flow.plugins.by_role[INVAR_RUN_PLUGINS_REWARD];
    e.turns = loop->flow.plugins.by_role[INVAR_RUN_PLUGINS_TURNS];
    e.agents = loop->flow.agents;
    e.no_agents = loop->job.config->agent_record[0] != '\0';
    if (loop->flow.source.options.generate.agents_lead)
        INVAR_TRY(invar_learner_hash(&e.weights, &loop->models.actor));
    // the ledger keeps no replies of an evaluation
    if (e.plugin)
        INVAR_TRY(invar_plugin_begin_step(e.plugin, loop->storage.position.step, NULL));
    if (e.turns)
        INVAR_TRY(invar_plugin_begin_step(e.turns, loop->storage.position.step, NULL));
    INVAR_TRY(sync_weights(&loop->storage, &loop->models));
    invar_trace_begin(loop->storage.recorder.trace, "eval");
    status = invar_evaluate(&e);
    invar_trace_end(loop->storage.recorder.trace);
    return status == INVAR_OK ? invar_run_record_restarts(&loop->storage, &loop->flow) : status;
}

/* ---- save ------------------------------------------------------------------------------------ */

static invar_status save_traced(invar_train_loop *loop, invar_train_loop_saving kind)
{
    invar_status status;

    invar_trace_begin(loop->storage.recorder.trace, "save");
    status = invar_train_loop_save(loop, kind);
    invar_trace_end(loop->storage.recorder.trace);
    invar_run_restart_clock(&loop->storage);
    return status;
}

/* Saves what the schedule or the clock asks for, on the ranks that have something to save. */
static invar_status save_if_due(invar_train_loop *loop, const invar_run_actions *turn, bool by_time)
{
    bool saves = loop->storage.dirs.paths.save[0] || loop->job.config->save_hf[0];

    if (!saves || loop->world.roles.is_rollout_rank)
        return INVAR_OK;
    if (turn->save)
        return save_traced(loop,
                           turn->last ? INVAR_TRAIN_LOOP_SAVE_LAST : INVAR_TRAIN_LOOP_SAVE_DUE);
    return by_time ? save_traced(loop, INVAR_TRAIN_LOOP_SAVE_BY_TIME) : INVAR_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

// A signal handler sets the flag, and ranks of one process read it in their threads.
int invar_run_signal(const invar_run_job *job)
{
    const volatile sig_atomic_t *stop = job->options->stop;

    return stop ? __atomic_load_n(stop, __ATOMIC_ACQUIRE) : 0;
}

/* *out is the signal that any rank has received, or 0. Collective. */
static invar_status gather_signal(int *out, const invar_run_world *world, const invar_run_job *job)
{
    int64_t number;

    INVAR_TRY(invar_ranks_first_nonzero(&number, world->all, "signals", invar_run_signal(job)));
    *out = (int)number;
    return INVAR_OK;
}

static invar_status move_reference(invar_run_storage *storage, invar_run_models *models)
{
    invar_run_before_change(storage);
    return invar_model_copy(models->context.models.reference, models->context.models.actor);
}

static invar_run_progress progress_of(const invar_run_storage *storage, int64_t done)
{
    return (invar_run_progress){storage->position.rollout, storage->position.step, done};
}

/*
 * Does what follows a rollout: joins asynchronous sampling, updates the reference, evaluates and
 * saves. A signal that arrives during the save takes effect after the next rollout, and then that
 * rollout is saved, too.
 */
static invar_status after_rollout(bool *last_out, invar_train_loop *loop, int64_t done)
{
    const invar_run_progress at = progress_of(&loop->storage, done);
    invar_run_actions turn = invar_run_schedule_after(&loop->job.settings.run_schedule, &at, 0);
    bool by_time = false;
    int signal;

    INVAR_TRY(invar_run_join_async(&loop->storage, &loop->flow));
    if (loop->models.context.models.reference && turn.move_reference)
        INVAR_TRY(move_reference(&loop->storage, &loop->models));
    if (turn.evaluate)
        INVAR_TRY(evaluate_sets(loop));
    invar_track_report_steps(loop->storage.track, loop->storage.position.step - 1);
    invar_run_clear_rescue_point(&loop->storage, &loop->flow);
    // until all ranks have met, because another one may fail in what comes before
    loop->storage.can_save_previous = true;
    INVAR_TRY(gather_signal(&signal, &loop->world, &loop->job));
    turn = invar_run_schedule_after(&loop->job.settings.run_schedule, &at, signal);
    if (!turn.save)
        INVAR_TRY(invar_run_agree_by_time(&by_time, &loop->storage, &loop->models));
    loop->storage.can_save_previous = false;
    loop->storage.summary->stopped = turn.stopped;
    *last_out = turn.last;
    invar_run_triage(&loop->storage, turn.last);
    return save_if_due(loop, &turn, by_time);
}

invar_status invar_train_loop_run(invar_train_loop *loop)
{
    invar_run_progress start = progress_of(&loop->storage, 0);
    bool last = invar_run_schedule_ended(&loop->job.settings.run_schedule, &start);
    int signal;

    INVAR_TRY(invar_recorder_chain(&loop->storage.summary->last_step, &loop->storage.summary->chain,
                                   &loop->storage.recorder));
    INVAR_TRY(invar_train_loop_keep_fork(loop));
    if (loop->storage.position.step == 0 && loop->job.settings.run_schedule.eval_interval > 0 &&
        !loop->job.config->skip_eval_before_train)
        INVAR_TRY(evaluate_sets(loop));
    invar_track_report_steps(loop->storage.track, loop->storage.position.step - 1);
    invar_run_start_pace(&loop->storage, &loop->models);
    invar_run_restart_clock(&loop->storage);
    INVAR_TRY(gather_signal(&signal, &loop->world, &loop->job));
    loop->storage.summary->stopped = last ? 0 : signal;
    last = last || loop->storage.summary->stopped;
    for (int64_t done = 1; !last; done++) {
        INVAR_TRY(run_rollout(loop));
        loop->storage.position.rollout++;
        INVAR_TRY(after_rollout(&last, loop, done));
    }
    return INVAR_OK;
}
