/*
 * importance.c - TIS, MIS and OPSM: importance weights, rejection, and metrics of the mismatch.
 *
 * The log-ratio of a token is old - rollout. Sums are over the unmasked tokens of the batch; tokens
 * that MIS rejects leave the numerators of the loss, never a denominator. The normalizer of the
 * weights is one number of the whole step (in Miles: of a micro-batch), so micro-batching changes
 * no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/importance.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/rl/kl.h"
#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/reduce.h"

#include "base/invar_banned.h"

static const float MIN_NORMALIZER = 1e-8f;

typedef struct importance_call {
    invar_importance *importance;
    invar_masked_stats *tally;
    const invar_rl_batch *batch;
    const invar_rl_options *options;
    float low, high, rs_low, rs_high; /* bounds of MIS, with defaults resolved */
    float bound;                      /* bound that below_at and above_at compare with */
} importance_call;

/* ---- per-token values as columns ------------------------------------------------------------- */

typedef float (*value_fn)(const importance_call *w, int64_t t);

static float sum_values(const importance_call *w, int64_t sample, value_fn value)
{
    const int64_t *start = w->batch->offsets;
    int64_t tokens = start[sample + 1] - start[sample];

    for (int64_t t = 0; t < tokens; t++) {
        bool counts = w->batch->mask[start[sample] + t] != 0;
        w->tally->row[t] = counts ? value(w, start[sample] + t) : 0.0f;
    }
    return invar_reduce_f32(w->tally->row, tokens);
}

static void add_column(const importance_call *w, const char *name, value_fn value)
{
    int column = invar_masked_stats_add(w->tally, name);

    for (int64_t i = 0; i < w->batch->samples; i++) {
        sum_values(w, i, value);
        invar_masked_stats_put(w->tally, column, i, w->tally->row);
    }
}

/* Adds the column of below_at or above_at with this bound. */
static void add_column_beyond(const importance_call *w, const char *name, value_fn value,
                              float bound)
{
    importance_call with = *w;

    with.bound = bound;
    add_column(&with, name, value);
}

static float log_ratio(const importance_call *w, int64_t t)
{
    return w->batch->old_logp[t] - w->batch->rollout_logp[t];
}

static float abs_diff_at(const importance_call *w, int64_t t)
{
    return invar_abs_f32(log_ratio(w, t));
}

/* KL divergence of the trainer from the sampler, whose log-prob is the first argument. */
static float rollout_kl_at(const importance_call *w, int64_t t)
{
    return invar_kl_at(INVAR_KL_LOW_VAR, w->batch->rollout_logp[t], w->batch->old_logp[t]).value;
}

static float reverse_kl_at(const importance_call *w, int64_t t)
{
    return w->batch->old_logp[t] - w->batch->teacher_logp[t];
}

static float ratio_at(const importance_call *w, int64_t t)
{
    return invar_ratio_of(log_ratio(w, t)).value;
}

static float ratio_off_at(const importance_call *w, int64_t t)
{
    return invar_abs_f32(ratio_at(w, t) - 1.0f);
}

static float weight_at(const importance_call *w, int64_t t)
{
    return w->importance->weight[t];
}

static float changed_at(const importance_call *w, int64_t t)
{
    return w->importance->weight[t] != ratio_at(w, t) ? 1.0f : 0.0f;
}

static float below_at(const importance_call *w, int64_t t)
{
    return w->importance->weight[t] < w->bound ? 1.0f : 0.0f;
}

static float above_at(const importance_call *w, int64_t t)
{
    return w->importance->weight[t] > w->bound ? 1.0f : 0.0f;
}

static float kl_at(const importance_call *w, int64_t t)
{
    return w->batch->rollout_logp[t] - w->batch->old_logp[t];
}

static float k3_at(const importance_call *w, int64_t t)
{
    return invar_kl_at(INVAR_KL_K3, w->batch->rollout_logp[t], w->batch->old_logp[t]).value;
}

static float old_at(const importance_call *w, int64_t t)
{
    return w->batch->old_logp[t];
}

