/*
 * train.c - the loop: rollouts, and the optimizer steps of each.
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

/* The signal that asks for the end; 0: none. */
static int signal_of(const invar_train_loop *loop)
{
    const volatile sig_atomic_t *stop = loop->options->stop;

    return stop ? __atomic_load_n(stop, __ATOMIC_ACQUIRE) : 0; // of ranks each has a thread
}

/* That of any rank. */
static invar_status agree_signal(int *out, const invar_train_loop *loop)
{
    int64_t number;

    INVAR_TRY(invar_ranks_first_nonzero(&number, loop->world, "signals", signal_of(loop)));
    *out = (int)number;
    return INVAR_OK;
}

/* A checkpoint whose files are written by now should not wait for the next one to exist. */
static invar_status poll_async_save(invar_train_loop *loop)
{
    if (!loop->store.writer || !invar_checkpoint_ready(loop->store.writer))
        return INVAR_OK;
    return invar_train_loop_finish_save(loop);
}

static invar_status tell_restarts(invar_train_loop *loop)
{
    return invar_run_plugins_tell_restarts(&loop->plugins, &loop->recorder, loop->place.step);
}

/* With the replies of plug-ins, and of the clock, which a replay wants. */
static invar_status record_step(invar_train_loop *loop, invar_step_report *step)
{
    invar_json_text tick = {0};
    invar_ledger_plugin_reply *replies = NULL;
    invar_status status = INVAR_OK;

    if (step->first == 0)
        status = invar_train_loop_show_tick(&tick, loop);
    if (status == INVAR_OK)
        status = invar_run_plugins_replies(&replies, &step->n_replies, &loop->plugins, &tick,
                                           step->first == 0);
    if (status == INVAR_OK)
        status = tell_restarts(loop);
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

    loop->can_save_previous = false; // the ledger may have the step from here on
    status = record_step(loop, step);
    invar_run_plugins_clear_metrics(&loop->plugins);
    INVAR_TRY(status);
    INVAR_TRY(
        invar_recorder_chain(&loop->summary->last_step, &loop->summary->chain, &loop->recorder));
    loop->place.step++;
    invar_track_report_steps(loop->track,
                             loop->place.step - 2); // an evaluation may follow the last one
    invar_train_loop_show_step(loop, step);
    return poll_async_save(loop);
}

/* A phase of the loop, with its time and what is audited in it. */
static invar_status in_phase(invar_train_loop *loop, const char *name, invar_audit_part part,
                             invar_status (*run)(invar_train_loop *loop, void *payload),
                             void *payload)
{
    invar_status status;

    invar_trace_step(loop->recorder.trace, loop->place.step);
    invar_trace_begin(loop->recorder.trace, name);
    invar_audit_begin(loop->audit, loop->place.step, part);
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
    INVAR_TRY(in_phase(loop, "train", INVAR_AUDIT_TRAIN, run_train_step, step));
    return end_step(loop, is);
}

static invar_status one_step(invar_train_loop *loop, int64_t number)
{
    invar_train_step step = {0};
    invar_status status = run_step(&step, loop, number);

    if (status != INVAR_OK)
        status = invar_recorder_fail(&loop->recorder, loop->place.step, status);
    invar_train_loop_step_release(&step);
    return status;
}

/* Without training a rollout is one step of the ledger, with what was sampled. */
static invar_status rollout_step(invar_train_loop *loop)
{
    const invar_token_arrays *f = &loop->arrays;
    invar_train_step step = {0};
    invar_step_report *is = &step.report;
    invar_status status = invar_train_loop_step_make(&step, loop, 0, f->samples);

    is->on_policy = true;
    is->compared = !f->copied;
    if (status == INVAR_OK)
        status = invar_token_arrays_gap(&is->gap, f, 0, f->samples, f->rollout_logp, f->score_logp);
    if (status == INVAR_OK)
        status = invar_recorder_begin(&loop->recorder, is, loop->dirs.paths.run);
    if (status == INVAR_OK)
        status = end_step(loop, is);
    invar_train_loop_step_release(&step);
    return status;
}

