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

static invar_status compare_logprobs(invar_run_storage *storage, invar_run_flow *flow,
                                     const char *what, int64_t first, int64_t count, const float *a,
                                     const float *b, invar_logp_diff *gap)
{
    char text[INVAR_ERROR_MESSAGE_SIZE];

    INVAR_TRY(invar_token_arrays_logp_diff(gap, &flow->arrays, first, count, a, b));
    if (gap->differ == 0)
        return INVAR_OK;
    (void)snprintf(text, sizeof text,
                   "%s differ at %" PRId64 " token%s; the worst is token %" PRId64
                   " of sample %" PRId64 ", off by %g",
                   what, gap->differ, invar_text_plural(gap->differ), gap->position,
                   flow->batch.samples.items[first + (gap->sample < 0 ? 0 : gap->sample)].index,
                   (double)gap->max);
    return invar_run_mismatch(storage, "logp-mismatch", text);
}

/*
 * Fails if rollout and scoring differ by more than max-logp-diff. Used if they may differ at all.
 */
static invar_status check_bound(invar_run_storage *storage, invar_run_flow *flow)
{
    const invar_token_arrays *f = &flow->arrays;
    const float bound = (float)storage->job->config->max_logp_diff;
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
                   flow->batch.samples.items[gap.sample < 0 ? 0 : gap.sample].index, (double)bound);
    return invar_run_mismatch(storage, "logp-bound", text);
}

/* ---- before the first step of a rollout ------------------------------------------------------ */

/* True if the trained weights have sampled the rollout, in the format in which they are trained. */
static bool is_sampled_by_actor(const invar_run_models *models, const invar_run_flow *flow)
{
    return flow->batch.on_policy && !invar_run_context_two_formats(&models->context);
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
    invar_token_arrays *f = &loop->flow.arrays;
    size_t bytes = (size_t)f->tokens * sizeof *f->score_logp;
    invar_logp_diff gap;

    f->sampled = has_logp(&loop->flow.batch.samples);
    f->copied = loop->storage.identity.saved.on_policy &&
                        !invar_run_context_two_formats(&loop->models.context) &&
                        !invar_sample_schedule_off_policy(&loop->job.settings.sampling)
                    ? !loop->job.config->check_logprobs
                    : loop->job.config->use_rollout_logprobs;
    if (f->sampled && f->copied) {
        memcpy(f->score_logp, f->rollout_logp, bytes);
        return INVAR_OK;
    }
    INVAR_TRY(invar_trainer_score(loop->models.trainer, loop->models.context.models.actor,
                                  loop->flow.batch.samples.items, f->samples, f->score_logp, NULL));
    f->copied = !f->sampled;
    if (!f->sampled) {
        memcpy(f->rollout_logp, f->score_logp, bytes);
        return INVAR_OK;
    }
    if (!is_sampled_by_actor(&loop->models, &loop->flow)) {
        if (invar_sample_schedule_off_policy(&loop->job.settings.sampling) &&
            !invar_run_context_two_formats(&loop->models.context))
            INVAR_TRY(invar_run_compare_fresh(&loop->storage, &loop->flow,
                                              loop->flow.batch.samples.items, f->samples,
                                              f->score_logp));
        return check_bound(&loop->storage, &loop->flow);
    }
    return compare_logprobs(&loop->storage, &loop->flow, "log-probabilities of rollout and scoring",
                            0, f->samples, f->rollout_logp, f->score_logp, &gap);
}

/* Requests the teacher's log-probs from its server on rank 0 and broadcasts them. */
static invar_status request_teacher_logprobs(invar_run_flow *flow)
{
    invar_token_arrays *f = &flow->arrays;

    if (invar_ranks_is_leader(flow->world->ranks))
        INVAR_TRY(invar_plugin_score(f->teacher_logp,
                                     flow->plugins.by_role[INVAR_RUN_PLUGINS_TEACHER],
                                     flow->batch.samples.items, f->samples));
    return invar_ranks_broadcast(flow->world->ranks, "teacher", 0, f->teacher_logp,
                                 (size_t)f->tokens * sizeof *f->teacher_logp);
}

