/*
 * trainer.c - scoring and training on samples: what happens around the layers of a micro-batch.
 *
 * pipeline_exec.c runs the layers in pipeline order and calls back into this file: after a forward
 * for the head, the loss and the gather of log-probs, and for the backward of the head.
 * Data-parallel ranks gather the log-probs of each round, so that all of them evaluate the loss of
 * all samples and only backpropagate their own unit. Pipeline stages without the head get log-probs
 * at the end and repeat the loss to count its metrics. A gradient or log-prob must never depend on
 * the plan or on the layout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/trainer.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/train/dp_grads.h"
#include "engine/train/pipeline_exec.h"

#include "base/invar_banned.h"

/*
 * Logits beyond this size are computed in head chunks, and again in the backward pass. 12 GiB hold
 * 16,384 rows of a vocabulary of 151,936, so a GPU usually keeps them.
 */
#define LOGIT_BYTES (INT64_C(1) << 28)
#define LOGIT_BYTES_FAR (INT64_C(12) << 30)

/* Advice for an out-of-memory error. */
#define ADVICE "set a small micro-batch-size, or lower max-tokens-per-gpu or log-probs-chunk-size"
#define RECOMPUTE_ADVICE ADVICE ", or set recompute-granularity = full"
#define UNIT_ADVICE ADVICE ", or unit-rows, which changes bits"

struct invar_trainer {
    invar_device dev;
    invar_trainer_options options;
    /* plan of a dry run, borrowed; NULL if plans are made from the options */
    const invar_batch_plan *plan;
    invar_inflight_micro_batches learning; /* slots that keep activations */
    invar_inflight_micro_batches scoring;
    invar_pipeline_channels ways; /* channels between pipeline stages */
    /* (ranks of an axis) byte counts of a gather; NULL if this rank computes alone */
    size_t *bytes;
    invar_forward_hooks probe; /* hooks for activations; zeroed if there is no hook */
};

int64_t invar_trainer_head_rows(const invar_device *dev, const invar_model_spec *spec)
{
    int64_t bytes = invar_device_is_local(dev) ? LOGIT_BYTES_FAR : LOGIT_BYTES;

    return bytes / (int64_t)sizeof(float) / spec->vocab + 1;
}

/* Returns true if other ranks compute other samples or other layers. */
static bool has_others(const invar_layout *layout)
{
    return invar_layout_has_data_parallel(layout) || invar_layout_is_pipelined(layout);
}

static invar_status init_channels(invar_trainer *trainer)
{
    const invar_layout *layout = trainer->options.layout;
    int ranks;

    if (!has_others(layout))
        return INVAR_OK;
    invar_pipeline_channel_init(&trainer->ways.forward, layout, false);
    invar_pipeline_channel_init(&trainer->ways.backward, layout, true);
    ranks = layout->data.size > layout->pipeline.size ? layout->data.size : layout->pipeline.size;
    return INVAR_ALLOC(trainer->bytes, (size_t)ranks, "the bytes of a gather");
}

invar_status invar_trainer_new(invar_trainer **out, const invar_device *dev,
                               const invar_trainer_options *options)
{
    invar_pass_options pass = {
        .train = true, .recompute = options->recompute, .head_rows = options->head_rows};
    invar_trainer *trainer = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(trainer, 1, "a trainer"));
    *trainer = (invar_trainer){.dev = *dev, .options = *options};
    status = invar_inflight_micro_batches_new(&trainer->learning, dev, &pass, options->layout);
    pass.train = pass.recompute = false;
    if (status == INVAR_OK)
        status = invar_inflight_micro_batches_new(
            &trainer->scoring, options->scoring ? options->scoring : dev, &pass, options->layout);
    if (status == INVAR_OK)
        status = init_channels(trainer);
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
    invar_inflight_micro_batches_free(&trainer->learning);
    invar_inflight_micro_batches_free(&trainer->scoring);
    invar_pipeline_channel_release(&trainer->ways.forward);
    invar_pipeline_channel_release(&trainer->ways.backward);
    invar_free(trainer->bytes);
    invar_free(trainer);
}

