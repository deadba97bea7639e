/*
 * recorded_schedule_source.c - sample source with rollout-schedule = recorded.
 *
 * Groups are trained on in the order in which they finish. At a tick all in-flight samples get
 * tokens until enough groups for a batch are complete, among them all groups that have reached
 * max_delay; the others are suspended and continue during training. If the log has the tick, every
 * sample gets exactly the recorded number of tokens, in any order, so the tick is reproduced.
 * Decisions are written to the log before they take effect, and a log is checked against the
 * in-flight samples before it is used.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "base/sort.h"
#include "engine/sample/source/generate.h"
#include "engine/sample/source/source.h"

#include "base/invar_banned.h"

/* ---- recorded decisions ---------------------------------------------------------------------- */

/* Returns true if the group of a sample has reached max_delay and must be in this batch. */
static bool is_due(const invar_sample_source *source, const invar_rl_sample *s)
{
    return (int64_t)s->rollout <= source->request.rollout - source->options.schedule.max_delay;
}

static bool is_batched(const invar_schedule_tick *tick, int64_t group)
{
    return invar_binary_search(tick->groups, tick->n_groups, sizeof *tick->groups, 0, group) >= 0;
}

/* Returns the number of response tokens at which a sample is suspended; -1 if it finishes. */
static int64_t tokens_left(const invar_schedule_tick *tick, int64_t sample)
{
    int64_t i = invar_binary_search(tick->unfinished, tick->n_unfinished, sizeof *tick->unfinished,
                                    offsetof(invar_unfinished_sample, sample), sample);

    return i < 0 ? -1 : tick->unfinished[i].tokens;
}

static invar_status fail_impossible_tick(const invar_sample_source *source, const char *what,
                                         int64_t number, const char *why)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "recorded schedule: tick %" PRId64 " has %s %" PRId64 ", %s: the record "
                      "is damaged, or of a run with other keys (rollout-batch-size, "
                      "n-samples-per-prompt, rollout-lag, rollout-max-delay)",
                      source->request.rollout, what, number, why);
}

/* Checks an in-flight sample against the recorded tick. Increments *listed if the tick names it. */
static invar_status check_sample(int64_t *listed, const invar_sample_source *source,
                                 const invar_rl_sample *s)
{
    const invar_sample_source_options *o = &source->options;
    const invar_schedule_tick *tick = &source->tick;
    int64_t tokens = tick->has_unfinished ? tokens_left(tick, s->index) : -1;

    if (tokens < 0)
        return INVAR_OK;
    ++*listed;
    if (is_batched(tick, s->group))
        return fail_impossible_tick(source, "sample", s->index,
                                    "which is in its batch and not finished");
    if (tokens < invar_rl_sample_response(s))
        return fail_impossible_tick(source, "sample", s->index,
                                    "with fewer tokens than it had before");
    if (tokens >= invar_inflight_limit(s, &o->generate.sampling, o->spec))
        return fail_impossible_tick(source, "sample", s->index,
                                    "with as many tokens as it may have at all");
    return INVAR_OK;
}

/* Fails unless everything that the tick names is in flight and every due group is in its batch. */
static invar_status check_tick(const invar_sample_source *source)
{
    const invar_inflight *flight = &source->inflight;
    const invar_schedule_tick *tick = &source->tick;
    int64_t n = source->options.generate.per_prompt, groups = 0, samples = 0;

    for (int64_t r = 0; r < flight->count; r++)
        for (int64_t i = 0; i < flight->started[r].count; i++) {
            const invar_rl_sample *s = &flight->started[r].items[i];
            bool batched = tick->has_batch && is_batched(tick, s->group);

            groups += i % n == 0 && batched;
            if (tick->has_batch && !batched && is_due(source, s))
                return fail_impossible_tick(source, "no group", s->group,
                                            "which may not be trained on later");
            INVAR_TRY(check_sample(&samples, source, s));
        }
    if (tick->has_batch &&
        (tick->n_groups != source->options.config->rollout_batch_size || groups != tick->n_groups))
        return fail_impossible_tick(source, "a batch whose groups in flight are", groups,
                                    "not those of a rollout");
    if (tick->has_unfinished && samples != tick->n_unfinished)
        return fail_impossible_tick(source, "unfinished samples in flight,", samples,
                                    "fewer than it names");
    return INVAR_OK;
}

/*
 * Begins new rollouts, reads the recorded decisions of the current tick, and checks them against
 * the in-flight samples.
 */
