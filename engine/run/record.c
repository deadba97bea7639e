/*
 * record.c - what a step was: digests, metrics, samples, as one entry of the ledger.
 *
 * Metrics have Miles' names where the thing is the same; means are sums of doubles in index order,
 * divided once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "engine/run/loop.h"

#include "base/invar_banned.h"

#define MAX_METRICS 256
#define MAX_GAUGES 16

/* Everything of one entry while it is put together. */
typedef struct entry {
    invar_loop *loop;
    const invar_loop_step *step;
    invar_ledger_metric metrics[MAX_METRICS];
    size_t n_metrics;
    invar_ledger_metric gauges[MAX_GAUGES]; /* outside the content */
    size_t n_gauges;
    char names[MAX_METRICS][80]; /* of metrics whose names are made here */
    size_t n_names;
    invar_ledger_sample *samples;
    char (*rng)[INVAR_TRAIN_COORDS_SIZE];
} entry;

/* ---- metrics --------------------------------------------------------------------------------- */

static void metric(entry *e, const char *name, double value)
{
    INVAR_CHECK(e->n_metrics < MAX_METRICS);
    e->metrics[e->n_metrics++] = (invar_ledger_metric){name, value};
}

static void gauge(entry *e, const char *name, double value)
{
    INVAR_CHECK(e->n_gauges < MAX_GAUGES);
    e->gauges[e->n_gauges++] = (invar_ledger_metric){name, value};
}

/* How far training is from the rollout: a gauge where it need not be 0, as other weights sampled */
static void difference(entry *e, const char *name, double value)
{
    if (e->loop->own_weights)
        metric(e, name, value);
    else
        gauge(e, name, value);
}

static void named_metric(entry *e, double value, const char *fmt, int64_t number)
{
    INVAR_CHECK(e->n_names < MAX_METRICS);
    (void)snprintf(e->names[e->n_names], sizeof e->names[0], fmt, number);
    metric(e, e->names[e->n_names++], value);
}

/* "train/loss" of a critic is "train/critic-loss". */
static invar_status loss_metrics(entry *e, invar_loss *loss, const char *prefix)
{
    const invar_loss_metric *items;
    size_t count;

    if (!loss)
        return INVAR_OK;
    INVAR_TRY(invar_loss_metrics(&items, &count, loss));
    for (size_t i = 0; i < count; i++) {
        const char *name = items[i].name, *slash = strchr(name, '/');
        char *made = e->names[e->n_names++];
        INVAR_CHECK(e->n_names < MAX_METRICS);
        (void)snprintf(made, sizeof e->names[0], "train/%s%.48s", prefix, slash ? slash + 1 : name);
        if (strncmp(made, "train/train_rollout_", strlen("train/train_rollout_")) == 0)
            difference(e, made, items[i].value);
        else
            metric(e, made, items[i].value);
    }
    return INVAR_OK;
}

/* Mean over the response tokens that take part, first over each sample, then over samples. */
static double token_mean(const invar_flat *f, const invar_loop_step *step, const float *values)
{
    double total = 0.0;

    for (int64_t i = step->first; i < step->first + step->count; i++) {
        double sum = 0.0;
        int64_t n = 0;
        for (int64_t t = f->start[i]; t < f->start[i + 1]; t++)
            if (f->mask[t]) {
                sum += (double)values[t];
                n++;
            }
        total += n ? sum / (double)n : 0.0;
    }
    return total / (double)step->count;
}

