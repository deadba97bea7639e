/*
 * train.c - the training loop: rollouts, the optimizer steps of each, and what happens between
 * them.
 *
 * A rollout is sampled, scored, and trained on in steps_per_rollout optimizer steps. Each step is
 * in the ledger before the next begins. Between rollouts the run joins asynchronous sampling,
 * evaluates, saves and checks for signals.
 *
 * Invariants: all ranks take the same decisions, so whatever only one rank can know (a signal, the
 * clock, a failure) is exchanged before it is acted on. can_save_previous is true only while no
 * state has changed since the last step: a failure then still leaves a checkpoint of that step. The
 * first failure is the one that is reported.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/process/process.h"
#include "engine/record/gather_points.h"
#include "engine/run/evaluate.h"
#include "engine/run/train_loop.h"

#include "base/invar_banned.h"

/* ---- one rollout ----------------------------------------------------------------------------- */

/*
 * Returns the signal that asks the run to end; 0 if there was none. A signal handler sets the flag,
 * and several ranks of one process read it in their threads, hence the atomic load.
 */
static int signal_of(const invar_train_loop *loop)
{
    const volatile sig_atomic_t *stop = loop->options->stop;

    return stop ? __atomic_load_n(stop, __ATOMIC_ACQUIRE) : 0;
}

/* *out is the signal that any rank has received, or 0. Collective. */
static invar_status gather_signal(int *out, const invar_train_loop *loop)
{
    int64_t number;

    INVAR_TRY(invar_ranks_first_nonzero(&number, loop->world, "signals", signal_of(loop)));
    *out = (int)number;
    return INVAR_OK;
}

/*
 * Finishes a background checkpoint as soon as its files are written, instead of when the next one
 * begins.
 */
static invar_status poll_async_save(invar_train_loop *loop)
{
    if (!loop->store.writer || !invar_checkpoint_writer_ready(loop->store.writer))
        return INVAR_OK;
    return invar_train_loop_finish_save(loop);
}

static invar_status record_restarts(invar_train_loop *loop)
{
    return invar_run_plugins_report_restarts(&loop->plugins, &loop->recorder, loop->position.step);
}

/*
 * Writes the step to the ledger, with the replies of plug-ins and the tick of the recorded
 * schedule, which a replay needs.
 */
static invar_status record_step(invar_train_loop *loop, invar_step_report *step)
{
    invar_json_text tick = {0};
    invar_ledger_plugin_reply *replies = NULL;
    invar_status status = INVAR_OK;

    if (step->first == 0)
        status = invar_train_loop_write_tick(&tick, loop);
    if (status == INVAR_OK)
        status = invar_run_plugins_replies(&replies, &step->n_replies, &loop->plugins, &tick,
                                           step->first == 0);
    if (status == INVAR_OK)
        status = record_restarts(loop);
    if (status == INVAR_OK) {
        step->replies = replies;
        step->measures = loop->plugins.measures;
        step->n_measures = INVAR_PLUGINS - INVAR_RUN_PLUGINS_HOOKS;
        status = invar_recorder_end(&loop->recorder);
    }
    invar_free(replies);
    invar_json_text_release(&tick);
    return status;
}

static invar_status end_step(invar_train_loop *loop, invar_step_report *step)
{
    invar_status status;

    loop->can_save_previous = false; // the ledger may contain the step from here on
    status = record_step(loop, step);
    invar_run_plugins_clear_metrics(&loop->plugins);
    INVAR_TRY(status);
    INVAR_TRY(
        invar_recorder_chain(&loop->summary->last_step, &loop->summary->chain, &loop->recorder));
    loop->position.step++;
    // an evaluation of the newest step may still follow
    invar_track_report_steps(loop->track, loop->position.step - 2);
    invar_train_loop_show_step(loop, step);
    return poll_async_save(loop);
}