static invar_status start_tick(invar_sample_source *source)
{
    invar_inflight *flight = &source->inflight;

    INVAR_TRY(invar_sample_source_begin_rollouts(source));
    for (int64_t r = 0; r < flight->count; r++)
        for (int64_t i = 0; i < flight->started[r].count; i++)
            flight->started[r].items[i].weights.last_from = flight->started[r].items[i].n_tokens;
    INVAR_TRY(invar_recorded_schedule_plan(&source->tick, source->options.recorded_schedule,
                                           source->request.rollout));
    return check_tick(source);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool needs_tokens(invar_rl_sample *s, const invar_sample_source *source)
{
    int64_t left = source->tick.has_unfinished ? tokens_left(&source->tick, s->index) : -1;

    s->suspend_at = left < 0 ? 0 : s->prompt_tokens + left;
    return s->finish == INVAR_FINISH_NONE && (left < 0 || s->n_tokens < s->suspend_at);
}

/* Like needs_tokens, for samples of the batch alone. */
static bool batch_needs_tokens(invar_rl_sample *s, const invar_sample_source *source)
{
    return needs_tokens(s, source) && is_batched(&source->tick, s->group);
}

/* Stamps samples that got tokens in this tick with the weight version of the request. */
static void stamp_weight_version(const invar_sample_source *source, invar_rl_sample *samples,
                                 int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        invar_rl_sample *s = &samples[i];

        if (s->n_tokens == s->weights.last_from)
            continue;
        if (s->weights.last_from == s->prompt_tokens)
            s->weights.first = source->request.weights;
        s->weights.last = source->request.weights;
        s->weights.hash = source->request.weights_hash;
    }
}

static invar_status merge_and_stamp(invar_sample_source *source)
{
    INVAR_TRY(invar_sample_source_merge_ahead(source));
    for (int64_t r = 0; r < source->inflight.count; r++)
        stamp_weight_version(source, source->inflight.started[r].items,
                             source->inflight.started[r].count);
    return INVAR_OK;
}

/*
 * Implements should_suspend: returns true if enough groups for a batch are complete, and all due
 * ones. Unfinished samples are in active_ahead, with those of a group adjacent.
 */
static bool has_batch(void *payload, int64_t samples_done)
{
    const invar_sample_source *source = payload;
    const invar_rl_samples *active = &source->active_ahead;
    int64_t whole = 0, group = -1;

    (void)samples_done;
    for (int64_t r = 0; r < source->inflight.count; r++)
        whole += source->inflight.started[r].count / source->options.generate.per_prompt;
    for (int64_t i = 0; i < active->count; i++) {
        const invar_rl_sample *s = &active->items[i];

        if (s->finish != INVAR_FINISH_NONE || s->group == group)
            continue;
        if (is_due(source, s))
            return false;
        group = s->group;
        whole--;
    }
    return whole >= source->options.config->rollout_batch_size;
}

/*
 * Samples until the batch is complete. If the batch is recorded, all samples get their tokens at
 * once, or only those of the batch: if the others have a phase of their own, or if their token
 * counts are not recorded.
 */
static invar_status sample_batch(invar_sample_source *source)
{
    const invar_schedule_tick *tick = &source->tick;
    invar_generate_args how = source->options.generate;
    bool ready = false;

    INVAR_TRY(invar_sample_source_move_active(
        source, source->inflight.count,
        tick->has_batch &&
                (source->options.schedule.ahead > INVAR_AHEAD_WITH_BATCH || !tick->has_unfinished)
            ? batch_needs_tokens
            : needs_tokens));
    if (!tick->has_batch) {
        how.should_suspend = has_batch;
        how.suspend_payload = source;
        ready = has_batch(source, 0);
    }
    if (source->active_ahead.count > 0 && !ready)
        INVAR_TRY(
            invar_generate_share(&how, source->active_ahead.items, source->active_ahead.count));
    return merge_and_stamp(source);
}

/* ---- the batch ------------------------------------------------------------------------------- */

static bool is_group_complete(const invar_rl_sample *samples, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        if (samples[j].finish == INVAR_FINISH_NONE)
            return false;
    return true;
}

/* Moves groups of a rollout into the batch: the recorded ones, or the first complete ones. */
static invar_status move_groups(invar_sample_source *source, invar_rl_samples *from,
                                int64_t *groups, int64_t *count)
{
    const invar_sample_source_options *o = &source->options;
    int64_t n = o->generate.per_prompt, stay = 0;

    for (int64_t i = 0; i < from->count; i += n) {
        const int64_t group = from->items[i].group;
        bool wanted = source->tick.has_batch ? is_batched(&source->tick, group)
                                             : *count < o->config->rollout_batch_size;

        if (wanted && is_group_complete(from->items + i, n)) {
            groups[(*count)++] = group;
            INVAR_TRY(invar_rl_samples_insert(&source->batch.samples, from->items + i, n));
            continue;
        }
        if (stay < i) {
            memcpy(from->items + stay, from->items + i, (size_t)n * sizeof *from->items);
            memset(from->items + i, 0, (size_t)n * sizeof *from->items);
        }
        stay += n;
    }
    from->count = stay;
    return INVAR_OK;
}

