/*
 * train_step.c - one optimizer step: scoring, advantages, forward, loss, backward and AdamW.
 *
 * Equalities that a debugging guide would have users check are asserted here. If the current
 * weights have sampled the rollout, the log-probs of rollout, scoring forward and training forward
 * are equal bit by bit; before the first step those of actor and reference are, too. The ratio is
 * then exactly 1 and every KL exactly 0. Samples of other weights, or of the same weights in
 * another format (rollout-dtype), are measured and bounded by max-logp-diff. If rollouts begin
 * before their turn (rollout-lag), each token is compared while the weights that sampled it still
 * exist (engine/run/async_verify.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/run/train_loop.h"

#include "base/invar_banned.h"

/* ---- comparing ------------------------------------------------------------------------------- */

invar_status invar_train_loop_mismatch(invar_train_loop *loop, const char *kind, const char *text)
{
    int64_t unused;
    bool found;

    INVAR_TRY(invar_recorder_event(&loop->recorder, loop->position.step, "error", kind, text));
    if (loop->config->on_mismatch != INVAR_ON_MISMATCH_STOP)
        return INVAR_OK;
    INVAR_TRY(invar_train_loop_gather_findings(&found, loop)); // an audit finding may be the cause
    // every rank finds the same mismatch: no rank may end before rank 0 has recorded the event
    INVAR_TRY(invar_ranks_min(&unused, loop->ranks, kind, 0));
    loop->all_ranks_failed = true;
    return INVAR_FAIL(INVAR_E_MISMATCH, 0, "step %" PRId64 ": %.1000s", loop->position.step, text);
}

static invar_status compare_logprobs(invar_train_loop *loop, const char *what, int64_t first,
                                     int64_t count, const float *a, const float *b,
                                     invar_logp_diff *gap)
{
    char text[INVAR_ERROR_MESSAGE_SIZE];

    INVAR_TRY(invar_token_arrays_logp_diff(gap, &loop->arrays, first, count, a, b));
    if (gap->differ == 0)
        return INVAR_OK;
    (void)snprintf(text, sizeof text,
                   "%s differ at %" PRId64 " token%s; the worst is token %" PRId64
                   " of sample %" PRId64 ", off by %g",
                   what, gap->differ, invar_text_plural(gap->differ), gap->position,
                   loop->batch.samples.items[first + (gap->sample < 0 ? 0 : gap->sample)].index,
                   (double)gap->max);
    return invar_train_loop_mismatch(loop, "logp-mismatch", text);
}

/*
 * Fails if rollout and scoring differ by more than max-logp-diff. Used if they may differ at all.
 */
static invar_status check_bound(invar_train_loop *loop)
{
    const invar_token_arrays *f = &loop->arrays;
    const float bound = (float)loop->config->max_logp_diff;
    invar_logp_diff gap =
        invar_token_arrays_max_logp_diff(f, 0, f->samples, f->rollout_logp, f->score_logp);
    char text[INVAR_ERROR_MESSAGE_SIZE];

    if (bound == 0.0f || gap.max <= bound)
        return INVAR_OK;
    (void)snprintf(text, sizeof text,
                   "log-probabilities of rollout and scoring differ by %g at token %" PRId64
                   " of sample %" PRId64 ", more than max-logp-diff = %g: raise it, or sample in a "
                   "finer rollout-dtype or with a smaller rollout-lag",
                   (double)gap.max, gap.position,
                   loop->batch.samples.items[gap.sample < 0 ? 0 : gap.sample].index, (double)bound);
    return invar_train_loop_mismatch(loop, "logp-bound", text);
}

/* ---- before the first step of a rollout ------------------------------------------------------ */

/* True if the trained weights have sampled the rollout, in the format in which they are trained. */
static bool is_sampled_by_actor(const invar_train_loop *loop)
{
    return loop->batch.on_policy && !invar_run_context_two_formats(&loop->session);
}

