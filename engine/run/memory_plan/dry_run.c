/*
 * dry_run.c - runs the largest rollout, scoring and training step of a run on counting devices.
 *
 * A micro-batch is as large as possible in everything at once: its rows, its samples, its longest
 * unit, and the rows that the head sees. Smaller ones need less memory in every respect. Tokens and
 * routing are zeros, since nothing is computed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "engine/model/graph/dataflow.h"
#include "engine/run/memory_plan/memory_plan.h"

#include "base/invar_banned.h"

int64_t invar_memory_plan_longest(const invar_memory_workload *workload)
{
    return invar_min_i64(workload->lengths.context,
                         workload->lengths.prompt + workload->lengths.response);
}

int64_t invar_memory_plan_longest_sample(const invar_memory_workload *workload)
{
    return invar_max_i64(workload->lengths.branches, 1) * invar_memory_plan_longest(workload);
}

invar_largest_micro_batch invar_memory_plan_batch_of(const invar_memory_workload *workload,
                                                     bool learns)
{
    const invar_batch_plan_options *p = &workload->plan;
    int64_t longest = invar_memory_plan_longest_sample(workload) - 1;
    bool divides = invar_layout_has_data_parallel(workload->ranks.layout);
    int ranks = divides ? workload->ranks.layout->data.size : 1;
    int64_t samples =
        learns ? workload->step_samples : invar_layout_range_of(workload->samples, ranks, 0).count;
    int64_t unit = learns ? invar_min_i64(invar_batch_plan_unit_samples(p, samples), samples) : 1;
    invar_largest_micro_batch out = {
        .rows = samples * longest,
        .samples = samples,
        .unit_rows = invar_min_i64(unit * longest, invar_max_i64(p->unit_rows, longest)),
        .unit_samples = unit};

    if (!learns)
        out.unit_rows = longest;
    if (p->micro_batch > 0) {
        out.samples = invar_max_i64(invar_min_i64(p->micro_batch, samples), unit);
        out.rows = invar_min_i64(p->micro_batch, samples) * longest;
    } else if (p->max_tokens > 0)
        out.rows = invar_min_i64(p->max_tokens, out.rows);
    if (learns && (divides || invar_layout_is_pipelined(
                                  workload->ranks.layout))) { // ranks compute unit by unit
        out.samples = unit;
        out.rows = out.unit_rows;
    }
    out.rows = invar_max_i64(out.rows, out.unit_rows);
    return out;
}

bool invar_memory_plan_samples(const invar_memory_workload *workload)
{
    return workload->rollouts[INVAR_MEMORY_PLAN_TRAINING].prompts > 0 ||
           workload->rollouts[INVAR_MEMORY_PLAN_EVALUATION].prompts > 0;
}

void invar_memory_plan_settle(invar_memory_workload *workload,
                              const invar_memory_plan_choice *choice)
{
    workload->head_rows = choice->head_rows;
    workload->plan.max_tokens = choice->max_tokens;
    workload->limits.pages = choice->pages;
    workload->limits.concurrency = choice->concurrency;
}

invar_trainer_options invar_memory_plan_trainer(const invar_memory_workload *workload,
                                                const invar_model *model)
{
    return (invar_trainer_options){.plan = workload->plan,
                                   .recompute = workload->recompute,
                                   .head_rows = workload->head_rows,
                                   .temperature = 1.0f,
                                   .replay = workload->replay ? model : NULL,
                                   .layout = workload->ranks.layout};
}

int64_t invar_memory_plan_rows(const invar_rollout_shape *r)
{
    return invar_min_i64(r->context, r->prompt + r->response) - 1; // the last token is not an input
}

static invar_status touch_rows(void *payload, const invar_observed_value *value)
{
    invar_tensor rows;

    (void)payload;
    return invar_dataflow_rows(&rows, value);
}

/* Hooks that record nothing. */
static const invar_forward_hooks null_probe = {.on_value = touch_rows, .parts = true};

/* ---- sampling -------------------------------------------------------------------------------- */

static invar_status sample_all(invar_rollout *rollout, const invar_memory_workload *workload)
{
    for (int i = 0; i < INVAR_MEMORY_PLAN_USES; i++) {
        const invar_rollout_shape *r = &workload->rollouts[i];
        invar_rollout_max_shape most = {.samples = r->prompts * r->per_prompt,
                                        .prompts = r->prompts,
                                        .prompt_rows = r->prompt,
                                        .resumed = r->resumed,
                                        .rows = invar_memory_plan_rows(r)};

        if (r->prompts > 0)
            INVAR_TRY(invar_rollout_dry_run(rollout, &workload->sampling[i], &most));
    }
    return INVAR_OK;
}

