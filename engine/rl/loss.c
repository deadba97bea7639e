/*
 * loss.c - loss of an optimizer step: the derivative per token and the metrics of the step.
 *
 * invar_loss_new computes everything of the whole step: counts, importance weights, rejections.
 * invar_loss_run then evaluates samples one by one, so a token's derivative depends only on its
 * sample and on the step, never on the micro-batch. Metrics are kept as one sum per sample, in the
 * columns of masked_stats.h. Each operator is one fp32 operation, in the order of
 * docs/arithmetic.md, section 13.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/loss.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/rl/estimator.h"
#include "engine/rl/importance.h"
#include "engine/rl/kl.h"
#include "kernels-deterministic/math/portable.h"
#include "kernels-deterministic/math/reduce.h"

#include "base/invar_banned.h"

/* Columns of the metrics; -1 if the loss does not have the metric. */
typedef struct columns {
    int main; /* pg_loss, sft_loss or value_loss */
    int clipfrac, ppo_kl, ess_ratio, ois, opsm;
    int kl, entropy;
} columns;

struct invar_loss {
    const invar_rl_batch *batch;
    invar_rl_options options;
    const invar_loss_traits *traits;
    bool one_ratio; /* a sample has one ratio, from the mean of its tokens' log-ratios */
    const float *advantage;
    const float *returns;
    invar_masked_stats tally;
    invar_importance importance;
    columns column_ids;
    float divisor; /* divisor of the main term; 0 for that of the reduction */
    float *rows;   /* (ROWS, longest) values of the current sample */
    uint8_t *seen; /* (samples) 1 if the sample was evaluated */
    invar_loss_metric metrics[INVAR_MASKED_STATS_COLUMNS + 1];
};

/* Rows of the current sample. */
enum { ROW_LOSS, ROW_SLOPE, ROW_CLIPPED, ROW_LOG_RATIO, ROW_RATIO, ROW_OPSM, ROW_OTHER, ROWS };

static float *row_of(const invar_loss *loss, int row)
{
    return loss->rows + row * loss->tally.longest;
}

/* A sample in a call of invar_loss_run. */
struct invar_loss_sample_view {
    int64_t sample;
    int64_t first; /* index of its first token in the batch */
    int64_t tokens;
    const uint8_t *mask; /* (tokens) mask of the batch */
    const uint8_t *keep; /* (tokens) mask after rejection */
    const float *now;
    const float *entropy;
    float *dnow;
    float *dentropy;
};

/* ---- main term: loss and slope per token, before mask and reduction -------------------------- */

/*
 * Computes the clipped objective at one token; the slope is with respect to the log-ratio. If both
 * terms are equal, the unclipped one is used, so that an on-policy step has a gradient.
 */
static void clip_token(const invar_loss *loss, invar_ratio ratio, float a, float *loss_out,
                       float *slope_out, float *clipped_out)
{
    const invar_rl_options *o = &loss->options;
    float low = 1.0f - o->clip.low, high = 1.0f + o->clip.high;
    float inside = ratio.value < low ? low : ratio.value > high ? high : ratio.value;
    float plain = -(ratio.value * a), clipped = -(inside * a);
    float worst = clipped > plain ? clipped : plain;
    bool flows = !(clipped > plain) && !ratio.cut;

    *clipped_out = clipped > plain ? 1.0f : 0.0f;
    if (o->clip.dual > 0.0f && a < 0.0f && worst > -(o->clip.dual * a)) {
        worst = -(o->clip.dual * a);
        flows = false;
    }
    *loss_out = worst;
    *slope_out = flows ? plain : 0.0f;
}

/*
 * Computes the log-ratio of each token; with one ratio, that of all tokens is the mean of the
 * sample.
 */
static void compute_log_ratios(invar_loss *loss, const invar_loss_sample_view *v)
{
    const float *old = loss->batch->old_logp + v->first;
    float *log_ratio = row_of(loss, ROW_LOG_RATIO);
    float distance = 0.0f;

    if (loss->one_ratio)
        distance = invar_importance_distance(&loss->tally, v->sample, v->now);
    for (int64_t t = 0; t < v->tokens; t++) {
        if (!loss->one_ratio)
            distance = old[t] - v->now[t];
        log_ratio[t] = v->mask[t] ? -distance : 0.0f;
    }
}