static bool has_logp(const invar_rl_samples *batch)
{
    for (int64_t i = 0; i < batch->count; i++)
        if (!batch->items[i].logp)
            return false;
    return true;
}

/*
 * Sets the old log-probs to those of a scoring forward or to those of the rollout. The latter are
 * used if they must be equal and check-logprobs is off, or if they may differ and
 * use-rollout-logprobs is on. If both exist, they are compared.
 */
static invar_status score_actor(invar_train_loop *loop)
{
    invar_token_arrays *f = &loop->arrays;
    size_t bytes = (size_t)f->tokens * sizeof *f->score_logp;
    invar_logp_diff gap;

    f->sampled = has_logp(&loop->batch.samples);
    f->copied = loop->identity.saved.on_policy && !invar_run_context_two_formats(&loop->session) &&
                        !loop->settings.off_policy
                    ? !loop->config->check_logprobs
                    : loop->config->use_rollout_logprobs;
    if (f->sampled && f->copied) {
        memcpy(f->score_logp, f->rollout_logp, bytes);
        return INVAR_OK;
    }
    INVAR_TRY(invar_trainer_score(loop->trainer, loop->session.actor, loop->batch.samples.items,
                                  f->samples, f->score_logp, NULL));
    f->copied = !f->sampled;
    if (!f->sampled) {
        memcpy(f->rollout_logp, f->score_logp, bytes);
        return INVAR_OK;
    }
    if (!is_sampled_by_actor(loop)) {
        if (loop->settings.off_policy && !invar_run_context_two_formats(&loop->session))
            INVAR_TRY(invar_train_loop_compare_fresh(loop, loop->batch.samples.items, f->samples,
                                                     f->score_logp));
        return check_bound(loop);
    }
    return compare_logprobs(loop, "log-probabilities of rollout and scoring", 0, f->samples,
                            f->rollout_logp, f->score_logp, &gap);
}

/* Requests the teacher's log-probs from its server on rank 0 and broadcasts them. */
static invar_status request_teacher_logprobs(invar_train_loop *loop)
{
    invar_token_arrays *f = &loop->arrays;

    if (invar_ranks_is_leader(loop->ranks))
        INVAR_TRY(invar_plugin_score(f->teacher_logp,
                                     loop->plugins.by_role[INVAR_RUN_PLUGINS_TEACHER],
                                     loop->batch.samples.items, f->samples));
    return invar_ranks_broadcast(loop->ranks, "teacher", 0, f->teacher_logp,
                                 (size_t)f->tokens * sizeof *f->teacher_logp);
}

static invar_status score_other_models(invar_train_loop *loop)
{
    invar_run_context *s = &loop->session;
    invar_token_arrays *f = &loop->arrays;
    const invar_rl_sample *samples = loop->batch.samples.items;
    invar_logp_diff gap;

    if (s->reference) {
        INVAR_TRY(invar_trainer_score(loop->trainer, s->reference, samples, f->samples, f->ref_logp,
                                      NULL));
        if (loop->position.step == 0 && !s->ref_has_own_spec && loop->batch.on_policy &&
            (is_sampled_by_actor(loop) || !f->copied))
            INVAR_TRY(compare_logprobs(
                loop, "log-probabilities of actor and reference before the first step", 0,
                f->samples, f->score_logp, f->ref_logp, &gap));
    }
    if (s->teacher)
        INVAR_TRY(invar_trainer_score(loop->trainer, s->teacher, samples, f->samples,
                                      f->teacher_logp, NULL));
    else if (f->teacher_logp)
        INVAR_TRY(request_teacher_logprobs(loop));
    if (s->critic)
        INVAR_TRY(invar_trainer_values(loop->trainer, s->critic, samples, f->samples, f->values));
    return INVAR_OK;
}

