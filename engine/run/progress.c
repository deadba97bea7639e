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

#include "engine/run/train_loop.h"

#include "base/invar_banned.h"

/*
 * Returns the peak FLOP/s for MFU: mfu-peak-tflops if it is set, else the known peak of the device.
 */
static double peak_flops(const invar_train_loop *loop)
{
    double stated = loop->config->mfu_peak_tflops * 1e12;
    const invar_run_context *s = &loop->session;

    return stated > 0.0 ? stated : invar_throughput_peak(&s->dev, s->format);
}

void invar_train_loop_start_pace(invar_train_loop *loop)
{
    const invar_run_progress now = {loop->position.rollout, loop->position.step, 0};
    const int64_t per = loop->settings.steps_per_rollout;
    const invar_throughput_options options = {
        .peak = peak_flops(loop),
        .devices = invar_ranks_size(loop->ranks),
        .steps = invar_run_schedule_steps(&loop->settings.run_schedule, &now, per),
        .per_rollout = per,
    };

    invar_throughput_begin(&loop->recorder.throughput, &options);
}

invar_status invar_train_loop_open_track(invar_train_loop *loop)
{
    const invar_track_run run = {.config = loop->config,
                                 .ledger = loop->recorder.ledger,
                                 .run = loop->recorder.run,
                                 .name = loop->dirs.paths.name,
                                 .uuid = loop->recorder.uuid,
                                 .folder = loop->dirs.paths.run,
                                 // from the start, evaluations before the first step are repeated
                                 .last_step = loop->position.step ? loop->position.step - 1
                                                                  : INVAR_TRACK_NOTHING,
                                 .stop = loop->options->stop,
                                 .say = invar_train_loop_print,
                                 .payload = loop};

    return loop->options->replay ? INVAR_OK : invar_track_open(&loop->track, &run);
}

void invar_train_loop_close_track(invar_train_loop *loop, invar_status finish)
{
    invar_error first;

    invar_error_take(&first);
    invar_track_report_steps(loop->track, loop->position.step - 1);
    invar_track_close(loop->track, finish != INVAR_OK       ? "failed"
                                   : loop->summary->stopped ? "stopped"
                                                            : "done");
    loop->track = NULL;
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
static void warn_other_content(invar_train_loop *loop)
{
    invar_train_summary *sum = loop->summary;
    char ledger[INVAR_PATH_SHOWN_SIZE];
    const char *note;
    int64_t before = sum->other_content;

    if (!loop->recorder.ledger)
        return;
    sum->other_content = invar_ledger_other_content(&note, loop->recorder.ledger);
    if (before > 0 || sum->other_content == 0)
        return;
    invar_path_show(ledger, loop->dirs.paths.ledger);
    invar_recorder_print(&loop->recorder,
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

bool invar_train_loop_rewarded(const invar_train_loop *loop, const invar_rl_sample *samples,
                               int64_t count)
{
    bool rewarded = false;

    if (loop->settings.sft)
        return false;
    if (loop->source.options.needs_reward)
        return true;
    if (invar_reward_source_has_all_rewards(&rewarded, &loop->source.options.reward_source, samples,
                                            count) != INVAR_OK)
        invar_error_clear();
    return rewarded;
}

void invar_train_loop_show_step(invar_train_loop *loop, const invar_step_report *step)
{
    invar_train_summary *sum = loop->summary;
    // each token was compared while the weights that sampled it existed
    const bool lagged = loop->settings.off_policy && !step->own_weights && !step->other_format;
    const bool before = lagged && loop->config->check_logprobs;
    invar_train_progress p = {.rollout = loop->position.rollout,
                              .rollouts = loop->settings.run_schedule.rollouts,
                              .step = loop->position.step,
                              .phase = "train",
                              .measured = true,
                              .supervised = loop->settings.sft,
                              .loss = actor_loss(step),
                              .grad_norm = (double)loop->actor.norm,
                              .compared = before || (step->compared && step->own_weights),
                              .logp_diff_max = before ? 0.0 : (double)step->logp_diff.max,
                              .tokens_per_s = loop->recorder.throughput.tokens_per_s,
                              .mfu = loop->recorder.throughput.mfu,
                              .eta = loop->recorder.throughput.eta,
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
    sum->off_policy = sum->off_policy || (!step->own_weights && !lagged);
    if (p.compared && p.logp_diff_max > sum->worst_diff)
        sum->worst_diff = p.logp_diff_max;
    warn_other_content(loop);
    invar_train_loop_log_step(loop, &p);
    if (loop->options->progress)
        loop->options->progress(loop->options->payload, &p);
}

void invar_train_loop_show_sample(const invar_train_loop *loop)
{
    int64_t every = loop->config->debug_rollout_print_every;
    const invar_rl_sample *s = loop->batch.samples.items;
    char reward[48] = "";

    if (!every || loop->position.rollout % every || !loop->options->say ||
        !loop->batch.samples.count)
        return;
    if (invar_train_loop_rewarded(loop, s, 1))
        (void)snprintf(reward, sizeof reward, " (reward %g)", s->reward);
    invar_recorder_print(&loop->recorder,
                         "rollout %" PRId64 ", sample %" PRId64 ": %.400s -> %.400s%s",
                         loop->position.rollout, s->index, s->prompt_text ? s->prompt_text : "",
                         s->response ? s->response : "", reward);
}

void invar_train_loop_warn_equal_rewards(invar_train_loop *loop)
{
    const invar_token_arrays *f = &loop->arrays;

    if (loop->warned_equal_rewards ||
        !invar_train_loop_rewarded(loop, loop->batch.samples.items, f->samples) || f->samples < 2 ||
        f->reward[0] > 0.0f || loop->options->replay || loop->settings.rl.entropy_coef != 0.0f ||
        loop->settings.rl.use_kl_loss)
        return;
    for (int64_t i = 1; i < f->samples; i++)
        if (f->reward[i] != f->reward[0])
            return;
    for (int64_t t = 0; t < f->offsets[f->samples]; t++)
        if (f->advantage[t] != 0.0f)
            return;
    invar_recorder_print(
        &loop->recorder,
        "all rewards of rollout %" PRId64
        " are %g: its advantages are 0, and nothing is learnt from it; look at samples "
        "(debug-rollout-print-every = 1), at rm-type and at label-key",
        loop->position.rollout, (double)f->reward[0]);
    loop->warned_equal_rewards = true;
}
