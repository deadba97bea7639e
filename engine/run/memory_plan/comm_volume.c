/*
 * comm_volume.c - what a rank moves and multiplies in an optimizer step.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_plan/comm_volume.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/run/memory_plan/dry_models.h"

#include "base/invar_banned.h"

const char *invar_parallel_axis_name(invar_parallel_axis axis)
{
    static const char *const names[INVAR_COMM_VOLUME_AXES] = {"tensor", "context", "expert", "data",
                                                              "pipeline"};

    return names[axis];
}

uint64_t invar_comm_volume_sent(const invar_comm_volume *traffic, invar_parallel_axis axis)
{
    uint64_t sent = 0;

    for (int i = 0; i < traffic->count; i++)
        sent += traffic->moves[i].axis == axis ? traffic->moves[i].sent : 0;
    return sent;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Who watches the groups of an axis. */
typedef struct watch {
    invar_comm_volume *to;
    invar_parallel_axis axis;
} watch;

static invar_comm_volume_item *find_move(const watch *w, const char *name)
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

/* From now on; NULL: no longer. Groups of one rank move nothing. */
static void watch_axes(watch *watches, invar_comm_volume *to, const invar_layout *layout)
{
    invar_comm *const comms[] = {layout->tensor.comm, layout->context.comm,  layout->expert.comm,
                                 layout->data.comm,   layout->pipeline.comm, layout->backward_comm};

    for (int i = 0; i < INVAR_COMM_VOLUME_AXES + 1; i++) {
        int axis = i < INVAR_COMM_VOLUME_AXES ? i : INVAR_COMM_VOLUME_PIPELINE;

        watches[i] = (watch){to, (invar_parallel_axis)axis};
        if (invar_comm_size(comms[i]) > 1)
            invar_comm_set_observer(comms[i], to ? add_call : NULL, &watches[i]);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Weights that this rank multiplies a row by. */
static double weights_of(const invar_model *model)
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
            elements *= (double)spec->experts_per_token / (double)spec->experts;
        weights += elements;
    }
    return weights;
}

/* Values of all query heads of the layers that it has. */
static double queries_of(const invar_model *model)
{
    const invar_model_spec *spec = &model->spec;
    int64_t layers = 0;

    for (int64_t i = 0; i < spec->layers; i++)
        layers += invar_model_partition_has(&model->part, spec->layers, i);
    return (double)(layers * spec->heads * spec->head_dim) / (double)model->part.tensors;
}

/*
 * 2 for every weight and row, forward, and 4 backward; attention over half of the square twice, and
 * as often again. A backward is as much as two forwards.
 */
static double flop_of(const invar_model *model, const invar_rl_sample *samples, int64_t count,
                      int forwards)
{
    double weights = weights_of(model), queries = queries_of(model), flop = 0.0;

    for (int64_t i = 0; i < count; i++) {
        double rows = (double)invar_micro_batch_rows(&samples[i]);
        flop += 2.0 * rows * (weights + rows * queries);
    }
    return (double)(forwards + 2) * flop / (double)model->part.contexts;
}

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct scene {
    invar_dry_models *cast;
    invar_trainer_options options;
    const invar_rl_sample *samples;
    int64_t count;
    float *now; /* (2, tokens) log-probabilities, entropies */
    int64_t tokens;
} scene;

static invar_status scene_step(const scene *s, invar_trainer *trainer, invar_learner *learner)
{
    bool critic = learner->model->spec.value_head;
    const invar_memory_workload *ask = s->cast->ask;
    const invar_trainer_loss loss = {.run = invar_memory_plan_no_loss,
                                     .entropy = ask->entropy && !critic,
                                     .led = ask->loss_on_rank0 && !critic};
    invar_trainer_result result = {.train_logp = s->now,
                                   .entropy = critic ? NULL : s->now + s->tokens};

    INVAR_TRY(
        invar_learner_forward_backward(learner, trainer, s->samples, s->count, &loss, &result));
    INVAR_TRY(invar_learner_step(learner, 0, false));
    return invar_grads_zero(learner->grads); // for another step
}