invar_status invar_train_loop_hook(invar_train_loop *loop, int hook,
                                   const invar_rl_samples *samples)
{
    return invar_run_plugins_hook(&loop->plugins,
                                  &(invar_plugin_event){.hook = hook,
                                                        .step = loop->position.step,
                                                        .rollout = loop->position.rollout,
                                                        .run = loop->dirs.paths.name,
                                                        .folder = loop->dirs.paths.run},
                                  samples);
}

invar_status invar_train_loop_prepare(invar_train_loop *loop)
{
    const invar_run_context *s = &loop->session;
    invar_token_array_flags wants = {
        s->reference != NULL, invar_train_settings_distills(loop->config), s->critic != NULL};
    invar_rl_batch all;

    invar_token_arrays_release(&loop->arrays);
    INVAR_TRY(invar_token_arrays_make(&loop->arrays, &loop->batch.samples, &wants));
    INVAR_TRY(invar_train_loop_hook(loop, INVAR_PLUGIN_BEFORE_LOGPROB, NULL));
    INVAR_TRY(score_actor(loop));
    INVAR_TRY(invar_train_loop_check_flight(loop));
    INVAR_TRY(score_other_models(loop));
    if (loop->settings.sft) {
        memset(loop->arrays.advantage, 0, (size_t)loop->arrays.tokens * sizeof(float));
        return INVAR_OK;
    }
    all = invar_token_arrays_batch(&loop->arrays, 0, loop->arrays.samples, loop->arrays.offsets);
    return invar_rl_advantages(loop->arrays.advantage, loop->arrays.returns, &all,
                               &loop->settings.rl);
}

/* ---- one optimizer step ---------------------------------------------------------------------- */

/* Returns the weight version that sampled; for a rollout file, the version of the first sample. */
static int64_t sampling_version(const invar_train_loop *loop, int64_t first)
{
    return loop->source.options.load[0] ? loop->batch.samples.items[first].last_version
                                        : loop->source.request.weights;
}

invar_status invar_train_loop_step_make(invar_train_step *out, const invar_train_loop *loop,
                                        int64_t first, int64_t count)
{
    bool passes = loop->config->log_passrate, rewarded;

    if (first + count > loop->arrays.samples)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout %" PRId64 " has %" PRId64
                          " samples; its optimizer steps need %" PRId64,
                          loop->position.rollout, loop->arrays.samples,
                          loop->settings.global_batch * loop->settings.steps_per_rollout);
    INVAR_TRY(INVAR_ALLOC(out->start, (size_t)count + 1, "the starts of a step's samples"));
    invar_token_arrays_starts(out->start, &loop->arrays, first, count);
    out->batch = invar_token_arrays_batch(&loop->arrays, first, count, out->start);
    rewarded = invar_train_loop_rewarded(loop, loop->batch.samples.items, loop->arrays.samples);
    out->report = (invar_step_report){.number = loop->position.step,
                                      .samples = loop->batch.samples.items,
                                      .flat = &loop->arrays,
                                      .first = first,
                                      .count = count,
                                      .start = out->start,
                                      .weights = sampling_version(loop, first),
                                      .own_weights = loop->batch.on_policy,
                                      .other_format = invar_run_context_two_formats(&loop->session),
                                      .filtered_groups = loop->batch.filtered_groups,
                                      .steps_per_rollout = loop->settings.steps_per_rollout,
                                      .recorded_schedule = loop->settings.recorded,
                                      .supervised = loop->settings.sft,
                                      .unrewarded = !rewarded,
                                      .keeps_surplus = loop->config->over_sampling_keep_surplus,
                                      .reused_groups = loop->batch.reused_groups,
                                      .surplus_groups = loop->batch.surplus_groups,
                                      .passes = passes ? loop->config->n_samples_per_prompt : 0,
                                      .seed = (uint32_t)loop->config->rollout_seed,
                                      .audit = loop->audit};
    return INVAR_OK;
}