static invar_status alloc_pass_scratch(const invar_inflight_micro_batches *lanes)
{
    for (int64_t i = 0; i < lanes->count; i++)
        INVAR_TRY(invar_pass_alloc_scratch(lanes->items[i].pass));
    return INVAR_OK;
}

invar_status invar_trainer_alloc_scratch(invar_trainer *trainer)
{
    INVAR_TRY(alloc_pass_scratch(&trainer->scoring));
    return alloc_pass_scratch(&trainer->learning);
}

void invar_trainer_set_dry_run_plan(invar_trainer *trainer, const invar_batch_plan *plan)
{
    trainer->plan = plan;
    trainer->ways.forward.dry_run = trainer->ways.backward.dry_run = plan != NULL;
}

void invar_trainer_set_hooks(invar_trainer *trainer, const invar_forward_hooks *probe)
{
    trainer->probe = probe ? *probe : (invar_forward_hooks){0};
    for (int64_t i = 0; i < trainer->learning.count; i++)
        invar_pass_probe(trainer->learning.items[i].pass, probe);
}

void invar_trainer_set_audit(invar_trainer *trainer, invar_audit *audit)
{
    for (int64_t i = 0; i < trainer->learning.count; i++)
        invar_pass_audit(trainer->learning.items[i].pass, audit);
    for (int64_t i = 0; i < trainer->scoring.count; i++)
        invar_pass_audit(trainer->scoring.items[i].pass, audit);
}

