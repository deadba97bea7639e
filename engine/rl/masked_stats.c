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
    if (batch->samples < 1 || !batch->start || !batch->mask)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "a batch of %lld samples: at least one, with start and mask, is needed",
                          (long long)batch->samples);
    for (int64_t i = 0; i < batch->samples; i++) {
        if (batch->start[0] != 0 || batch->start[i + 1] < batch->start[i])
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "batch: the tokens of sample %lld are %lld to %lld; starts must "
                              "ascend from 0",
                              (long long)i, (long long)batch->start[i],
                              (long long)batch->start[i + 1]);
    }
    return INVAR_OK;
}

static void count_tokens(invar_masked_stats *tally)
{
    const invar_rl_batch *batch = tally->batch;
    int64_t all = 0;

    for (int64_t i = 0; i < batch->samples; i++) {
        int64_t counted = 0, tokens = batch->start[i + 1] - batch->start[i];
        for (int64_t t = batch->start[i]; t < batch->start[i + 1]; t++)
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
    out->room = out->count + samples;
    out->sums = out->room + samples;
    memset(block, 0, samples * (INVAR_MASKED_STATS_COLUMNS + 2) * sizeof(float));
    count_tokens(out);
    status = invar_alloc(&block, (size_t)out->longest, sizeof(float), "one sample's values");
    if (status == INVAR_OK)
        out->row = block;
    else
        invar_masked_stats_release(out);
    return status;
}

void invar_masked_stats_release(invar_masked_stats *tally)
{
    invar_free(tally->count);
    invar_free(tally->row);
    memset(tally, 0, sizeof *tally);
}

int invar_masked_stats_add(invar_masked_stats *tally, const char *name)
{
    INVAR_CHECK(tally->columns < INVAR_MASKED_STATS_COLUMNS);
    tally->name[tally->columns] = name;
    return tally->columns++;
}

static float *column_of(const invar_masked_stats *tally, int column)
{
    INVAR_CHECK(column >= 0 && column < tally->columns);
    return tally->sums + (int64_t)column * tally->batch->samples;
}

void invar_masked_stats_put(invar_masked_stats *tally, int column, int64_t sample, const float *row)
{
    const int64_t *start = tally->batch->start;

    column_of(tally, column)[sample] = invar_reduce_f32(row, start[sample + 1] - start[sample]);
}

void invar_masked_stats_put_all(invar_masked_stats *tally, int column, int64_t sample, float value)
{
    column_of(tally, column)[sample] = value * tally->count[sample];
}

static float at_least_one(float count)
{
    return count < 1.0f ? 1.0f : count;
}

float invar_masked_stats_mean(const invar_masked_stats *tally, int column, float divisor)
{
    const float *sums = column_of(tally, column);
    int64_t samples = tally->batch->samples;

    if (tally->per_token && !(divisor > 0.0f))
        return invar_reduce_f32(sums, samples) / at_least_one(tally->tokens);
    for (int64_t i = 0; i < samples; i++)
        tally->room[i] = sums[i] / (divisor > 0.0f ? divisor : at_least_one(tally->count[i]));
    return invar_reduce_f32(tally->room, samples) / (float)samples;
}

float invar_masked_stats_factor(const invar_masked_stats *tally, int64_t sample, float divisor)
{
    float samples = (float)tally->batch->samples;

    if (divisor > 0.0f)
        return 1.0f / (divisor * samples);
    if (tally->per_token)
        return 1.0f / at_least_one(tally->tokens);
    return 1.0f / (at_least_one(tally->count[sample]) * samples);
}

static bool is_finite_f32(float x)
{
    return (invar_f32_bits(x) & INVAR_INF_BITS) != INVAR_INF_BITS;
}

invar_status invar_masked_stats_finite(const invar_masked_stats *tally, int64_t sample,
                                       const float *row, const char *what)
{
    const invar_rl_batch *batch = tally->batch;
    int64_t first = batch->start[sample], tokens = batch->start[sample + 1] - first;

    for (int64_t t = 0; t < tokens; t++) {
        if (batch->mask[first + t] && !is_finite_f32(row[t]))
            return INVAR_FAIL(INVAR_E_STATE, 0,
                              "sample %lld, response token %lld: %s is %s; the step stops here",
                              (long long)sample, (long long)t, what,
                              row[t] != row[t] ? "not a number" : "infinite");
    }
    return INVAR_OK;
}

invar_status invar_masked_stats_finite_all(const invar_masked_stats *tally, const float *values,
                                           const char *what)
{
    for (int64_t i = 0; values && i < tally->batch->samples; i++)
        INVAR_TRY(invar_masked_stats_finite(tally, i, values + tally->batch->start[i], what));
    return INVAR_OK;
}
