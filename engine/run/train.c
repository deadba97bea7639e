/*
 * train.c - the loop: rollouts, and the optimizer steps of each.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/train.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/process.h"
#include "engine/model/near.h"
#include "engine/run/evaluate.h"
#include "engine/run/loop.h"

#include "base/invar_banned.h"

/* ---- what people see ------------------------------------------------------------------------- */

static void show_step(invar_loop *loop, const invar_loop_step *step)
{
    invar_train_progress p = {.rollout = loop->place.rollout,
                              .rollouts = loop->set.rollouts,
                              .step = loop->place.step,
                              .phase = "train",
                              .measured = true,
                              .grad_norm = (double)step->norm,
                              .compared = step->compared && loop->own_weights,
                              .logp_diff_max = (double)step->gap.max,
                              .chain = &loop->summary->chain};

    for (int64_t i = step->first; i < step->first + step->count; i++) {
        p.reward += loop->batch.items[i].reward / (double)step->count;
        p.response_len +=
            (double)invar_rl_sample_response(&loop->batch.items[i]) / (double)step->count;
    }
    if (loop->summary->steps == 0)
        loop->summary->first_reward = p.reward;
    loop->summary->last_reward = p.reward;
    loop->summary->steps++;
    if (loop->set.sft) // scoring and training are compared, but nothing was sampled
        p.compared = false;
    loop->summary->compared += p.compared;
    loop->summary->foreign = loop->summary->foreign || !loop->own_weights;
    if (p.compared && p.logp_diff_max > loop->summary->worst_diff)
        loop->summary->worst_diff = p.logp_diff_max;
    if (loop->options->progress)
        loop->options->progress(loop->options->payload, &p);
}

static void show_sample(const invar_loop *loop)
{
    int64_t every = invar_recipe_int(loop->recipe, INVAR_KEY_DEBUG_ROLLOUT_PRINT_EVERY);
    const invar_rl_sample *s = loop->batch.items;
    char line[1024];

    if (!every || loop->place.rollout % every || !loop->options->say || !loop->batch.count)
        return;
    (void)snprintf(line, sizeof line,
                   "rollout %" PRId64 ", sample %" PRId64 ": %.400s -> %.400s (reward %g)",
                   loop->place.rollout, s->index, s->prompt_text ? s->prompt_text : "",
                   s->response ? s->response : "", s->reward);
    invar_loop_say(loop, line);
}

/* Once: who sees it in the first rollout need not wait for the curves. Rewards above 0 are good. */
static void tell_equal_rewards(invar_loop *loop)
{
    const invar_flat *f = &loop->flat;
    char line[256];

    if (loop->told_equal || loop->set.sft || f->samples < 2 || f->reward[0] > 0.0f ||
        loop->options->replay || loop->set.rl.entropy_coef != 0.0f || loop->set.rl.use_kl_loss)
        return;
    for (int64_t i = 1; i < f->samples; i++)
        if (f->reward[i] != f->reward[0])
            return;
    for (int64_t t = 0; t < f->start[f->samples]; t++)
        if (f->advantage[t] != 0.0f)
            return;
    (void)snprintf(line, sizeof line,
                   "all rewards of rollout %" PRId64
                   " are %g: its advantages are 0, and nothing is learnt from it; look at samples "
                   "(debug-rollout-print-every = 1), at rm-type and at label-key",
                   loop->place.rollout, (double)f->reward[0]);
    invar_loop_say(loop, line);
    loop->told_equal = true;
}

/* ---- one rollout ----------------------------------------------------------------------------- */

/* The signal that asks for the end; 0: none. */
static int signal_of(const invar_loop *loop)
{
    return loop->options->stop ? *loop->options->stop : 0;
}

/* All that was asked for is done, `done` rollouts of it by this process. */
static bool reached_end(const invar_loop *loop, int64_t done)
{
    int64_t most = invar_recipe_int(loop->recipe, INVAR_KEY_DEBUG_EXIT_AFTER_ROLLOUT);
    int64_t until = loop->options->until;

    return loop->place.rollout >= loop->set.rollouts || (most > 0 && done >= most) ||
           (until >= 0 && loop->place.step > until);
}

/* A checkpoint whose files are written by now should not wait for the next one to exist. */
static invar_status look_after_save(invar_loop *loop)
{
    if (!loop->writer || !invar_checkpoint_ready(loop->writer))
        return INVAR_OK;
    return invar_loop_finish_save(loop);
}

