/*
 * trainer.c - the walk over micro-batches.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/trainer.h"

#include "base/alloc.h"
#include "engine/program/near.h"
#include "engine/train/unit_sum.h"

#include "base/invar_banned.h"

/* Pieces are computed again in the backward pass: a GPU keeps 16,384 rows of 151,936 whole. */
#define LOGIT_BYTES (INT64_C(1) << 28)
#define LOGIT_BYTES_FAR (INT64_C(12) << 30)

/* Where memory does not suffice. */
#define ADVICE "set a small micro-batch-size, or lower max-tokens-per-gpu or log-probs-chunk-size"
#define RECOMPUTE_ADVICE ADVICE ", or set recompute-granularity = full"
#define UNIT_ADVICE ADVICE ", or unit-rows, which changes bits"

struct invar_trainer {
    invar_device dev;
    invar_trainer_options options;
    const invar_plan *plan; /* of somebody else; NULL: one by the options */
    invar_pass *learning;   /* keeps activations */
    invar_pass *scoring;
    invar_micro_batch batch;
    float *gradient; /* (2, most tokens of a micro-batch): dnow, dentropy */
    int64_t capacity;
    size_t *bytes;             /* (ranks) of a gather; NULL: this rank computes alone */
    invar_forward_probe probe; /* `take` NULL: nobody looks at activations */
};

int64_t invar_trainer_head_rows(const invar_device *dev, const invar_model_spec *spec)
{
    int64_t bytes = invar_device_far(dev) ? LOGIT_BYTES_FAR : LOGIT_BYTES;

    return bytes / (int64_t)sizeof(float) / spec->vocab + 1;
}

invar_status invar_trainer_new(invar_trainer **out, const invar_device *dev,
                               const invar_trainer_options *options)
{
    invar_pass_options pass = {
        .train = true, .recompute = options->recompute, .head_rows = options->head_rows};
    invar_trainer *trainer = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&trainer, 1, sizeof *trainer, "a trainer"));
    *trainer = (invar_trainer){.dev = *dev, .options = *options};
    status = invar_pass_new(&trainer->learning, dev, &pass);
    pass.train = pass.recompute = false;
    if (status == INVAR_OK)
        status =
            invar_pass_new(&trainer->scoring, options->scoring ? options->scoring : dev, &pass);
    if (status == INVAR_OK && invar_layout_divides(options->layout))
        status = invar_alloc((void **)&trainer->bytes, (size_t)options->layout->data.size,
                             sizeof *trainer->bytes, "the bytes of a gather");
    if (status != INVAR_OK) {
        invar_trainer_free(trainer);
        return status;
    }
    *out = trainer;
    return INVAR_OK;
}

void invar_trainer_free(invar_trainer *trainer)
{
    if (!trainer)
        return;
    invar_pass_free(trainer->learning);
    invar_pass_free(trainer->scoring);
    invar_micro_batch_release(&trainer->batch);
    invar_free(trainer->gradient);
    invar_free(trainer->bytes);
    invar_free(trainer);
}

invar_status invar_trainer_settle(invar_trainer *trainer)
{
    INVAR_TRY(invar_pass_settle(trainer->scoring));
    return invar_pass_settle(trainer->learning);
}

void invar_trainer_plan(invar_trainer *trainer, const invar_plan *plan)
{
    trainer->plan = plan;
}

void invar_trainer_probe(invar_trainer *trainer, const invar_forward_probe *probe)
{
    trainer->probe = probe ? *probe : (invar_forward_probe){0};
    invar_pass_probe(trainer->learning, probe);
}

void invar_trainer_audit(invar_trainer *trainer, invar_audit *audit)
{
    invar_pass_audit(trainer->learning, audit);
    invar_pass_audit(trainer->scoring, audit);
}

int64_t invar_trainer_tokens(const invar_rl_sample *samples, int64_t count)
{
    int64_t tokens = 0;

    for (int64_t i = 0; i < count; i++)
        tokens += invar_rl_sample_response(&samples[i]);
    return tokens;
}