invar_status invar_dry_run_rollout(invar_rollout *rollout, const invar_memory_workload *workload)
{
    const invar_rollout_hooks watcher = {.probe = null_probe};
    invar_status status = sample_all(rollout, workload);

    if (workload->level < INVAR_PROBE_FULL)
        return status;
    // op parts have their memory beside the scratch, which they may enlarge: run twice
    invar_rollout_set_hooks(rollout, &watcher);
    for (int i = 0; i < 2 && status == INVAR_OK; i++)
        status = sample_all(rollout, workload);
    invar_rollout_set_hooks(rollout, NULL);
    return status;
}

/* ---- a micro-batch --------------------------------------------------------------------------- */

/* The largest micro-batch. Tokens and routing are zeros, shared by all samples. */
typedef struct dry_batch {
    invar_rl_sample *samples; /* (plan.samples) */
    int64_t targets;          /* rows of the head */
    int32_t *tokens, *routing;
    int64_t *cuts; /* (n_cuts) first tokens of branches */
    int64_t n_cuts;
    float *now; /* (2, targets) log-probs and entropies */
    invar_batch_plan plan;
    int64_t unit[2], sample[2]; /* arrays of `plan`, which has one micro-batch */
} dry_batch;

static void release_batch(dry_batch *s)
{
    invar_free(s->samples);
    invar_free(s->tokens);
    invar_free(s->routing);
    invar_free(s->cuts);
    invar_free(s->now);
    invar_free(s->plan.unit_sample);
}

#define ALLOC_ZEROS(pointer, count)                                                                \
    INVAR_ALLOC_ZEROED(pointer, (size_t)(count), "samples as long as can be")

/* Sets the branch starts so that every branch has the largest length. */
static invar_status make_cuts(dry_batch *s, const invar_memory_workload *workload)
{
    s->n_cuts = invar_max_i64(workload->lengths.branches, 1) - 1;
    INVAR_TRY(ALLOC_ZEROS(s->cuts, s->n_cuts + 1));
    for (int64_t i = 0; i < s->n_cuts; i++)
        s->cuts[i] = (i + 1) * invar_memory_plan_longest(workload);
    return INVAR_OK;
}

/* Returns the number of branch starts in a sample of `rows` rows. */
static int64_t cuts_within(const dry_batch *s, int64_t rows)
{
    int64_t count = 0;

    while (count < s->n_cuts && s->cuts[count] < rows)
        count++;
    return count;
}

/* Appends `count` samples of about equal length, with `rows` rows in all. */
static void add_samples(dry_batch *s, int64_t count, int64_t rows, int64_t most_response,
                        int64_t route)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t own = rows / count + (i < rows % count),
                response = invar_min_i64(most_response, own);

        s->samples[s->plan.samples++] = (invar_rl_sample){.tokens = s->tokens,
                                                          .n_tokens = own + 1,
                                                          .prompt_tokens = own + 1 - response,
                                                          .branch_starts = s->cuts,
                                                          .n_branch_starts = cuts_within(s, own),
                                                          .routing = s->routing,
                                                          .route_size = s->routing ? route : 0};
        s->targets += response;
    }
}

/*
 * Makes more rows of the longest sample targets, as many as a batch of shorter samples could have.
 */
static void fill_head(dry_batch *s, int64_t rows, int64_t most_response)
{
    int64_t missing = invar_min_i64(rows, s->plan.samples * most_response) - s->targets;

    missing = invar_min_i64(missing, s->samples[0].prompt_tokens - 1);
    s->samples[0].prompt_tokens -= missing;
    s->targets += missing;
}

/*
 * Makes the largest micro-batch: first the longest unit, with the longest sample; the remaining
 * rows are for the largest number of other samples, each a unit of its own.
 */
static invar_status make_batch(dry_batch *s, const invar_model *model,
                               const invar_memory_workload *workload, bool learns)
{
    invar_largest_micro_batch most = invar_memory_plan_batch_of(workload, learns);
    int64_t longest = invar_memory_plan_longest_sample(workload) - 1;
    // prompts of branches are targets, too
    int64_t response = workload->lengths.branches > 1 ? longest : workload->lengths.response;
    int64_t route = invar_model_sparse_layers(model) * model->spec.experts.per_token;
    int64_t beside = most.unit_rows - longest, rest = most.rows - most.unit_rows;
    int64_t in_unit = invar_min_i64(most.unit_samples - 1, beside);
    int64_t others, units;

    memset(s, 0, sizeof *s);
    if (longest < 1) // no token can be predicted
        return INVAR_OK;
    others = invar_max_i64(most.samples - most.unit_samples, (rest + longest - 1) / longest);
    others = invar_min_i64(others, most.rows);
    rest = invar_max_i64(rest, others); // without the longest one there could be as many
    units = 1 + others;
    INVAR_TRY(ALLOC_ZEROS(s->samples, 1 + in_unit + others));
    INVAR_TRY(ALLOC_ZEROS(s->tokens, longest + 1));
    INVAR_TRY(make_cuts(s, workload));
    if (workload->replay && route > 0)
        INVAR_TRY(ALLOC_ZEROS(s->routing, longest * route));
    INVAR_TRY(ALLOC_ZEROS(s->plan.unit_sample, units + 1));
    add_samples(s, 1, longest, response, route);
    add_samples(s, in_unit, beside, response, route);
    add_samples(s, others, rest, response, route);
    fill_head(s, longest + beside + rest, response);
    for (int64_t u = 1; u <= units; u++)
        s->plan.unit_sample[u] = in_unit + u;
    s->plan.units = s->unit[1] = units;
    s->plan.n_micro_batches = 1;
    s->plan.first_unit = s->unit;
    s->plan.first_sample = s->sample;
    s->sample[1] = s->plan.samples;
    return ALLOC_ZEROS(s->now, 2 * s->targets);
}

