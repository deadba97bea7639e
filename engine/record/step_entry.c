/*
 * step_entry.c - builds the ledger entry of a step: metrics, gauges, samples and digests.
 *
 * Metrics have the names of Miles if they mean the same; means are sums of doubles in index order,
 * divided once. Metrics are part of the content digest and must be the same in every layout and in
 * a replay, so a new one must be known to run/replay/corrected.c; values that need not be, such as
 * times, audits and speculation, are gauges. Metrics of losses come from engine/rl/loss.c. Metrics
 * of the rollout are in its first step only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/step_entry.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "base/sort.h"
#include "engine/model/audit/audit.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/record/kept_samples.h"
#include "engine/record/replica_check.h"
#include "engine/sample/rollout/rng_coords.h"

#include "base/invar_banned.h"

#define MAX_METRICS 384
#define MAX_GAUGES 160

/* One entry under construction. */
typedef struct ledger_entry {
    const invar_step_report *step;
    invar_ledger_metric metrics[MAX_METRICS];
    size_t n_metrics;
    invar_ledger_metric gauges[MAX_GAUGES]; /* gauges are not part of the content digest */
    size_t n_gauges;
    char names[MAX_METRICS][80]; /* buffers for generated metric names */
    size_t n_names;
    invar_ledger_sample *samples;
    invar_ledger_reward_part *parts; /* (n_parts) reward parts of all samples of the step */
    size_t n_parts;
    invar_ledger_multi_turn *multi_turn; /* (n_multi_turn) turns of the multi-turn samples */
    size_t n_multi_turn;
    invar_kept_samples kept;
    char (*rng)[INVAR_RNG_COORDS_SIZE];
} ledger_entry;

/* ---- metrics --------------------------------------------------------------------------------- */

static void add_metric(ledger_entry *e, const char *name, double value)
{
    INVAR_CHECK(e->n_metrics < MAX_METRICS);
    e->metrics[e->n_metrics++] = (invar_ledger_metric){name, value};
}

static void add_gauge(ledger_entry *e, const char *name, double value)
{
    INVAR_CHECK(e->n_gauges < MAX_GAUGES);
    e->gauges[e->n_gauges++] = (invar_ledger_metric){name, value};
}

/*
 * Adds a difference between training and rollout. It is a gauge if it may differ from 0, because
 * other weights or another number format sampled.
 */
static void add_policy_diff(ledger_entry *e, const char *name, double value)
{
    if (e->step->policy.own_weights && !e->step->policy.other_format)
        add_metric(e, name, value);
    else
        add_gauge(e, name, value);
}

/* Returns a formatted name, which lives as long as the entry. */
static const char *make_name(ledger_entry *e, const char *fmt, ...) INVAR_PRINTF(2, 3);

static const char *make_name(ledger_entry *e, const char *fmt, ...)
{
    char *name = e->names[e->n_names];
    va_list rest;

    INVAR_CHECK(e->n_names++ < MAX_METRICS);
    va_start(rest, fmt);
    (void)vsnprintf(name, sizeof e->names[0], fmt, rest);
    va_end(rest);
    return name;
}

/* Adds the mean of every reward part of the rollout. */
static invar_status add_part_metrics(ledger_entry *e)
{
    invar_reward_parts means = {NULL, 0};
    invar_status status = invar_reward_parts_mean(&means, e->step->samples, e->step->flat->samples);

    for (int64_t i = 0; i < means.count && status == INVAR_OK; i++)
        add_metric(e, make_name(e, "rollout/reward/%s", means.items[i].name), means.items[i].value);
    invar_reward_parts_release(&means);
    return status;
}

/* Returns the metric name of a learner: "loss" of the critic is "train/critic-loss". */
static const char *make_learner_name(ledger_entry *e, const invar_learner *learner,
                                     const char *name)
{
    const char *prefix = learner->options.prefix, *dash = *prefix ? "-" : "";

    return make_name(e, "train/%.*s%s%.48s", (int)strcspn(prefix, "."), prefix, dash, name);
}

static invar_status add_loss_metrics(ledger_entry *e, const invar_step_report_learner *l)
{
    const invar_loss_metric *items;
    size_t count;

    if (!l->loss)
        return INVAR_OK;
    INVAR_TRY(invar_loss_metrics(&items, &count, l->loss));
    for (size_t i = 0; i < count; i++) {
        const char *slash = strchr(items[i].name, '/');
        const char *name = make_learner_name(e, l->learner, slash ? slash + 1 : items[i].name);
        if (strncmp(name, "train/train_rollout_", strlen("train/train_rollout_")) == 0)
            add_policy_diff(e, name, items[i].value);
        else
            add_metric(e, name, items[i].value);
    }
    return INVAR_OK;
}