static float rollout_at(const importance_call *w, int64_t t)
{
    return w->batch->rollout_logp[t];
}

static float ratio_square_at(const importance_call *w, int64_t t)
{
    float ratio = ratio_at(w, t);

    return ratio * ratio;
}

/* ---- TIS ------------------------------------------------------------------------------------- */

static void apply_tis(const importance_call *w)
{
    float low = w->options->tis.low, high = w->options->tis.high;

    for (int64_t t = 0; t < w->batch->offsets[w->batch->samples]; t++) {
        float ratio = w->batch->mask[t] ? ratio_at(w, t) : 0.0f;
        float cut = ratio < low ? low : ratio > high ? high : ratio;
        if (w->options->tis.mode == INVAR_TIS_MODE_ICEPOP)
            cut = ratio >= low && ratio <= high ? ratio : 0.0f;
        w->importance->weight[t] = cut;
    }
    add_column(w, "tis", ratio_at);
    add_column(w, "tis_clipfrac", changed_at);
    add_column(w, "tis_abs", ratio_off_at);
}

/* ---- MIS ------------------------------------------------------------------------------------- */

static float count_or_one(const importance_call *w, int64_t sample)
{
    return w->tally->count[sample] < 1.0f ? 1.0f : w->tally->count[sample];
}

/* Writes the raw weights of a level for every token. */
static void raw_weights(const importance_call *w, invar_mis_level level)
{
    const int64_t *start = w->batch->offsets;

    for (int64_t i = 0; i < w->batch->samples; i++) {
        float sum = level == INVAR_MIS_LEVEL_TOKEN ? 0.0f : sum_values(w, i, log_ratio);
        if (level == INVAR_MIS_LEVEL_GEOMETRIC)
            sum = sum / count_or_one(w, i);
        for (int64_t t = start[i]; t < start[i + 1]; t++) {
            bool token = level == INVAR_MIS_LEVEL_TOKEN;
            float x = token && w->batch->mask[t] ? log_ratio(w, t) : sum;
            w->importance->weight[t] = w->batch->mask[t] ? invar_ratio_of(x).value : 0.0f;
        }
    }
}

static void reject_outside(const importance_call *w, float low, float high)
{
    for (int64_t t = 0; t < w->batch->offsets[w->batch->samples]; t++) {
        float weight = w->importance->weight[t];
        if (weight < low || weight > high)
            w->importance->keep[t] = 0;
    }
}

/* Rejects samples with a token that the trainer considers almost impossible. */
static void apply_veto(const importance_call *w)
{
    const int64_t *start = w->batch->offsets;
    float least = invar_log(w->options->mis.rs.veto);
    int tokens = invar_masked_stats_add(w->tally, "mis_rs_catastrophic_token_fraction");
    int samples = invar_masked_stats_add(w->tally, "mis_rs_catastrophic_seq_fraction");

    for (int64_t i = 0; i < w->batch->samples; i++) {
        bool any = false;
        for (int64_t t = start[i]; t < start[i + 1]; t++) {
            bool bad = w->batch->mask[t] && log_ratio(w, t) < least;
            w->tally->row[t - start[i]] = bad ? 1.0f : 0.0f;
            any = any || bad;
        }
        invar_masked_stats_put(w->tally, tokens, i, w->tally->row);
        invar_masked_stats_put_all(w->tally, samples, i, any ? 1.0f : 0.0f);
        if (any)
            memset(w->importance->keep + start[i], 0, (size_t)(start[i + 1] - start[i]));
    }
}

static void apply_rejection(const importance_call *w)
{
    raw_weights(w, w->options->mis.rs.level);
    add_column_beyond(w, "mis_rs_mask_fraction_low", below_at, w->rs_low);
    add_column_beyond(w, "mis_rs_mask_fraction_high", above_at, w->rs_high);
    reject_outside(w, w->rs_low, w->rs_high);
    if (w->options->mis.rs.veto > 0.0f)
        apply_veto(w);
}