/* Removes the first rollouts, as long as they have no groups left. */
static void drop_empty_rollouts(invar_inflight *flight)
{
    invar_rl_samples none;

    while (flight->count > 0 && flight->started[0].count == 0) {
        invar_inflight_pop(&none, flight);
        invar_rl_samples_reset(&none);
    }
}

/*
 * Moves the batch out of `inflight` and records it; the record is durable before the batch is
 * trained on. Groups are taken by number, so due groups come first.
 */
static invar_status move_batch(invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;
    invar_inflight *flight = &source->inflight;
    int64_t *groups = NULL, count = 0;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(groups, (size_t)o->config->rollout_batch_size, "a batch"));
    status = INVAR_OK;
    for (int64_t r = 0; r < flight->count && status == INVAR_OK; r++)
        status = move_groups(source, &flight->started[r], groups, &count);
    INVAR_CHECK(status != INVAR_OK || count == o->config->rollout_batch_size);
    drop_empty_rollouts(flight);
    if (status == INVAR_OK)
        status = invar_recorded_schedule_batch(o->recorded_schedule, source->request.rollout,
                                               groups, count);
    invar_free(groups);
    return status;
}

static invar_status sample_recorded(bool *ready_out, invar_sample_source *source)
{
    invar_rl_samples *batch = &source->batch.samples;

    INVAR_TRY(sample_batch(source));
    INVAR_TRY(move_batch(source));
    INVAR_TRY(invar_generate_rewards(&source->options.generate, batch->items, batch->count));
    source->batch.on_policy = invar_sample_source_is_on_policy(source);
    *ready_out = true;
    return INVAR_OK;
}

/* ---- sampling during training ---------------------------------------------------------------- */

/* Verification callback: stamps the new samples, then calls the callback of the options. */
static invar_status stamp_and_verify(void *payload, const invar_rl_sample *samples, int64_t count,
                                     const invar_progress_callback *tick)
{
    invar_sample_source *source = payload;
    const invar_verify_callback *look = &source->options.verify;

    INVAR_CHECK(samples == source->active_ahead.items && count == source->active_ahead.count);
    stamp_weight_version(source, source->active_ahead.items, count);
    return look->verify ? look->verify(look->payload, samples, count, tick) : INVAR_OK;
}

static invar_status prefetch_recorded(invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;
    const invar_progress_callback tick = invar_sample_source_heartbeat(source);
    const bool clocked = o->schedule.ahead == INVAR_AHEAD_IN_THREAD &&
                         invar_recorded_schedule_may_use_clock(o->recorded_schedule);
    invar_rl_samples *samples = &source->active_ahead;

    if (!source->tick.has_unfinished && !clocked)
        return INVAR_OK;
    INVAR_TRY(invar_sample_source_move_active(source, source->inflight.count, needs_tokens));
    if (samples->count == 0)
        return INVAR_OK;
    if (o->schedule.ahead == INVAR_AHEAD_IN_THREAD)
        return invar_async_sampler_begin(&source->async_sampler, &o->generate, samples->items,
                                         samples->count,
                                         &(invar_verify_callback){stamp_and_verify, source});
    INVAR_TRY(invar_generate_share(&o->generate, samples->items, samples->count));
    INVAR_TRY(stamp_and_verify(source, samples->items, samples->count, &tick));
    return o->schedule.ahead == INVAR_AHEAD_ON_RANKS ? INVAR_OK : merge_and_stamp(source);
}

/*
 * Records the token counts of unfinished samples; they are durable before the next weights sample.
 */
static invar_status record_unfinished(invar_sample_source *source)
{
    const invar_inflight *flight = &source->inflight;
    invar_unfinished_sample *left = NULL;
    int64_t count = 0, n = 0;
    invar_status status;

    for (int64_t r = 0; r < flight->count; r++)
        count += flight->started[r].count;
    INVAR_TRY(INVAR_ALLOC(left, (size_t)count + 1, "samples in flight"));
    for (int64_t r = 0; r < flight->count; r++)
        for (int64_t i = 0; i < flight->started[r].count; i++) {
            const invar_rl_sample *s = &flight->started[r].items[i];

            if (s->finish == INVAR_FINISH_NONE)
                left[n++] = (invar_unfinished_sample){s->index, invar_rl_sample_response(s)};
        }
    status = invar_recorded_schedule_drawn(source->options.recorded_schedule,
                                           source->request.rollout, left, n);
    invar_free(left);
    return status;
}

static invar_status join_recorded(invar_sample_source *source)
{
    if (source->async_sampler && !source->tick.has_unfinished)
        invar_async_sampler_suspend(source->async_sampler);
    INVAR_TRY(merge_and_stamp(source));
    return record_unfinished(source);
}

const invar_sample_source_kind invar_sample_source_recorded = {.start = start_tick,
                                                               .produce = sample_recorded,
                                                               .prefetch = prefetch_recorded,
                                                               .join = join_recorded};