/* Runs a phase of the loop, with tracing and audit. */
static invar_status run_phase(invar_train_loop *loop, const char *name, invar_audit_part part,
                              invar_status (*run)(invar_train_loop *loop, void *payload),
                              void *payload)
{
    invar_status status;

    invar_trace_step(loop->recorder.trace, loop->position.step);
    invar_trace_begin(loop->recorder.trace, name);
    invar_audit_begin(loop->audit, loop->position.step, part);
    status = run(loop, payload);
    invar_audit_end(loop->audit);
    if (status == INVAR_OK)
        status = invar_train_loop_report_findings(loop);
    invar_trace_end(loop->recorder.trace);
    return status;
}

static invar_status run_train_step(invar_train_loop *loop, void *step)
{
    invar_status status;

    invar_recorder_watch(&loop->recorder, loop->trainer, loop->actor.options.prefix);
    status = invar_train_loop_learn(step, loop);
    invar_recorder_watch(&loop->recorder, loop->trainer, NULL);
    return status;
}

static invar_status run_step(invar_train_step *step, invar_train_loop *loop, int64_t number)
{
    invar_step_report *is = &step->report;

    INVAR_TRY(invar_train_loop_step_make(step, loop, number * loop->settings.global_batch,
                                         loop->settings.global_batch));
    is->on_policy = number == 0 && is->own_weights && !is->other_format;
    is->learners[is->n_learners++].learner = &loop->actor;
    if (loop->critic.model)
        is->learners[is->n_learners++].learner = &loop->critic;
    INVAR_TRY(invar_recorder_begin(&loop->recorder, is, loop->dirs.paths.run));
    INVAR_TRY(run_phase(loop, "train", INVAR_AUDIT_TRAIN, run_train_step, step));
    return end_step(loop, is);
}

static invar_status run_and_release_step(invar_train_loop *loop, int64_t number)
{
    invar_train_step step = {0};
    invar_status status = run_step(&step, loop, number);

    if (status != INVAR_OK)
        status = invar_recorder_fail(&loop->recorder, loop->position.step, status);
    invar_train_loop_step_release(&step);
    return status;
}

/* Records a rollout as one step of the ledger, if nothing is trained. */
static invar_status record_rollout_step(invar_train_loop *loop)
{
    const invar_token_arrays *f = &loop->arrays;
    invar_train_step step = {0};
    invar_step_report *is = &step.report;
    invar_status status = invar_train_loop_step_make(&step, loop, 0, f->samples);

    is->on_policy = true;
    is->compared = !f->copied;
    if (status == INVAR_OK)
        status = invar_token_arrays_logp_diff(&is->logp_diff, f, 0, f->samples, f->rollout_logp,
                                              f->score_logp);
    if (status == INVAR_OK)
        status = invar_recorder_begin(&loop->recorder, is, loop->dirs.paths.run);
    if (status == INVAR_OK)
        status = end_step(loop, is);
    invar_train_loop_step_release(&step);
    return status;
}

static invar_status collect_batch(invar_train_loop *loop, void *payload)
{
    const char *to = loop->config->save_debug_rollout_data;
    invar_rollout_request order = {.rollout = loop->position.rollout,
                                   .weights = loop->position.weights};
    bool ready = false;

    (void)payload;
    // the training ranks set the digest on samples of sampling ranks
    if (!loop->roles.is_rollout_rank)
        INVAR_TRY(invar_learner_hash(&order.weights_hash, &loop->actor));
    for (int i = INVAR_RUN_PLUGINS_REWARD; i < INVAR_RUN_PLUGINS_LOSS; i++)
        INVAR_TRY(invar_run_plugins_begin(&loop->plugins, i, &loop->recorder, loop->position.step));
    invar_rl_samples_reset(&loop->batch.samples);
    INVAR_TRY(invar_sample_source_start(&loop->source, &order));
    while (!ready)
        INVAR_TRY(invar_sample_source_poll(&ready, &loop->source));
    invar_sample_source_take(&loop->batch, &loop->source);
    INVAR_TRY(invar_train_loop_hook(loop, INVAR_PLUGIN_AFTER_ROLLOUT, &loop->batch.samples));
    INVAR_TRY(invar_gather_points_rollout(&loop->recorder, loop->world));
    if (!to[0] || !invar_ranks_is_leader(loop->world))
        return INVAR_OK;
    return invar_sample_source_save(&loop->source, &loop->batch, to);
}