static void bound_weights(const importance_call *w)
{
    bool truncate = w->options->mis.mode == INVAR_MIS_MODE_TRUNCATE;

    add_column(w, "mis_tis_weight_before_bound", weight_at);
    switch (w->options->mis.mode) {
    case INVAR_MIS_MODE_TRUNCATE:
        add_column_beyond(w, "mis_tis_truncate_fraction", above_at, w->high);
        break;
    case INVAR_MIS_MODE_CLIP:
        add_column_beyond(w, "mis_tis_clip_fraction_low", below_at, w->low);
        add_column_beyond(w, "mis_tis_clip_fraction_high", above_at, w->high);
        break;
    case INVAR_MIS_MODE_MASK:
        add_column_beyond(w, "mis_tis_mask_fraction_low", below_at, w->low);
        add_column_beyond(w, "mis_tis_mask_fraction_high", above_at, w->high);
        reject_outside(w, w->low, w->high);
        break;
    case INVAR_MIS_MODE_COUNT: break;
    }
    for (int64_t t = 0; t < w->batch->offsets[w->batch->samples]; t++) {
        float *weight = &w->importance->weight[t];
        if (!w->batch->mask[t] || w->options->mis.mode == INVAR_MIS_MODE_MASK)
            continue;
        *weight = !truncate && *weight < w->low ? w->low : *weight;
        *weight = *weight > w->high ? w->high : *weight;
    }
    add_column(w, "mis_tis_weight_after_bound", weight_at);
}

/* Scales the weights to a mean of 1 over tokens, or over samples if a sample has one weight. */
static void normalize_weights(const importance_call *w)
{
    bool token = w->options->mis.level == INVAR_MIS_LEVEL_TOKEN;
    int column = invar_masked_stats_add(w->tally, "mis_batch_norm_factor");
    float tokens = w->tally->tokens < 1.0f ? 1.0f : w->tally->tokens, mean;

    for (int64_t i = 0; i < w->batch->samples; i++) {
        float sum = sum_values(w, i, weight_at);
        w->tally->scratch[i] = token ? sum : sum / count_or_one(w, i);
    }
    mean = invar_reduce_f32(w->tally->scratch, w->batch->samples);
    mean = mean / (token ? tokens : (float)w->batch->samples);
    mean = mean > MIN_NORMALIZER ? mean : 1.0f;
    for (int64_t t = 0; t < w->batch->offsets[w->batch->samples]; t++)
        w->importance->weight[t] = w->importance->weight[t] / mean;
    for (int64_t i = 0; i < w->batch->samples; i++)
        invar_masked_stats_put_all(w->tally, column, i, mean);
}

static void add_extremes(const importance_call *w)
{
    const int64_t *start = w->batch->offsets;
    int least = invar_masked_stats_add(w->tally, "mis_is_ratio_min_final");
    int most = invar_masked_stats_add(w->tally, "mis_is_ratio_max_final");

    for (int64_t i = 0; i < w->batch->samples; i++) {
        float low = 0.0f, high = 0.0f;
        bool any = false;
        for (int64_t t = start[i]; t < start[i + 1]; t++) {
            float x = w->importance->weight[t];
            if (!w->batch->mask[t])
                continue;
            low = !any || x < low ? x : low;
            high = !any || x > high ? x : high;
            any = true;
        }
        invar_masked_stats_put_all(w->tally, least, i, low);
        invar_masked_stats_put_all(w->tally, most, i, high);
    }
}

