/*
 * batch_plan.c - greedy split of samples into units and of units into micro-batches.
 *
 * Both splits are one pass in sample order: a group is closed when the next element would exceed a
 * limit, and a group always takes its first element. The units depend on the samples and on
 * unit_rows and unit_count alone; the limits of micro-batches must never influence them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/batch_plan.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

static invar_status check_batch_plan_options(const int64_t *tokens, int64_t samples,
                                             const invar_batch_plan_options *options)
{
    int64_t sum = 0;

    if (samples < 0 || options->unit_rows < 1 || options->unit_count < 1 ||
        options->micro_batch < 0 || options->max_tokens < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "batch plan: %lld samples in at least %lld units of at most %lld rows, "
                          "%lld samples and %lld tokens a micro-batch; at least 0, 1, 1, 0 and 0",
                          (long long)samples, (long long)options->unit_count,
                          (long long)options->unit_rows, (long long)options->micro_batch,
                          (long long)options->max_tokens);
    for (int64_t i = 0; i < samples; i++) {
        if (tokens[i] < 0 || tokens[i] > INT64_MAX - sum)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "batch plan: sample %lld has %lld tokens",
                              (long long)i, (long long)tokens[i]);
        sum += tokens[i];
    }
    return INVAR_OK;
}

/* Closes a unit when the next sample would exceed its rows or its number of samples. */
static void make_units(invar_batch_plan *plan, const int64_t *tokens,
                       const invar_batch_plan_options *options)
{
    int64_t share = invar_batch_plan_unit_samples(options, plan->samples);
    int64_t rows = 0, held = 0; // rows and samples of the open unit

    for (int64_t i = 0; i < plan->samples; i++) {
        if (held == 0 || held == share || rows + tokens[i] > options->unit_rows) {
            plan->unit_sample[plan->units++] = i;
            rows = held = 0;
        }
        rows += tokens[i];
        held++;
    }
    plan->unit_sample[plan->units] = plan->samples;
}

static int64_t unit_tokens(const invar_batch_plan *plan, const int64_t *tokens, int64_t unit)
{
    int64_t sum = 0;

    for (int64_t i = plan->unit_sample[unit]; i < plan->unit_sample[unit + 1]; i++)
        sum += tokens[i];
    return sum;
}

/* Closes a micro-batch when the next unit would exceed a limit; its first unit is always taken. */
static void make_micro_batches(invar_batch_plan *plan, const int64_t *tokens,
                               const invar_batch_plan_options *options)
{
    int64_t used = 0, held = 0; // tokens and samples of the open micro-batch

    for (int64_t u = 0; u < plan->units; u++) {
        int64_t more = unit_tokens(plan, tokens, u);
        int64_t samples = plan->unit_sample[u + 1] - plan->unit_sample[u];
        bool full = (options->micro_batch > 0 && held + samples > options->micro_batch) ||
                    (options->max_tokens > 0 && used + more > options->max_tokens);
        if (held == 0 || full) {
            plan->first_unit[plan->n_micro_batches] = u;
            plan->first_sample[plan->n_micro_batches++] = plan->unit_sample[u];
            used = held = 0;
        }
        used += more;
        held += samples;
        if (used > plan->max_tokens)
            plan->max_tokens = used;
    }
    plan->first_unit[plan->n_micro_batches] = plan->units;
    plan->first_sample[plan->n_micro_batches] = plan->samples;
}

int64_t invar_batch_plan_unit_samples(const invar_batch_plan_options *options, int64_t samples)
{
    int64_t share = samples / options->unit_count;

    return share > 1 ? share : 1;
}

invar_status invar_batch_plan_make(invar_batch_plan *out, const int64_t *tokens, int64_t samples,
                                   const invar_batch_plan_options *options)
{
    invar_batch_plan plan = {.samples = samples};
    int64_t *block;

    memset(out, 0, sizeof *out);
    INVAR_TRY(check_batch_plan_options(tokens, samples, options));
    INVAR_TRY(INVAR_ALLOC(block, 3 * ((size_t)samples + 1), "a batch plan"));
    plan.memory = block;
    plan.unit_sample = block; // there are at most as many units as samples
    plan.first_unit = block + samples + 1;
    plan.first_sample = plan.first_unit + samples + 1;
    make_units(&plan, tokens, options);
    make_micro_batches(&plan, tokens, options);
    *out = plan;
    return INVAR_OK;
}

void invar_batch_plan_release(invar_batch_plan *plan)
{
    invar_free(plan->memory);
    memset(plan, 0, sizeof *plan);
}