static invar_status score_other_models(invar_train_loop *loop)
{
    invar_run_context *s = &loop->models.context;
    invar_token_arrays *f = &loop->flow.arrays;
    const invar_rl_sample *samples = loop->flow.batch.samples.items;
    invar_logp_diff gap;

    if (s->models.reference) {
        INVAR_TRY(invar_trainer_score(loop->models.trainer, s->models.reference, samples,
                                      f->samples, f->ref_logp, NULL));
        if (loop->storage.position.step == 0 && !s->reference.own_spec &&
            loop->flow.batch.on_policy &&
            (is_sampled_by_actor(&loop->models, &loop->flow) || !f->copied))
            INVAR_TRY(
                compare_logprobs(&loop->storage, &loop->flow,
                                 "log-probabilities of actor and reference before the first step",
                                 0, f->samples, f->score_logp, f->ref_logp, &gap));
    }
    if (s->models.teacher)
        INVAR_TRY(invar_trainer_score(loop->models.trainer, s->models.teacher, samples, f->samples,
                                      f->teacher_logp, NULL));
    else if (f->teacher_logp)
        INVAR_TRY(request_teacher_logprobs(&loop->flow));
    if (s->models.critic)
        INVAR_TRY(invar_trainer_score(loop->models.trainer, s->models.critic, samples, f->samples,
                                      f->values, NULL));
    return INVAR_OK;
}

invar_status invar_run_hook(invar_run_storage *storage, invar_run_flow *flow, int hook,
                            const char *set, const invar_rl_samples *samples)
{
    return invar_run_plugins_hook(&flow->plugins,
                                  &(invar_plugin_event){.hook = hook,
                                                        .step = storage->position.step,
                                                        .rollout = storage->position.rollout,
                                                        .run = storage->dirs.paths.name,
                                                        .folder = storage->dirs.paths.run,
                                                        .set = set},
                                  samples);
}

invar_status invar_train_loop_score(invar_train_loop *loop)
{
    const invar_run_context *s = &loop->models.context;
    const invar_token_array_flags wants = {s->models.reference != NULL,
                                           invar_train_settings_distills(loop->job.config),
                                           s->models.critic != NULL};

    invar_token_arrays_release(&loop->flow.arrays);
    INVAR_TRY(invar_token_arrays_make(&loop->flow.arrays, &loop->flow.batch.samples, &wants));
    INVAR_TRY(invar_run_hook(&loop->storage, &loop->flow, INVAR_PLUGIN_BEFORE_LOGPROB, NULL, NULL));
    INVAR_TRY(score_actor(loop));
    INVAR_TRY(invar_train_loop_check_flight(loop));
    return score_other_models(loop);
}

invar_status invar_run_compute_advantages(invar_run_flow *flow)
{
    const invar_train_settings *set = &flow->job->settings;
    invar_token_arrays *f = &flow->arrays;
    invar_rl_batch all;

    if (set->sft) {
        memset(f->advantage, 0, (size_t)f->tokens * sizeof(float));
        return INVAR_OK;
    }
    all = invar_token_arrays_batch(f, 0, f->samples, f->offsets);
    return invar_rl_advantages(f->advantage, f->returns, &all, &set->rl);
}

/* ---- one optimizer step ---------------------------------------------------------------------- */

/* Returns the weight version that sampled; for a rollout file, the version of the first sample. */
static int64_t sampling_version(const invar_run_flow *flow, int64_t first)
{
    return flow->source.kind->loads ? flow->batch.samples.items[first].weights.last
                                    : flow->source.request.weights;
}