/* Sends the weights to the ranks that only sample, and compares them on all ranks. */
static invar_status transfer_weights(invar_train_loop *loop)
{
    invar_recorder_sync done = {.version = loop->position.weights};
    invar_weight_sync_result result;
    int64_t begin = invar_process_clock_ms();
    invar_status status;

    INVAR_TRY(invar_weight_sync_transfer(loop->sync));
    status = invar_weight_sync_compare(&result, loop->sync);
    loop->all_ranks_failed = result.differ;
    INVAR_TRY(status);
    done.bytes = result.bytes;
    done.seconds = (double)(invar_process_clock_ms() - begin) / 1e3;
    done.hash = result.hash;
    return invar_recorder_record_weight_sync(&loop->recorder, loop->position.step, &done);
}

/* Brings the sampling weights up to date, once per rollout. Call before anything is sampled. */
static invar_status sync_weights(invar_train_loop *loop)
{
    invar_status status;

    if ((!loop->sync && !loop->session.sampler_model) || loop->synced == loop->position.rollout)
        return INVAR_OK;
    invar_trace_begin(loop->recorder.trace, "sync");
    status = invar_run_context_refresh_sampler(&loop->session);
    if (status == INVAR_OK && loop->sync)
        status = transfer_weights(loop);
    invar_trace_end(loop->recorder.trace);
    loop->synced = loop->position.rollout;
    return status;
}

static invar_status sample_rollout(invar_train_loop *loop)
{
    invar_status status;

    INVAR_TRY(sync_weights(loop));
    invar_recorder_watch_rollout(&loop->recorder, loop->rollout, true);
    status = run_phase(loop, "rollout", INVAR_AUDIT_ROLLOUT, collect_batch, NULL);
    if (status != INVAR_OK)
        status = invar_recorder_fail(&loop->recorder, loop->position.step, status);
    invar_recorder_watch_rollout(&loop->recorder, loop->rollout, false);
    return status;
}

static invar_status run_async_sampling(invar_train_loop *loop, void *payload)
{
    (void)payload;
    return invar_sample_source_prefetch(&loop->source);
}

/* Samples later rollouts, unless they are sampled together with the current one. */
static invar_status sample_later_rollouts(invar_train_loop *loop)
{
    if (!loop->source.options.separate_async_phase || loop->source.inflight.count == 0)
        return INVAR_OK;
    loop->async_status.begin_ns = invar_trace_clock();
    return run_phase(loop, "rollout", INVAR_AUDIT_ROLLOUT, run_async_sampling, NULL);
}

static invar_status score_rollout(invar_train_loop *loop, void *payload)
{
    (void)payload;
    return invar_train_loop_prepare(loop);
}

static invar_status reset_optimizers(invar_train_loop *loop)
{
    if (!loop->config->reset_optimizer_states)
        return INVAR_OK;
    invar_train_loop_before_change(loop);
    INVAR_TRY(invar_learner_reset(&loop->actor));
    return invar_learner_reset(&loop->critic);
}

static invar_status move_reference(invar_train_loop *loop)
{
    invar_train_loop_before_change(loop);
    return invar_model_copy(loop->session.reference, loop->session.actor);
}

/* On a sampling rank: reports its times for each training step made from its samples. */
static invar_status report_sampling_times(invar_train_loop *loop)
{
    int64_t steps = loop->settings.steps_per_rollout;
    const invar_ledger_rank_time *work;
    const invar_ledger_op_time *ops;
    size_t count;

    for (int64_t i = 0; i < steps; i++) {
        invar_trace_step(loop->recorder.trace, loop->position.step);
        INVAR_TRY(invar_trace_collect_rank_times(&work, &count, loop->recorder.trace));
        INVAR_TRY(invar_trace_collect_op_times(&ops, &count, loop->recorder.trace));
        loop->position.step++;
        loop->position.weights += !invar_train_loop_skips_actor(loop);
    }
    return INVAR_OK;
}