/* Returns the mean of the unmasked response tokens, first over each sample, then over samples. */
static double token_mean(const invar_token_arrays *f, int64_t first, int64_t count,
                         const float *values)
{
    double total = 0.0;

    for (int64_t i = first; i < first + count; i++) {
        double sum = 0.0;
        int64_t n = 0;
        for (int64_t t = f->offsets[i]; t < f->offsets[i + 1]; t++)
            if (f->mask[t]) {
                sum += (double)values[t];
                n++;
            }
        total += n ? sum / (double)n : 0.0;
    }
    return total / (double)count;
}

static invar_status add_train_metrics(ledger_entry *e)
{
    const invar_step_report *s = e->step;
    const invar_logp_diff *gap = &s->comparison.logp_diff;

    for (int i = 0; i < s->n_learners; i++) {
        const invar_learner *learner = s->learners[i].learner;
        INVAR_TRY(add_loss_metrics(e, &s->learners[i]));
        add_metric(e, make_learner_name(e, learner, "grad_norm"), (double)learner->norm);
        add_metric(e, make_learner_name(e, learner, "lr-pg_0"), (double)learner->lr);
    }
    add_metric(e, "train/entropy", token_mean(s->flat, s->first, s->count, s->flat->entropy));
    if (s->comparison.compared) {
        add_policy_diff(e, "train/logp_diff_max", (double)gap->max);
        add_policy_diff(e, "train/logp_diff_p50", (double)gap->p50);
        add_policy_diff(e, "train/logp_diff_p99", (double)gap->p99);
        add_policy_diff(e, "train/logp_diff_worst_sample", (double)gap->sample);
        add_policy_diff(e, "train/logp_diff_worst_position", (double)gap->position);
    }
    if (s->has_loss_factor)
        add_metric(e, "train/loss_factor", (double)s->factor);
    if (s->comparison.routes) {
        add_metric(e, "train/routing_choices", (double)s->comparison.routes);
        add_metric(e, "train/routing_differ", (double)s->comparison.routes_differ);
    }
    return INVAR_OK;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

static invar_status add_length_metrics(ledger_entry *e, int64_t *lengths, const void **order)
{
    const invar_rl_sample *samples = e->step->samples;
    int64_t n = e->step->flat->samples, total = 0, truncated = 0;

    for (int64_t i = 0; i < n; i++) {
        lengths[i] = invar_rl_sample_response(&samples[i]);
        order[i] = &lengths[i];
        total += lengths[i];
        truncated += samples[i].finish == INVAR_FINISH_LENGTH;
    }
    INVAR_TRY(invar_sort(order, (size_t)n, by_number));
    add_metric(e, "rollout/response_len/mean", (double)total / (double)n);
    add_metric(e, "rollout/response_len/min", (double)*(const int64_t *)order[0]);
    add_metric(e, "rollout/response_len/median",
               (double)(*(const int64_t *)order[(n - 1) / 2] + *(const int64_t *)order[n / 2]) /
                   2.0);
    add_metric(e, "rollout/response_len/max", (double)*(const int64_t *)order[n - 1]);
    add_metric(e, "rollout/truncated_ratio", (double)truncated / (double)n);
    return INVAR_OK;
}

/* Returns the number of response tokens of sample i that the model did not sample. */
static int64_t count_inserted(const invar_token_arrays *f, int64_t i)
{
    int64_t inserted = 0;

    for (int64_t t = f->offsets[i]; t < f->offsets[i + 1]; t++)
        inserted += !f->sampled_mask[t];
    return inserted;
}

/* Adds turns and inserted tokens of multi-turn samples. */
static void add_turn_metrics(ledger_entry *e)
{
    const invar_rl_sample *samples = e->step->samples;
    int64_t n = e->step->flat->samples, turns = 0, most = 0, inserted = 0;

    for (int64_t i = 0; i < n; i++) {
        turns += samples[i].turns;
        most = invar_max_i64(most, samples[i].turns);
        inserted += count_inserted(e->step->flat, i);
    }
    if (most == 0)
        return;
    add_metric(e, "rollout/turns/mean", (double)turns / (double)n);
    add_metric(e, "rollout/turns/max", (double)most);
    add_metric(e, "rollout/inserted_len/mean", (double)inserted / (double)n);
}

/* Adds the number of branches of agent samples. */
static void add_branch_metrics(ledger_entry *e)
{
    const invar_rl_sample *samples = e->step->samples;
    int64_t n = e->step->flat->samples, cuts = 0, most = 0;

    for (int64_t i = 0; i < n; i++) {
        cuts += samples[i].n_branch_starts;
        most = samples[i].n_branch_starts > most ? samples[i].n_branch_starts : most;
    }
    if (most == 0)
        return;
    add_metric(e, "rollout/branches/mean", 1.0 + (double)cuts / (double)n);
    add_metric(e, "rollout/branches/max", 1.0 + (double)most);
}

static double mean_reward(const invar_rl_sample *samples, int64_t count)
{
    double total = 0.0;

    for (int64_t i = 0; i < count; i++)
        total += samples[i].reward;
    return total / (double)count;
}

/* Adds rewards, and the groups whose rewards are all equal and give no gradient. */
static void add_reward_metrics(ledger_entry *e)
{
    const invar_token_arrays *f = e->step->flat;
    int64_t groups = 0, flat_groups = 0, zero = 0, one = 0;

    add_metric(e, "rollout/raw_reward", mean_reward(e->step->samples, f->samples));
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
    add_metric(e, "rollout/zero_std/count", (double)flat_groups);
    add_metric(e, "rollout/zero_std/all_zero_percentage", (double)zero / (double)groups);
    add_metric(e, "rollout/zero_std/all_one_percentage", (double)one / (double)groups);
}

/* Adds groups that were sampled but not trained on. */
static void add_group_metrics(ledger_entry *e)
{
    if (e->step->groups.filtered >= 0)
        add_metric(e, "rollout/dynamic_filter/dropped", (double)e->step->groups.filtered);
    if (!e->step->groups.keeps_surplus)
        return;
    add_metric(e, "rollout/over_sampling/reused", (double)e->step->groups.reused);
    add_metric(e, "rollout/over_sampling/surplus", (double)e->step->groups.surplus);
}

/*
 * Adds the staleness in rollouts, from the version of the first token, if there is a recorded
 * schedule.
 */
static void add_staleness_metrics(ledger_entry *e)
{
    int64_t n = e->step->flat->samples, per = e->step->steps_per_rollout, total = 0, most = 0;

    if (!e->step->recorded_schedule)
        return;
    for (int64_t i = 0; i < n; i++) {
        int64_t rollouts = (e->step->policy.version - e->step->samples[i].weights.first) / per;

        total += rollouts;
        most = rollouts > most ? rollouts : most;
    }
    add_metric(e, "rollout/staleness/mean", (double)total / (double)n);
    add_metric(e, "rollout/staleness/max", (double)most);
}

/* Adds the metrics of the complete rollout; called for its first step. */
static invar_status add_rollout_metrics(ledger_entry *e)
{
    const invar_token_arrays *f = e->step->flat;
    const struct {
        const char *name;
        const float *values; /* NULL if the rollout has no such values */
    } means[] = {
        {"rollout/advantages", e->step->supervised ? NULL : f->advantage},
        {"rollout/log_probs", f->score_logp},
        {"rollout/rollout_log_probs", f->sampled ? f->rollout_logp : NULL},
        {"rollout/ref_log_probs", f->ref_logp},
        {"rollout/teacher_log_probs", f->teacher_logp},
        {"rollout/values", f->values},
        {"rollout/returns", f->returns},
    };
    int64_t *lengths = NULL;
    const void **order = NULL;
    invar_status status;

    if (!e->step->unrewarded)
        add_reward_metrics(e);
    if (!e->step->supervised)
        add_group_metrics(e);
    INVAR_TRY(add_part_metrics(e));
    for (size_t i = 0; i < sizeof means / sizeof *means; i++)
        if (means[i].values)
            add_metric(e, means[i].name, token_mean(f, 0, f->samples, means[i].values));
    add_turn_metrics(e);
    add_branch_metrics(e);
    add_staleness_metrics(e);
    for (int64_t k = 1; k <= e->step->passes && !e->step->unrewarded; k *= 2)
        add_metric(e, make_name(e, "passrate/pass@%" PRId64, k), invar_token_arrays_pass_at(f, k));
    INVAR_TRY(INVAR_ALLOC(lengths, (size_t)f->samples, "lengths"));
    status = INVAR_ALLOC(order, (size_t)f->samples, "lengths in order");
    if (status == INVAR_OK)
        status = add_length_metrics(e, lengths, order);
    invar_free(order);
    invar_free(lengths);
    return status;
}

/* ---- samples --------------------------------------------------------------------------------- */

static void fill_sample(ledger_entry *e, int64_t i)
{
    const invar_token_arrays *f = e->step->flat;
    int64_t at = e->step->first + i, first = f->offsets[at], n = f->offsets[at + 1] - first;
    const invar_rl_sample *s = &e->step->samples[at];
    const float *train =
        e->step->policy.on_policy && e->step->n_learners ? f->train_logp : f->score_logp;
    const invar_rng_coords coords = invar_rng_coords_of(s, e->step->seed, INVAR_PURPOSE_TRAIN);
    invar_ledger_sample *out = &e->samples[i];
    bool compared = e->step->comparison.compared && e->step->policy.own_weights;
    invar_logp_diff gap = invar_token_arrays_max_logp_diff(f, at, 1, f->rollout_logp, train);

    invar_rng_coords_format(e->rng[i], &coords);
    *out = (invar_ledger_sample){.prompt = s->data.line,
                                 .prompt_hash = s->data.hash,
                                 .rng = e->rng[i],
                                 .weights_first = s->weights.first,
                                 .weights_last = s->weights.last,
                                 .weights_hash = s->weights.hash,
                                 .prompt_tokens = s->prompt_tokens,
                                 .tokens = s->n_tokens,
                                 .reward = e->step->unrewarded ? (double)NAN : s->reward,
                                 .advantage = e->step->supervised ? (double)NAN
                                              : n                 ? (double)f->advantage[first]
                                                                  : 0.0,
                                 .finish_reason = invar_finish_name(s->finish),
                                 .logp_diff_max = compared ? (double)gap.max : (double)NAN,
                                 .logp_diff_position = compared ? gap.position : -1,
                                 .completion_order = s->stats.arrival};
    invar_hash_bytes(&out->token_hash, s->tokens, (size_t)s->n_tokens * sizeof *s->tokens);
    invar_hash_bytes(&out->rollout_logp, f->rollout_logp + first, (size_t)n * sizeof(float));
    invar_hash_bytes(&out->train_logp, train + first, (size_t)n * sizeof(float));
}

static invar_status fill_parts(ledger_entry *e)
{
    const invar_rl_sample *samples = e->step->samples + e->step->first;
    size_t count = 0;

    for (int64_t i = 0; i < e->step->count; i++)
        count += (size_t)samples[i].parts.count;
    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(e->parts, count, "parts of rewards"));
    for (int64_t i = 0; i < e->step->count; i++)
        for (int64_t k = 0; k < samples[i].parts.count; k++) {
            const invar_reward_part *part = &samples[i].parts.items[k];
            e->parts[e->n_parts++] = (invar_ledger_reward_part){i, part->name, part->value};
        }
    return INVAR_OK;
}