static invar_status policy_rows(invar_loss *loss, const invar_loss_sample_view *v)
{
    const float *weight = loss->importance.weight ? loss->importance.weight + v->first : NULL;
    const float *log_ratio = row_of(loss, ROW_LOG_RATIO);
    float *value = row_of(loss, ROW_LOSS), *slope = row_of(loss, ROW_SLOPE);
    float *clipped = row_of(loss, ROW_CLIPPED), *dropped = row_of(loss, ROW_OPSM);
    bool far = false;

    compute_log_ratios(loss, v);
    if (loss->options.opsm.use)
        far = invar_importance_distance(&loss->tally, v->sample, v->now) > loss->options.opsm.delta;
    for (int64_t t = 0; t < v->tokens; t++) {
        float a = v->mask[t] ? loss->advantage[v->first + t] : 0.0f;
        invar_ratio ratio = invar_ratio_of(log_ratio[t]);
        clip_token(loss, ratio, a, &value[t], &slope[t], &clipped[t]);
        dropped[t] = far && a < 0.0f ? 1.0f : 0.0f;
        if (dropped[t] != 0.0f)
            value[t] = slope[t] = 0.0f;
        if (weight) {
            value[t] = value[t] * weight[t];
            slope[t] = slope[t] * weight[t];
        }
        row_of(loss, ROW_RATIO)[t] = ratio.value;
    }
    return INVAR_OK;
}

static invar_status sft_rows(invar_loss *loss, const invar_loss_sample_view *v)
{
    for (int64_t t = 0; t < v->tokens; t++) {
        row_of(loss, ROW_LOSS)[t] = -v->now[t];
        row_of(loss, ROW_SLOPE)[t] = -1.0f;
    }
    return INVAR_OK;
}

static invar_status value_rows(invar_loss *loss, const invar_loss_sample_view *v)
{
    const float *returns = loss->returns + v->first;
    float clip = loss->options.clip.value;

    for (int64_t t = 0; t < v->tokens; t++) {
        float off = v->now[t] - returns[t];
        float plain = off * off, clipped = plain;
        bool far = false; // far from the old value, even if that does not change the loss
        if (clip > 0.0f) {
            float old = loss->batch->values[v->first + t], low = old - clip, high = old + clip;
            far = invar_abs_f32(v->now[t] - old) > clip;
            float x = v->now[t] < low ? low : v->now[t] > high ? high : v->now[t];
            clipped = (x - returns[t]) * (x - returns[t]);
        }
        row_of(loss, ROW_LOSS)[t] = clipped > plain ? clipped : plain;
        row_of(loss, ROW_SLOPE)[t] = clipped > plain ? 0.0f : 2.0f * off;
        row_of(loss, ROW_CLIPPED)[t] = far ? 1.0f : 0.0f;
    }
    return INVAR_OK;
}

static invar_status custom_rows(invar_loss *loss, const invar_loss_sample_view *v)
{
    const invar_rl_batch *b = loss->batch;
    int64_t first = v->first;
    invar_loss_sample sample = {
        .sample = v->sample,
        .tokens = v->tokens,
        .mask = v->mask,
        .logp = v->now,
        .old_logp = b->old_logp ? b->old_logp + first : NULL,
        .rollout_logp = b->rollout_logp ? b->rollout_logp + first : NULL,
        .ref_logp = b->ref_logp ? b->ref_logp + first : NULL,
        .advantage = loss->advantage ? loss->advantage + first : NULL,
        .entropy = v->entropy,
    };

    return loss->options.custom->run(row_of(loss, ROW_LOSS), row_of(loss, ROW_SLOPE), &sample,
                                     loss->options.custom->payload);
}

static const invar_loss_traits traits[INVAR_LOSS_COUNT] = {
#define INVAR_LOSS(ID, NAME, ...) [INVAR_LOSS_##ID] = {__VA_ARGS__},
#include "engine/rl/losses.def"
#undef INVAR_LOSS
};