static invar_status collect_batch(invar_train_loop *loop, void *payload)
{
    const char *to = invar_recipe_string(loop->recipe, INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA);
    invar_rollout_request order = {.rollout = loop->place.rollout, .weights = loop->place.weights};
    bool ready = false;

    (void)payload;
    if (!loop->roles
             .is_rollout_rank) // its samples are told what they are by those who train on them
        INVAR_TRY(invar_learner_hash(&order.weights_hash, &loop->actor));
    for (int i = INVAR_RUN_PLUGINS_REWARD; i < INVAR_RUN_PLUGINS_LOSS; i++)
        INVAR_TRY(invar_run_plugins_begin(&loop->plugins, i, &loop->recorder, loop->place.step));
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

/* Weights travel to the ranks that only sample, and all ranks compare what they have. */
static invar_status sync_now(invar_train_loop *loop)
{
    invar_recorder_sync done = {.version = loop->place.weights};
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
    return invar_recorder_synced(&loop->recorder, loop->place.step, &done);
}

/* Once, before whatever is sampled with the weights of now. */
static invar_status sync_weights(invar_train_loop *loop)
{
    invar_status status;

    if ((!loop->sync && !loop->session.sampler_model) || loop->synced == loop->place.rollout)
        return INVAR_OK;
    invar_trace_begin(loop->recorder.trace, "sync");
    status = invar_run_context_refresh_sampler(&loop->session);
    if (status == INVAR_OK && loop->sync)
        status = sync_now(loop);
    invar_trace_end(loop->recorder.trace);
    loop->synced = loop->place.rollout;
    return status;
}

static invar_status train_loop_sample(invar_train_loop *loop)
{
    invar_status status;

    INVAR_TRY(sync_weights(loop));
    invar_recorder_watch_rollout(&loop->recorder, loop->rollout, true);
    status = in_phase(loop, "rollout", INVAR_AUDIT_ROLLOUT, collect_batch, NULL);
    if (status != INVAR_OK)
        status = invar_recorder_fail(&loop->recorder, loop->place.step, status);
    invar_recorder_watch_rollout(&loop->recorder, loop->rollout, false);
    return status;
}

static invar_status run_async_sampling(invar_train_loop *loop, void *payload)
{
    (void)payload;
    return invar_sample_source_prefetch(&loop->source);
}

/* Rollouts whose turn is later, where they have not had their tokens beside the one in turn. */
static invar_status sample_ahead(invar_train_loop *loop)
{
    if (!loop->source.options.separate_async_phase || loop->source.flight.count == 0)
        return INVAR_OK;
    loop->ahead.begin_ns = invar_trace_clock();
    return in_phase(loop, "rollout", INVAR_AUDIT_ROLLOUT, run_async_sampling, NULL);
}

static invar_status train_loop_prepare(invar_train_loop *loop, void *payload)
{
    (void)payload;
    return invar_train_loop_prepare(loop);
}

static invar_status reset_optimizers(invar_train_loop *loop)
{
    if (!loop->settings.reset_optimizer)
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

/* A rank that only samples tells what it did in each step that others make of its samples. */
static invar_status wait_for_steps(invar_train_loop *loop)
{
    int64_t steps = loop->settings.rollout_only ? 1 : loop->settings.steps_per_rollout;
    const invar_ledger_rank_time *work;
    const invar_ledger_op_time *ops;
    size_t count;

    for (int64_t i = 0; i < steps; i++) {
        invar_trace_step(loop->recorder.trace, loop->place.step);
        INVAR_TRY(invar_trace_work(&work, &count, loop->recorder.trace));
        INVAR_TRY(invar_trace_ops(&ops, &count, loop->recorder.trace));
        loop->place.step++;
        loop->place.weights += !invar_train_loop_skips_actor(loop);
    }
    return INVAR_OK;
}

static invar_status one_rollout(invar_train_loop *loop)
{
    INVAR_TRY(invar_train_loop_refresh_paths(loop));
    INVAR_TRY(reset_optimizers(loop)); // as a resumed run does here again
    INVAR_TRY(invar_train_loop_save_rescue_point(loop));
    INVAR_TRY(train_loop_sample(loop));
    INVAR_TRY(sample_ahead(loop));
    if (loop->roles.is_rollout_rank)
        return wait_for_steps(loop);
    invar_train_loop_show_sample(loop);
    INVAR_TRY(in_phase(loop, "score", INVAR_AUDIT_SCORE, train_loop_prepare, NULL));
    if (loop->settings.rollout_only)
        return rollout_step(loop);
    invar_train_loop_tell_equal_rewards(loop);
    for (int64_t i = 0; i < loop->settings.steps_per_rollout; i++)
        INVAR_TRY(one_step(loop, i));
    return INVAR_OK;
}

/* ---- between rollouts ------------------------------------------------------------------------ */

static invar_status train_loop_save(invar_train_loop *loop, invar_train_loop_saving kind)
{
    invar_status status;

    invar_trace_begin(loop->recorder.trace, "save");
    status = invar_train_loop_save(loop, kind);
    invar_trace_end(loop->recorder.trace);
    invar_train_loop_restart_clock(loop);
    return status;
}

/* What the turn or the clock asks for, by the ranks that have something to save. */
static invar_status save_in_turn(invar_train_loop *loop, const invar_run_actions *turn,
                                 bool by_time)
{
    bool saves =
        loop->dirs.paths.save[0] || invar_recipe_string(loop->recipe, INVAR_KEY_SAVE_HF)[0];

    if (!saves || loop->roles.is_rollout_rank)
        return INVAR_OK;
    if (turn->save)
        return train_loop_save(loop,
                               turn->last ? INVAR_TRAIN_LOOP_SAVE_LAST : INVAR_TRAIN_LOOP_SAVE_DUE);
    return by_time ? train_loop_save(loop, INVAR_TRAIN_LOOP_SAVE_BY_TIME) : INVAR_OK;
}

static invar_status take_results(void *payload, const char *set, const invar_ledger_metric *results,
                                 size_t count)
{
    const invar_train_loop *loop = payload;
    const invar_recorder *recorder = &loop->recorder;

    return recorder->ledger ? invar_ledger_add_evaluation(recorder->ledger, set, results, count)
                            : INVAR_OK;
}

static invar_status show_set(void *payload, const char *set, const invar_rl_samples *samples)
{
    invar_train_loop *loop = payload;

    return invar_run_plugins_hook(&loop->plugins,
                                  &(invar_plugin_event){.hook = INVAR_PLUGIN_AFTER_EVAL,
                                                        .step = loop->place.step,
                                                        .rollout = loop->place.rollout,
                                                        .run = loop->dirs.paths.name,
                                                        .folder = loop->dirs.paths.run,
                                                        .set = set},
                                  samples);
}

static invar_status train_loop_evaluate(invar_train_loop *loop)
{
    invar_evaluation e = {.layout = loop->world,
                          .session = &loop->session,
                          .rollout = loop->rollout,
                          .number = loop->place.rollout,
                          .take = take_results,
                          .look = show_set,
                          .payload = loop};
    invar_status status;

    if (loop->options->replay)
        return INVAR_OK;
    e.plugin = loop->plugins.of[INVAR_RUN_PLUGINS_REWARD];
    e.turns = loop->plugins.of[INVAR_RUN_PLUGINS_TURNS];
    e.agents = loop->agents;
    e.no_agents = invar_recipe_string(loop->recipe, INVAR_KEY_AGENT_RECORD)[0] != '\0';
    if (loop->source.options.agents_lead)
        INVAR_TRY(invar_learner_hash(&e.weights, &loop->actor));
    // the ledger keeps no replies to an evaluation
    if (e.plugin)
        INVAR_TRY(invar_plugin_begin_step(e.plugin, loop->place.step, NULL));
    if (e.turns)
        INVAR_TRY(invar_plugin_begin_step(e.turns, loop->place.step, NULL));
    INVAR_TRY(sync_weights(loop));
    invar_trace_begin(loop->recorder.trace, "eval");
    status = invar_evaluate(&e);
    invar_trace_end(loop->recorder.trace);
    return status == INVAR_OK ? tell_restarts(loop) : status;
}

static invar_run_progress place_of(const invar_train_loop *loop, int64_t done)
{
    return (invar_run_progress){loop->place.rollout, loop->place.step, done};
}

/* A signal that comes during the save waits for the next rollout, whose end is saved again. */
static invar_status after_rollout(bool *last_out, invar_train_loop *loop, int64_t done)
{
    const invar_run_progress at = place_of(loop, done);
    invar_run_actions turn = invar_run_schedule_after(&loop->settings.course, &at, 0);
    bool by_time = false;
    int signal;

    INVAR_TRY(invar_train_loop_join_ahead(loop));
    if (loop->session.reference && turn.move_reference)
        INVAR_TRY(move_reference(loop));
    if (turn.evaluate)
        INVAR_TRY(train_loop_evaluate(loop));
    invar_track_report_steps(loop->track, loop->place.step - 1);
    invar_train_loop_clear_rescue_point(loop);
    loop->can_save_previous = true; // another rank may be on and fail
    INVAR_TRY(agree_signal(&signal, loop));
    turn = invar_run_schedule_after(&loop->settings.course, &at, signal);
    if (!turn.save)
        INVAR_TRY(invar_train_loop_agree_by_time(&by_time, loop));
    loop->can_save_previous = false;
    loop->summary->stopped = turn.stopped;
    *last_out = turn.last;
    invar_train_loop_triage(loop, turn.last);
    return save_in_turn(loop, &turn, by_time);
}

static invar_status train_loop_run(invar_train_loop *loop)
{
    invar_run_progress start = place_of(loop, 0);
    bool last = invar_run_schedule_ended(&loop->settings.course, &start);
    int signal;

    INVAR_TRY(
        invar_recorder_chain(&loop->summary->last_step, &loop->summary->chain, &loop->recorder));
    INVAR_TRY(invar_train_loop_keep_fork(loop));
    if (loop->place.step == 0 && loop->settings.course.eval_interval > 0 &&
        !invar_recipe_bool(loop->recipe, INVAR_KEY_SKIP_EVAL_BEFORE_TRAIN))
        INVAR_TRY(train_loop_evaluate(loop));
    invar_track_report_steps(loop->track, loop->place.step - 1);
    invar_train_loop_start_pace(loop);
    invar_train_loop_restart_clock(loop);
    INVAR_TRY(agree_signal(&signal, loop));
    loop->summary->stopped = last ? 0 : signal;
    last = last || loop->summary->stopped;
    for (int64_t done = 1; !last; done++) {
        INVAR_TRY(one_rollout(loop));
        loop->place.rollout++;
        INVAR_TRY(after_rollout(&last, loop, done));
    }
    return INVAR_OK;
}

/* A checkpoint that was begun is there before the end; the first failure is the one to tell. */
static invar_status finish_save(invar_error *first, invar_train_loop *loop, invar_status status)
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

/* A failure of a run whose folder is gone is just that, whatever could not be written first. */
static invar_status train_loop_explain(invar_train_loop *loop, invar_status status)
{
    invar_error first;
    invar_status now;

    if (status == INVAR_OK || !loop->dirs.folder.held)
        return status;
    invar_error_take(&first);
    now = invar_held_folder_refresh(&loop->dirs.folder);
    if (now == INVAR_E_STATE)
        return now;
    invar_error_put(&first);
    return status;
}

/*
 * A failure between two checkpoints loses no step, if the weights are those of the chain. After a
 * mismatch or a failure of the GPU nobody knows that of its memory: then nothing is saved.
 */
static bool is_sound(invar_status status)
{
    return status != INVAR_E_MISMATCH && status != INVAR_E_CUDA;
}

static void error_rescue(invar_error *first, invar_train_loop *loop)
{
    char advice[128];
    bool saved;

    if (!is_sound(first->status) && !loop->world)
        return;
    if (invar_train_loop_emergency_save(&saved, loop, is_sound(first->status)) != INVAR_OK)
        saved = false; // the first failure is the one to tell
    invar_error_clear();
    if (!saved)
        return;
    (void)snprintf(advice, sizeof advice,
                   "a checkpoint of step %" PRId64 " is saved: start the run again to continue",
                   loop->place.step - 1);
    invar_error_put(first);
    first->status = invar_error_advise(first->status, first->status, advice);
    invar_error_take(first);
}

/* A rank that does not write gives what it has to the one that does. */
static invar_status finish_beside(invar_train_loop *loop, invar_status status)
{
    invar_error first;

    if (status == INVAR_OK)
        return status;
    invar_error_take(&first);
    error_rescue(&first, loop);
    invar_error_put(&first);
    return status;
}

/* The end is written whatever it is; the first failure is the one that is reported. */
static invar_status train_loop_finish(invar_train_loop *loop, invar_status status)
{
    invar_error first;
    int64_t code;

    if (!loop->recorder.ledger)
        return finish_beside(loop, status);
    if (loop->summary->finished)
        return status;
    status = finish_save(&first, loop, status);
    if (status == INVAR_OK)
        INVAR_TRY(tell_restarts(loop));
    if (status == INVAR_OK && loop->summary->stopped)
        return invar_ledger_finish(loop->recorder.ledger,
                                   invar_process_stop_code(loop->summary->stopped), "stopped");
    if (status == INVAR_OK)
        return invar_ledger_finish(loop->recorder.ledger, 0, "done");
    error_rescue(&first, loop);
    code = signal_of(loop) == SIGXFSZ ? invar_process_stop_code(SIGXFSZ)
                                      : invar_process_exit_code(status);
    if (tell_restarts(loop) != INVAR_OK ||
        invar_recorder_event(&loop->recorder, loop->place.step, "error", "failure",
                             first.message) != INVAR_OK ||
        invar_ledger_finish(loop->recorder.ledger, code, first.message) != INVAR_OK)
        invar_error_clear(); // it may be the ledger itself that failed
    invar_error_put(&first);
    return status;
}

/*
 * Before anything else is done: others wait for this rank. What all ranks have found together each
 * of them tells by itself, and rank 0 alone to people.
 */
static void tell_ranks(const invar_train_options *options, bool together, bool whole)
{
    const char *why = invar_error_last()->message;

    if (!options->comm || (together && invar_comm_rank(options->comm) != 0))
        return;
    if (whole)
        invar_comm_abort_recoverable(options->comm, why);
    else
        invar_comm_abort(options->comm, why);
}

/* A trace that could not be written whole is worth a line, not a failure. */
static void check_trace(const invar_train_loop *loop)
{
    if (!loop->recorder.trace || invar_trace_check(loop->recorder.trace) == INVAR_OK)
        return;
    invar_recorder_print(&loop->recorder, "%s", invar_error_last()->message);
    invar_error_clear();
}

/* A window that the run has not reached is worth a line, too: what was asked for is not there. */
static void check_window(const invar_train_loop *loop)
{
    int64_t first = invar_recipe_int(loop->recipe, INVAR_KEY_PROFILE_STEP_START);

    if (loop->session.profile && loop->place.step <= first)
        invar_recorder_print(&loop->recorder,
                             "profile-step-start = %" PRId64 ": the run has %" PRId64
                             " steps so far; no op was measured",
                             first, loop->place.step);
}

static void train_loop_summarise(invar_train_summary *out, const invar_train_loop *loop)
{
    memcpy(out->name, loop->dirs.paths.name, sizeof out->name);
    memcpy(out->folder, loop->dirs.paths.run, sizeof out->folder);
    memcpy(out->ledger, loop->dirs.paths.ledger, sizeof out->ledger);
    memcpy(out->uuid, loop->recorder.uuid, sizeof out->uuid);
    out->saves = loop->dirs.paths.save[0];
    out->forked_after = loop->fork.step;
    out->tokens_per_s = invar_throughput_mean_tokens_per_s(&loop->recorder.pace);
    out->mfu = invar_throughput_mean_mfu(&loop->recorder.pace);
}

invar_status invar_train(invar_train_summary *out, const invar_recipe *recipe,
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
    status = invar_alloc((void **)&loop, 1, sizeof *loop, "a run");
    if (status != INVAR_OK) {
        tell_ranks(options, false, false);
        return status;
    }
    status = invar_train_loop_open(loop, recipe, options, out);
    if (status == INVAR_OK && !out->finished)
        status = train_loop_run(loop);
    if (status != INVAR_OK) {
        tell_ranks(options, loop->all_ranks_failed || loop->recorder.ranks_diverged,
                   is_sound(status) && invar_train_loop_has_rescue_point(loop));
        invar_sample_source_stop(&loop->source);
    }
    if (status == INVAR_OK)
        check_trace(loop);
    if (status == INVAR_OK)
        check_window(loop);
    if (status == INVAR_OK)
        status = invar_train_loop_refresh_paths(loop);
    train_loop_summarise(out, loop);
    status = train_loop_finish(loop, train_loop_explain(loop, status));
    invar_train_loop_close_track(loop, status);
    invar_train_loop_log_end(loop, status);
    invar_train_loop_close(loop);
    invar_free(loop);
    return status;
}

static void describe_given(invar_train_inputs *out, const invar_train_loop *loop)
{
    out->identity = loop->identity.digest;
    out->weights = loop->session.weights;
    out->threads = loop->session.pool ? invar_pool_threads(loop->session.pool) : 1;
    if (loop->session.data)
        invar_dataset_hash(&out->data, loop->session.data);
}

invar_status invar_train_check(invar_train_inputs *out, const invar_recipe *recipe,
                               const invar_train_options *options)
{
    invar_train_loop *loop = NULL;
    invar_status status;

    *out = (invar_train_inputs){.threads = 0};
    status = invar_alloc((void **)&loop, 1, sizeof *loop, "a run");
    if (status == INVAR_OK)
        status = invar_train_loop_read(loop, recipe, options);
    out->differ = loop && loop->all_ranks_failed && status == INVAR_E_STATE;
    if (status == INVAR_OK || out->differ)
        describe_given(out, loop);
    else
        tell_ranks(options, loop && loop->all_ranks_failed, false);
    if (loop)
        invar_train_loop_close(loop);
    invar_free(loop);
    return status;
}