static invar_status end_step(invar_loop *loop, const invar_loop_step *step)
{
    INVAR_TRY(invar_loop_record(loop, step));
    INVAR_TRY(invar_ledger_chain(&loop->summary->last_step, &loop->summary->chain, loop->ledger));
    loop->place.step++;
    show_step(loop, step);
    return look_after_save(loop);
}

/* Where the tensors of this step go, if the recipe wants any. */
static invar_status open_dump(invar_dump **out, const invar_loop *loop)
{
    const char *points = invar_recipe_string(loop->recipe, INVAR_KEY_DEBUG_DUMP);
    const char *given = invar_recipe_string(loop->recipe, INVAR_KEY_DEBUG_DUMP_DIR);
    char folder[INVAR_PATH_SIZE], name[64];

    *out = NULL;
    if (!points[0])
        return INVAR_OK;
    (void)snprintf(name, sizeof name, given[0] ? "step_%" PRId64 : "dump/step_%" PRId64,
                   loop->place.step);
    INVAR_TRY(invar_path_join(folder, sizeof folder, given[0] ? given : loop->at.run, name));
    return invar_dump_new(out, folder, points);
}

static invar_status close_dump(invar_dump *dump, const invar_recipe *recipe)
{
    int64_t count;

    if (!dump)
        return INVAR_OK;
    INVAR_TRY(invar_dump_finish(&count, dump));
    if (count == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "debug-dump: no point of the step is called \"%.100s\"; try "
                          "train.logp, grad.*, layer.0.*, or * for all",
                          invar_recipe_string(recipe, INVAR_KEY_DEBUG_DUMP));
    return INVAR_OK;
}

/* Points of tokens have their place between the forward and the backward that is made of them. */
static invar_status take_point(void *payload, const invar_forward_value *value)
{
    invar_loop *loop = payload;

    if (value->backward && *loop->view.stream[1] == '\0')
        INVAR_TRY(invar_loop_define_points(loop, true));
    return invar_probe_take(&loop->view, value);
}

static invar_status learn(invar_loop_step *out, invar_loop *loop, int64_t number, invar_dump *dump)
{
    static const char *const forward[] = {"batch.tokens", NULL};
    static const char *const backward[] = {
        "train.logp",      "rollout.logp", "score.logp",    "ref.logp",
        "batch.advantage", "batch.reward", "critic.values", NULL};
    invar_forward_probe show = {take_point, loop};
    bool fine = invar_recipe_enum(loop->recipe, INVAR_KEY_DEBUG_DETERMINISM) > 0 || dump;
    invar_status status;

    loop->view =
        (invar_probe_view){.probe = loop->probe, .prefix = "", .given = {forward, backward}};
    invar_probe_begin(loop->probe, dump);
    if (fine)
        INVAR_TRY(invar_loop_define_points(loop, false));
    invar_trace_step(loop->trace, loop->place.step);
    invar_trainer_probe(loop->trainer, fine ? &show : NULL);
    invar_trace_begin(loop->trace, "train");
    invar_audit_begin(loop->audit, loop->place.step, INVAR_AUDIT_TRAIN);
    status = invar_loop_learn(out, loop, number);
    invar_audit_end(loop->audit);
    invar_trace_end(loop->trace);
    invar_trainer_probe(loop->trainer, NULL);
    return status;
}

static invar_status one_step(invar_loop *loop, int64_t number)
{
    invar_loop_step step = {0};
    invar_dump *dump = NULL;
    invar_status status;

    INVAR_TRY(open_dump(&dump, loop));
    status = learn(&step, loop, number, dump);
    if (status == INVAR_OK)
        status = end_step(loop, &step);
    if (status == INVAR_OK)
        status = close_dump(dump, loop->recipe);
    invar_loop_step_release(&step);
    invar_dump_free(dump);
    return status;
}

/* Without training a rollout is one step of the ledger, with what was sampled. */
static invar_status rollout_step(invar_loop *loop)
{
    invar_flat *f = &loop->flat;
    invar_loop_step step = {
        .first = 0, .count = loop->batch.count, .on_policy = true, .compared = !f->copied};

    INVAR_TRY(invar_flat_gap(&step.gap, f, 0, f->samples, f->rollout_logp, f->score_logp));
    invar_probe_begin(loop->probe, NULL);
    return end_step(loop, &step);
}

/* After a step that was recorded there is nothing to do. */
static invar_status hash_weights(invar_loop *loop)
{
    if (loop->weights_hashed)
        return INVAR_OK;
    INVAR_TRY(invar_model_hash(&loop->weights_hash, loop->session.actor, &loop->session.dev));
    loop->weights_hashed = true;
    return INVAR_OK;
}

