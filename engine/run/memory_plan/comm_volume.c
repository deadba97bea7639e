/*
 * comm_volume.c - counts what a rank sends and multiplies in an optimizer step.
 *
 * Bytes are counted by observers of the communicators while the models of a dry run execute a step.
 * FLOP are computed from the number of weights, rows and queries of this rank. If all samples are
 * equal, two steps that differ by one round of units give the volume of a round, and the rest of
 * the step is extrapolated from it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_plan/comm_volume.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/run/memory_plan/dry_models.h"

#include "base/invar_banned.h"

uint64_t invar_comm_volume_sent(const invar_comm_volume *volume, invar_parallel_axis axis)
{
    uint64_t sent = 0;

    for (int i = 0; i < volume->count; i++)
        sent += volume->moves[i].axis == axis ? volume->moves[i].sent : 0;
    return sent;
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* Observer of the communicator of one axis. */
typedef struct axis_observer {
    invar_comm_volume *to;
    invar_parallel_axis axis;
} axis_observer;

static invar_comm_volume_item *find_move(const axis_observer *w, const char *name)
{
    invar_comm_volume *to = w->to;

    for (int i = 0; i < to->count; i++)
        if (to->moves[i].axis == w->axis && strcmp(to->moves[i].name, name) == 0)
            return &to->moves[i];
    INVAR_CHECK(to->count < INVAR_COMM_VOLUME_MOVES);
    to->moves[to->count].axis = w->axis;
    (void)snprintf(to->moves[to->count].name, INVAR_COMM_PHASE_SIZE, "%s", name);
    return &to->moves[to->count++];
}

static void add_call(void *payload, const invar_comm_event *call)
{
    invar_comm_volume_item *move = find_move(payload, call->phase);

    move->calls++;
    move->sent += call->sent;
    move->received += call->received;
}

/*
 * Counts the transfers of all axes into `to` from now on; NULL ends that. Communicators of one rank
 * transfer nothing.
 */
static void observe_axes(axis_observer *watches, invar_comm_volume *to, const invar_layout *layout)
{
    invar_comm *const comms[] = {layout->tensor.comm, layout->context.comm,  layout->expert.comm,
                                 layout->data.comm,   layout->pipeline.comm, layout->backward_comm};

    for (int i = 0; i < INVAR_COMM_VOLUME_AXES + 1; i++) {
        int axis = i < INVAR_COMM_VOLUME_AXES ? i : INVAR_COMM_VOLUME_PIPELINE;

        watches[i] = (axis_observer){to, (invar_parallel_axis)axis};
        if (invar_comm_size(comms[i]) > 1)
            invar_comm_set_observer(comms[i], to ? add_call : NULL, &watches[i]);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Returns the number of weights by which this rank multiplies a row. */
static double weights_per_row(const invar_model *model)
{
    const invar_model_spec *spec = &model->spec;
    bool last = model->part.stage == model->part.stages - 1;
    double weights = 0.0;

    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        double elements = (double)invar_param_elements(p);
        bool looked_up = p->kind == INVAR_PARAM_EMBEDDING && !(spec->tied && last);

        if (p->local.experts == 0 || p->cols == 0 || looked_up)
            continue;
        if (p->kind == INVAR_PARAM_EXPERT)
            elements *= (double)spec->experts.per_token / (double)spec->experts.count;
        weights += elements;
    }
    return weights;
}

/* Returns the values of all query heads in this rank's layers. */
static double query_values(const invar_model *model)
{
    const invar_model_spec *spec = &model->spec;
    int64_t layers = 0;

    for (int64_t i = 0; i < spec->layers; i++)
        layers += invar_model_partition_has(&model->part, spec->layers, i);
    return (double)(layers * spec->attention.heads * spec->attention.head_dim) /
           (double)model->part.tensors;
}

/*
 * Returns the FLOP of the samples: in a forward, 2 per row and weight, and two products over half
 * of a square for attention. A backward counts as two forwards.
 */
static double count_flop(const invar_model *model, const invar_rl_sample *samples, int64_t count,
                         int forwards)
{
    double weights = weights_per_row(model), queries = query_values(model), flop = 0.0;

    for (int64_t i = 0; i < count; i++) {
        double rows = (double)invar_micro_batch_rows(&samples[i]);
        flop += 2.0 * rows * (weights + rows * queries);
    }
    return (double)(forwards + 2) * flop / (double)model->part.contexts;
}

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct step_context {
    invar_dry_models *cast;
    invar_trainer_options options;
    const invar_rl_sample *samples;
    int64_t count;
    float *now; /* (2, tokens) log-probs and entropies */
    int64_t tokens;
} step_context;

static invar_status run_learner(const step_context *s, invar_trainer *trainer,
                                invar_learner *learner)
{
    bool critic = learner->model->spec.value_head;
    const invar_memory_workload *workload = s->cast->workload;
    const invar_trainer_loss loss = {.run = invar_memory_plan_no_loss,
                                     .entropy = workload->entropy && !critic,
                                     .on_rank0 = workload->loss_on_rank0 && !critic};
    invar_trainer_result result = {.train_logp = s->now,
                                   .entropy = critic ? NULL : s->now + s->tokens};

    INVAR_TRY(
        invar_learner_forward_backward(learner, trainer, s->samples, s->count, &loss, &result));
    INVAR_TRY(invar_learner_step(learner, 0, false));
    return invar_grads_zero(learner->grads); // zeros for the next step
}

static invar_status make_plan(invar_batch_plan *out, const step_context *s)
{
    int64_t *rows = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(rows, (size_t)s->count, "rows of samples"));
    for (int64_t i = 0; i < s->count; i++)
        rows[i] = invar_micro_batch_rows(&s->samples[i]);
    status = invar_batch_plan_make(out, rows, s->count, &s->options.plan);
    invar_free(rows);
    return status;
}