static const char *const names[INVAR_LOSS_COUNT] = {
#define INVAR_LOSS(ID, NAME, ...) [INVAR_LOSS_##ID] = NAME,
#include "engine/rl/losses.def"
#undef INVAR_LOSS
};

const invar_choices invar_loss_type_choices = {names, INVAR_LOSS_COUNT};

const invar_loss_traits *invar_loss_traits_of(invar_loss_type type)
{
    INVAR_CHECK((unsigned)type < INVAR_LOSS_COUNT);
    return &traits[type];
}

static invar_status compute_rows(invar_loss *loss, const invar_loss_sample_view *v)
{
    INVAR_TRY(loss->traits->rows(loss, v));
    INVAR_TRY(
        invar_masked_stats_finite(&loss->tally, v->sample, row_of(loss, ROW_LOSS), "the loss"));
    return invar_masked_stats_finite(&loss->tally, v->sample, row_of(loss, ROW_SLOPE),
                                     "the loss's derivative");
}

/* ---- one sample ------------------------------------------------------------------------------ */

/* Zeroes masked values of a row and adds its sum to a column. */
static void add_masked_sum(invar_loss *loss, const invar_loss_sample_view *v, int column, int row,
                           const uint8_t *mask)
{
    float *x = row_of(loss, row);

    if (column < 0)
        return;
    for (int64_t t = 0; t < v->tokens; t++)
        x[t] = mask[t] ? x[t] : 0.0f;
    invar_masked_stats_put(&loss->tally, column, v->sample, x);
}

/* Writes dnow of the main term: slope times factor; with one ratio, the mean over all tokens. */
static void write_main_gradient(invar_loss *loss, const invar_loss_sample_view *v)
{
    float factor = invar_masked_stats_factor(&loss->tally, v->sample, loss->divisor);
    float count = loss->tally.count[v->sample];
    float *slope = row_of(loss, ROW_SLOPE);

    for (int64_t t = 0; t < v->tokens; t++)
        v->dnow[t] = slope[t] = v->keep[t] ? slope[t] * factor : 0.0f;
    if (loss->one_ratio) {
        float each = invar_reduce_f32(slope, v->tokens) / (count < 1.0f ? 1.0f : count);
        for (int64_t t = 0; t < v->tokens; t++)
            v->dnow[t] = v->mask[t] ? each : 0.0f;
    }
}

/* Returns the effective sample size relative to the count: (sum w)^2 / (count * sum w^2). */
static float ess_ratio(invar_loss *loss, const invar_loss_sample_view *v)
{
    float *w = row_of(loss, ROW_RATIO), *squares = row_of(loss, ROW_OTHER);
    float sum, sum2;

    for (int64_t t = 0; t < v->tokens; t++) {
        w[t] = v->mask[t] ? w[t] : 0.0f;
        squares[t] = w[t] * w[t];
    }
    sum = invar_reduce_f32(w, v->tokens);
    sum2 = invar_reduce_f32(squares, v->tokens);
    sum2 = sum2 < 1e-8f ? 1e-8f : sum2;
    return loss->tally.count[v->sample] < 1.0f
               ? 0.0f
               : (sum * sum) / (loss->tally.count[v->sample] * sum2);
}

static void add_policy_metrics(invar_loss *loss, const invar_loss_sample_view *v)
{
    float *distance = row_of(loss, ROW_LOG_RATIO);

    if (!loss->traits->policy)
        return;
    for (int64_t t = 0; t < v->tokens; t++)
        distance[t] = 0.0f - distance[t];
    add_masked_sum(loss, v, loss->column_ids.ppo_kl, ROW_LOG_RATIO, v->keep);
    if (loss->column_ids.opsm >= 0 &&
        loss->tally.per_token) // Miles' definition: the share of the sample
        for (int64_t t = 0; t < v->tokens; t++)
            row_of(loss, ROW_OPSM)[t] /= loss->tally.count[v->sample];
    add_masked_sum(loss, v, loss->column_ids.opsm, ROW_OPSM, v->mask);
    invar_masked_stats_put_all(&loss->tally, loss->column_ids.ess_ratio, v->sample,
                               ess_ratio(loss, v));
    add_masked_sum(loss, v, loss->column_ids.ois, ROW_RATIO, v->mask);
}