int64_t invar_trainer_tokens(const invar_rl_sample *samples, int64_t count)
{
    int64_t tokens = 0;

    for (int64_t i = 0; i < count; i++)
        tokens += invar_rl_sample_response(&samples[i]);
    return tokens;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Returns true if other ranks take part; in a dry run, none does. */
static bool uses_all_ranks(const invar_trainer *trainer)
{
    return trainer->bytes && !trainer->plan;
}

static bool divides_samples(const invar_trainer *trainer)
{
    return uses_all_ranks(trainer) && invar_layout_has_data_parallel(trainer->options.layout);
}

static bool uses_pipeline(const invar_trainer *trainer)
{
    return uses_all_ranks(trainer) && invar_layout_is_pipelined(trainer->options.layout);
}

/* Returns true if this rank has the results of the head. */
static bool has_head(const invar_trainer *trainer)
{
    const invar_layout *layout = trainer->options.layout;

    return !uses_pipeline(trainer) || layout->pipeline.rank == layout->pipeline.size - 1;
}

/*
 * Completes a flat array on all data-parallel ranks. This rank has filled in its range; `bytes` has
 * the length of each rank's range.
 */
static invar_status gather_flat(const invar_trainer *trainer, const char *phase, float *flat)
{
    const invar_layout *layout = trainer->options.layout;

    return flat ? invar_layout_gather(layout, &layout->data, phase, flat, trainer->bytes)
                : INVAR_OK;
}

/* Sends the results of the head to the pipeline stages without it. */
static invar_status broadcast_from_head(const invar_trainer *trainer, const char *phase,
                                        float *flat, int64_t tokens)
{
    return flat && uses_pipeline(trainer)
               ? invar_pipeline_broadcast_last(trainer->options.layout, phase, flat,
                                               (size_t)tokens * sizeof *flat)
               : INVAR_OK;
}

/* ---- execution ------------------------------------------------------------------------------- */

static invar_pipeline_exec make_exec(invar_trainer *trainer, const invar_model *model,
                                     const invar_rl_sample *samples, bool learns, void *payload)
{
    const invar_trainer_options *o = &trainer->options;

    return (invar_pipeline_exec){.layout = o->layout,
                                 .on_progress = o->on_progress,
                                 .progress_payload = o->payload,
                                 .dry_run = trainer->plan != NULL,
                                 .ranks = 1,
                                 .slots = learns ? &trainer->learning : &trainer->scoring,
                                 .channels = &trainer->ways,
                                 .model = model,
                                 .samples = samples,
                                 .temperature = o->temperature,
                                 .replay = o->replay == model,
                                 .payload = payload};
}

/*
 * Makes the plan of a call. Only training has units; scoring packs samples up to the limits. With
 * several ranks, training runs unit by unit: data-parallel ranks need the gradient of each unit,
 * and pipeline stages run forward and backward per unit.
 */
static invar_status make_plan(invar_batch_plan *out, const invar_trainer *trainer,
                              const invar_rl_sample *samples, int64_t count, bool learns)
{
    invar_batch_plan_options options = trainer->options.plan;
    int64_t *rows = NULL;
    invar_status status;

    if (!learns)
        options.unit_rows = 1;
    else if (uses_all_ranks(trainer))
        options.micro_batch = 1;
    INVAR_TRY(INVAR_ALLOC(rows, (size_t)count, "rows of samples"));
    for (int64_t i = 0; i < count; i++)
        rows[i] = invar_micro_batch_rows(&samples[i]);
    status = invar_batch_plan_make(out, rows, count, &options);
    invar_free(rows);
    return status;
}

/* ---- scoring --------------------------------------------------------------------------------- */

typedef struct score_call {
    invar_trainer *trainer;
    float *first;   /* log-probs or values of all samples */
    float *second;  /* entropies; NULL if not needed */
    int64_t before; /* response tokens of lower data-parallel ranks */
} score_call;

static invar_status score_samples(invar_pipeline_exec *w, const invar_trainer *trainer,
                                  int64_t count)
{
    invar_batch_plan own = {0};
    invar_status status;

    w->plan = trainer->plan ? trainer->plan : &own;
    if (w->plan == &own)
        INVAR_TRY(make_plan(&own, trainer, w->samples, count, false));
    status = invar_pipeline_exec_run(w);
    invar_batch_plan_release(&own);
    return status;
}

/* Scores this rank's samples and completes the flat arrays on all ranks. */
static invar_status score_local_samples(invar_pipeline_exec *w, score_call *to, int64_t count)
{
    invar_trainer *trainer = to->trainer;
    int64_t all = invar_trainer_tokens(w->samples, count);
    invar_index_range own = {0, count};

    for (int r = 0; divides_samples(trainer) && r < trainer->options.layout->data.size; r++) {
        const invar_layout_axis *data = &trainer->options.layout->data;
        invar_index_range s = invar_layout_range_of(count, data->size, r);
        int64_t tokens = invar_trainer_tokens(w->samples + s.first, s.count);

        trainer->bytes[r] = (size_t)tokens * sizeof(float);
        to->before += r < data->rank ? tokens : 0;
        own = r == data->rank ? s : own;
    }
    w->samples += own.first;
    if (own.count > 0)
        INVAR_TRY(score_samples(w, trainer, own.count));
    if (divides_samples(trainer) && has_head(trainer)) {
        INVAR_TRY(gather_flat(trainer, "scores", to->first));
        INVAR_TRY(gather_flat(trainer, "entropies", to->second));
    }
    INVAR_TRY(broadcast_from_head(trainer, "scores", to->first, all));
    return broadcast_from_head(trainer, "entropies", to->second, all);
}

/*
 * Computes the head of a micro-batch: the values of a critic, or log-probs and, unless `entropy` is
 * NULL, their entropies.
 */
static invar_status run_head(const invar_pipeline_exec *w, const invar_device *dev,
                             invar_inflight_micro_batch *micro_batch, float *out, float *entropy)
{
    const invar_logit_rows *head = &micro_batch->batch.head;
    invar_tensor values;

    if (!w->model->spec.value_head)
        return invar_pass_head(micro_batch->pass, head, out, entropy);
    INVAR_TRY(invar_pass_logits(&values, micro_batch->pass, head->row, head->count));
    return invar_device_download(dev, out, values.data, (size_t)head->count * sizeof *out);
}

static invar_status on_score_forward(invar_pipeline_exec *w, const invar_dp_round *r,
                                     invar_inflight_micro_batch *micro_batch)
{
    const score_call *to = w->payload;
    int64_t token = to->before + r->first_token;

    if (!invar_pipeline_exec_has_head(w, micro_batch))
        return INVAR_OK;
    return run_head(w, &to->trainer->dev, micro_batch, to->first + token,
                    to->second ? to->second + token : NULL);
}

invar_status invar_trainer_score(invar_trainer *trainer, const invar_model *model,
                                 const invar_rl_sample *samples, int64_t count, float *out,
                                 float *entropy_out)
{
    score_call to = {trainer, out, model->spec.value_head ? NULL : entropy_out, 0};
    invar_pipeline_exec w = make_exec(trainer, model, samples, false, &to);

    w.on_forward = on_score_forward;
    return invar_host_staging_advise_oom(score_local_samples(&w, &to, count),
                                         invar_device_is_local(&trainer->dev), ADVICE);
}

/* ---- training: forward ----------------------------------------------------------------------- */

typedef struct train_call {
    invar_trainer *trainer;
    const invar_trainer_loss *loss;
    invar_grads *grads;
    invar_trainer_result *result;
    invar_dp_grads ranks;
    /*
     * (4, tokens) for a loss that is evaluated in advance: gradients by round, then the log-probs
     * and the entropies that they were computed from; else NULL
     */
    float *precomputed;
} train_call;

/*
 * Counts how often the routers of this forward chose other experts than those of the rollout.
 * Routing of another shape was recorded by another model and is not compared.
 */
static void compare_routing(const invar_pipeline_exec *w, const invar_dp_round *r,
                            const invar_inflight_micro_batch *micro_batch,
                            invar_trainer_result *result)
{
    const invar_model *model = w->model;
    invar_index_range layers =
        invar_model_partition_chunk(&model->part, model->spec.layers, micro_batch->chunk);
    int64_t slots = model->spec.experts.per_token;
    int64_t route = invar_model_sparse_layers(model) * slots;
    int64_t first = invar_model_sparse_before(model, layers.first) * slots;
    int64_t end = invar_model_sparse_before(model, layers.first + layers.count) * slots;
    const int32_t *chosen = micro_batch->batch.routing;

    for (int64_t i = w->plan->first_sample[r->local_micro_batch];
         chosen && i < w->plan->first_sample[r->local_micro_batch + 1]; i++) {
        const invar_rl_sample *s = &w->samples[i];
        int64_t rows = invar_micro_batch_rows(s);
        bool comparable = s->routing && s->route_size == route;

        for (int64_t j = 0; j < rows && comparable; j++)
            for (int64_t k = j * route + first; k < j * route + end; k++)
                result->routes_differ += chosen[k] != s->routing[k];
        result->routes += comparable ? rows * (end - first) : 0;
        chosen += rows * route;
    }
}

static float *entropies_at(const train_call *l, const invar_pipeline_exec *w, int64_t token)
{
    return l->result->entropy && !w->model->spec.value_head ? l->result->entropy + token : NULL;
}

/* Completes log-probs and entropies of a round; each rank has computed its own micro-batch. */
static invar_status gather_round(const invar_pipeline_exec *w, const train_call *l,
                                 const invar_dp_round *r)
{
    invar_trainer *trainer = l->trainer;

    for (int k = 0; k < w->ranks; k++) {
        const int64_t *sample = w->plan->first_sample + r->first + k;
        int64_t tokens =
            k < r->count ? invar_trainer_tokens(w->samples + sample[0], sample[1] - sample[0]) : 0;
        trainer->bytes[k] = (size_t)tokens * sizeof(float);
    }
    INVAR_TRY(gather_flat(trainer, "log-probabilities", l->result->train_logp + r->first_token));
    return gather_flat(trainer, "entropies", entropies_at(l, w, r->first_token));
}

/* Evaluates the loss of the round's samples; `gradient` is (2, tokens of the round). */
static invar_status eval_loss(const invar_pipeline_exec *w, const train_call *l,
                              const invar_dp_round *r, float *gradient)
{
    bool entropy = l->loss->entropy && !w->model->spec.value_head;
    const int64_t *sample = w->plan->first_sample + r->first;

    return l->loss->run(l->loss->payload, sample[0], sample[r->count] - sample[0],
                        l->result->train_logp + r->first_token, entropies_at(l, w, r->first_token),
                        gradient, entropy ? gradient + r->n_tokens : NULL);
}

/* Writes the loss gradients of the round to the slot. */
static invar_status fill_gradient(const invar_pipeline_exec *w, const train_call *l,
                                  const invar_dp_round *r, invar_inflight_micro_batch *micro_batch)
{
    INVAR_TRY(invar_inflight_micro_batch_reserve(micro_batch, r->n_tokens));
    if (!l->precomputed)
        return eval_loss(w, l, r, micro_batch->gradient);
    memcpy(micro_batch->gradient, l->precomputed + 2 * r->first_token,
           2 * (size_t)r->n_tokens * sizeof(float));
    return INVAR_OK;
}

/* Tells the hooks that this stage has shown its layers for a micro-batch of the round. */
static invar_status end_hooked_task(const train_call *l, const invar_dp_round *r)
{
    const invar_forward_hooks *probe = &l->trainer->probe;

    return uses_pipeline(l->trainer) && probe->on_task ? probe->on_task(probe->payload, r->number)
                                                       : INVAR_OK;
}

static invar_status on_train_forward(invar_pipeline_exec *w, const invar_dp_round *r,
                                     invar_inflight_micro_batch *micro_batch)
{
    const train_call *l = w->payload;
    bool ends = invar_pipeline_exec_has_head(w, micro_batch);
    int64_t token = r->first_token + r->tokens_before;

    if (r->local_micro_batch >= 0) {
        if (ends)
            INVAR_TRY(run_head(w, &l->trainer->dev, micro_batch, l->result->train_logp + token,
                               entropies_at(l, w, token)));
        INVAR_TRY(invar_pass_routing(
            // the head has waited for the device already, so reading the routing does not stall it
            micro_batch->pass));
        compare_routing(w, r, micro_batch, l->result);
        INVAR_TRY(end_hooked_task(l, r));
    }
    if (!ends)
        return INVAR_OK;
    if (w->ranks > 1)
        INVAR_TRY(gather_round(w, l, r));
    return fill_gradient(w, l, r, micro_batch);
}

/* ---- training: backward ---------------------------------------------------------------------- */

static invar_status on_train_backward(invar_pipeline_exec *w, const invar_dp_round *r,
                                      invar_inflight_micro_batch *micro_batch)
{
    train_call *l = w->payload;

    if (r->local_micro_batch >= 0) {
        invar_pass *pass = micro_batch->pass;
        const float *dnow = micro_batch->gradient ? micro_batch->gradient + r->tokens_before : NULL;

        if (w->ranks > 1)
            INVAR_TRY(invar_dp_grads_begin(&l->ranks, micro_batch->chunk));
        if (!invar_pipeline_exec_has_head(w, micro_batch))
            INVAR_TRY(invar_pipeline_exec_receive_grad(w, micro_batch));
        else if (w->model->spec.value_head)
            INVAR_TRY(
                invar_head_backward_values(pass, dnow, &micro_batch->batch.head.units, l->grads));
        else
            INVAR_TRY(invar_head_backward(pass, dnow, l->loss->entropy ? dnow + r->n_tokens : NULL,
                                          l->grads));
        INVAR_TRY(invar_pass_backward(pass, l->grads));
        INVAR_TRY(invar_pipeline_exec_send_grad(w, micro_batch));
        INVAR_TRY(end_hooked_task(l, r));
    }
    if (w->ranks == 1)
        return INVAR_OK;
    if (l->trainer->probe.on_round)
        INVAR_TRY(l->trainer->probe.on_round(l->trainer->probe.payload));
    return invar_dp_grads_add(&l->ranks, micro_batch->chunk, (int)r->count);
}

/* ---- training with several ranks ------------------------------------------------------------- */

/* Adds up the routing counts of all ranks of an axis. */
static invar_status sum_route_counts(const train_call *l, const invar_layout_axis *axis)
{
    invar_trainer *trainer = l->trainer;
    invar_trainer_result *result = l->result;
    int64_t(*routes)[2] = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(routes, (size_t)axis->size, "choices of experts"));
    /* A simulated transport moves no bytes: a dry run must add zeros for the other ranks. */
    memset(routes, 0, (size_t)axis->size * sizeof *routes);
    for (int r = 0; r < axis->size; r++)
        trainer->bytes[r] = sizeof *routes;
    routes[axis->rank][0] = result->routes;
    routes[axis->rank][1] = result->routes_differ;
    status = invar_layout_gather(trainer->options.layout, axis, "choices of experts", routes,
                                 trainer->bytes);
    result->routes = result->routes_differ = 0;
    for (int r = 0; r < axis->size && status == INVAR_OK; r++) {
        result->routes += routes[r][0];
        result->routes_differ += routes[r][1];
    }
    invar_free(routes);
    return status;
}

