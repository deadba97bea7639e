/*
 * progress.c - what a user sees of a run while it trains: progress, summary, throughput, trackers.
 *
 * Everything here is for display: it is computed from finished steps, and no result depends on it.
 * Ranks other than 0 have no callbacks (launch.c) and show nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>

#include "engine/run/run_storage.h"

#include "base/invar_banned.h"

void invar_run_start_pace(invar_run_storage *storage, invar_run_models *models)
{
    const invar_run_progress now = {storage->position.rollout, storage->position.step, 0};
    const int64_t per = storage->job->settings.steps_per_rollout;
    const double peak = storage->job->config->mfu_peak_tflops * 1e12; // 0 for that of the device
    const invar_throughput_options options = {
        .peak =
            peak > 0.0 ? peak : invar_throughput_peak(&models->context.dev, models->context.format),
        .devices = invar_ranks_size(storage->world->ranks),
        .steps = invar_run_schedule_steps(&storage->job->settings.run_schedule, &now, per),
        .per_rollout = per,
    };

    invar_throughput_begin(&storage->recorder.throughput, &options);
}

invar_status invar_run_open_track(invar_run_storage *storage)
{
    const invar_track_run run = {.config = storage->job->config,
                                 .ledger = storage->recorder.ledger,
                                 .run = storage->recorder.run,
                                 .name = storage->dirs.paths.name,
                                 .uuid = storage->recorder.uuid,
                                 .folder = storage->dirs.paths.run,
                                 // from the start, evaluations before the first step are repeated
                                 .last_step = storage->position.step ? storage->position.step - 1
                                                                     : INVAR_TRACK_NOTHING,
                                 .stop = storage->job->options->stop,
                                 .say = invar_run_print,
                                 .payload = storage};

    return storage->job->options->replay ? INVAR_OK : invar_track_open(&storage->track, &run);
}

void invar_run_close_track(invar_run_storage *storage, invar_status finish)
{
    invar_error first;

    invar_error_take(&first);
    invar_track_report_steps(storage->track, storage->position.step - 1);
    invar_track_close(storage->track, finish != INVAR_OK          ? "failed"
                                      : storage->summary->stopped ? "stopped"
                                                                  : "done");
    storage->track = NULL;
    invar_error_put(&first);
}

/* Returns the actor's loss, train/loss in the ledger; NaN if nothing was learned. */
static double actor_loss(const invar_step_report *step)
{
    const invar_loss_metric *items;
    size_t count;

    if (step->n_learners == 0 || !step->learners[0].loss)
        return (double)NAN;
    if (invar_loss_metrics(&items, &count, step->learners[0].loss) != INVAR_OK) {
        invar_error_clear();
        return (double)NAN;
    }
    return items[0].value;
}

/* Warns once if a step that was executed again has the same bits but different content. */
static void warn_other_content(invar_run_storage *storage)
{
    invar_train_summary *sum = storage->summary;
    char ledger[INVAR_PATH_SHOWN_SIZE];
    const char *note;
    int64_t before = sum->other_content;

    if (!storage->recorder.ledger)
        return;
    sum->other_content = invar_ledger_other_content(&note, storage->recorder.ledger);
    if (before > 0 || sum->other_content == 0)
        return;
    invar_path_show(ledger, storage->dirs.paths.ledger);
    invar_recorder_print(&storage->recorder,
                         "warning: step %" PRId64 " was %s; the bits are the same, but another "
                         "program, plug-in or file has given other metrics, samples or replies: "
                         "'invar diff %s %s' compares the executions",
                         sum->last_step, note, ledger, ledger);
}

void invar_train_format_result(char *out, size_t size, const invar_train_progress *p)
{
    out[0] = '\0';
    if (isfinite(p->reward))
        (void)snprintf(out, size, "reward %.3f  ", p->reward);
    else if (isfinite(p->loss))
        (void)snprintf(out, size, "loss %.3f  ", p->loss);
}

bool invar_run_rewarded(const invar_run_flow *flow, const invar_rl_sample *samples, int64_t count)
{
    bool rewarded = false;

    if (flow->job->settings.sft)
        return false;
    if (flow->source.options.generate.needs_reward)
        return true;
    if (invar_reward_source_has_all_rewards(&rewarded, &flow->source.options.generate.reward_source,
                                            samples, count) != INVAR_OK)
        invar_error_clear();
    return rewarded;
}

