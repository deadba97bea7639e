/*
 * learn.c - from samples to gradients to new weights.
 *
 * The checks of the debugging guide are assertions here: where the weights of now sampled, the
 * log-probabilities of the rollout, of the scoring forward and of the training forward are equal
 * bit by bit; before the first step those of actor and reference are, too. So the ratio is exactly
 * 1 and every KL exactly 0 there. What other weights sampled is only measured.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "engine/run/loop.h"

#include "base/invar_banned.h"

/* ---- comparing ------------------------------------------------------------------------------- */

invar_status invar_loop_mismatch(invar_loop *loop, const char *kind, const char *text)
{
    INVAR_TRY(invar_loop_event(loop, "error", kind, text));
    if (!loop->set.stop_on_mismatch)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_MISMATCH, 0, "step %" PRId64 ": %.1000s", loop->place.step, text);
}

static invar_status compare(invar_loop *loop, const char *what, int64_t first, int64_t count,
                            const float *a, const float *b, invar_logp_gap *gap)
{
    char text[INVAR_ERROR_MESSAGE_SIZE];

    INVAR_TRY(invar_flat_gap(gap, &loop->flat, first, count, a, b));
    if (gap->differ == 0)
        return INVAR_OK;
    (void)snprintf(text, sizeof text,
                   "%s differ at %" PRId64 " token%s; the worst is token %" PRId64
                   " of sample %" PRId64 ", off by %g",
                   what, gap->differ, invar_text_plural(gap->differ), gap->position,
                   loop->batch.items[first + (gap->sample < 0 ? 0 : gap->sample)].index,
                   (double)gap->max);
    return invar_loop_mismatch(loop, "logp-mismatch", text);
}

/* ---- before the first step of a rollout ------------------------------------------------------ */

static invar_status hook(invar_loop *loop, int which)
{
    invar_plugin *plugin = loop->plugins[INVAR_LOOP_HOOKS + which];
    invar_plugin_event event = {.hook = which,
                                .step = loop->place.step,
                                .rollout = loop->place.rollout,
                                .run = loop->at.name,
                                .folder = loop->at.run};

    return plugin ? invar_plugin_hook(plugin, &event) : INVAR_OK;
}

static bool has_logp(const invar_rl_samples *batch)
{
    for (int64_t i = 0; i < batch->count; i++)
        if (!batch->items[i].logp)
            return false;
    return true;
}

/*
 * The old log-probabilities: the scoring forward's, or those of the rollout. The latter where they
 * must be the same and the recipe does not ask, and where it wants those of foreign rollouts.
 */
static invar_status score(invar_loop *loop)
{
    invar_flat *f = &loop->flat;
    size_t bytes = (size_t)f->tokens * sizeof *f->score_logp;
    bool sampled = has_logp(&loop->batch);
    invar_logp_gap gap;

    f->copied = loop->own_rollouts ? !loop->set.check_logprobs : loop->set.rollout_logprobs;
    if (sampled && f->copied) {
        memcpy(f->score_logp, f->rollout_logp, bytes);
        return INVAR_OK;
    }
    INVAR_TRY(invar_trainer_score(loop->trainer, loop->session.actor, loop->batch.items, f->samples,
                                  f->score_logp, NULL));
    f->copied = !sampled;
    if (!sampled) {
        memcpy(f->rollout_logp, f->score_logp, bytes);
        return INVAR_OK;
    }
    if (!loop->own_weights)
        return INVAR_OK;
    return compare(loop, "log-probabilities of rollout and scoring", 0, f->samples, f->rollout_logp,
                   f->score_logp, &gap);
}

static invar_status score_others(invar_loop *loop)
{
    invar_session *s = &loop->session;
    invar_flat *f = &loop->flat;
    const invar_rl_sample *samples = loop->batch.items;
    invar_logp_gap gap;

    if (s->reference) {
        INVAR_TRY(invar_trainer_score(loop->trainer, s->reference, samples, f->samples, f->ref_logp,
                                      NULL));
        if (loop->place.step == 0 && loop->own_weights)
            INVAR_TRY(compare(loop,
                              "log-probabilities of actor and reference before the first step", 0,
                              f->samples, f->score_logp, f->ref_logp, &gap));
    }
    if (s->teacher)
        INVAR_TRY(invar_trainer_score(loop->trainer, s->teacher, samples, f->samples,
                                      f->teacher_logp, NULL));
    if (s->critic)
        INVAR_TRY(invar_trainer_values(loop->trainer, s->critic, samples, f->samples, f->values));
    return INVAR_OK;
}

invar_status invar_loop_prepare(invar_loop *loop)
{
    const invar_session *s = &loop->session;
    invar_flat_wants wants = {s->reference != NULL, s->teacher != NULL, s->critic != NULL};
    invar_rl_batch all;

    invar_flat_release(&loop->flat);
    INVAR_TRY(invar_flat_make(&loop->flat, &loop->batch, &wants));
    INVAR_TRY(hook(loop, INVAR_PLUGIN_BEFORE_LOGPROB));
    INVAR_TRY(score(loop));
    INVAR_TRY(score_others(loop));
    if (loop->set.sft) {
        memset(loop->flat.advantage, 0, (size_t)loop->flat.tokens * sizeof(float));
        return INVAR_OK;
    }
    all = invar_flat_batch(&loop->flat, 0, loop->flat.samples);
    return invar_rl_advantages(loop->flat.advantage, loop->flat.returns, &all, &loop->set.rl);
}

/* ---- one optimizer step ---------------------------------------------------------------------- */

static invar_status run_loss(void *payload, int64_t first, int64_t count, const float *now,
                             const float *entropy, float *dnow, float *dentropy)
{
    return invar_loss_run(payload, first, count, now, entropy, dnow, dentropy);
}