static invar_status run_rollout(invar_train_loop *loop)
{
    INVAR_TRY(invar_train_loop_refresh_paths(loop));
    INVAR_TRY(reset_optimizers(loop)); // a resumed run resets them here, too
    INVAR_TRY(invar_train_loop_save_rescue_point(loop));
    INVAR_TRY(sample_rollout(loop));
    INVAR_TRY(sample_later_rollouts(loop));
    if (loop->roles.is_rollout_rank)
        return report_sampling_times(loop);
    invar_train_loop_show_sample(loop);
    INVAR_TRY(run_phase(loop, "score", INVAR_AUDIT_SCORE, score_rollout, NULL));
    if (loop->config->debug_rollout_only)
        return record_rollout_step(loop);
    invar_train_loop_warn_equal_rewards(loop);
    for (int64_t i = 0; i < loop->settings.steps_per_rollout; i++)
        INVAR_TRY(run_and_release_step(loop, i));
    return INVAR_OK;
}

/* ---- between rollouts ------------------------------------------------------------------------ */

static invar_status save_traced(invar_train_loop *loop, invar_train_loop_saving kind)
{
    invar_status status;

    invar_trace_begin(loop->recorder.trace, "save");
    status = invar_train_loop_save(loop, kind);
    invar_trace_end(loop->recorder.trace);
    invar_train_loop_restart_clock(loop);
    return status;
}

/* Saves what the schedule or the clock asks for, on the ranks that have something to save. */
static invar_status save_if_due(invar_train_loop *loop, const invar_run_actions *turn, bool by_time)
{
    bool saves = loop->dirs.paths.save[0] || loop->config->save_hf[0];

    if (!saves || loop->roles.is_rollout_rank)
        return INVAR_OK;
    if (turn->save)
        return save_traced(loop,
                           turn->last ? INVAR_TRAIN_LOOP_SAVE_LAST : INVAR_TRAIN_LOOP_SAVE_DUE);
    return by_time ? save_traced(loop, INVAR_TRAIN_LOOP_SAVE_BY_TIME) : INVAR_OK;
}

static invar_status record_evaluation(void *payload, const char *set,
                                      const invar_ledger_metric *results, size_t count)
{
    const invar_train_loop *loop = payload;
    const invar_recorder *recorder = &loop->recorder;

    return recorder->ledger ? invar_ledger_add_evaluation(recorder->ledger, set, results, count)
                            : INVAR_OK;
}

static invar_status call_eval_hook(void *payload, const char *set, const invar_rl_samples *samples)
{
    invar_train_loop *loop = payload;

    return invar_run_plugins_hook(&loop->plugins,
                                  &(invar_plugin_event){.hook = INVAR_PLUGIN_AFTER_EVAL,
                                                        .step = loop->position.step,
                                                        .rollout = loop->position.rollout,
                                                        .run = loop->dirs.paths.name,
                                                        .folder = loop->dirs.paths.run,
                                                        .set = set},
                                  samples);
}

