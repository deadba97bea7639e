/*
 * advantage.c - computes advantages: group normalization, estimator, distillation, whitening.
 *
 * The estimators are in estimator.c. Each operator is one fp32 operation, in the order of
 * docs/arithmetic.md, section 13; reordering changes bits. Masked tokens have advantage and return
 * +0.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/rl/estimator.h"
#include "kernels-deterministic/math/portable.h"
#include "kernels-deterministic/math/reduce.h"

#include "base/invar_banned.h"

static const float STD_EPS = 1e-6f;
static const float WHITEN_EPS = 1e-8f;

/* ---- rewards --------------------------------------------------------------------------------- */

static bool all_equal(const float *x, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        if (x[i] != x[0])
            return false;
    }
    return true;
}

/*
 * Normalizes in place: subtracts the mean and divides by the deviation if wanted. Equal rewards
 * give exactly +0, also if their mean is not exact; otherwise the rounding error of the mean would
 * be scaled up.
 */
static void normalize_group(float *x, float *room, int64_t n, bool deviation)
{
    float mean, std;

    if (all_equal(x, n)) {
        memset(x, 0, (size_t)n * sizeof *x);
        return;
    }
    mean = invar_reduce_f32(x, n) / (float)n;
    for (int64_t i = 0; i < n; i++) {
        x[i] = x[i] - mean;
        room[i] = x[i] * x[i];
    }
    std = invar_sqrtf(invar_reduce_f32(room, n) / (float)(n - 1));
    if (!deviation || !(std > 0.0f))
        return;
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] / (std + STD_EPS);
}

static bool uses_groups(const invar_rl_options *options)
{
    return options->rewards_normalization && invar_estimator_traits_of(options->estimator)->grouped;
}

static void normalize_rewards(invar_advantage_state *w)
{
    const invar_rl_batch *batch = w->batch;
    const bool deviation = w->options->std_normalization && w->traits->scaled;
    int64_t first = 0;

    if (!uses_groups(w->options))
        return;
    for (int64_t i = 1; i <= batch->samples; i++) {
        if (i < batch->samples && batch->group[i] == batch->group[first])
            continue;
        normalize_group(w->reward + first, w->stats.scratch, i - first, deviation);
        first = i;
    }
}

/* ---- after the estimator --------------------------------------------------------------------- */

/* Subtracts the sampled reverse KL to the teacher. */
static void subtract_teacher_kl(invar_advantage_state *w)
{
    const invar_rl_batch *batch = w->batch;

    if (!(w->options->opd_kl_coef > 0.0f))
        return;
    for (int64_t t = 0; t < batch->offsets[batch->samples]; t++) {
        float reverse_kl = batch->old_logp[t] - batch->teacher_logp[t];
        if (batch->mask[t])
            w->advantage[t] = w->advantage[t] - w->options->opd_kl_coef * reverse_kl;
    }
}

/* Sums the tokens of each sample, then the samples in order. */
static float sum_masked_tokens(invar_advantage_state *w, float center, bool squares)
{
    const invar_rl_batch *batch = w->batch;

    for (int64_t i = 0; i < batch->samples; i++) {
        int64_t first = batch->offsets[i], tokens = batch->offsets[i + 1] - first;
        for (int64_t t = 0; t < tokens; t++) {
            float x = batch->mask[first + t] ? w->advantage[first + t] - center : 0.0f;
            w->stats.row[t] = squares ? x * x : x;
        }
        w->stats.scratch[i] = invar_reduce_f32(w->stats.row, tokens);
    }
    return invar_reduce_f32(w->stats.scratch, batch->samples);
}

/*
 * Returns true if all unmasked advantages are equal: whitening would only scale up rounding errors.
 */
static bool is_constant(const invar_advantage_state *w)
{
    const invar_rl_batch *batch = w->batch;
    const float *first = NULL;

    for (int64_t t = 0; t < batch->offsets[batch->samples]; t++) {
        if (!batch->mask[t])
            continue;
        first = first ? first : &w->advantage[t];
        if (w->advantage[t] != *first)
            return false;
    }
    return true;
}

static void whiten_advantages(invar_advantage_state *w)
{
    const invar_rl_batch *batch = w->batch;
    bool equal = is_constant(w);
    float n = w->stats.tokens, mean, variance, scale;

    if (n < 1.0f)
        return;
    mean = sum_masked_tokens(w, 0.0f, false) / n;
    variance = equal ? 0.0f : sum_masked_tokens(w, mean, true) / (n - 1.0f);
    scale = 1.0f / invar_sqrtf(variance + WHITEN_EPS);
    for (int64_t t = 0; t < batch->offsets[batch->samples]; t++) {
        if (batch->mask[t])
            w->advantage[t] = equal ? 0.0f : (w->advantage[t] - mean) * scale;
    }
}