static invar_status learn_actor(invar_loop_step *out, invar_loop *loop)
{
    invar_flat *f = &loop->flat;
    int64_t token = f->start[out->first];
    invar_trainer_loss loss = {run_loss, NULL, loop->set.rl.entropy_coef != 0.0f};

    INVAR_TRY(invar_loss_new(&out->loss, &out->batch, &loop->set.rl, f->advantage + token, NULL));
    loss.payload = out->loss;
    out->result =
        (invar_trainer_result){.now = f->train_logp + token, .entropy = f->entropy + token};
    INVAR_TRY(invar_trainer_learn(loop->trainer, loop->session.actor,
                                  loop->batch.items + out->first, out->count, &loss, loop->grads,
                                  &out->result));
    return invar_optimizer_norm(&out->norm, &out->clip, loop->session.actor, loop->grads, true,
                                loop->set.adamw.clip_grad, &loop->session.dev);
}

static invar_status learn_critic(invar_loop_step *out, invar_loop *loop)
{
    invar_flat *f = &loop->flat;
    int64_t token = f->start[out->first];
    invar_rl_options options = loop->set.rl;
    invar_trainer_loss loss = {run_loss, NULL, false};
    invar_trainer_result result = {.now = f->train_values + token};
    float clip;

    loop->view.prefix = "critic.";
    options.loss = INVAR_LOSS_VALUE;
    INVAR_TRY(invar_loss_new(&out->value_loss, &out->batch, &options, NULL, f->returns + token));
    loss.payload = out->value_loss;
    INVAR_TRY(invar_trainer_learn(loop->trainer, loop->session.critic,
                                  loop->batch.items + out->first, out->count, &loss,
                                  loop->critic_grads, &result));
    INVAR_TRY(invar_optimizer_norm(&out->critic_norm, &clip, loop->session.critic,
                                   loop->critic_grads, true, loop->set.adamw.clip_grad,
                                   &loop->session.dev));
    out->critic_lr = invar_schedule_lr(&loop->set.critic_schedule, loop->place.step);
    if (invar_recipe_bool(loop->recipe, INVAR_KEY_DEBUG_DISABLE_OPTIMIZER))
        return INVAR_OK;
    invar_loop_before_change(loop);
    out->critic_hashed = invar_optimizer_hashes(loop->critic_optimizer);
    return invar_optimizer_step(loop->critic_optimizer, loop->session.critic, loop->critic_grads,
                                clip, out->critic_lr, true, &loop->set.adamw, &loop->session.dev);
}

/* The actor rests while only the critic learns, and where the recipe says so. */
static invar_status move_actor(invar_loop_step *out, invar_loop *loop)
{
    const invar_recipe *r = loop->recipe;

    out->lr = invar_schedule_lr(&loop->set.schedule, loop->place.step);
    if (invar_recipe_bool(r, INVAR_KEY_DEBUG_DISABLE_OPTIMIZER) ||
        loop->place.rollout < invar_recipe_int(r, INVAR_KEY_NUM_CRITIC_ONLY_STEPS))
        return INVAR_OK;
    loop->place.weights++;
    loop->weights_hashed = false;
    invar_loop_before_change(loop);
    out->actor_hashed = invar_optimizer_hashes(loop->optimizer);
    return invar_optimizer_step(loop->optimizer, loop->session.actor, loop->grads, out->clip,
                                out->lr, true, &loop->set.adamw, &loop->session.dev);
}

static invar_status check_training(invar_loop_step *out, invar_loop *loop)
{
    invar_flat *f = &loop->flat;
    char text[INVAR_ERROR_MESSAGE_SIZE];

    out->compared = out->on_policy || !f->copied;
    if (!out->on_policy) // the weights have moved since: what can be compared was, in `score`
        return invar_flat_gap(&out->gap, f, out->first, out->count, f->rollout_logp, f->score_logp);
    INVAR_TRY(compare(loop, "log-probabilities of rollout and training", out->first, out->count,
                      f->rollout_logp, f->train_logp, &out->gap));
    if (out->result.routes_differ == 0)
        return INVAR_OK;
    (void)snprintf(text, sizeof text,
                   "%" PRId64 " of %" PRId64
                   " choices of experts are others in training than in the rollout",
                   out->result.routes_differ, out->result.routes);
    return invar_loop_mismatch(loop, "routing-mismatch", text);
}

invar_status invar_loop_learn(invar_loop_step *out, invar_loop *loop, int64_t number)
{
    *out = (invar_loop_step){.first = number * loop->set.global_batch,
                             .count = loop->set.global_batch,
                             .on_policy = number == 0 && loop->own_weights};
    if (out->first + out->count > loop->flat.samples)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout %" PRId64 " has %" PRId64
                          " samples; its optimizer steps need %" PRId64,
                          loop->place.rollout, loop->flat.samples,
                          loop->set.global_batch * loop->set.steps_per_rollout);
    INVAR_TRY(invar_loop_begin_plugin(loop, INVAR_LOOP_LOSS));
    INVAR_TRY(hook(loop, INVAR_PLUGIN_BEFORE_TRAIN_STEP));
    out->batch = invar_flat_batch(&loop->flat, out->first, out->count);
    INVAR_TRY(learn_actor(out, loop));
    INVAR_TRY(check_training(out, loop));
    if (loop->session.critic)
        INVAR_TRY(learn_critic(out, loop));
    return move_actor(out, loop);
}

void invar_loop_step_release(invar_loop_step *step)
{
    invar_loss_free(step->loss);
    invar_loss_free(step->value_loss);
    *step = (invar_loop_step){0};
}