static invar_status fill_multi_turn(ledger_entry *e)
{
    INVAR_TRY(INVAR_ALLOC(e->multi_turn, (size_t)e->step->count + 1, "turns of samples"));
    for (int64_t i = 0; i < e->step->count; i++) {
        int64_t at = e->step->first + i, turns = e->step->samples[at].turns;

        if (turns > 0)
            e->multi_turn[e->n_multi_turn++] =
                (invar_ledger_multi_turn){i, turns, count_inserted(e->step->flat, at)};
    }
    return INVAR_OK;
}

/* Hashes the tokens of all samples, and the coordinates of their random numbers. */
static void hash_samples(invar_digest *batch_out, invar_digest *rng_out, const ledger_entry *e)
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

/* ---- entry ----------------------------------------------------------------------------------- */

/* Adds the audited elements of all ranks; a free choice, so not part of the content. */
static invar_status add_audit_gauges(ledger_entry *e, const invar_layout *layout)
{
    int64_t own[2], (*all)[2] = NULL, checked = 0, differ = 0;
    invar_status status;

    if (!e->step->audit)
        return INVAR_OK;
    invar_audit_counted(&own[0], &own[1], e->step->audit);
    INVAR_TRY(INVAR_ALLOC(all, (size_t)invar_ranks_size(layout), "audits of all ranks"));
    status = invar_ranks_all_gather(layout, "audits", own, sizeof own, all);
    for (int r = 0; r < invar_ranks_size(layout) && status == INVAR_OK; r++) {
        checked += all[r][0];
        differ += all[r][1];
    }
    invar_free(all);
    add_gauge(e, "audit/elements", (double)checked);
    add_gauge(e, "audit/differ", (double)differ);
    return status;
}