/* Whoever gives a plan runs all of it. */
static bool divides(const invar_trainer *trainer)
{
    return trainer->bytes && !trainer->plan;
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* One walk over the samples; what happens after a micro-batch's layers is the caller's. */
typedef struct walk {
    invar_trainer *trainer;
    invar_pass *pass;
    const invar_model *model;
    const invar_rl_sample *samples;
    int64_t first, count; /* samples of this micro-batch */
    int64_t token;        /* response tokens before it */
    invar_status (*visit)(struct walk *w, void *payload);
    void *payload;
} walk;

static invar_status fill(walk *w, const invar_plan *plan, int64_t b)
{
    const invar_trainer_options *o = &w->trainer->options;
    invar_micro_batch_plan part = {.first = plan->sample[b],
                                   .count = plan->sample[b + 1] - plan->sample[b],
                                   .unit_start = plan->unit_sample + plan->unit[b],
                                   .units = plan->unit[b + 1] - plan->unit[b],
                                   .temperature = o->temperature > 0.0f ? o->temperature : 1.0f,
                                   .route = invar_model_sparse_layers(w->model) *
                                            w->model->spec.experts_per_token,
                                   .replay = o->replay == w->model};

    part.replay = part.replay && part.route > 0;

    w->first = part.first;
    w->count = part.count;
    INVAR_TRY(invar_micro_batch_fill(&w->trainer->batch, w->samples, &part));
    return invar_pass_run(w->pass, w->model, &w->trainer->batch.rows);
}

/*
 * Only learning has units: samples that are scored go together as the limits have it. A rank of
 * several learns unit by unit, since each has a gradient of its own.
 */
static invar_status make_plan(invar_plan *out, const walk *w, int64_t samples)
{
    invar_plan_options options = w->trainer->options.plan;
    int64_t *rows = NULL;
    invar_status status;

    if (w->pass != w->trainer->learning)
        options.unit_rows = 1;
    else if (divides(w->trainer))
        options.micro_batch = 1;
    INVAR_TRY(invar_alloc((void **)&rows, (size_t)samples, sizeof *rows, "rows of samples"));
    for (int64_t i = 0; i < samples; i++)
        rows[i] = invar_micro_batch_rows(&w->samples[i]);
    status = invar_plan_make(out, rows, samples, &options);
    invar_free(rows);
    return status;
}

static invar_status walk_over(walk *w, int64_t samples, int64_t *micro_batches_out)
{
    const invar_plan *plan = w->trainer->plan;
    invar_plan own = {0};
    invar_status status = INVAR_OK;

    if (!plan) {
        INVAR_TRY(make_plan(&own, w, samples));
        plan = &own;
    }
    for (int64_t b = 0; b < plan->count && status == INVAR_OK; b++) {
        status = fill(w, plan, b);
        if (status == INVAR_OK)
            status = w->visit(w, w->payload);
        w->token += w->trainer->batch.head.count;
    }
    if (micro_batches_out)
        *micro_batches_out = plan->count;
    invar_plan_release(&own);
    return status;
}

/* ---- scoring --------------------------------------------------------------------------------- */

/* Of the ranks' pieces of a flat array, this one's is there: `bytes` says how long each is. */
static invar_status gather(const invar_trainer *trainer, const char *phase, float *flat)
{
    const invar_layout *layout = trainer->options.layout;

    return flat ? invar_layout_gather(layout, &layout->data, phase, flat, trainer->bytes)
                : INVAR_OK;
}

/* The walk over this rank's samples; flat arrays are whole after it, NULL: there is none. */
static invar_status score(walk *w, int64_t count, float *first, float *second)
{
    invar_trainer *trainer = w->trainer;
    const invar_layout_axis *data;
    invar_layout_share own = {0, count};

    if (!divides(trainer))
        return walk_over(w, count, NULL);
    data = &trainer->options.layout->data;
    for (int r = 0; r < data->size; r++) {
        invar_layout_share s = invar_layout_share_of(count, data->size, r);
        int64_t tokens = invar_trainer_tokens(w->samples + s.first, s.count);

        trainer->bytes[r] = (size_t)tokens * sizeof(float);
        if (r < data->rank)
            w->token += tokens;
        if (r == data->rank)
            own = s;
    }
    w->samples += own.first;
    if (own.count > 0)
        INVAR_TRY(walk_over(w, own.count, NULL));
    INVAR_TRY(gather(trainer, "scores", first));
    return gather(trainer, "entropies", second);
}

typedef struct scores {
    float *logp, *entropy;
} scores;

static invar_status visit_scores(walk *w, void *payload)
{
    const scores *to = payload;

    return invar_pass_head(w->pass, &w->trainer->batch.head, to->logp + w->token,
                           to->entropy ? to->entropy + w->token : NULL);
}

invar_status invar_trainer_score(invar_trainer *trainer, const invar_model *model,
                                 const invar_rl_sample *samples, int64_t count, float *logp_out,
                                 float *entropy_out)
{
    scores to = {logp_out, entropy_out};
    walk w = {trainer, trainer->scoring, model, samples, 0, 0, 0, visit_scores, &to};

    return invar_near_advise(score(&w, count, logp_out, entropy_out),
                             invar_device_far(&trainer->dev), ADVICE);
}

static invar_status read_values(float *out, walk *w)
{
    const invar_head_rows *head = &w->trainer->batch.head;
    invar_tensor values;

    INVAR_TRY(invar_pass_logits(&values, w->pass, head->row, head->count));
    return invar_device_get(&w->trainer->dev, out, values.data, (size_t)head->count * sizeof *out);
}

static invar_status visit_values(walk *w, void *payload)
{
    return read_values((float *)payload + w->token, w);
}

invar_status invar_trainer_values(invar_trainer *trainer, const invar_model *critic,
                                  const invar_rl_sample *samples, int64_t count, float *values_out)
{
    walk w = {trainer, trainer->scoring, critic, samples, 0, 0, 0, visit_values, values_out};

    return invar_near_advise(score(&w, count, values_out, NULL), invar_device_far(&trainer->dev),
                             ADVICE);
}

/* ---- learning -------------------------------------------------------------------------------- */

typedef struct lesson {
    const invar_trainer_loss *loss;
    invar_grads *grads;
    invar_trainer_result *result;
} lesson;

static invar_status room_for(invar_trainer *trainer, int64_t tokens)
{
    if (tokens <= trainer->capacity)
        return INVAR_OK;
    invar_free(trainer->gradient);
    trainer->gradient = NULL;
    trainer->capacity = 0;
    INVAR_TRY(invar_alloc((void **)&trainer->gradient, 2 * (size_t)tokens, sizeof(float),
                          "gradients of log-probabilities"));
    trainer->capacity = tokens;
    return INVAR_OK;
}

/* How often the routers of this forward chose otherwise than those of the rollout. */
static void compare_routing(const walk *w, invar_trainer_result *result)
{
    const int32_t *chosen = w->trainer->batch.routing;
    int64_t route = invar_model_sparse_layers(w->model) * w->model->spec.experts_per_token;

    if (!chosen)
        return;
    for (int64_t i = w->first; i < w->first + w->count; i++) {
        const invar_rl_sample *s = &w->samples[i];
        int64_t n = invar_micro_batch_rows(s) * route;
        for (int64_t j = 0; j < n && s->routing; j++)
            result->routes_differ += chosen[j] != s->routing[j];
        result->routes += s->routing ? n : 0;
        chosen += n;
    }
}

static float *entropies(const lesson *l, const walk *w)
{
    return l->result->entropy && !w->model->spec.value_head ? l->result->entropy + w->token : NULL;
}

static invar_status forward(walk *w, const lesson *l)
{
    float *now = l->result->now + w->token;

    INVAR_TRY(w->model->spec.value_head
                  ? read_values(now, w)
                  : invar_pass_head(w->pass, &w->trainer->batch.head, now, entropies(l, w)));
    INVAR_TRY(invar_pass_routing(w->pass)); // what the device is waited for is there by now
    compare_routing(w, l->result);
    return INVAR_OK;
}

/* The loss of the samples [first, first + count), whose `tokens` begin at those of the walk. */
static invar_status ask(walk *w, const lesson *l, int64_t first, int64_t count, int64_t tokens)
{
    bool entropy = l->loss->entropy && !w->model->spec.value_head;

    INVAR_TRY(room_for(w->trainer, tokens));
    return l->loss->run(l->loss->payload, first, count, l->result->now + w->token, entropies(l, w),
                        w->trainer->gradient, entropy ? w->trainer->gradient + tokens : NULL);
}

/* Of the micro-batch that begins `before` tokens into the `tokens` that the loss was asked for. */
static invar_status backward(walk *w, const lesson *l, int64_t before, int64_t tokens)
{
    const float *dnow = w->trainer->gradient + before;

    if (w->model->spec.value_head)
        return invar_pass_backward_values(w->pass, dnow, &w->trainer->batch.head.units, l->grads);
    return invar_pass_backward(w->pass, dnow, l->loss->entropy ? dnow + tokens : NULL, l->grads);
}

static invar_status visit_lesson(walk *w, void *payload)
{
    const lesson *l = payload;
    int64_t tokens = w->trainer->batch.head.count;

    INVAR_TRY(forward(w, l));
    INVAR_TRY(ask(w, l, w->first, w->count, tokens));
    return backward(w, l, 0, tokens);
}

/* ---- learning by several ranks --------------------------------------------------------------- */

/* The units that the ranks compute at a time, one each, as far as there are any. */
typedef struct unit_round {
    int64_t first, units;
    int64_t tokens; /* responses of all of them, */
    int64_t before; /* of those before this rank's own */
} unit_round;

static unit_round round_at(const walk *w, const invar_plan *plan, int64_t first)
{
    const invar_layout_axis *data = &w->trainer->options.layout->data;
    int64_t units = plan->units - first < data->size ? plan->units - first : data->size;
    unit_round r = {.first = first, .units = units};

    for (int k = 0; k < data->size; k++)
        w->trainer->bytes[k] = 0;
    for (int64_t u = first; u < first + units; u++) {
        const int64_t *sample = plan->unit_sample + u;
        int64_t tokens = invar_trainer_tokens(w->samples + sample[0], sample[1] - sample[0]);
        int owner = invar_layout_owner(u, data->size);

        w->trainer->bytes[owner] = (size_t)tokens * sizeof(float);
        r.before += owner < data->rank ? tokens : 0;
        r.tokens += tokens;
    }
    return r;
}

static invar_status learn_round(walk *w, const lesson *l, const invar_plan *plan,
                                const unit_round *r, invar_unit_sum *sum)
{
    int rank = w->trainer->options.layout->data.rank;
    const int64_t *sample = plan->unit_sample + r->first;
    bool own = rank < r->units;

    if (own) {
        INVAR_TRY(fill(w, plan, r->first + rank)); // a unit is a micro-batch
        w->token += r->before;
        INVAR_TRY(forward(w, l));
        w->token -= r->before;
    }
    INVAR_TRY(gather(w->trainer, "log-probabilities", l->result->now + w->token));
    INVAR_TRY(gather(w->trainer, "entropies", entropies(l, w)));
    INVAR_TRY(ask(w, l, sample[0], sample[r->units] - sample[0], r->tokens));
    if (own) {
        INVAR_TRY(invar_grads_zero(l->grads));
        INVAR_TRY(backward(w, l, r->before, r->tokens));
    }
    w->token += r->tokens;
    if (w->trainer->probe.round)
        INVAR_TRY(w->trainer->probe.round(w->trainer->probe.payload));
    return invar_unit_sum_add(sum, l->grads, (int)r->units);
}

/* Each rank has counted its own. */
static invar_status add_routes(invar_trainer *trainer, invar_trainer_result *result)
{
    const invar_layout *layout = trainer->options.layout;
    int64_t(*routes)[2] = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&routes, (size_t)layout->data.size, sizeof *routes,
                          "choices of experts"));
    for (int r = 0; r < layout->data.size; r++)
        trainer->bytes[r] = sizeof *routes;
    routes[layout->data.rank][0] = result->routes;
    routes[layout->data.rank][1] = result->routes_differ;
    status =
        invar_layout_gather(layout, &layout->data, "choices of experts", routes, trainer->bytes);
    result->routes = result->routes_differ = 0;
    for (int r = 0; r < layout->data.size && status == INVAR_OK; r++) {
        result->routes += routes[r][0];
        result->routes_differ += routes[r][1];
    }
    invar_free(routes);
    return status;
}

