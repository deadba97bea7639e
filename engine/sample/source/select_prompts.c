/*
 * select_prompts.c - selects the prompts of a rollout and the surplus groups that join its batch.
 *
 * Without plug-ins prompts come in data order and surplus groups oldest first. A plug-in is asked
 * by rank 0, and its answer is validated there and broadcast, so that all ranks select the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/sample/source/source.h"

#include "base/invar_banned.h"

/* ---- prompts --------------------------------------------------------------------------------- */

static invar_status find_prompts(const invar_prompt **out, const invar_dataset *data,
                                 const int64_t *lines, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        out[i] = invar_dataset_find(data, lines[i]);
        if (!out[i])
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "plug-in data-source-path: line %" PRId64
                              " of prompt-data is too long (rollout-max-prompt-len), or out of its "
                              "slice",
                              lines[i]);
    }
    return INVAR_OK;
}

static invar_status select_lines(const invar_prompt **out, invar_sample_source *source,
                                 int64_t *lines, int64_t rollout, int64_t count)
{
    const invar_sample_source_options *o = &source->options;
    const invar_prompt *last = invar_dataset_prompt(o->data, invar_dataset_size(o->data) - 1);
    const invar_plugin_wanted wanted = {.rollout = rollout,
                                        .first = source->position.groups,
                                        .count = count,
                                        .lines = last->line + 1};

    if (o->plugins.prompts) {
        INVAR_TRY(invar_plugin_prompts(o->plugins.prompts, &wanted, lines));
        INVAR_TRY(find_prompts(out, o->data, lines, count));
    }
    INVAR_TRY(invar_ranks_broadcast(o->generate.layout, "prompts", 0, lines,
                                    (size_t)count * sizeof *lines));
    return find_prompts(out, o->data, lines, count);
}

invar_status invar_sample_source_prompts(const invar_prompt ***out, invar_sample_source *source,
                                         int64_t rollout, int64_t count)
{
    int64_t *lines = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(*out, (size_t)count, "prompts of a rollout"));
    if (!source->options.config->data_source_path[0]) {
        for (int64_t i = 0; i < count; i++)
            (*out)[i] = invar_sample_source_next(source);
        return INVAR_OK;
    }
    INVAR_TRY(INVAR_ALLOC(lines, (size_t)count, "lines of prompt-data"));
    status = select_lines(*out, source, lines, rollout, count);
    invar_free(lines);
    return status;
}

/* ---- surplus groups -------------------------------------------------------------------------- */

static invar_status query_buffer_filter(uint8_t *verdict, const invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;
    const invar_rl_samples *waiting = &source->inflight.surplus;
    invar_plugin_buffer buffer = {.rollout = source->request.rollout,
                                  .wanted = o->config->rollout_batch_size};
    int64_t *since = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(since, (size_t)waiting->count, "rollouts"));
    for (int64_t i = 0; i < waiting->count; i++)
        since[i] = waiting->items[i].rollout;
    buffer.since = since;
    status = invar_plugin_filter_buffer(o->plugins.buffer, &buffer, waiting->items, waiting->count,
                                        verdict);
    invar_free(since);
    return status;
}

/* Moves taken surplus groups to the batch until it is full, and removes dropped ones. */
static invar_status apply_verdicts(invar_sample_source *source, const uint8_t *verdict)
{
    const int64_t n = source->options.generate.per_prompt;
    invar_rl_samples old = source->inflight.surplus;
    invar_status status = INVAR_OK;

    source->inflight.surplus = (invar_rl_samples){0};
    for (int64_t i = 0; i < old.count && status == INVAR_OK; i += n) {
        bool full = source->batch.reused_groups == source->options.config->rollout_batch_size;
        bool take = verdict[i] == INVAR_PLUGIN_TAKE && !full;

        if (verdict[i] == INVAR_PLUGIN_DROP)
            continue;
        status = invar_rl_samples_insert(take ? &source->batch.samples : &source->inflight.surplus,
                                         old.items + i, n);
        source->batch.reused_groups += take;
    }
    invar_rl_samples_reset(&old);
    return status;
}

invar_status invar_sample_source_take_surplus(invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;
    size_t count = (size_t)source->inflight.surplus.count;
    uint8_t *verdict = NULL;
    invar_status status = INVAR_OK;

    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(verdict, count, "verdicts on groups that wait"));
    memset(verdict, INVAR_PLUGIN_TAKE, count);
    if (o->plugins.buffer)
        status = query_buffer_filter(verdict, source);
    if (status == INVAR_OK && o->config->buffer_filter_path[0])
        status = invar_ranks_broadcast(o->generate.layout, "filter", 0, verdict, count);
    if (status == INVAR_OK)
        status = apply_verdicts(source, verdict);
    invar_free(verdict);
    return status;
}