/*
 * Adds counters of speculative decoding under the names of Miles; a free choice, so not part of the
 * content.
 */
static void add_speculation_gauges(ledger_entry *e)
{
    const invar_spec_decode_stats sum =
        invar_spec_decode_stats_sum(e->step->samples, e->step->flat->samples);

    if (sum.drafted == 0)
        return;
    add_gauge(e, "rollout/spec_draft_token_num", (double)sum.drafted);
    add_gauge(e, "rollout/spec_accept_token_num", (double)sum.accepted);
    add_gauge(e, "rollout/spec_verify_ct", (double)sum.passes);
    add_gauge(e, "rollout/spec_accept_rate", (double)sum.accepted / (double)sum.drafted);
    add_gauge(e, "rollout/spec_accept_length", 1.0 + (double)sum.accepted / (double)sum.passes);
}

/* Adds numbers measured by hooks: gauges, because a replay does not run hooks. */
static void add_hook_gauges(ledger_entry *e)
{
    for (size_t i = 0; i < e->step->n_measures; i++) {
        const invar_hook_metrics *m = &e->step->measures[i];

        for (int64_t k = 0; k < m->named.count; k++)
            add_gauge(e, make_name(e, "hook/%.20s/%s", m->hook, m->named.items[k].name),
                      m->named.items[k].value);
    }
}

