/*
 * plan.c - the batch plan: samples -> units -> micro-batches.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/plan.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

static invar_status check(const int64_t *tokens, int64_t samples, const invar_plan_options *options)
{
    int64_t sum = 0;

    if (samples < 0 || options->unit < 1 || options->micro_batch < 0 || options->max_tokens < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "batch plan: %lld samples in units of %lld, %lld units and %lld tokens a "
                          "micro-batch; at least 0, 1, 0 and 0",
                          (long long)samples, (long long)options->unit,
                          (long long)options->micro_batch, (long long)options->max_tokens);
    for (int64_t i = 0; i < samples; i++) {
        if (tokens[i] < 0 || tokens[i] > INT64_MAX - sum)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "batch plan: sample %lld has %lld tokens",
                              (long long)i, (long long)tokens[i]);
        sum += tokens[i];
    }
    return INVAR_OK;
}

static int64_t unit_tokens(const invar_plan *plan, const int64_t *tokens, int64_t unit)
{
    int64_t sum = 0;

    for (int64_t i = plan->unit_sample[unit]; i < plan->unit_sample[unit + 1]; i++)
        sum += tokens[i];
    return sum;
}

/* Greedy: a micro-batch takes units while the limits allow; its first one always. */
static void cut(invar_plan *plan, const int64_t *tokens, const invar_plan_options *options)
{
    int64_t used = 0, held = 0; // tokens and units of the open micro-batch

    for (int64_t u = 0; u < plan->units; u++) {
        int64_t more = unit_tokens(plan, tokens, u);
        bool full = (options->micro_batch > 0 && held == options->micro_batch) ||
                    (options->max_tokens > 0 && used + more > options->max_tokens);
        if (held == 0 || full) {
            plan->unit[plan->count] = u;
            plan->sample[plan->count++] = plan->unit_sample[u];
            used = held = 0;
        }
        used += more;
        held++;
        if (used > plan->max_tokens)
            plan->max_tokens = used;
    }
    plan->unit[plan->count] = plan->units;
    plan->sample[plan->count] = plan->samples;
}

invar_status invar_plan_make(invar_plan *out, const int64_t *tokens, int64_t samples,
                             const invar_plan_options *options)
{
    invar_plan plan = {.samples = samples};
    int64_t *block;

    memset(out, 0, sizeof *out);
    INVAR_TRY(check(tokens, samples, options));
    plan.units = samples / options->unit + (samples % options->unit != 0);
    INVAR_TRY(
        invar_alloc((void **)&block, 3 * ((size_t)plan.units + 1), sizeof *block, "a batch plan"));
    plan.memory = block;
    plan.unit_sample = block;
    plan.unit = block + plan.units + 1;
    plan.sample = plan.unit + plan.units + 1;
    for (int64_t u = 0; u < plan.units; u++)
        plan.unit_sample[u] = u * options->unit;
    plan.unit_sample[plan.units] = samples;
    cut(&plan, tokens, options);
    *out = plan;
    return INVAR_OK;
}

void invar_plan_release(invar_plan *plan)
{
    invar_free(plan->memory);
    memset(plan, 0, sizeof *plan);
}