/* ---- scoring, learning ----------------------------------------------------------------------- */

static invar_status score_model(const invar_dry_run_objects *parts,
                                const invar_memory_workload *workload, const invar_model *model)
{
    dry_batch s;
    invar_status status = make_batch(&s, model, workload, false);

    invar_trainer_set_dry_run_plan(parts->trainer, &s.plan);
    if (status == INVAR_OK)
        status = invar_trainer_score(parts->trainer, model, s.samples, s.plan.samples, s.now, NULL);
    invar_trainer_set_dry_run_plan(parts->trainer, NULL);
    release_batch(&s);
    return status;
}

invar_status invar_dry_run_score(const invar_dry_run_objects *parts,
                                 const invar_memory_workload *workload)
{
    const invar_model_set *models = parts->models;

    INVAR_TRY(score_model(parts, workload, models->actor));
    // models of the actor's shape need no more than the actor
    if (workload->models.reference_apart)
        INVAR_TRY(score_model(parts, workload, models->reference));
    if (workload->models.teacher_apart)
        INVAR_TRY(score_model(parts, workload, models->teacher));
    if (models->critic)
        INVAR_TRY(score_model(parts, workload, models->critic));
    return invar_trainer_alloc_scratch(parts->trainer);
}

invar_status invar_dry_run_check(const invar_dry_run_objects *parts,
                                 const invar_memory_workload *workload)
{
    const invar_dry_run_objects own = {.trainer = parts->checker};
    invar_memory_workload in_flight = *workload;

    in_flight.samples = workload->max_inflight;
    INVAR_TRY(score_model(&own, &in_flight, invar_model_set_sampler(parts->models)));
    return invar_trainer_alloc_scratch(own.trainer);
}

invar_status invar_memory_plan_no_loss(void *payload, int64_t first, int64_t count,
                                       const float *now, const float *entropy, float *dnow_out,
                                       float *dentropy_out)
{
    (void)payload;
    (void)first;
    (void)count;
    (void)now;
    (void)entropy;
    (void)dnow_out;
    (void)dentropy_out;
    return INVAR_OK;
}

/* Dry-runs a training step and zeroes the gradients, as after a step. */
static invar_status train_model(const invar_dry_run_objects *parts,
                                const invar_memory_workload *workload, const invar_model *model,
                                invar_grads *grads)
{
    invar_trainer_loss loss = {.run = invar_memory_plan_no_loss,
                               .entropy = workload->entropy && !model->spec.value_head};
    dry_batch s;
    invar_status status = make_batch(&s, model, workload, true);

    if (status == INVAR_OK) {
        invar_trainer_result result = {.train_logp = s.now,
                                       .entropy = s.now ? s.now + s.targets : NULL};
        invar_trainer_set_dry_run_plan(parts->trainer, &s.plan);
        status = invar_trainer_forward_backward(parts->trainer, model, s.samples, s.plan.samples,
                                                &loss, grads, &result);
        invar_trainer_set_dry_run_plan(parts->trainer, NULL);
    }
    release_batch(&s);
    return status == INVAR_OK ? invar_grads_zero(grads) : status;
}

static invar_status train_models(const invar_dry_run_objects *parts,
                                 const invar_memory_workload *workload)
{
    if (parts->actor_grads)
        INVAR_TRY(train_model(parts, workload, parts->models->actor, parts->actor_grads));
    if (parts->critic_grads)
        INVAR_TRY(train_model(parts, workload, parts->models->critic, parts->critic_grads));
    return invar_trainer_alloc_scratch(parts->trainer);
}

invar_status invar_dry_run_learn(const invar_dry_run_objects *parts,
                                 const invar_memory_workload *workload)
{
    const invar_forward_hooks *probe = parts->probe;
    invar_status status = train_models(parts, workload);

    if (!probe && workload->level >= INVAR_PROBE_FULL)
        probe = &null_probe;
    if (!probe)
        return status;
    // op parts have their memory beside the scratch, which they may enlarge: run twice
    invar_trainer_set_hooks(parts->trainer, probe);
    for (int i = 0; i < 2 && status == INVAR_OK; i++)
        status = train_models(parts, workload);
    invar_trainer_set_hooks(parts->trainer, NULL);
    return status;
}