/* Computes the FLOP of this rank's units and the number of rounds. */
static invar_status count_products(invar_comm_volume *out, const step_context *s)
{
    const invar_memory_workload *workload = s->cast->workload;
    const invar_layout_axis *data = &workload->ranks.layout->data;
    int forwards = s->options.recompute ? 2 : 1;
    // forwards that only the loss needs
    int ahead = workload->loss_on_rank0 && invar_layout_is_pipelined(workload->ranks.layout);
    invar_batch_plan units;

    INVAR_TRY(make_plan(&units, s));
    out->rounds = (units.units + data->size - 1) / data->size;
    for (int64_t u = data->rank; u < units.units; u += data->size) {
        const invar_rl_sample *first = s->samples + units.unit_sample[u];
        int64_t count = units.unit_sample[u + 1] - units.unit_sample[u];

        out->flop += count_flop(s->cast->run.actor, first, count, forwards + ahead);
        if (s->cast->run.critic)
            out->flop += count_flop(s->cast->run.critic, first, count, forwards);
    }
    invar_batch_plan_release(&units);
    return INVAR_OK;
}

/* Counts the transfers of one step. */
static invar_status run_step(invar_comm_volume *out, const step_context *s)
{
    const invar_layout *layout = s->cast->workload->ranks.layout;
    axis_observer watches[INVAR_COMM_VOLUME_AXES + 1];
    invar_trainer *trainer = NULL;
    invar_status status;

    invar_phase_arena_init(&s->cast->work, s->cast->workload->dev, 1);
    INVAR_TRY(invar_trainer_new(&trainer, &s->cast->work.dev, &s->options));
    observe_axes(watches, out, layout);
    status = run_learner(s, trainer, &s->cast->actor_learner);
    if (status == INVAR_OK && s->cast->run.critic)
        status = run_learner(s, trainer, &s->cast->critic_learner);
    observe_axes(watches, NULL, layout);
    invar_trainer_free(trainer);
    return status;
}

/* Makes samples of the lengths of s->samples, with zeros as tokens. */
static invar_status fill_samples(invar_rl_sample *to, int32_t **tokens, const step_context *s)
{
    int64_t longest = 1;

    for (int64_t i = 0; i < s->count; i++)
        longest = s->samples[i].n_tokens > longest ? s->samples[i].n_tokens : longest;
    INVAR_TRY(INVAR_ALLOC_ZEROED(*tokens, (size_t)longest, "a sample"));
    for (int64_t i = 0; i < s->count; i++)
        to[i] = (invar_rl_sample){.tokens = *tokens,
                                  .n_tokens = s->samples[i].n_tokens,
                                  .prompt_tokens = s->samples[i].prompt_tokens};
    return INVAR_OK;
}

/* ---- a step of equal samples ----------------------------------------------------------------- */

/*
 * Rounds of equal units: units that ranks compute together, or one micro-batch, and their
 * repetitions.
 */
typedef struct unit_rounds {
    int64_t units, count;
    int64_t each; /* samples per unit */
} unit_rounds;

static unit_rounds rounds_of(const step_context *s, const invar_batch_plan *plan)
{
    const invar_layout *layout = s->cast->workload->ranks.layout;
    bool by_unit = invar_layout_has_data_parallel(layout) || invar_layout_is_pipelined(layout);
    unit_rounds t = {by_unit ? layout->data.size : plan->first_unit[1], 0, plan->unit_sample[1]};

    t.count = (plan->units - 1) / t.units; // the last unit may be smaller and is counted by itself
    return t;
}

/*
 * Counts the transfers of a step with `dropped` fewer rounds. *same is false if the remaining
 * samples would be divided differently; nothing is counted then.
 */
static invar_status run_fewer(invar_comm_volume *out, bool *same, const step_context *s,
                              const unit_rounds *t, int64_t dropped, const invar_batch_plan *whole)
{
    int64_t units = whole->units - dropped * t->units;
    step_context less = *s;
    invar_batch_plan plan;

    less.count -= dropped * t->units * t->each;
    less.options.plan.unit_count = units;
    less.tokens = invar_trainer_tokens(less.samples, less.count);
    INVAR_TRY(make_plan(&plan, &less));
    *same = plan.units == units && plan.unit_sample[1] == t->each &&
            plan.first_unit[1] == whole->first_unit[1];
    invar_batch_plan_release(&plan);
    return *same ? run_step(out, &less) : INVAR_OK;
}