void invar_train_loop_step_release(invar_train_step *step)
{
    for (int i = 0; i < INVAR_STEP_REPORT_LEARNERS; i++)
        invar_loss_free(step->losses[i]);
    invar_free(step->start);
    *step = (invar_train_step){0};
}

invar_status invar_train_loop_ask_loss(float *loss_out, float *dlogp_out,
                                       const invar_loss_sample *sample, void *payload)
{
    const invar_train_loop *loop = payload;
    size_t bytes = (size_t)sample->tokens * sizeof(float);

    if (invar_ranks_is_leader(loop->ranks))
        INVAR_TRY(invar_plugin_loss(loss_out, dlogp_out, sample,
                                    loop->plugins.by_role[INVAR_RUN_PLUGINS_LOSS]));
    INVAR_TRY(invar_ranks_broadcast(loop->ranks, "loss", 0, loss_out, bytes));
    return invar_ranks_broadcast(loop->ranks, "loss", 0, dlogp_out, bytes);
}

/* A loss with the factor that a hook has returned. */
typedef struct weighted_loss {
    invar_loss *loss;
    const int64_t *start; /* (count + 1) offsets of the tokens of the step's samples */
    float factor;
} weighted_loss;

static invar_status compute_weighted_loss(void *payload, int64_t first, int64_t count,
                                          const float *now, const float *entropy, float *dnow,
                                          float *dentropy)
{
    const weighted_loss *w = payload;
    int64_t tokens = w->start[first + count] - w->start[first];

    INVAR_TRY(invar_loss_run(w->loss, first, count, now, entropy, dnow, dentropy));
    for (int64_t t = 0; t < tokens && w->factor != 1.0f; t++) {
        dnow[t] = dnow[t] * w->factor;
        if (dentropy)
            dentropy[t] = dentropy[t] * w->factor;
    }
    return INVAR_OK;
}

/* Computes the gradients of learner `which`: of the policy, or of the critic if `values` is set. */
static invar_status compute_gradients(invar_train_step *step, invar_train_loop *loop, int which,
                                      invar_trainer_result *result, bool values)
{
    const invar_token_arrays *f = &loop->arrays;
    const invar_step_report *is = &step->report;
    int64_t token = f->offsets[is->first];
    invar_rl_options rl = loop->settings.rl;
    weighted_loss weighted;
    invar_trainer_loss loss = {.run = compute_weighted_loss,
                               .entropy = !values && rl.entropy_coef != 0.0f,
                               .on_rank0 = !values && invar_loss_traits_of(rl.loss)->plugin};

    if (values)
        rl.loss = INVAR_LOSS_VALUE;
    INVAR_TRY(invar_loss_new(&step->losses[which], &step->batch, &rl,
                             values ? NULL : f->advantage + token,
                             values ? f->returns + token : NULL));
    weighted = (weighted_loss){step->losses[which], step->start, values ? 1.0f : is->factor};
    loss.payload = &weighted;
    step->report.learners[which].loss = step->losses[which];
    return invar_learner_forward_backward(is->learners[which].learner, loop->trainer,
                                          is->samples + is->first, is->count, &loss, result);
}

static invar_status check_training_logprobs(invar_step_report *is, invar_train_loop *loop)
{
    const invar_token_arrays *f = &loop->arrays;
    char text[INVAR_ERROR_MESSAGE_SIZE];

    // without log-probs of a rollout, only two forward passes of training can be compared
    is->compared = f->sampled && (is->on_policy || !f->copied);
    if ((loop->settings.off_policy ? !is->on_policy : is->other_format && is->own_weights) &&
        is->first == 0 && !f->copied)
        INVAR_TRY(compare_logprobs(loop, "log-probabilities of scoring and training", is->first,
                                   is->count, f->score_logp, f->train_logp, &is->logp_diff));
    // the weights have changed since, so the comparison was made when the rollout was scored
    if (!is->on_policy)
        return invar_token_arrays_logp_diff(&is->logp_diff, f, is->first, is->count,
                                            f->rollout_logp, f->score_logp);
    INVAR_TRY(compare_logprobs(loop,
                               f->sampled ? "log-probabilities of rollout and training"
                                          : "log-probabilities of scoring and training",
                               is->first, is->count, f->rollout_logp, f->train_logp,
                               &is->logp_diff));
    if (is->routes_differ == 0)
        return INVAR_OK;
    (void)snprintf(text, sizeof text,
                   "%" PRId64 " of %" PRId64
                   " choices of experts are others in training than in the rollout",
                   is->routes_differ, is->routes);
    return invar_train_loop_mismatch(loop, "routing-mismatch", text);
}