static void train_metrics(entry *e)
{
    const invar_loop_step *s = e->step;
    const invar_logp_gap *gap = &s->gap;

    metric(e, "train/grad_norm", (double)s->norm);
    metric(e, "train/lr-pg_0", (double)s->lr);
    metric(e, "train/entropy", token_mean(&e->loop->flat, s, e->loop->flat.entropy));
    if (s->compared) {
        difference(e, "train/logp_diff_max", (double)gap->max);
        difference(e, "train/logp_diff_p50", (double)gap->p50);
        difference(e, "train/logp_diff_p99", (double)gap->p99);
        difference(e, "train/logp_diff_worst_sample", (double)gap->sample);
        difference(e, "train/logp_diff_worst_position", (double)gap->position);
    }
    if (s->result.routes) {
        metric(e, "train/routing_choices", (double)s->result.routes);
        metric(e, "train/routing_differ", (double)s->result.routes_differ);
    }
    if (s->value_loss) {
        metric(e, "train/critic-grad_norm", (double)s->critic_norm);
        metric(e, "train/critic-lr-pg_0", (double)s->critic_lr);
    }
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

static invar_status length_metrics(entry *e, int64_t *lengths, const void **order)
{
    const invar_rl_samples *batch = &e->loop->batch;
    int64_t n = batch->count, total = 0, truncated = 0;

    for (int64_t i = 0; i < n; i++) {
        lengths[i] = invar_rl_sample_response(&batch->items[i]);
        order[i] = &lengths[i];
        total += lengths[i];
        truncated += batch->items[i].finish == INVAR_FINISH_LENGTH;
    }
    INVAR_TRY(invar_sort(order, (size_t)n, by_number));
    metric(e, "rollout/response_len/mean", (double)total / (double)n);
    metric(e, "rollout/response_len/min", (double)*(const int64_t *)order[0]);
    metric(e, "rollout/response_len/median",
           (double)(*(const int64_t *)order[(n - 1) / 2] + *(const int64_t *)order[n / 2]) / 2.0);
    metric(e, "rollout/response_len/max", (double)*(const int64_t *)order[n - 1]);
    metric(e, "rollout/truncated_ratio", (double)truncated / (double)n);
    return INVAR_OK;
}

/* Groups whose rewards are all alike teach nothing. */
static void group_metrics(entry *e)
{
    const invar_flat *f = &e->loop->flat;
    int64_t groups = 0, flat_groups = 0, zero = 0, one = 0;

    for (int64_t i = 0; i < f->samples;) {
        int64_t end = i + 1;
        while (end < f->samples && f->group[end] == f->group[i])
            end++;
        groups++;
        if (!invar_rl_group_keeps(f->reward + i, end - i)) {
            flat_groups++;
            zero += f->reward[i] == 0.0f;
            one += f->reward[i] == 1.0f;
        }
        i = end;
    }
    metric(e, "rollout/zero_std/count", (double)flat_groups);
    metric(e, "rollout/zero_std/all_zero_percentage", (double)zero / (double)groups);
    metric(e, "rollout/zero_std/all_one_percentage", (double)one / (double)groups);
    metric(e, "rollout/dynamic_filter/dropped", (double)e->loop->dropped_groups);
}

static double mean_reward(const invar_rl_samples *batch)
{
    double total = 0.0;

    for (int64_t i = 0; i < batch->count; i++)
        total += batch->items[i].reward;
    return total / (double)batch->count;
}

/* Of the whole rollout; stands with its first step. */
static invar_status rollout_metrics(entry *e)
{
    invar_loop *loop = e->loop;
    invar_flat *f = &loop->flat;
    invar_loop_step all = {.first = 0, .count = f->samples};
    int64_t *lengths = NULL;
    const void **order = NULL;
    invar_status status;

    metric(e, "rollout/raw_reward", mean_reward(&loop->batch));
    metric(e, "rollout/advantages", token_mean(f, &all, f->advantage));
    metric(e, "rollout/log_probs", token_mean(f, &all, f->score_logp));
    metric(e, "rollout/rollout_log_probs", token_mean(f, &all, f->rollout_logp));
    if (f->ref_logp)
        metric(e, "rollout/ref_log_probs", token_mean(f, &all, f->ref_logp));
    if (f->teacher_logp)
        metric(e, "rollout/teacher_log_probs", token_mean(f, &all, f->teacher_logp));
    if (f->values) {
        metric(e, "rollout/values", token_mean(f, &all, f->values));
        metric(e, "rollout/returns", token_mean(f, &all, f->returns));
    }
    group_metrics(e);
    if (invar_recipe_bool(loop->recipe, INVAR_KEY_LOG_PASSRATE))
        for (int64_t k = 1; k <= loop->set.per_prompt; k *= 2)
            named_metric(e, invar_flat_pass_at(f, k), "passrate/pass@%" PRId64, k);
    INVAR_TRY(invar_alloc((void **)&lengths, (size_t)f->samples, sizeof *lengths, "lengths"));
    status = invar_alloc((void **)&order, (size_t)f->samples, sizeof *order, "lengths in order");
    if (status == INVAR_OK)
        status = length_metrics(e, lengths, order);
    invar_free(order);
    invar_free(lengths);
    return status;
}

/* ---- samples --------------------------------------------------------------------------------- */

void invar_train_coords(char out[INVAR_TRAIN_COORDS_SIZE], const invar_rl_sample *s, uint32_t seed,
                        uint32_t purpose)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, &s->weights_hash);
    (void)snprintf(out, INVAR_TRAIN_COORDS_SIZE,
                   "seed=%" PRIu32 ",purpose=%" PRIu32 ",rollout=%" PRIu32 ",draw=%" PRIu32
                   ",prompt=%" PRId64 ",weights=%s",
                   seed, purpose, s->rollout, s->draw, s->prompt, hex);
}