invar_status invar_train_loop_step_make(invar_train_step *out, const invar_train_loop *loop,
                                        int64_t first, int64_t count)
{
    bool passes = loop->job.config->log_passrate, rewarded;

    if (first + count > loop->flow.arrays.samples)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout %" PRId64 " has %" PRId64
                          " samples; its optimizer steps need %" PRId64,
                          loop->storage.position.rollout, loop->flow.arrays.samples,
                          loop->job.settings.global_batch * loop->job.settings.steps_per_rollout);
    INVAR_TRY(INVAR_ALLOC(out->start, (size_t)count + 1, "the starts of a step's samples"));
    invar_token_arrays_starts(out->start, &loop->flow.arrays, first, count);
    out->batch = invar_token_arrays_batch(&loop->flow.arrays, first, count, out->start);
    rewarded =
        invar_run_rewarded(&loop->flow, loop->flow.batch.samples.items, loop->flow.arrays.samples);
    out->report = (invar_step_report){.number = loop->storage.position.step,
                                      .samples = loop->flow.batch.samples.items,
                                      .flat = &loop->flow.arrays,
                                      .first = first,
                                      .count = count,
                                      .start = out->start,
                                      .policy.version = sampling_version(&loop->flow, first),
                                      .policy.own_weights = loop->flow.batch.on_policy,
                                      .policy.other_format =
                                          invar_run_context_two_formats(&loop->models.context),
                                      .groups.filtered = loop->flow.batch.filtered_groups,
                                      .steps_per_rollout = loop->job.settings.steps_per_rollout,
                                      .recorded_schedule = loop->job.settings.sampling.recorded,
                                      .supervised = loop->job.settings.sft,
                                      .unrewarded = !rewarded,
                                      .groups.keeps_surplus = loop->job.settings.sampling.surplus,
                                      .groups.reused = loop->flow.batch.reused_groups,
                                      .groups.surplus = loop->flow.batch.surplus_groups,
                                      .passes = passes ? loop->job.config->n_samples_per_prompt : 0,
                                      .seed = (uint32_t)loop->job.config->rollout_seed,
                                      .audit = loop->storage.audit};
    return INVAR_OK;
}

void invar_train_loop_step_release(invar_train_step *step)
{
    for (int i = 0; i < INVAR_STEP_REPORT_LEARNERS; i++)
        invar_loss_free(step->losses[i].loss);
    invar_free(step->start);
    *step = (invar_train_step){0};
}

invar_status invar_run_ask_loss(float *loss_out, float *dlogp_out, const invar_loss_sample *sample,
                                void *payload)
{
    const invar_run_flow *flow = payload;
    size_t bytes = (size_t)sample->tokens * sizeof(float);

    if (invar_ranks_is_leader(flow->world->ranks))
        INVAR_TRY(invar_plugin_loss(loss_out, dlogp_out, sample,
                                    flow->plugins.by_role[INVAR_RUN_PLUGINS_LOSS]));
    INVAR_TRY(invar_ranks_broadcast(flow->world->ranks, "loss", 0, loss_out, bytes));
    return invar_ranks_broadcast(flow->world->ranks, "loss", 0, dlogp_out, bytes);
}

/* Evaluates the loss of a learner, times the factor that a hook has returned. */
static invar_status compute_weighted_loss(void *payload, int64_t first, int64_t count,
                                          const float *now, const float *entropy, float *dnow,
                                          float *dentropy)
{
    const invar_train_step_loss *l = payload;
    int64_t tokens = l->start[first + count] - l->start[first];

    INVAR_TRY(invar_loss_run(l->loss, first, count, now, entropy, dnow, dentropy));
    for (int64_t t = 0; t < tokens && l->factor != 1.0f; t++) {
        dnow[t] = dnow[t] * l->factor;
        if (dentropy)
            dentropy[t] = dentropy[t] * l->factor;
    }
    return INVAR_OK;
}

