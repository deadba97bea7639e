/*
 * masked_stats.c - masked counts, sums and means of per-token values of an optimizer step.
 *
 * One allocation holds the counts, scratch and columns. All sums are fp32 REDUCEs in the order of
 * samples and tokens; docs/arithmetic.md has their tree.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/masked_stats.h"

#include <string.h>

#include "base/alloc.h"
#include "kernels-deterministic/math/portable.h"
#include "kernels-deterministic/math/reduce.h"

#include "base/invar_banned.h"

static invar_status check_shape(const invar_rl_batch *batch)
{
    if (batch->samples < 1 || !batch->offsets || !batch->mask)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "a batch of %lld samples: at least one, with start and mask, is needed",
                          (long long)batch->samples);
    for (int64_t i = 0; i < batch->samples; i++) {
        if (batch->offsets[0] != 0 || batch->offsets[i + 1] < batch->offsets[i])
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "batch: the tokens of sample %lld are %lld to %lld; starts must "
                              "ascend from 0",
                              (long long)i, (long long)batch->offsets[i],
                              (long long)batch->offsets[i + 1]);
    }
    return INVAR_OK;
}

static void count_tokens(invar_masked_stats *tally)
{
    const invar_rl_batch *batch = tally->batch;
    int64_t all = 0;

    for (int64_t i = 0; i < batch->samples; i++) {
        int64_t counted = 0, tokens = batch->offsets[i + 1] - batch->offsets[i];
        for (int64_t t = batch->offsets[i]; t < batch->offsets[i + 1]; t++)
            counted += batch->mask[t] != 0;
        tally->count[i] = (float)counted;
        tally->longest = tokens > tally->longest ? tokens : tally->longest;
        all += counted;
    }
    tally->tokens = (float)all;
}

invar_status invar_masked_stats_init(invar_masked_stats *out, const invar_rl_batch *batch,
                                     bool per_token)
{
    size_t samples;
    invar_status status;
    void *block;

    memset(out, 0, sizeof *out);
    INVAR_TRY(check_shape(batch));
    samples = (size_t)batch->samples;
    out->batch = batch;
    out->per_token = per_token;
    INVAR_TRY(invar_alloc(&block, samples, (INVAR_MASKED_STATS_COLUMNS + 2) * sizeof(float),
                          "sums of a step's samples"));
    out->count = block;
    out->scratch = out->count + samples;
    out->sums = out->scratch + samples;
    memset(block, 0, samples * (INVAR_MASKED_STATS_COLUMNS + 2) * sizeof(float));
    count_tokens(out);
    status = invar_alloc(&block, (size_t)out->longest, sizeof(float), "one sample's values");
    if (status == INVAR_OK)
        out->row = block;
    else
        invar_masked_stats_release(out);
    return status;
}

void invar_masked_stats_release(invar_masked_stats *stats)
{
    invar_free(stats->count);
    invar_free(stats->row);
    memset(stats, 0, sizeof *stats);
}

int invar_masked_stats_add(invar_masked_stats *stats, const char *name)
{
    INVAR_CHECK(stats->columns < INVAR_MASKED_STATS_COLUMNS);
    stats->name[stats->columns] = name;
    return stats->columns++;
}

static float *column_of(const invar_masked_stats *tally, int column)
{
    INVAR_CHECK(column >= 0 && column < tally->columns);
    return tally->sums + (int64_t)column * tally->batch->samples;
}

void invar_masked_stats_put(invar_masked_stats *stats, int column, int64_t sample, const float *row)
{
    const int64_t *start = stats->batch->offsets;

    column_of(stats, column)[sample] = invar_reduce_f32(row, start[sample + 1] - start[sample]);
}

void invar_masked_stats_put_all(invar_masked_stats *stats, int column, int64_t sample, float value)
{
    column_of(stats, column)[sample] = value * stats->count[sample];
}

static float at_least_one(float count)
{
    return count < 1.0f ? 1.0f : count;
}

float invar_masked_stats_mean(const invar_masked_stats *stats, int column, float divisor)
{
    const float *sums = column_of(stats, column);
    int64_t samples = stats->batch->samples;

    if (stats->per_token && !(divisor > 0.0f))
        return invar_reduce_f32(sums, samples) / at_least_one(stats->tokens);
    for (int64_t i = 0; i < samples; i++)
        stats->scratch[i] = sums[i] / (divisor > 0.0f ? divisor : at_least_one(stats->count[i]));
    return invar_reduce_f32(stats->scratch, samples) / (float)samples;
}

float invar_masked_stats_factor(const invar_masked_stats *stats, int64_t sample, float divisor)
{
    float samples = (float)stats->batch->samples;

    if (divisor > 0.0f)
        return 1.0f / (divisor * samples);
    if (stats->per_token)
        return 1.0f / at_least_one(stats->tokens);
    return 1.0f / (at_least_one(stats->count[sample]) * samples);
}

static bool is_finite_f32(float x)
{
    return (invar_f32_bits(x) & INVAR_INF_BITS) != INVAR_INF_BITS;
}

invar_status invar_masked_stats_finite(const invar_masked_stats *stats, int64_t sample,
                                       const float *row, const char *what)
{
    const invar_rl_batch *batch = stats->batch;
    int64_t first = batch->offsets[sample], tokens = batch->offsets[sample + 1] - first;

    for (int64_t t = 0; t < tokens; t++) {
        if (batch->mask[first + t] && !is_finite_f32(row[t]))
            return INVAR_FAIL(INVAR_E_STATE, 0,
                              "sample %lld, response token %lld: %s is %s; the step stops here",
                              (long long)sample, (long long)t, what,
                              row[t] != row[t] ? "not a number" : "infinite");
    }
    return INVAR_OK;
}

invar_status invar_masked_stats_finite_all(const invar_masked_stats *stats, const float *values,
                                           const char *what)
{
    for (int64_t i = 0; values && i < stats->batch->samples; i++)
        INVAR_TRY(invar_masked_stats_finite(stats, i, values + stats->batch->offsets[i], what));
    return INVAR_OK;
}