/* ---- entry point ----------------------------------------------------------------------------- */

static invar_status require_array(const void *array, bool needed, const char *what, const char *why)
{
    if (needed && !array)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "advantages: %s needs %s", why, what);
    return INVAR_OK;
}

static invar_status check_arrays(const invar_rl_batch *batch, const invar_rl_options *options)
{
    const invar_estimator_traits *facts = invar_estimator_traits_of(options->estimator);
    const char *name = invar_choices_word(&invar_estimator_choices, (int)options->estimator);
    bool teacher = facts->teacher || options->opd_kl_coef > 0.0f;
    bool penalty = facts->penalized && options->kl.reward_coef != 0.0f;

    INVAR_TRY(require_array(batch->reward, facts->needs_reward, "rewards", "the estimator"));
    INVAR_TRY(require_array(batch->group, uses_groups(options), "groups", "rewards-normalization"));
    INVAR_TRY(require_array(batch->values, facts->critic, "a critic's values", name));
    INVAR_TRY(require_array(batch->old_logp, penalty || teacher, "old log-probabilities",
                            teacher ? "distillation" : "kl-coef"));
    INVAR_TRY(require_array(batch->ref_logp, penalty, "reference log-probabilities", "kl-coef"));
    INVAR_TRY(require_array(batch->teacher_logp, teacher, "a teacher's log-probabilities",
                            "distillation"));
    if (facts->teacher && !(options->opd_kl_coef > 0.0f))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "advantages: %s with opd-kl-coef 0 gives zeros only; set a positive "
                          "coefficient",
                          name);
    return INVAR_OK;
}

static invar_status load_rewards(invar_advantage_state *w)
{
    for (int64_t i = 0; i < w->batch->samples; i++) {
        float r = w->batch->reward ? w->batch->reward[i] : 0.0f;
        if (r - r != 0.0f)
            return INVAR_FAIL(INVAR_E_STATE, 0, "sample %lld: the reward is not finite",
                              (long long)i);
        w->reward[i] = r;
    }
    normalize_rewards(w);
    return INVAR_OK;
}

static invar_status compute_advantages(invar_advantage_state *w)
{
    const invar_rl_batch *batch = w->batch;
    const invar_rl_options *options = w->options;
    size_t bytes = (size_t)batch->offsets[batch->samples] * sizeof(float);

    memset(w->advantage, 0, bytes);
    memset(w->returns, 0, bytes);
    INVAR_TRY(load_rewards(w));
    for (int64_t i = 0; i < batch->samples; i++)
        w->traits->estimate(w, i);
    subtract_teacher_kl(w);
    // checked before whitening, which would spread a value that is not finite to all tokens
    INVAR_TRY(invar_masked_stats_finite_all(&w->stats, w->advantage, "the advantage"));
    INVAR_TRY(invar_masked_stats_finite_all(&w->stats, w->returns, "the return"));
    if (options->normalize_advantages || w->traits->whitened)
        whiten_advantages(w);
    return invar_masked_stats_finite_all(&w->stats, w->advantage, "the whitened advantage");
}

invar_status invar_rl_advantages(float *advantage_out, float *returns_out,
                                 const invar_rl_batch *batch, const invar_rl_options *options)
{
    invar_advantage_state w = {.batch = batch,
                               .options = options,
                               .traits = invar_estimator_traits_of(options->estimator),
                               .advantage = advantage_out};
    invar_status status;
    void *block;

    INVAR_TRY(check_arrays(batch, options));
    INVAR_TRY(invar_masked_stats_init(&w.stats, batch, options->per_token_loss));
    w.reward = w.stats.sums; // the columns are not used here
    w.returns = returns_out;
    if (!returns_out) {
        status = invar_alloc(&block, (size_t)batch->offsets[batch->samples], sizeof(float),
                             "returns of a batch");
        if (status != INVAR_OK)
            goto done;
        w.owned = w.returns = block;
    }
    status = compute_advantages(&w);
done:
    invar_free(w.owned);
    invar_masked_stats_release(&w.stats);
    return status;
}

bool invar_rl_group_keeps(const float *reward, int64_t count)
{
    double mean = 0.0, sum = 0.0;

    if (count < 2)
        return false;
    for (int64_t i = 0; i < count; i++)
        mean += (double)reward[i];
    mean /= (double)count;
    for (int64_t i = 0; i < count; i++)
        sum += ((double)reward[i] - mean) * ((double)reward[i] - mean);
    return sum / (double)(count - 1) > 1e-8 * 1e-8;
}