/*
 * Adds the volume of the `dropped` rounds to `to`: each is what `to` has more than `less`, a step
 * with one round less.
 */
static void add_rounds(invar_comm_volume *to, const invar_comm_volume *less, int64_t dropped)
{
    uint64_t times = (uint64_t)dropped;

    for (int i = 0; i < to->count; i++) {
        invar_comm_volume_item *move = &to->moves[i], before = {.calls = 0};

        for (int k = 0; k < less->count; k++)
            if (less->moves[k].axis == move->axis && strcmp(less->moves[k].name, move->name) == 0)
                before = less->moves[k];
        move->calls += times * (move->calls - before.calls);
        move->sent += times * (move->sent - before.sent);
        move->received += times * (move->received - before.received);
    }
}

enum { MAX_RUN_ROUNDS = 3 }; // more rounds than this are extrapolated

/*
 * Counts a step of equal samples: two steps that differ by one round give the volume of all rounds.
 */
static invar_status run_equal_samples(invar_comm_volume *out, const step_context *s)
{
    invar_comm_volume less = {.count = 0};
    bool same = false;
    invar_batch_plan plan;
    invar_status status;
    unit_rounds t;

    INVAR_TRY(make_plan(&plan, s));
    t = rounds_of(s, &plan);
    status =
        t.count > MAX_RUN_ROUNDS ? run_fewer(&less, &same, s, &t, t.count - 1, &plan) : INVAR_OK;
    if (status == INVAR_OK && same)
        status = run_fewer(out, &same, s, &t, t.count - 2, &plan);
    invar_batch_plan_release(&plan);
    INVAR_TRY(status);
    if (!same)
        return run_step(out, s);
    add_rounds(out, &less, t.count - 2);
    return INVAR_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Counts the step; `equal` if all samples have the same length. */
static invar_status count_step(invar_comm_volume *out, step_context *s, bool equal)
{
    invar_rl_sample *samples = NULL;
    int32_t *tokens = NULL;
    invar_status status;

    s->tokens = invar_trainer_tokens(s->samples, s->count);
    INVAR_TRY(INVAR_ALLOC(s->now, 2 * (size_t)s->tokens + 1, "log-probabilities"));
    memset(s->now, 0, 2 * (size_t)s->tokens * sizeof *s->now);
    status = INVAR_ALLOC(samples, (size_t)s->count, "samples");
    if (status == INVAR_OK)
        status = fill_samples(samples, &tokens, s);
    s->samples = samples;
    if (status == INVAR_OK)
        status = count_products(out, s);
    if (status == INVAR_OK)
        status = equal ? run_equal_samples(out, s) : run_step(out, s);
    invar_free(tokens);
    invar_free(samples);
    invar_free(s->now);
    return status;
}

static invar_status make_all(invar_comm_volume *out, step_context *s,
                             const invar_memory_workload *workload,
                             const invar_memory_plan_choice *choice, bool equal)
{
    invar_memory_workload settled = *workload;
    invar_memory_plan plan;
    invar_status status;

    *out = (invar_comm_volume){.count = 0};
    invar_memory_plan_settle(&settled, choice);
    settled.replay = false; // the origin of the routing changes no transfer
    INVAR_CHECK(workload->learns && workload->ranks.layout &&
                workload->ranks.layout->simulated_peers);
    INVAR_TRY(INVAR_ALLOC(s->cast, 1, "the plan of a step"));
    *s->cast = (invar_dry_models){0};
    status = invar_dry_models_make(s->cast, &plan, &settled);
    s->options = invar_memory_plan_trainer(&settled, NULL);
    if (status == INVAR_OK)
        status = count_step(out, s, equal);
    invar_dry_models_release(s->cast);
    invar_free(s->cast);
    return status;
}

invar_status invar_comm_volume_make(invar_comm_volume *out, const invar_memory_workload *workload,
                                    const invar_memory_plan_choice *choice,
                                    const invar_rl_sample *samples, int64_t count)
{
    step_context s = {.samples = samples, .count = count};

    return make_all(out, &s, workload, choice, false);
}

invar_status invar_comm_volume_make_longest(invar_comm_volume *out,
                                            const invar_memory_workload *workload,
                                            const invar_memory_plan_choice *choice)
{
    int64_t longest = invar_memory_plan_longest(workload), response = workload->lengths.response;
    step_context s = {.count = workload->step_samples};
    invar_rl_sample *samples = NULL;
    invar_status status;

    if (response >= longest)
        response = longest - 1;
    INVAR_TRY(INVAR_ALLOC(samples, (size_t)s.count, "samples"));
    for (int64_t i = 0; i < s.count; i++)
        samples[i] = (invar_rl_sample){.n_tokens = longest, .prompt_tokens = longest - response};
    s.samples = samples;
    status = make_all(out, &s, workload, choice, true);
    invar_free(samples);
    return status;
}