static invar_status train_policy(invar_train_step *step, invar_train_loop *loop)
{
    int64_t token = loop->arrays.offsets[step->report.first];
    invar_trainer_result result = {.train_logp = loop->arrays.train_logp + token,
                                   .entropy = loop->arrays.entropy + token};

    INVAR_TRY(compute_gradients(step, loop, 0, &result, false));
    step->report.routes = result.routes;
    step->report.routes_differ = result.routes_differ;
    return check_training_logprobs(&step->report, loop);
}

static invar_status train_critic(invar_train_step *step, invar_train_loop *loop)
{
    int64_t token = loop->arrays.offsets[step->report.first];
    invar_trainer_result result = {.train_logp = loop->arrays.train_values + token};

    invar_recorder_watch(&loop->recorder, loop->trainer, loop->critic.options.prefix);
    INVAR_TRY(compute_gradients(step, loop, 1, &result, true));
    if (!loop->config->debug_disable_optimizer)
        invar_train_loop_before_change(loop);
    return invar_learner_step(&loop->critic, loop->position.step,
                              loop->config->debug_disable_optimizer);
}

bool invar_train_loop_skips_actor(const invar_train_loop *loop)
{
    return loop->config->debug_disable_optimizer ||
           loop->position.rollout < loop->config->num_critic_only_steps;
}

static invar_status update_actor(invar_train_loop *loop)
{
    bool rest = invar_train_loop_skips_actor(loop);

    if (!rest) {
        loop->position.weights++;
        invar_train_loop_before_change(loop);
    }
    return invar_learner_step(&loop->actor, loop->position.step, rest);
}

/* *out is the loss factor that the hook returned on rank 0; 1 without a hook. */
static invar_status broadcast_loss_factor(float *out, const invar_train_loop *loop)
{
    const char *path = loop->config->custom_before_train_step_hook_path;

    *out = path[0] ? (float)loop->plugins.factor : 1.0f;
    return path[0] ? invar_ranks_broadcast(loop->ranks, "loss factor", 0, out, sizeof *out)
                   : INVAR_OK;
}

invar_status invar_train_loop_learn(invar_train_step *step, invar_train_loop *loop)
{
    INVAR_TRY(invar_run_plugins_begin(&loop->plugins, INVAR_RUN_PLUGINS_LOSS, &loop->recorder,
                                      loop->position.step));
    INVAR_TRY(invar_run_plugins_begin(&loop->plugins,
                                      INVAR_RUN_PLUGINS_HOOKS + INVAR_PLUGIN_BEFORE_TRAIN_STEP,
                                      &loop->recorder, loop->position.step));
    INVAR_TRY(invar_train_loop_hook(loop, INVAR_PLUGIN_BEFORE_TRAIN_STEP, NULL));
    INVAR_TRY(broadcast_loss_factor(&step->report.factor, loop));
    step->report.has_loss_factor = step->report.factor != 1.0f;
    INVAR_TRY(train_policy(step, loop));
    // fail while a checkpoint of the previous step is still possible
    INVAR_TRY(invar_sample_source_poll_error(&loop->source));
    if (loop->critic.model)
        INVAR_TRY(train_critic(step, loop));
    return update_actor(loop);
}