static invar_status run_evaluation(invar_train_loop *loop)
{
    invar_evaluation e = {.layout = loop->world,
                          .session = &loop->session,
                          .rollout = loop->rollout,
                          .number = loop->position.rollout,
                          .take = record_evaluation,
                          .look = call_eval_hook,
                          .payload = loop};
    invar_status status;

    if (loop->options->replay)
        return INVAR_OK;
    e.plugin = loop->plugins.by_role[INVAR_RUN_PLUGINS_REWARD];
    e.turns = loop->plugins.by_role[INVAR_RUN_PLUGINS_TURNS];
    e.agents = loop->agents;
    e.no_agents = loop->config->agent_record[0] != '\0';
    if (loop->source.options.agents_lead)
        INVAR_TRY(invar_learner_hash(&e.weights, &loop->actor));
    // the ledger keeps no replies of an evaluation
    if (e.plugin)
        INVAR_TRY(invar_plugin_begin_step(e.plugin, loop->position.step, NULL));
    if (e.turns)
        INVAR_TRY(invar_plugin_begin_step(e.turns, loop->position.step, NULL));
    INVAR_TRY(sync_weights(loop));
    invar_trace_begin(loop->recorder.trace, "eval");
    status = invar_evaluate(&e);
    invar_trace_end(loop->recorder.trace);
    return status == INVAR_OK ? record_restarts(loop) : status;
}

static invar_run_progress progress_of(const invar_train_loop *loop, int64_t done)
{
    return (invar_run_progress){loop->position.rollout, loop->position.step, done};
}

/*
 * Does what follows a rollout: joins asynchronous sampling, updates the reference, evaluates and
 * saves. A signal that arrives during the save takes effect after the next rollout, which is saved
 * again.
 */
static invar_status after_rollout(bool *last_out, invar_train_loop *loop, int64_t done)
{
    const invar_run_progress at = progress_of(loop, done);
    invar_run_actions turn = invar_run_schedule_after(&loop->settings.run_schedule, &at, 0);
    bool by_time = false;
    int signal;

    INVAR_TRY(invar_train_loop_join_async(loop));
    if (loop->session.reference && turn.move_reference)
        INVAR_TRY(move_reference(loop));
    if (turn.evaluate)
        INVAR_TRY(run_evaluation(loop));
    invar_track_report_steps(loop->track, loop->position.step - 1);
    invar_train_loop_clear_rescue_point(loop);
    loop->can_save_previous = true; // another rank may have continued, and fail
    INVAR_TRY(gather_signal(&signal, loop));
    turn = invar_run_schedule_after(&loop->settings.run_schedule, &at, signal);
    if (!turn.save)
        INVAR_TRY(invar_train_loop_agree_by_time(&by_time, loop));
    loop->can_save_previous = false;
    loop->summary->stopped = turn.stopped;
    *last_out = turn.last;
    invar_train_loop_triage(loop, turn.last);
    return save_if_due(loop, &turn, by_time);
}

static invar_status run_loop(invar_train_loop *loop)
{
    invar_run_progress start = progress_of(loop, 0);
    bool last = invar_run_schedule_ended(&loop->settings.run_schedule, &start);
    int signal;

    INVAR_TRY(
        invar_recorder_chain(&loop->summary->last_step, &loop->summary->chain, &loop->recorder));
    INVAR_TRY(invar_train_loop_keep_fork(loop));
    if (loop->position.step == 0 && loop->settings.run_schedule.eval_interval > 0 &&
        !loop->config->skip_eval_before_train)
        INVAR_TRY(run_evaluation(loop));
    invar_track_report_steps(loop->track, loop->position.step - 1);
    invar_train_loop_start_pace(loop);
    invar_train_loop_restart_clock(loop);
    INVAR_TRY(gather_signal(&signal, loop));
    loop->summary->stopped = last ? 0 : signal;
    last = last || loop->summary->stopped;
    for (int64_t done = 1; !last; done++) {
        INVAR_TRY(run_rollout(loop));
        loop->position.rollout++;
        INVAR_TRY(after_rollout(&last, loop, done));
    }
    return INVAR_OK;
}

/* Completes the checkpoint in progress before the run ends. Keeps the first error in *first. */
static invar_status finish_checkpoint(invar_error *first, invar_train_loop *loop,
                                      invar_status status)
{
    invar_status saved;

    invar_error_take(first);
    saved = invar_train_loop_finish_save(loop);
    if (status == INVAR_OK && saved != INVAR_OK) {
        invar_error_take(first);
        return saved;
    }
    invar_error_clear();
    return status;
}