static invar_status collect(invar_loop *loop)
{
    invar_status status;

    invar_trace_step(loop->trace, loop->place.step);
    invar_trace_begin(loop->trace, "rollout");
    loop->dropped_groups = 0;
    invar_rl_samples_reset(&loop->batch);
    status = hash_weights(loop);
    invar_audit_begin(loop->audit, loop->place.step, INVAR_AUDIT_ROLLOUT);
    if (status == INVAR_OK)
        status = invar_loop_collect(loop);
    invar_audit_end(loop->audit);
    invar_trace_end(loop->trace);
    return status;
}

static invar_status prepare(invar_loop *loop)
{
    invar_status status;

    invar_trace_begin(loop->trace, "score");
    invar_audit_begin(loop->audit, loop->place.step, INVAR_AUDIT_SCORE);
    status = invar_loop_prepare(loop);
    invar_audit_end(loop->audit);
    invar_trace_end(loop->trace);
    return status;
}

static invar_status reset_optimizers(invar_loop *loop)
{
    if (!loop->optimizer || !invar_recipe_bool(loop->recipe, INVAR_KEY_RESET_OPTIMIZER_STATES))
        return INVAR_OK;
    invar_loop_before_change(loop);
    INVAR_TRY(invar_optimizer_reset(loop->optimizer));
    return loop->critic_optimizer ? invar_optimizer_reset(loop->critic_optimizer) : INVAR_OK;
}

static invar_status move_reference(invar_loop *loop)
{
    invar_loop_before_change(loop);
    return invar_model_copy(loop->session.reference, loop->session.actor);
}

static invar_status one_rollout(invar_loop *loop)
{
    INVAR_TRY(invar_loop_follow(loop));
    INVAR_TRY(reset_optimizers(loop));
    INVAR_TRY(collect(loop));
    show_sample(loop);
    INVAR_TRY(prepare(loop));
    if (loop->set.rollout_only)
        return rollout_step(loop);
    tell_equal_rewards(loop);
    for (int64_t i = 0; i < loop->set.steps_per_rollout; i++)
        INVAR_TRY(one_step(loop, i));
    return INVAR_OK;
}

/* ---- between rollouts ------------------------------------------------------------------------ */

static bool due(const invar_loop *loop, invar_key key)
{
    int64_t interval = invar_recipe_int(loop->recipe, (int)key);

    return interval > 0 && loop->place.rollout % interval == 0;
}

static invar_status save(invar_loop *loop, bool last)
{
    invar_status status;

    invar_trace_begin(loop->trace, "save");
    status = invar_loop_save(loop, last);
    invar_trace_end(loop->trace);
    return status;
}

static invar_status take_results(void *payload, const char *set, const invar_ledger_metric *results,
                                 size_t count)
{
    return invar_ledger_evaluate(payload, set, results, count);
}

static invar_status evaluate(invar_loop *loop)
{
    invar_evaluation e = {.session = &loop->session,
                          .rollout = loop->rollout,
                          .number = loop->place.rollout,
                          .take = take_results,
                          .payload = loop->ledger};
    invar_status status;

    if (loop->options->replay)
        return INVAR_OK;
    INVAR_TRY(invar_loop_free_plugin(loop, INVAR_LOOP_REWARD));
    INVAR_TRY(invar_judge_read(&e.judge, loop->recipe, loop->plugins[INVAR_LOOP_REWARD], true));
    invar_trace_begin(loop->trace, "eval");
    status = invar_evaluate(&e);
    invar_trace_end(loop->trace);
    return status;
}

/* A signal that comes during the save waits for the next rollout, whose end is saved again. */
static invar_status between(invar_loop *loop, int64_t done)
{
    bool last = reached_end(loop, done);
    bool saves = loop->at.save[0] || invar_recipe_string(loop->recipe, INVAR_KEY_SAVE_HF)[0];

    if (loop->session.reference && due(loop, INVAR_KEY_REF_UPDATE_INTERVAL))
        INVAR_TRY(move_reference(loop));
    if (due(loop, INVAR_KEY_EVAL_INTERVAL))
        INVAR_TRY(evaluate(loop));
    loop->summary->stopped = last ? 0 : signal_of(loop);
    last = last || loop->summary->stopped;
    if (saves && (last || due(loop, INVAR_KEY_SAVE_INTERVAL)))
        return save(loop, last);
    return INVAR_OK;
}