static invar_status make_plan(invar_batch_plan *out, const scene *s)
{
    int64_t *rows = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&rows, (size_t)s->count, sizeof *rows, "rows of samples"));
    for (int64_t i = 0; i < s->count; i++)
        rows[i] = invar_micro_batch_rows(&s->samples[i]);
    status = invar_batch_plan_make(out, rows, s->count, &s->options.plan);
    invar_free(rows);
    return status;
}

/* The rank's own units, and how often ranks come together. */
static invar_status count_products(invar_comm_volume *out, const scene *s)
{
    const invar_memory_workload *ask = s->cast->ask;
    const invar_layout_axis *data = &ask->layout->data;
    int forwards = s->options.recompute ? 2 : 1;
    int ahead =
        ask->loss_on_rank0 && invar_layout_pipes(ask->layout); // forwards for the loss alone
    invar_batch_plan units;

    INVAR_TRY(make_plan(&units, s));
    out->rounds = (units.units + data->size - 1) / data->size;
    for (int64_t u = data->rank; u < units.units; u += data->size) {
        const invar_rl_sample *first = s->samples + units.unit_sample[u];
        int64_t count = units.unit_sample[u + 1] - units.unit_sample[u];

        out->flop += flop_of(s->cast->actor, first, count, forwards + ahead);
        if (s->cast->critic)
            out->flop += flop_of(s->cast->critic, first, count, forwards);
    }
    invar_batch_plan_release(&units);
    return INVAR_OK;
}

/* The moves of a step. */
static invar_status scene_run(invar_comm_volume *out, const scene *s)
{
    const invar_layout *layout = s->cast->ask->layout;
    watch watches[INVAR_COMM_VOLUME_AXES + 1];
    invar_trainer *trainer = NULL;
    invar_status status;

    invar_phase_arena_init(&s->cast->work, s->cast->ask->dev, 1);
    INVAR_TRY(invar_trainer_new(&trainer, &s->cast->work.dev, &s->options));
    watch_axes(watches, out, layout);
    status = scene_step(s, trainer, &s->cast->actor_learner);
    if (status == INVAR_OK && s->cast->critic)
        status = scene_step(s, trainer, &s->cast->critic_learner);
    watch_axes(watches, NULL, layout);
    invar_trainer_free(trainer);
    return status;
}

/* Samples of these lengths, whose tokens are all the same. */
static invar_status rl_sample_fill(invar_rl_sample *to, int32_t **tokens, const scene *s)
{
    int64_t longest = 1;

    for (int64_t i = 0; i < s->count; i++)
        longest = s->samples[i].n_tokens > longest ? s->samples[i].n_tokens : longest;
    INVAR_TRY(invar_alloc((void **)tokens, (size_t)longest, sizeof **tokens, "a sample"));
    memset(*tokens, 0, (size_t)longest * sizeof **tokens);
    for (int64_t i = 0; i < s->count; i++)
        to[i] = (invar_rl_sample){.tokens = *tokens,
                                  .n_tokens = s->samples[i].n_tokens,
                                  .prompt_tokens = s->samples[i].prompt_tokens};
    return INVAR_OK;
}

/* ---- a step of equal samples ----------------------------------------------------------------- */

/* Units that ranks compute together, or that are a micro-batch, and how often that comes again. */
typedef struct turns {
    int64_t units, count;
    int64_t each; /* samples of a unit */
} turns;

static turns turns_of(const scene *s, const invar_batch_plan *plan)
{
    const invar_layout *layout = s->cast->ask->layout;
    bool by_unit = invar_layout_divides(layout) || invar_layout_pipes(layout);
    turns t = {by_unit ? layout->data.size : plan->unit[1], 0, plan->unit_sample[1]};

    t.count = (plan->units - 1) / t.units; // the last unit may be smaller: it stands by itself
    return t;
}

/* The moves of the same step without so many turns; *same: what is left is divided as before. */
static invar_status run_without(invar_comm_volume *out, bool *same, const scene *s, const turns *t,
                                int64_t dropped, const invar_batch_plan *whole)
{
    int64_t units = whole->units - dropped * t->units;
    scene less = *s;
    invar_batch_plan plan;

    less.count -= dropped * t->units * t->each;
    less.options.plan.unit_count = units;
    less.tokens = invar_trainer_tokens(less.samples, less.count);
    INVAR_TRY(make_plan(&plan, &less));
    *same = plan.units == units && plan.unit_sample[1] == t->each && plan.unit[1] == whole->unit[1];
    invar_batch_plan_release(&plan);
    return *same ? scene_run(out, &less) : INVAR_OK;
}