/* Reports a removed or replaced run folder instead of the error that resulted from it. */
static invar_status prefer_folder_error(invar_train_loop *loop, invar_status status)
{
    invar_error first;
    invar_status now;

    if (status == INVAR_OK || !loop->dirs.folder.is_open)
        return status;
    invar_error_take(&first);
    now = invar_held_folder_refresh(&loop->dirs.folder);
    if (now == INVAR_E_STATE)
        return now;
    invar_error_put(&first);
    return status;
}

/*
 * True if the state in memory can be saved after the failure. After a mismatch or a GPU error it
 * may not be the state that the chain describes, so nothing is saved.
 */
static bool is_sound(invar_status status)
{
    return status != INVAR_E_MISMATCH && status != INVAR_E_CUDA;
}

/* Saves the last complete step after the failure *first, and adds advice about it to the error. */
static void save_after_failure(invar_error *first, invar_train_loop *loop)
{
    char advice[128];
    bool saved;

    if (!is_sound(first->status) && !loop->world)
        return;
    if (invar_train_loop_emergency_save(&saved, loop, is_sound(first->status)) != INVAR_OK)
        saved = false; // the first failure is the one to report
    invar_error_clear();
    if (!saved)
        return;
    (void)snprintf(advice, sizeof advice,
                   "a checkpoint of step %" PRId64 " is saved: start the run again to continue",
                   loop->position.step - 1);
    invar_error_put(first);
    first->status = invar_error_advise(first->status, first->status, advice);
    invar_error_take(first);
}

/* Takes part, on ranks other than 0, in the checkpoint that rank 0 writes after a failure. */
static invar_status finish_other_rank(invar_train_loop *loop, invar_status status)
{
    invar_error first;

    if (status == INVAR_OK)
        return status;
    invar_error_take(&first);
    save_after_failure(&first, loop);
    invar_error_put(&first);
    return status;
}

/* Records the end of the run in the ledger, also after a failure, and returns the first failure. */
static invar_status finish_run(invar_train_loop *loop, invar_status status)
{
    invar_error first;
    int64_t code;

    if (!loop->recorder.ledger)
        return finish_other_rank(loop, status);
    if (loop->summary->finished)
        return status;
    status = finish_checkpoint(&first, loop, status);
    if (status == INVAR_OK)
        INVAR_TRY(record_restarts(loop));
    if (status == INVAR_OK && loop->summary->stopped)
        return invar_ledger_finish(loop->recorder.ledger,
                                   invar_process_stop_code(loop->summary->stopped), "stopped");
    if (status == INVAR_OK)
        return invar_ledger_finish(loop->recorder.ledger, 0, "done");
    save_after_failure(&first, loop);
    code = signal_of(loop) == SIGXFSZ ? invar_process_stop_code(SIGXFSZ)
                                      : invar_process_exit_code(status);
    if (record_restarts(loop) != INVAR_OK ||
        invar_recorder_event(&loop->recorder, loop->position.step, "error", "failure",
                             first.message) != INVAR_OK ||
        invar_ledger_finish(loop->recorder.ledger, code, first.message) != INVAR_OK)
        invar_error_clear(); // the ledger itself may have failed
    invar_error_put(&first);
    return status;
}

/*
 * Aborts the other ranks, which wait for this one. Call before anything else after a failure. If
 * all ranks have failed together, only rank 0 does it. If `whole`, the ranks can still save
 * together.
 */
static void abort_other_ranks(const invar_train_options *options, bool together, bool whole)
{
    const char *why = invar_error_last()->message;

    if (!options->comm || (together && invar_comm_rank(options->comm) != 0))
        return;
    if (whole)
        invar_comm_abort_recoverable(options->comm, why);
    else
        invar_comm_abort(options->comm, why);
}

/* Prints a line if the trace is incomplete, which does not fail the run. */
static void check_trace(const invar_train_loop *loop)
{
    if (!loop->recorder.trace || invar_trace_check(loop->recorder.trace) == INVAR_OK)
        return;
    invar_recorder_print(&loop->recorder, "%s", invar_error_last()->message);
    invar_error_clear();
}