static invar_status run(invar_loop *loop)
{
    int64_t done = 0;

    INVAR_TRY(invar_ledger_chain(&loop->summary->last_step, &loop->summary->chain, loop->ledger));
    if (loop->place.step == 0 && invar_recipe_int(loop->recipe, INVAR_KEY_EVAL_INTERVAL) > 0 &&
        !invar_recipe_bool(loop->recipe, INVAR_KEY_SKIP_EVAL_BEFORE_TRAIN))
        INVAR_TRY(evaluate(loop));
    loop->summary->stopped = reached_end(loop, done) ? 0 : signal_of(loop);
    while (!reached_end(loop, done) && !loop->summary->stopped) {
        INVAR_TRY(one_rollout(loop));
        loop->place.rollout++;
        INVAR_TRY(between(loop, ++done));
    }
    return INVAR_OK;
}

/* A checkpoint that was begun is there before the end; the first failure is the one to tell. */
static invar_status finish_save(invar_error *first, invar_loop *loop, invar_status status)
{
    invar_status saved;

    invar_error_take(first);
    saved = invar_loop_finish_save(loop);
    if (status == INVAR_OK && saved != INVAR_OK) {
        invar_error_take(first);
        return saved;
    }
    invar_error_clear();
    return status;
}

/* A failure of a run whose folder is gone is just that, whatever could not be written first. */
static invar_status explain(invar_loop *loop, invar_status status)
{
    invar_error first;
    invar_status now;

    if (status == INVAR_OK || !loop->home.held)
        return status;
    invar_error_take(&first);
    now = invar_folder_follow(&loop->home);
    if (now == INVAR_E_STATE)
        return now;
    invar_error_put(&first);
    return status;
}

/* The end is written whatever it is; the first failure is the one that is reported. */
static invar_status finish(invar_loop *loop, invar_status status)
{
    invar_error first;
    int64_t code;

    if (!loop->ledger || loop->summary->finished)
        return status;
    status = finish_save(&first, loop, status);
    if (status == INVAR_OK && loop->summary->stopped)
        return invar_ledger_finish(loop->ledger, invar_process_stop_code(loop->summary->stopped),
                                   "stopped");
    if (status == INVAR_OK)
        return invar_ledger_finish(loop->ledger, 0, "done");
    code = signal_of(loop) == SIGXFSZ   ? invar_process_stop_code(SIGXFSZ)
           : status == INVAR_E_MISMATCH ? 1
                                        : 2;
    if (invar_loop_event(loop, "error", "failure", first.message) != INVAR_OK ||
        invar_ledger_finish(loop->ledger, code, first.message) != INVAR_OK)
        invar_error_clear(); // it may be the ledger itself that failed
    invar_error_put(&first);
    return status;
}

/* A trace that could not be written whole is worth a line, not a failure. */
static void check_trace(const invar_loop *loop)
{
    if (!loop->trace || invar_trace_check(loop->trace) == INVAR_OK)
        return;
    invar_loop_say(loop, invar_error_last()->message);
    invar_error_clear();
}

static void summarise(invar_train_summary *out, const invar_loop *loop)
{
    memcpy(out->name, loop->at.name, sizeof out->name);
    memcpy(out->folder, loop->at.run, sizeof out->folder);
    memcpy(out->ledger, loop->at.ledger, sizeof out->ledger);
    memcpy(out->uuid, loop->uuid, sizeof out->uuid);
    out->saves = loop->at.save[0];
}

invar_status invar_train(invar_train_summary *out, const invar_recipe *recipe,
                         const invar_train_options *options)
{
    invar_loop *loop = NULL;
    invar_status status;
    bool far;

    *out = (invar_train_summary){.resumed_after = -1, .last_step = -1};
    INVAR_TRY(invar_alloc((void **)&loop, 1, sizeof *loop, "a run"));
    far = invar_recipe_enum(recipe, INVAR_KEY_DEVICE) != 0; // 0: the CPU
    status = invar_near_advise(invar_loop_open(loop, recipe, options, out), far,
                               "the model with its gradients and moments is too large");
    if (status == INVAR_OK && !out->finished)
        status = run(loop);
    if (status == INVAR_OK)
        check_trace(loop);
    if (status == INVAR_OK)
        status = invar_loop_follow(loop);
    summarise(out, loop);
    status = finish(loop, explain(loop, status));
    invar_loop_close(loop);
    invar_free(loop);
    return status;
}