/* Adds perplexities and chi-squared of trainer and sampler, one value per sample. */
static void add_perplexities(const importance_call *w)
{
    static const char *const names[] = {
        "mis_training_log_ppl", "mis_training_ppl", "mis_rollout_log_ppl",
        "mis_rollout_ppl",      "mis_log_ppl_diff", "mis_log_ppl_abs_diff",
        "mis_ppl_ratio",        "mis_chi2_token",   "mis_chi2_seq"};
    enum { VALUES = sizeof names / sizeof names[0] };
    int first = w->tally->columns;

    for (int i = 0; i < VALUES; i++)
        invar_masked_stats_add(w->tally, names[i]);
    for (int64_t i = 0; i < w->batch->samples; i++) {
        float count = count_or_one(w, i);
        float old = sum_values(w, i, old_at) / count;
        float rollout = sum_values(w, i, rollout_at) / count;
        float sequence = invar_ratio_of(sum_values(w, i, log_ratio)).value;
        float squares = sum_values(w, i, ratio_square_at) / count;
        float diff = rollout - old;
        const float values[VALUES] = {-old,
                                      invar_exp(-old),
                                      -rollout,
                                      invar_exp(-rollout),
                                      diff,
                                      invar_abs_f32(diff),
                                      invar_exp(diff),
                                      squares - 1.0f,
                                      sequence * sequence - 1.0f};
        for (int j = 0; j < VALUES; j++)
            invar_masked_stats_put_all(w->tally, first + j, i, values[j]);
    }
}

static void apply_mis(importance_call *w)
{
    const invar_rl_options *o = w->options;

    w->high = o->mis.high;
    w->low = o->mis.low > 0.0f ? o->mis.low : 1.0f / o->mis.high;
    w->rs_low = o->mis.rs.low > 0.0f ? o->mis.rs.low : w->low;
    w->rs_high = o->mis.rs.high > 0.0f ? o->mis.rs.high : w->high;
    add_perplexities(w);
    add_column(w, "mis_kl", kl_at);
    add_column(w, "mis_k3_kl", k3_at);
    if (o->mis.rs.use)
        apply_rejection(w);
    raw_weights(w, o->mis.level);
    bound_weights(w);
    add_column(w, "mis_is_ratio_mean_after_tis_rs", weight_at);
    if (o->mis.batch_normalize)
        normalize_weights(w);
    add_column(w, "mis_is_ratio_mean_final", weight_at);
    add_extremes(w);
}

/* ---- entry points ---------------------------------------------------------------------------- */

/* Returns false for the same array or a copy: their difference is always 0. */
static bool is_comparable(const invar_rl_batch *batch)
{
    return batch->old_logp && batch->rollout_logp && batch->old_logp != batch->rollout_logp &&
           !batch->copied;
}

invar_status invar_importance_init(invar_importance *out, invar_masked_stats *stats,
                                   const invar_rl_options *options)
{
    const invar_rl_batch *batch = stats->batch;
    size_t tokens = (size_t)batch->offsets[batch->samples];
    bool policy = invar_loss_traits_of(options->loss)->policy;
    importance_call w = {.importance = out, .tally = stats, .batch = batch, .options = options};
    void *block;

    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_alloc(&block, tokens, sizeof(float) + 1, "importance weights"));
    out->memory = block;
    out->keep = (uint8_t *)block + tokens * sizeof(float);
    memcpy(out->keep, batch->mask, tokens);
    if (policy && is_comparable(batch)) {
        add_column(&w, "train_rollout_logprob_abs_diff", abs_diff_at);
        add_column(&w, "train_rollout_kl", rollout_kl_at);
    }
    if (policy && batch->old_logp && batch->teacher_logp)
        add_column(&w, "opd_reverse_kl", reverse_kl_at);
    if (!policy || (!options->tis.use && !options->mis.use))
        return INVAR_OK;
    out->weight = block;
    if (options->mis.use)
        apply_mis(&w);
    else
        apply_tis(&w);
    return INVAR_OK;
}

void invar_importance_release(invar_importance *importance)
{
    invar_free(importance->memory);
    memset(importance, 0, sizeof *importance);
}

float invar_importance_distance(const invar_masked_stats *stats, int64_t sample, const float *now)
{
    const invar_rl_batch *batch = stats->batch;
    int64_t first = batch->offsets[sample], tokens = batch->offsets[sample + 1] - first;
    float count = stats->count[sample];

    for (int64_t t = 0; t < tokens; t++) {
        float d = batch->old_logp[first + t] - now[t];
        stats->row[t] = batch->mask[first + t] ? d : 0.0f;
    }
    return invar_reduce_f32(stats->row, tokens) / (count < 1.0f ? 1.0f : count);
}