/* Prints a line if the run ended before profile-step-start, since the profile is then empty. */
static void check_profile_window(const invar_train_loop *loop)
{
    int64_t first = loop->config->profile_step_start;

    if (loop->session.profile && loop->position.step <= first)
        invar_recorder_print(&loop->recorder,
                             "profile-step-start = %" PRId64 ": the run has %" PRId64
                             " steps so far; no op was measured",
                             first, loop->position.step);
}

static void fill_summary(invar_train_summary *out, const invar_train_loop *loop)
{
    memcpy(out->name, loop->dirs.paths.name, sizeof out->name);
    memcpy(out->folder, loop->dirs.paths.run, sizeof out->folder);
    memcpy(out->ledger, loop->dirs.paths.ledger, sizeof out->ledger);
    memcpy(out->uuid, loop->recorder.uuid, sizeof out->uuid);
    out->saves = loop->dirs.paths.save[0];
    out->forked_after = loop->fork.step;
    out->tokens_per_s = invar_throughput_mean_tokens_per_s(&loop->recorder.throughput);
    out->mfu = invar_throughput_mean_mfu(&loop->recorder.throughput);
}

invar_status invar_train(invar_train_summary *out, const invar_config *config,
                         const invar_train_options *options)
{
    invar_train_loop *loop = NULL;
    invar_status status;

    *out = (invar_train_summary){.resumed_after = -1,
                                 .forked_after = -1,
                                 .last_step = -1,
                                 .first_reward = (double)NAN,
                                 .last_reward = (double)NAN,
                                 .first_loss = (double)NAN,
                                 .last_loss = (double)NAN};
    status = INVAR_ALLOC(loop, 1, "a run");
    if (status != INVAR_OK) {
        abort_other_ranks(options, false, false);
        return status;
    }
    status = invar_train_loop_open(loop, config, options, out);
    if (status == INVAR_OK && !out->finished)
        status = run_loop(loop);
    if (status != INVAR_OK) {
        abort_other_ranks(options, loop->all_ranks_failed || loop->recorder.ranks_diverged,
                          is_sound(status) && invar_train_loop_has_rescue_point(loop));
        invar_sample_source_stop(&loop->source);
    }
    if (status == INVAR_OK)
        check_trace(loop);
    if (status == INVAR_OK)
        check_profile_window(loop);
    if (status == INVAR_OK)
        status = invar_train_loop_refresh_paths(loop);
    fill_summary(out, loop);
    status = finish_run(loop, prefer_folder_error(loop, status));
    invar_train_loop_close_track(loop, status);
    invar_train_loop_log_end(loop, status);
    invar_train_loop_close(loop);
    invar_free(loop);
    return status;
}

static void describe_inputs(invar_train_inputs *out, const invar_train_loop *loop)
{
    out->identity = loop->identity.digest;
    out->weights = loop->session.weights;
    out->threads = loop->session.pool ? invar_pool_threads(loop->session.pool) : 1;
    if (loop->session.data)
        invar_dataset_hash(&out->data, loop->session.data);
}

invar_status invar_train_check(invar_train_inputs *out, const invar_config *config,
                               const invar_train_options *options)
{
    invar_train_loop *loop = NULL;
    invar_status status;

    *out = (invar_train_inputs){.threads = 0};
    status = INVAR_ALLOC(loop, 1, "a run");
    if (status == INVAR_OK)
        status = invar_train_loop_read(loop, config, options);
    out->differ = loop && loop->all_ranks_failed && status == INVAR_E_STATE;
    if (status == INVAR_OK || out->differ)
        describe_inputs(out, loop);
    else
        abort_other_ranks(options, loop && loop->all_ranks_failed, false);
    if (loop)
        invar_train_loop_close(loop);
    invar_free(loop);
    return status;
}