static invar_status build_entry(ledger_entry *e, const invar_layout *layout)
{
    if (e->step->n_learners)
        INVAR_TRY(add_train_metrics(e));
    if (e->step->first == 0) {
        INVAR_TRY(add_rollout_metrics(e));
        add_speculation_gauges(e);
    }
    for (int64_t i = 0; i < e->step->count; i++)
        fill_sample(e, i);
    INVAR_TRY(fill_parts(e));
    INVAR_TRY(fill_multi_turn(e));
    add_hook_gauges(e);
    return add_audit_gauges(e, layout);
}

/* Adds throughput gauges; `timings` are those of the step. */
static void add_throughput_gauges(ledger_entry *e, invar_recorder *recorder,
                                  const invar_ledger_timing *timings, size_t n_timings)
{
    invar_ledger_metric measured[INVAR_THROUGHPUT_GAUGES];
    size_t count =
        invar_throughput_step(measured, &recorder->throughput, e->step, timings, n_timings);

    for (size_t i = 0; i < count; i++)
        add_gauge(e, measured[i].name, measured[i].value);
}

static invar_status append_entry(ledger_entry *e, invar_recorder *recorder,
                                 const invar_probe_result *points)
{
    const invar_step_report *s = e->step;
    size_t n_timings;
    const invar_ledger_timing *timings = invar_trace_timings(recorder->trace, &n_timings);
    invar_ledger_step step = {.step = s->number,
                              .weights_version = s->policy.version,
                              .digests = points->digests,
                              .stats = points->stats,
                              .n_stats = points->n_stats,
                              .metrics = e->metrics,
                              .n_metrics = e->n_metrics,
                              .samples = e->samples,
                              .n_samples = (size_t)s->count,
                              .parts = e->parts,
                              .n_parts = e->n_parts,
                              .multi_turn = e->multi_turn,
                              .n_multi_turn = e->n_multi_turn,
                              .replies = s->replies,
                              .n_replies = s->n_replies,
                              .gauges = e->gauges,
                              .timings = timings,
                              .n_timings = n_timings};

    add_throughput_gauges(e, recorder, timings, n_timings);
    step.n_gauges = e->n_gauges;
    hash_samples(&step.batch, &step.rng, e);
    INVAR_TRY(invar_trace_collect_rank_times(&step.work, &step.n_work, recorder->trace));
    INVAR_TRY(invar_trace_collect_op_times(&step.ops, &step.n_ops, recorder->trace));
    INVAR_TRY(invar_replica_check(recorder, &step, points));
    INVAR_TRY(invar_kept_samples_make(&e->kept, recorder, s));
    step.kept = e->kept.items;
    step.n_kept = e->kept.count;
    if (!recorder->ledger)
        return INVAR_OK;
    step.must_match = !recorder->options.replay;
    INVAR_TRY(invar_ledger_append(recorder->ledger, &step));
    recorder->kept_bytes += e->kept.bytes;
    return INVAR_OK;
}

invar_status invar_step_entry_append(invar_recorder *recorder, const invar_step_report *step,
                                     const invar_probe_result *points)
{
    ledger_entry *e = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(e, 1, "an entry of the ledger"));
    e->step = step;
    status = INVAR_ALLOC(e->samples, (size_t)step->count, "samples of an entry");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(e->rng, (size_t)step->count, "coordinates of samples");
    if (status == INVAR_OK)
        status = build_entry(e, recorder->options.layout);
    if (status == INVAR_OK)
        status = append_entry(e, recorder, points);
    invar_free(e->rng);
    invar_free(e->parts);
    invar_free(e->multi_turn);
    invar_kept_samples_release(&e->kept);
    invar_free(e->samples);
    invar_free(e);
    return status;
}