/*
 * Checks that the log-probs and entropies of the training forward equal those of the scoring
 * forward that the loss was evaluated for.
 */
static invar_status check_precomputed_logp(const invar_pipeline_exec *w, const train_call *l,
                                           int64_t tokens)
{
    const float *scored = l->precomputed + 2 * tokens, *entropy = entropies_at(l, w, 0);
    size_t bytes = (size_t)tokens * sizeof *scored;

    if (memcmp(scored, l->result->train_logp, bytes) == 0 &&
        (!entropy || memcmp(scored + tokens, entropy, bytes) == 0))
        return INVAR_OK;
    return INVAR_FAIL(
        INVAR_E_MISMATCH, 0,
        "the loss was computed from log-probabilities of a scoring forward, and those "
        "of the training forward differ: set audit to find the op");
}

/*
 * Evaluates the loss of all rounds before training. A loss that rank 0 evaluates for all ranks
 * needs them at the same time, which is impossible while stages wait for each other. A scoring
 * forward has the same bits as the training forward, so its log-probs can be used.
 */
static invar_status precompute_loss(const invar_pipeline_exec *w, train_call *l)
{
    int64_t tokens = invar_trainer_tokens(w->samples, w->plan->samples);
    float *entropy = entropies_at(l, w, 0);

    INVAR_TRY(
        INVAR_ALLOC(l->precomputed, 4 * (size_t)tokens + 1, "gradients of log-probabilities"));
    memset(l->precomputed, 0, 4 * (size_t)tokens * sizeof *l->precomputed);
    INVAR_TRY(invar_trainer_score(l->trainer, w->model, w->samples, w->plan->samples,
                                  l->result->train_logp, entropy));
    memcpy(l->precomputed + 2 * tokens, l->result->train_logp,
           (size_t)tokens * sizeof *l->precomputed);
    if (entropy)
        memcpy(l->precomputed + 3 * tokens, entropy, (size_t)tokens * sizeof *l->precomputed);
    for (int64_t i = 0; i < invar_pipeline_exec_rounds(w); i++) {
        invar_dp_round r = invar_pipeline_exec_round(w, i);
        INVAR_TRY(eval_loss(w, l, &r, l->precomputed + 2 * r.first_token));
    }
    return INVAR_OK;
}