static invar_status add_kl_loss(invar_loss *loss, const invar_loss_sample_view *v)
{
    const invar_rl_batch *b = loss->batch;
    float factor = invar_masked_stats_factor(&loss->tally, v->sample, 0.0f);
    float scale = loss->options.kl.loss_coef * factor;

    if (loss->column_ids.kl < 0)
        return INVAR_OK;
    for (int64_t t = 0; t < v->tokens; t++) {
        float ref = b->ref_logp[v->first + t];
        invar_kl_term k = loss->options.kl.unbiased
                              ? invar_kl_unbiased(loss->options.kl.type, v->now[t], ref,
                                                  b->old_logp[v->first + t])
                              : invar_kl_at(loss->options.kl.type, v->now[t], ref);
        row_of(loss, ROW_OTHER)[t] = k.value;
        if (v->keep[t])
            v->dnow[t] = v->dnow[t] + k.slope * scale;
    }
    INVAR_TRY(
        invar_masked_stats_finite(&loss->tally, v->sample, row_of(loss, ROW_OTHER), "the KL loss"));
    add_masked_sum(loss, v, loss->column_ids.kl, ROW_OTHER, v->keep);
    return INVAR_OK;
}

static invar_status add_entropy_loss(invar_loss *loss, const invar_loss_sample_view *v)
{
    float scale =
        loss->options.entropy_coef * invar_masked_stats_factor(&loss->tally, v->sample, 0.0f);

    for (int64_t t = 0; v->dentropy && t < v->tokens; t++)
        v->dentropy[t] = v->keep[t] && scale != 0.0f ? -scale : 0.0f;
    if (loss->column_ids.entropy < 0 || !v->entropy)
        return INVAR_OK;
    INVAR_TRY(invar_masked_stats_finite(&loss->tally, v->sample, v->entropy, "the entropy"));
    memcpy(row_of(loss, ROW_OTHER), v->entropy, (size_t)v->tokens * sizeof(float));
    add_masked_sum(loss, v, loss->column_ids.entropy, ROW_OTHER, v->keep);
    return INVAR_OK;
}

static invar_status run_sample(invar_loss *loss, const invar_loss_sample_view *v)
{
    const char *what = loss->traits->values ? "the value of the training forward"
                                            : "the log-probability of the training forward";

    INVAR_TRY(invar_masked_stats_finite(&loss->tally, v->sample, v->now, what));
    INVAR_TRY(compute_rows(loss, v));
    add_masked_sum(loss, v, loss->column_ids.main, ROW_LOSS, v->keep);
    add_masked_sum(loss, v, loss->column_ids.clipfrac, ROW_CLIPPED, v->keep);
    write_main_gradient(loss, v);
    add_policy_metrics(loss, v);
    INVAR_TRY(add_kl_loss(loss, v));
    INVAR_TRY(add_entropy_loss(loss, v));
    return invar_masked_stats_finite(&loss->tally, v->sample, v->dnow, "the gradient of the loss");
}

invar_status invar_loss_run(invar_loss *loss, int64_t first, int64_t count, const float *now,
                            const float *entropy, float *dnow_out, float *dentropy_out)
{
    const int64_t *start = loss->batch->offsets;

    if (first < 0 || count < 0 || count > loss->batch->samples - first)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "loss: samples %lld + %lld of %lld", (long long)first,
                          (long long)count, (long long)loss->batch->samples);
    if (loss->options.entropy_coef != 0.0f && loss->column_ids.entropy >= 0 &&
        (!entropy || !dentropy_out))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "loss: entropy-coef needs the entropies");
    for (int64_t i = first; i < first + count; i++) {
        int64_t offset = start[i] - start[first];
        invar_loss_sample_view v = {.sample = i,
                                    .first = start[i],
                                    .tokens = start[i + 1] - start[i],
                                    .mask = loss->batch->mask + start[i],
                                    .keep = loss->importance.keep + start[i],
                                    .now = now + offset,
                                    .entropy = entropy ? entropy + offset : NULL,
                                    .dnow = dnow_out + offset,
                                    .dentropy = dentropy_out ? dentropy_out + offset : NULL};
        if (loss->seen[i])
            return INVAR_FAIL(INVAR_E_STATE, 0, "loss: sample %lld was already taken",
                              (long long)i);
        INVAR_TRY(run_sample(loss, &v));
        loss->seen[i] = 1;
    }
    return INVAR_OK;
}