static void fill_sample(entry *e, int64_t i)
{
    invar_loop *loop = e->loop;
    const invar_flat *f = &loop->flat;
    int64_t at = e->step->first + i, first = f->start[at], n = f->start[at + 1] - first;
    const invar_rl_sample *s = &loop->batch.items[at];
    const float *train = e->step->on_policy && e->step->loss ? f->train_logp : f->score_logp;
    invar_ledger_sample *out = &e->samples[i];
    bool compared = e->step->compared && loop->own_weights;
    invar_logp_gap gap = invar_flat_worst(f, at, 1, f->rollout_logp, train);

    invar_train_coords(e->rng[i], s,
                       (uint32_t)invar_recipe_int(loop->recipe, INVAR_KEY_ROLLOUT_SEED),
                       INVAR_PURPOSE_TRAIN);
    *out = (invar_ledger_sample){.prompt = s->prompt,
                                 .prompt_hash = s->prompt_hash,
                                 .rng = e->rng[i],
                                 .weights_first = s->weights,
                                 .weights_last = s->weights,
                                 .weights_hash = s->weights_hash,
                                 .prompt_tokens = s->prompt_tokens,
                                 .tokens = s->n_tokens,
                                 .reward = s->reward,
                                 .advantage = n ? (double)f->advantage[first] : 0.0,
                                 .finish = invar_finish_name(s->finish),
                                 .diff = compared ? (double)gap.max : (double)NAN,
                                 .diff_at = compared ? gap.position : -1,
                                 .arrival = s->arrival};
    invar_hash_bytes(&out->token_hash, s->tokens, (size_t)s->n_tokens * sizeof *s->tokens);
    invar_hash_bytes(&out->rollout_logp, f->rollout_logp + first, (size_t)n * sizeof(float));
    invar_hash_bytes(&out->train_logp, train + first, (size_t)n * sizeof(float));
}

/* What the samples are made of, and where their randomness came from. */
static void hash_samples(invar_digest *batch_out, invar_digest *rng_out, const entry *e)
{
    invar_hasher batch, rng;

    invar_hasher_init(&batch);
    invar_hasher_init(&rng);
    for (int64_t i = 0; i < e->step->count; i++) {
        invar_hasher_update(&batch, e->samples[i].token_hash.bytes, sizeof(invar_digest));
        invar_hasher_update(&rng, e->rng[i], strlen(e->rng[i]) + 1);
    }
    invar_hasher_final(batch_out, &batch);
    invar_hasher_final(rng_out, &rng);
}