/*
 * Sends log-probs and entropies to the stages without the head, which then evaluate the loss for
 * its metrics only.
 */
static invar_status finish_pipeline_loss(const invar_pipeline_exec *w, const train_call *l)
{
    int64_t tokens = invar_trainer_tokens(w->samples, w->plan->samples);

    INVAR_TRY(broadcast_from_head(l->trainer, "log-probabilities", l->result->train_logp, tokens));
    INVAR_TRY(broadcast_from_head(l->trainer, "entropies", entropies_at(l, w, 0), tokens));
    if (l->precomputed)
        return check_precomputed_logp(w, l, tokens);
    for (int64_t i = 0; !has_head(l->trainer) && i < invar_pipeline_exec_rounds(w); i++) {
        invar_dp_round r = invar_pipeline_exec_round(w, i);
        INVAR_TRY(fill_gradient(w, l, &r, &w->slots->items[0]));
    }
    return INVAR_OK;
}

/* ---- training -------------------------------------------------------------------------------- */

/* Finishes a step with several ranks, after the last backward. */
static invar_status finish_ranks(const invar_pipeline_exec *w, train_call *l)
{
    const invar_forward_hooks *probe = &l->trainer->probe;
    const invar_layout *layout = w->layout;
    bool routes = invar_model_sparse_layers(w->model) > 0;

    if (routes && divides_samples(l->trainer))
        INVAR_TRY(sum_route_counts(l, &layout->data));
    if (routes && uses_pipeline(l->trainer))
        INVAR_TRY(sum_route_counts(l, &layout->pipeline));
    INVAR_TRY(invar_dp_grads_end(&l->ranks));
    if (!uses_pipeline(l->trainer))
        return INVAR_OK;
    if (probe->on_all_stages)
        INVAR_TRY(probe->on_all_stages(probe->payload));
    return finish_pipeline_loss(w, l);
}