static invar_status learn_rounds(walk *w, const lesson *l, const invar_plan *plan,
                                 invar_unit_sum *sum)
{
    for (int64_t unit = 0; unit < plan->units; l->result->micro_batches++) {
        unit_round r = round_at(w, plan, unit);
        INVAR_TRY(learn_round(w, l, plan, &r, sum));
        unit += r.units;
    }
    if (invar_model_sparse_layers(w->model) > 0)
        INVAR_TRY(add_routes(w->trainer, l->result));
    return invar_unit_sum_end(sum, l->grads);
}

static invar_status learn_divided(walk *w, const lesson *l, int64_t samples, invar_unit_sum *sum)
{
    invar_plan plan = {0};
    invar_status status;

    if (!l->grads->fresh)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "several ranks add to gradients of zero only");
    l->result->micro_batches = 0;
    INVAR_TRY(make_plan(&plan, w, samples));
    status = learn_rounds(w, l, &plan, sum);
    invar_plan_release(&plan);
    return status;
}

/* Who only rehearses has the memory of a sum, too. */
static invar_status learn(walk *w, const lesson *l, int64_t samples)
{
    invar_trainer *trainer = w->trainer;
    invar_unit_sum *sum = NULL;
    invar_status status = INVAR_OK;

    if (trainer->bytes)
        status = invar_unit_sum_new(&sum, &trainer->dev, trainer->options.layout, l->grads);
    if (status == INVAR_OK)
        status = divides(trainer) ? learn_divided(w, l, samples, sum)
                                  : walk_over(w, samples, &l->result->micro_batches);
    invar_unit_sum_free(sum);
    return status;
}

invar_status invar_trainer_learn(invar_trainer *trainer, const invar_model *model,
                                 const invar_rl_sample *samples, int64_t count,
                                 const invar_trainer_loss *loss, invar_grads *grads,
                                 invar_trainer_result *result)
{
    lesson l = {loss, grads, result};
    walk w = {trainer, trainer->learning, model, samples, 0, 0, 0, visit_lesson, &l};

    if (loss->entropy && !result->entropy)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a loss over entropies needs room for them");
    result->routes = result->routes_differ = 0;
    INVAR_TRY(invar_near_advise(learn(&w, &l, count), invar_device_far(&trainer->dev),
                                trainer->options.recompute ? UNIT_ADVICE : RECOMPUTE_ADVICE));
    return invar_grads_join(grads, model, &trainer->dev);
}