/* ---- the entry ------------------------------------------------------------------------------- */

static invar_status gather(entry *e)
{
    if (e->step->loss) {
        INVAR_TRY(loss_metrics(e, e->step->loss, ""));
        INVAR_TRY(loss_metrics(e, e->step->value_loss, "critic-"));
        train_metrics(e);
    }
    if (e->step->first == 0)
        INVAR_TRY(rollout_metrics(e));
    for (int64_t i = 0; i < e->step->count; i++)
        fill_sample(e, i);
    return INVAR_OK;
}

static invar_status replies_of(invar_ledger_reply **out, size_t *count_out, const invar_loop *loop,
                               bool first)
{
    invar_plugin_replies parts[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
    size_t count = 0;

    *out = NULL;
    *count_out = 0;
    for (int i = 0; i < 3; i++) // rewards and filters were asked once for the whole rollout
        if (loop->plugins[i] && (first || i == INVAR_LOOP_LOSS)) {
            parts[i] = invar_plugin_replies_take(loop->plugins[i]);
            count += parts[i].count;
        }
    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(invar_alloc((void **)out, count, sizeof **out, "replies of plug-ins"));
    for (int i = 0; i < 3; i++)
        for (size_t j = 0; j < parts[i].count; j++)
            (*out)[(*count_out)++] = parts[i].items[j];
    return INVAR_OK;
}

/* How much of the step was computed again; free, so no part of the content. */
static void audit_gauges(entry *e)
{
    int64_t checked, differ;

    if (!e->loop->audit)
        return;
    invar_audit_counted(&checked, &differ, e->loop->audit);
    gauge(e, "audit/elements", (double)checked);
    gauge(e, "audit/differ", (double)differ);
}

static invar_status append(entry *e, const invar_probe_result *points)
{
    invar_loop *loop = e->loop;
    invar_ledger_step step = {.step = loop->place.step,
                              .weights = loop->batch.items[e->step->first].weights,
                              .digests = points->digests,
                              .metrics = e->metrics,
                              .n_metrics = e->n_metrics,
                              .samples = e->samples,
                              .n_samples = (size_t)e->step->count};
    invar_ledger_reply *replies = NULL;
    invar_status status;

    hash_samples(&step.batch, &step.rng, e);
    audit_gauges(e);
    step.gauges = e->gauges;
    step.n_gauges = e->n_gauges;
    step.timings = invar_trace_timings(loop->trace, &step.n_timings);
    if (points->changed)
        INVAR_TRY(invar_ledger_define(loop->ledger, points->points, (size_t)points->count));
    INVAR_TRY(replies_of(&replies, &step.n_replies, loop, e->step->first == 0));
    step.replies = replies;
    status = invar_ledger_append(loop->ledger, &step);
    invar_free(replies);
    return status;
}

invar_status invar_loop_record(invar_loop *loop, const invar_loop_step *step)
{
    invar_probe_result points;
    entry *e = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&e, 1, sizeof *e, "an entry of the ledger"));
    memset(e, 0, sizeof *e);
    e->loop = loop;
    e->step = step;
    status = invar_alloc((void **)&e->samples, (size_t)step->count, sizeof *e->samples,
                         "samples of an entry");
    if (status == INVAR_OK)
        status = invar_alloc((void **)&e->rng, (size_t)step->count, sizeof *e->rng,
                             "coordinates of samples");
    if (status == INVAR_OK)
        status = gather(e);
    if (status == INVAR_OK)
        status = invar_loop_points(&points, e->loop, e->step);
    if (status == INVAR_OK)
        status = append(e, &points);
    invar_free(e->rng);
    invar_free(e->samples);
    invar_free(e);
    return status;
}

invar_status invar_loop_event(invar_loop *loop, const char *level, const char *kind,
                              const char *message)
{
    return invar_ledger_note(loop->ledger, &(invar_ledger_event){.step = loop->place.step,
                                                                 .level = level,
                                                                 .kind = kind,
                                                                 .message = message});
}