/* ---- step ------------------------------------------------------------------------------------ */

static invar_status require_array(const void *array, bool needed, const char *what, const char *why)
{
    if (needed && !array)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "loss: %s needs %s", why, what);
    return INVAR_OK;
}

static invar_status check_arrays(const invar_loss *loss)
{
    const invar_rl_options *o = &loss->options;
    const invar_rl_batch *b = loss->batch;
    bool policy = loss->traits->policy, value = loss->traits->values;
    bool kl = o->kl.use_loss && loss->traits->regularized;

    INVAR_TRY(require_array(loss->advantage, policy, "advantages", "the policy loss"));
    INVAR_TRY(require_array(b->old_logp, policy, "old log-probabilities", "the policy loss"));
    INVAR_TRY(require_array(b->ref_logp, kl, "reference log-probabilities", "use-kl-loss"));
    INVAR_TRY(require_array(b->old_logp, kl && o->kl.unbiased, "old log-probabilities",
                            "use-unbiased-kl"));
    INVAR_TRY(require_array(b->rollout_logp, policy && (o->tis.use || o->mis.use),
                            "the rollout's log-probabilities", "use-tis"));
    INVAR_TRY(require_array(loss->returns, value, "returns", "the value loss"));
    INVAR_TRY(require_array(b->values, value && o->clip.value > 0.0f, "old values", "value-clip"));
    INVAR_TRY(require_array(o->custom, loss->traits->plugin, "a plug-in", "a custom loss"));
    return INVAR_OK;
}

static invar_status check_limits(const invar_rl_options *o)
{
    if (o->clip.dual != 0.0f && !(o->clip.dual > 1.0f))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "loss: eps-clip-c is %g; 0 or above 1 is allowed",
                          (double)o->clip.dual);
    if (o->tis.use && !(o->tis.high > 0.0f && o->tis.low <= o->tis.high))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "loss: TIS keeps weights in %g to %g: nothing",
                          (double)o->tis.low, (double)o->tis.high);
    if (o->mis.use && !(o->mis.high > 0.0f && o->mis.low <= o->mis.high))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "loss: MIS keeps weights in %g to %g: nothing",
                          (double)o->mis.low, (double)o->mis.high);
    return INVAR_OK;
}

static invar_status check_values(const invar_loss *loss)
{
    const invar_rl_batch *b = loss->batch;
    const invar_masked_stats *tally = &loss->tally;

    if (loss->traits->supervised)
        return INVAR_OK;
    if (loss->traits->values) {
        INVAR_TRY(invar_masked_stats_finite_all(tally, b->values, "the old value"));
        return invar_masked_stats_finite_all(tally, loss->returns, "the return");
    }
    INVAR_TRY(invar_masked_stats_finite_all(tally, loss->advantage, "the advantage"));
    INVAR_TRY(invar_masked_stats_finite_all(tally, b->old_logp, "the old log-probability"));
    INVAR_TRY(
        invar_masked_stats_finite_all(tally, b->rollout_logp, "the rollout's log-probability"));
    INVAR_TRY(invar_masked_stats_finite_all(tally, b->ref_logp, "the reference log-probability"));
    return invar_masked_stats_finite_all(tally, b->teacher_logp, "the teacher's log-probability");
}

static void add_columns(invar_loss *loss)
{
    const invar_rl_options *o = &loss->options;
    invar_masked_stats *tally = &loss->tally;
    columns column_ids = {-1, -1, -1, -1, -1, -1, -1, -1};

    column_ids.main = invar_masked_stats_add(tally, loss->traits->metric);
    if (loss->traits->regularized) {
        column_ids.entropy = invar_masked_stats_add(tally, "entropy_loss");
        column_ids.kl = o->kl.use_loss ? invar_masked_stats_add(tally, "kl_loss") : -1;
    }
    if (loss->traits->clip_metric)
        column_ids.clipfrac = invar_masked_stats_add(tally, loss->traits->clip_metric);
    if (loss->traits->policy) {
        column_ids.ppo_kl = invar_masked_stats_add(tally, "ppo_kl");
        column_ids.ess_ratio = invar_masked_stats_add(tally, "ess_ratio");
        column_ids.opsm = o->opsm.use ? invar_masked_stats_add(tally, "opsm_clipfrac") : -1;
        column_ids.ois = o->tis.use || o->mis.use ? invar_masked_stats_add(tally, "ois") : -1;
    }
    loss->column_ids = column_ids;
}