/*
 * Prepares the step: its plan, `own` unless a dry run has one, a loss that is evaluated in advance,
 * and the gradient sums of several ranks, which a dry run allocates, too.
 */
static invar_status prepare_step(invar_pipeline_exec *w, train_call *l, invar_batch_plan *own,
                                 int64_t samples)
{
    const invar_trainer *trainer = l->trainer;

    if (uses_all_ranks(trainer) && !l->grads->overwrite_next)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "several ranks add to gradients of zero only");
    if (divides_samples(trainer)) {
        w->ranks = trainer->options.layout->data.size;
        w->rank = trainer->options.layout->data.rank;
    }
    w->plan = trainer->plan ? trainer->plan : own;
    if (w->plan == own)
        INVAR_TRY(make_plan(own, trainer, w->samples, samples, true));
    l->result->micro_batches = invar_pipeline_exec_rounds(w);
    if (l->loss->on_rank0 && uses_pipeline(trainer))
        INVAR_TRY(precompute_loss(w, l));
    return trainer->bytes
               ? invar_dp_grads_init(&l->ranks, l->grads, w->model, w->layout, &trainer->dev)
               : INVAR_OK;
}

invar_status invar_trainer_forward_backward(invar_trainer *trainer, const invar_model *model,
                                            const invar_rl_sample *samples, int64_t count,
                                            const invar_trainer_loss *loss, invar_grads *grads,
                                            invar_trainer_result *result)
{
    train_call l = {.trainer = trainer, .loss = loss, .grads = grads, .result = result};
    invar_pipeline_exec w = make_exec(trainer, model, samples, true, &l);
    invar_batch_plan own = {0};
    invar_status status;

    w.on_forward = on_train_forward;
    w.on_backward = on_train_backward;
    if (loss->entropy && !result->entropy)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a loss over entropies needs room for them");
    result->routes = result->routes_differ = 0;
    status = prepare_step(&w, &l, &own, count);
    if (status == INVAR_OK)
        status = invar_pipeline_exec_run(&w);
    if (status == INVAR_OK && uses_all_ranks(trainer))
        status = finish_ranks(&w, &l);
    invar_dp_grads_release(&l.ranks);
    invar_free(l.precomputed);
    invar_batch_plan_release(&own);
    INVAR_TRY(
        invar_host_staging_advise_oom(status, invar_device_is_local(&trainer->dev),
                                      trainer->options.recompute ? UNIT_ADVICE : RECOMPUTE_ADVICE));
    return invar_grads_finalize(grads, model, &trainer->dev);
}