/* Makes the loss of the policy or, if `values` is set, of the critic. */
static invar_status make_loss(invar_trainer_loss *out, invar_train_step *step,
                              const invar_run_flow *flow, bool values)
{
    const invar_token_arrays *f = &flow->arrays;
    int64_t token = f->offsets[step->report.first];
    invar_rl_options rl = flow->job->settings.rl;
    invar_train_step_loss *l = &step->losses[values];

    *out = (invar_trainer_loss){.run = compute_weighted_loss,
                                .payload = l,
                                .entropy = !values && rl.entropy_coef != 0.0f,
                                .on_rank0 = !values && invar_loss_traits_of(rl.loss)->plugin};
    if (values)
        rl.loss = INVAR_LOSS_VALUE;
    l->start = step->start;
    l->factor = values ? 1.0f : step->report.factor;
    INVAR_TRY(invar_loss_new(&l->loss, &step->batch, &rl, values ? NULL : f->advantage + token,
                             values ? f->returns + token : NULL));
    step->report.learners[values].loss = l->loss;
    return INVAR_OK;
}

static invar_status check_training_logprobs(invar_step_report *is, invar_run_storage *storage,
                                            invar_run_flow *flow)
{
    const invar_token_arrays *f = &flow->arrays;
    char text[INVAR_ERROR_MESSAGE_SIZE];

    // without log-probs of a rollout, only two forward passes of training can be compared
    is->comparison.compared = f->sampled && (is->policy.on_policy || !f->copied);
    if ((invar_sample_schedule_off_policy(&storage->job->settings.sampling)
             ? !is->policy.on_policy
             : is->policy.other_format && is->policy.own_weights) &&
        is->first == 0 && !f->copied)
        INVAR_TRY(compare_logprobs(storage, flow, "log-probabilities of scoring and training",
                                   is->first, is->count, f->score_logp, f->train_logp,
                                   &is->comparison.logp_diff));
    // the weights have changed since, so the comparison was made when the rollout was scored
    if (!is->policy.on_policy)
        return invar_token_arrays_logp_diff(&is->comparison.logp_diff, f, is->first, is->count,
                                            f->rollout_logp, f->score_logp);
    INVAR_TRY(compare_logprobs(storage, flow,
                               f->sampled ? "log-probabilities of rollout and training"
                                          : "log-probabilities of scoring and training",
                               is->first, is->count, f->rollout_logp, f->train_logp,
                               &is->comparison.logp_diff));
    if (is->comparison.routes_differ == 0)
        return INVAR_OK;
    (void)snprintf(text, sizeof text,
                   "%" PRId64 " of %" PRId64
                   " choices of experts are others in training than in the rollout",
                   is->comparison.routes_differ, is->comparison.routes);
    return invar_run_mismatch(storage, "routing-mismatch", text);
}

invar_status invar_train_loop_policy_gradients(invar_train_step *step, invar_train_loop *loop)
{
    invar_step_report *is = &step->report;
    int64_t token = loop->flow.arrays.offsets[is->first];
    invar_trainer_result result = {.train_logp = loop->flow.arrays.train_logp + token,
                                   .entropy = loop->flow.arrays.entropy + token};
    invar_trainer_loss loss;

    INVAR_TRY(make_loss(&loss, step, &loop->flow, false));
    INVAR_TRY(invar_learner_forward_backward(&loop->models.actor, loop->models.trainer,
                                             is->samples + is->first, is->count, &loss, &result));
    is->comparison.routes = result.routes;
    is->comparison.routes_differ = result.routes_differ;
    return check_training_logprobs(is, &loop->storage, &loop->flow);
}

invar_status invar_train_loop_value_gradients(invar_train_step *step, invar_train_loop *loop)
{
    const invar_step_report *is = &step->report;
    int64_t token = loop->flow.arrays.offsets[is->first];
    invar_trainer_result result = {.train_logp = loop->flow.arrays.train_values + token};
    invar_trainer_loss loss;

    invar_recorder_watch(&loop->storage.recorder, loop->models.trainer,
                         loop->models.critic.options.prefix);
    INVAR_TRY(make_loss(&loss, step, &loop->flow, true));
    return invar_learner_forward_backward(&loop->models.critic, loop->models.trainer,
                                          is->samples + is->first, is->count, &loss, &result);
}

bool invar_run_skips_actor(const invar_run_storage *storage)
{
    return storage->job->config->debug_disable_optimizer ||
           storage->position.rollout < storage->job->config->num_critic_only_steps;
}