static invar_status prepare_loss(invar_loss *loss)
{
    const invar_rl_options *o = &loss->options;
    size_t samples = (size_t)loss->batch->samples;
    void *block;

    INVAR_TRY(check_arrays(loss));
    INVAR_TRY(check_limits(o));
    INVAR_TRY(invar_masked_stats_init(&loss->tally, loss->batch, o->per_token_loss));
    INVAR_TRY(check_values(loss));
    add_columns(loss);
    INVAR_TRY(invar_importance_init(&loss->importance, &loss->tally, o));
    loss->divisor = loss->traits->regularized ? o->constant_divisor : 0.0f;
    INVAR_TRY(invar_alloc(&block, (size_t)loss->tally.longest, ROWS * sizeof(float),
                          "one sample's losses"));
    loss->rows = block;
    INVAR_TRY(invar_alloc(&block, samples, 1, "marks of samples"));
    loss->seen = block;
    memset(loss->seen, 0, samples);
    return INVAR_OK;
}

invar_status invar_loss_new(invar_loss **out, const invar_rl_batch *batch,
                            const invar_rl_options *options, const float *advantage,
                            const float *returns)
{
    invar_status status;
    invar_loss *loss;
    void *block;

    INVAR_TRY(invar_alloc(&block, 1, sizeof *loss, "a loss"));
    loss = block;
    memset(loss, 0, sizeof *loss);
    loss->batch = batch;
    loss->options = *options;
    loss->traits = invar_loss_traits_of(options->loss);
    loss->one_ratio =
        loss->traits->policy && invar_estimator_traits_of(options->estimator)->one_ratio;
    loss->advantage = advantage;
    loss->returns = returns;
    status = prepare_loss(loss);
    if (status == INVAR_OK)
        *out = loss;
    else
        invar_loss_free(loss);
    return status;
}

void invar_loss_free(invar_loss *loss)
{
    if (!loss)
        return;
    invar_masked_stats_release(&loss->tally);
    invar_importance_release(&loss->importance);
    invar_free(loss->rows);
    invar_free(loss->seen);
    invar_free(loss);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void set_metric(invar_loss_metric *metric, const char *name, float value)
{
    snprintf(metric->name, sizeof metric->name, "train/%s", name);
    metric->value = (double)value;
}

static float column_mean(const invar_loss *loss, int column)
{
    float divisor = column == loss->column_ids.main ? loss->divisor : 0.0f;

    return column < 0 ? 0.0f : invar_masked_stats_mean(&loss->tally, column, divisor);
}

invar_status invar_loss_metrics(const invar_loss_metric **out, size_t *count_out, invar_loss *loss)
{
    float total = column_mean(loss, loss->column_ids.main);
    size_t count = 0;

    for (int64_t i = 0; i < loss->batch->samples; i++) {
        if (!loss->seen[i])
            return INVAR_FAIL(INVAR_E_STATE, 0, "loss: sample %lld is missing from the step",
                              (long long)i);
    }
    if (loss->column_ids.entropy >= 0)
        total = total - loss->options.entropy_coef * column_mean(loss, loss->column_ids.entropy);
    if (loss->column_ids.kl >= 0)
        total = total + loss->options.kl.loss_coef * column_mean(loss, loss->column_ids.kl);
    set_metric(&loss->metrics[count++], "loss", total);
    for (int column = 0; column < loss->tally.columns; column++)
        set_metric(&loss->metrics[count++], loss->tally.name[column], column_mean(loss, column));
    *out = loss->metrics;
    *count_out = count;
    return INVAR_OK;
}