void invar_run_show_step(invar_run_storage *storage, invar_run_models *models,
                         const invar_step_report *step)
{
    invar_train_summary *sum = storage->summary;
    // each token was compared while the weights that sampled it existed
    const bool lagged = invar_sample_schedule_off_policy(&storage->job->settings.sampling) &&
                        !step->policy.own_weights && !step->policy.other_format;
    const bool before = lagged && storage->job->config->check_logprobs;
    invar_train_progress p = {
        .rollout = storage->position.rollout,
        .rollouts = storage->job->settings.run_schedule.rollouts,
        .step = storage->position.step,
        .phase = "train",
        .measured = true,
        .supervised = storage->job->settings.sft,
        .loss = actor_loss(step),
        .grad_norm = (double)models->actor.norm,
        .compared = before || (step->comparison.compared && step->policy.own_weights),
        .logp_diff_max = before ? 0.0 : (double)step->comparison.logp_diff.max,
        .tokens_per_s = storage->recorder.throughput.tokens_per_s,
        .mfu = storage->recorder.throughput.mfu,
        .eta = storage->recorder.throughput.eta,
        .chain = &sum->chain};

    for (int64_t i = step->first; i < step->first + step->count; i++) {
        p.reward += step->samples[i].reward / (double)step->count;
        p.response_len += (double)invar_rl_sample_response(&step->samples[i]) / (double)step->count;
    }
    if (step->unrewarded)
        p.reward = (double)NAN;
    sum->supervised = p.supervised;
    sum->last_reward = p.reward;
    sum->last_loss = p.loss;
    if (sum->steps++ == 0) {
        sum->first_reward = sum->last_reward;
        sum->first_loss = sum->last_loss;
    }
    sum->compared += p.compared;
    sum->off_policy = sum->off_policy || (!step->policy.own_weights && !lagged);
    if (p.compared && p.logp_diff_max > sum->worst_diff)
        sum->worst_diff = p.logp_diff_max;
    warn_other_content(storage);
    invar_run_log_step(storage, &p);
    if (storage->job->options->progress)
        storage->job->options->progress(storage->job->options->payload, &p);
}

void invar_run_show_sample(const invar_run_storage *storage, const invar_run_flow *flow)
{
    int64_t every = storage->job->config->debug_rollout_print_every;
    const invar_rl_sample *s = flow->batch.samples.items;
    char reward[48] = "";

    if (!every || storage->position.rollout % every || !storage->job->options->say ||
        !flow->batch.samples.count)
        return;
    if (invar_run_rewarded(flow, s, 1))
        (void)snprintf(reward, sizeof reward, " (reward %g)", s->reward);
    invar_recorder_print(&storage->recorder,
                         "rollout %" PRId64 ", sample %" PRId64 ": %.400s -> %.400s%s",
                         storage->position.rollout, s->index, s->data.prompt ? s->data.prompt : "",
                         s->response ? s->response : "", reward);
}

void invar_run_warn_equal_rewards(invar_run_storage *storage, invar_run_flow *flow)
{
    const invar_token_arrays *f = &flow->arrays;

    if (flow->warned_equal_rewards ||
        !invar_run_rewarded(flow, flow->batch.samples.items, f->samples) || f->samples < 2 ||
        f->reward[0] > 0.0f || storage->job->options->replay ||
        storage->job->settings.rl.entropy_coef != 0.0f || storage->job->settings.rl.kl.use_loss)
        return;
    for (int64_t i = 1; i < f->samples; i++)
        if (f->reward[i] != f->reward[0])
            return;
    for (int64_t t = 0; t < f->offsets[f->samples]; t++)
        if (f->advantage[t] != 0.0f)
            return;
    invar_recorder_print(
        &storage->recorder,
        "all rewards of rollout %" PRId64
        " are %g: its advantages are 0, and nothing is learnt from it; look at samples "
        "(debug-rollout-print-every = 1), at rm-type and at label-key",
        storage->position.rollout, (double)f->reward[0]);
    flow->warned_equal_rewards = true;
}