/* As often as turns are left out of `to`, what it has more than a step with one turn less. */
static void add_turns(invar_comm_volume *to, const invar_comm_volume *less, int64_t dropped)
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

enum { FEW_TURNS = 3 }; // they are gone through

/* Turns of equal units move the same: two steps that differ by one turn tell the rest. */
static invar_status run_equal(invar_comm_volume *out, const scene *s)
{
    invar_comm_volume less = {.count = 0};
    bool same = false;
    invar_batch_plan plan;
    invar_status status;
    turns t;

    INVAR_TRY(make_plan(&plan, s));
    t = turns_of(s, &plan);
    status = t.count > FEW_TURNS ? run_without(&less, &same, s, &t, t.count - 1, &plan) : INVAR_OK;
    if (status == INVAR_OK && same)
        status = run_without(out, &same, s, &t, t.count - 2, &plan);
    invar_batch_plan_release(&plan);
    INVAR_TRY(status);
    if (!same)
        return scene_run(out, s);
    add_turns(out, &less, t.count - 2);
    return INVAR_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* `equal`: the samples are. */
static invar_status scene_make(invar_comm_volume *out, scene *s, bool equal)
{
    invar_rl_sample *samples = NULL;
    int32_t *tokens = NULL;
    invar_status status;

    s->tokens = invar_trainer_tokens(s->samples, s->count);
    INVAR_TRY(invar_alloc((void **)&s->now, 2 * (size_t)s->tokens + 1, sizeof *s->now,
                          "log-probabilities"));
    memset(s->now, 0, 2 * (size_t)s->tokens * sizeof *s->now);
    status = invar_alloc((void **)&samples, (size_t)s->count, sizeof *samples, "samples");
    if (status == INVAR_OK)
        status = rl_sample_fill(samples, &tokens, s);
    s->samples = samples;
    if (status == INVAR_OK)
        status = count_products(out, s);
    if (status == INVAR_OK)
        status = equal ? run_equal(out, s) : scene_run(out, s);
    invar_free(tokens);
    invar_free(samples);
    invar_free(s->now);
    return status;
}

static invar_status make_all(invar_comm_volume *out, scene *s, const invar_memory_workload *ask,
                             const invar_memory_plan_choice *choice, bool equal)
{
    invar_memory_plan budget;
    invar_status status;

    *out = (invar_comm_volume){.count = 0};
    INVAR_CHECK(ask->learns && ask->layout && ask->layout->simulated_peers);
    INVAR_TRY(invar_alloc((void **)&s->cast, 1, sizeof *s->cast, "the plan of a step"));
    *s->cast = (invar_dry_models){0};
    status = invar_dry_models_make(s->cast, &budget, ask);
    s->options = invar_dry_models_options(s->cast, choice);
    s->options.replay = NULL; // whose routing it is moves no byte
    if (status == INVAR_OK)
        status = scene_make(out, s, equal);
    invar_dry_models_release(s->cast);
    invar_free(s->cast);
    return status;
}

invar_status invar_comm_volume_make(invar_comm_volume *out, const invar_memory_workload *ask,
                                    const invar_memory_plan_choice *choice,
                                    const invar_rl_sample *samples, int64_t count)
{
    scene s = {.samples = samples, .count = count};

    return make_all(out, &s, ask, choice, false);
}

invar_status invar_comm_volume_make_longest(invar_comm_volume *out,
                                            const invar_memory_workload *ask,
                                            const invar_memory_plan_choice *choice)
{
    int64_t longest = invar_memory_plan_longest(ask), response = ask->response;
    scene s = {.count = ask->step_samples};
    invar_rl_sample *samples = NULL;
    invar_status status;

    if (response >= longest)
        response = longest - 1;
    INVAR_TRY(invar_alloc((void **)&samples, (size_t)s.count, sizeof *samples, "samples"));
    for (int64_t i = 0; i < s.count; i++)
        samples[i] = (invar_rl_sample){.n_tokens = longest, .prompt_tokens = longest - response};
    s.samples = samples;
    status = make_all(out, &s, ask, choice, true);
    invar_free(samples);
    return status;
}
