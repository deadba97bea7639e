/*
 * source.c - sample source: rounds of sampling, filters, in-flight rollouts, and SFT answers.
 *
 * A batch with a declared schedule is made in rounds. A round samples groups, rewards them, asks
 * the filters and moves the kept groups to the batch in index order (group_select.h). With a lag
 * the first round was begun at earlier ticks: samples that get tokens are moved out of `inflight`
 * into active_ahead, sampled, gathered on all ranks and moved back into the holes that they left.
 * All ranks must append, move and number samples alike, whatever part of them they sample.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/source.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/rl/loss.h"
#include "engine/sample/source/generate.h"

#include "base/invar_banned.h"

/* ---- open and close -------------------------------------------------------------------------- */

void invar_sample_source_open(invar_sample_source *out, const invar_sample_source_options *options)
{
    *out = (invar_sample_source){
        .options = *options,
        .kind = options->config->load_debug_rollout_data[0] ? &invar_sample_source_files
                : options->use_data_answers                 ? &invar_sample_source_answers
                : options->recorded_schedule                ? &invar_sample_source_recorded
                                                            : &invar_sample_source_declared};
}

static void clear_batch(invar_sample_source *source)
{
    invar_rl_samples_reset(&source->batch.samples);
    invar_rollout_file_release(&source->loaded);
}

void invar_sample_source_close(invar_sample_source *source)
{
    invar_sample_source_stop(source);
    clear_batch(source);
    invar_inflight_release(&source->inflight);
    *source = (invar_sample_source){0};
}

invar_status invar_sample_source_poll(bool *ready_out, invar_sample_source *source)
{
    return source->kind->produce(ready_out, source);
}

void invar_sample_source_take(invar_sample_batch *out, invar_sample_source *source)
{
    *out = source->batch;
    source->batch = (invar_sample_batch){0};
}

/*
 * Bounds the sampling rounds. If every prompt was sampled twice and the batch is still not full,
 * the filter rejects everything, and the run must fail instead of looping.
 */
int64_t invar_sample_source_max_rounds(const invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;

    return 2 * (invar_dataset_size(o->data) / o->round + 1) + o->config->rollout_batch_size;
}

/* ---- new samples ----------------------------------------------------------------------------- */

invar_status invar_sample_source_init_sample(invar_rl_sample *out, const invar_prompt *p)
{
    out->data.line = p->line;
    out->data.hash = p->hash;
    out->data.prompt = p->text;
    out->data.label = p->label;
    out->data.metadata = p->metadata;
    return invar_rl_sample_set_prompt(out, p->tokens, p->n_tokens, p->n_answer);
}

const invar_prompt *invar_sample_source_next(invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;

    return invar_dataset_next(o->data, &source->position.cursor, o->config->rollout_shuffle,
                              o->generate.sampling.seed);
}

static invar_status new_sample(invar_rl_sample **out, invar_sample_source *source,
                               invar_rl_samples *to, const invar_prompt *p, int64_t rollout)
{
    invar_rl_sample *s;

    INVAR_TRY(invar_rl_samples_append(&s, to));
    s->index = source->position.samples++;
    s->rollout = (uint32_t)rollout;
    *out = s;
    INVAR_TRY(invar_sample_source_init_sample(s, p));
    s->weights.last_from =
        s->n_tokens; // stays for rollouts from stop_rollout on, which get no tokens
    return INVAR_OK;
}

/* Stamps a sample with the weight version that is about to continue it. */
static void stamp_weight_version(invar_rl_sample *s, const invar_rollout_request *order)
{
    if (s->n_tokens == s->prompt_tokens)
        s->weights.first = order->weights;
    s->weights.last = order->weights;
    s->weights.hash = order->weights_hash;
    s->weights.last_from = s->n_tokens;
}

/*
 * Appends a group of empty samples for a prompt. `place` is the index of the prompt in the rollout,
 * dropped groups included; the random coordinates of the samples are derived from it.
 */
static invar_status add_group(invar_sample_source *source, invar_rl_samples *to,
                              const invar_prompt *p, int64_t rollout, int64_t place)
{
    int64_t n = source->options.generate.per_prompt, group = source->position.groups++;

    if (place >= UINT32_MAX / n)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%" PRId64 " prompts with %" PRId64
                          " samples each are more than a rollout can number",
                          place + 1, n);
    for (int64_t j = 0; j < n; j++) {
        invar_rl_sample *s;
        INVAR_TRY(new_sample(&s, source, to, p, rollout));
        s->group = group;
        s->draw_index = (uint32_t)(place * n + j);
    }
    return INVAR_OK;
}

/* Appends groups for the next prompts. `place` is the index in the rollout of the first one. */
static invar_status add_groups(invar_sample_source *source, invar_rl_samples *to, int64_t rollout,
                               int64_t place, int64_t groups)
{
    const invar_prompt **prompts = NULL;
    invar_status status = invar_sample_source_prompts(&prompts, source, rollout, groups);

    for (int64_t g = 0; g < groups && status == INVAR_OK; g++)
        status = add_group(source, to, prompts[g], rollout, place + g);
    invar_free(prompts);
    return status;
}

/* ---- filtering ------------------------------------------------------------------------------- */

/* Gets a verdict for each sample from a filter on rank 0. Without a filter all are kept. */
static invar_status ask_filter(uint8_t *verdict_out, const char *path, invar_plugin *plugin,
                               const invar_layout *layout, const invar_rl_sample *samples,
                               int64_t count)
{
    memset(verdict_out, INVAR_PLUGIN_KEEP, (size_t)count);
    if (!path[0])
        return INVAR_OK;
    if (plugin)
        INVAR_TRY(invar_plugin_filter(plugin, samples, count, verdict_out));
    return invar_ranks_broadcast(layout, "filter", 0, verdict_out, (size_t)count);
}

/* A group filter may only keep or drop whole groups: fails if it removes a single sample. */
static invar_status check_groups(const uint8_t *verdict, const invar_rl_sample *samples,
                                 int64_t count)
{
    const uint8_t *odd = memchr(verdict, INVAR_PLUGIN_REMOVE, (size_t)count);

    if (!odd)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "plug-in dynamic-sampling-filter-path: it removes sample %" PRId64
                      ", but can only keep or drop groups; rollout-sample-filter-path removes",
                      samples[odd - verdict].index);
}

/*
 * Returns false if a verdict drops the group. Removed samples are masked and stay in their group.
 */
static bool group_kept(const uint8_t *verdict, invar_rl_sample *samples, int64_t n)
{
    bool keep = true;

    for (int64_t j = 0; j < n; j++) {
        keep = keep && verdict[j] != INVAR_PLUGIN_DROP;
        samples[j].is_masked_out = samples[j].is_masked_out || verdict[j] == INVAR_PLUGIN_REMOVE;
    }
    return keep;
}

static bool has_reward_spread(float *rewards, const invar_rl_sample *samples, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        rewards[j] = (float)samples[j].reward;
    return invar_rl_group_keeps(rewards, n);
}

/*
 * Sets keep_out (groups). Both plug-ins see all samples, so their input never depends on each
 * other.
 */
static invar_status filter_groups(bool *keep_out, const invar_sample_source_options *o,
                                  invar_rl_sample *samples, int64_t groups)
{
    int64_t n = o->generate.per_prompt, count = groups * n;
    uint8_t *verdict = NULL;
    float *rewards = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(rewards, (size_t)n, "rewards of a group"));
    status = INVAR_ALLOC(verdict, (size_t)(2 * count), "verdicts of filters");
    if (status == INVAR_OK)
        status = ask_filter(verdict, o->config->dynamic_sampling_filter_path, o->plugins.groups,
                            o->generate.layout, samples, count);
    if (status == INVAR_OK)
        status = check_groups(verdict, samples, count);
    if (status == INVAR_OK)
        status = ask_filter(verdict + count, o->config->rollout_sample_filter_path,
                            o->plugins.samples, o->generate.layout, samples, count);
    for (int64_t g = 0; g < groups && status == INVAR_OK; g++) {
        keep_out[g] = group_kept(verdict + g * n, samples + g * n, n);
        keep_out[g] = group_kept(verdict + count + g * n, samples + g * n, n) && keep_out[g];
        keep_out[g] =
            keep_out[g] && (o->config->dynamic_sampling_filter != INVAR_GROUP_FILTER_NONZERO_STD ||
                            has_reward_spread(rewards, samples + g * n, n));
    }
    invar_free(verdict);
    invar_free(rewards);
    return status;
}

/* ---- selection of groups --------------------------------------------------------------------- */

/* Moves groups to the batch and surplus groups to `inflight`. The others stay in `round`. */
static invar_status move_groups(invar_sample_source *source, invar_rl_samples *round,
                                const invar_group_outcome *fates, int64_t groups)
{
    int64_t n = source->options.generate.per_prompt;
    invar_rl_samples *to[] = {
        [INVAR_GROUP_BATCH] = &source->batch.samples,
        [INVAR_GROUP_FILTERED] = NULL,
        [INVAR_GROUP_SURPLUS] = source->options.schedule.surplus ? &source->inflight.surplus : NULL,
    };

    for (int64_t g = 0; g < groups; g++) {
        source->batch.filtered_groups += fates[g] == INVAR_GROUP_FILTERED;
        if (to[fates[g]])
            INVAR_TRY(invar_rl_samples_insert(to[fates[g]], round->items + g * n, n));
    }
    return INVAR_OK;
}

static invar_status select_groups(invar_sample_source *source, invar_rl_samples *round,
                                  int64_t groups)
{
    invar_group_outcome *fates = NULL;
    bool *keep = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(fates, (size_t)groups, "fates of groups"));
    status = INVAR_ALLOC(keep, (size_t)groups, "groups to keep");
    if (status == INVAR_OK)
        status = filter_groups(keep, &source->options, round->items, groups);
    if (status == INVAR_OK) {
        invar_group_selection_take(fates, &source->selection, keep, groups);
        status = move_groups(source, round, fates, groups);
    }
    invar_free(keep);
    invar_free(fates);
    return status;
}

static void stamp_all(invar_sample_source *source, invar_rl_samples *samples)
{
    source->active = samples->count;
    for (int64_t i = 0; i < samples->count; i++)
        stamp_weight_version(&samples->items[i], &source->request);
}

/* Samples the tokens of this rank's share. */
static invar_status sample_share(invar_sample_source *source, invar_rl_samples *samples)
{
    stamp_all(source, samples);
    return samples->count
               ? invar_generate_share(&source->options.generate, samples->items, samples->count)
               : INVAR_OK;
}

static invar_status gather_samples(const invar_sample_source *source, invar_rl_samples *samples)
{
    return samples->count
               ? invar_generate_gather(&source->options.generate, samples->items, samples->count)
               : INVAR_OK;
}

/* ---- rollouts in flight ---------------------------------------------------------------------- */

/*
 * Returns the number of groups of the next rollout: a full round, less the surplus. So in-flight
 * and surplus groups together are at most one round per rollout.
 */
static int64_t next_groups(const invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;
    const invar_inflight *flight = &source->inflight;
    int64_t samples = flight->surplus.count + source->batch.samples.count;

    for (int64_t r = 0; r < flight->count; r++)
        samples += flight->started[r].count;
    return invar_max_i64(1, invar_min_i64(o->round, o->round * (flight->count + 1) -
                                                        samples / o->generate.per_prompt));
}

invar_status invar_sample_source_begin_rollouts(invar_sample_source *source)
{
    invar_inflight *flight = &source->inflight;

    if (flight->count == 0)
        flight->first = source->request.rollout;
    while (flight->first + flight->count <=
           source->request.rollout + source->options.schedule.lag) {
        int64_t rollout = flight->first + flight->count, groups = next_groups(source);
        invar_rl_samples *samples = &flight->started[flight->count++];

        INVAR_TRY(add_groups(source, samples, rollout, 0, groups));
    }
    return INVAR_OK;
}

/* Returns true if the sample gets tokens at this tick, and sets its suspend_at. */
static bool needs_tokens(invar_rl_sample *s, const invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;
    int64_t rollout = (int64_t)s->rollout;
    int64_t goal = invar_sample_schedule_goal(&o->schedule, rollout, source->request.rollout);

    s->suspend_at = goal == INT64_MAX ? 0 : s->prompt_tokens + goal;
    if (o->stop_rollout > 0 && rollout >= o->stop_rollout)
        return false;
    return s->finish == INVAR_FINISH_NONE && (s->suspend_at == 0 || s->n_tokens < s->suspend_at);
}

invar_status invar_sample_source_move_active(invar_sample_source *source, int64_t rollouts,
                                             invar_needs_tokens needs)
{
    for (int64_t r = 0; r < rollouts; r++) {
        const invar_rl_samples *from = &source->inflight.started[r];

        for (int64_t i = 0; i < from->count; i++) {
            invar_rl_sample *s;

            if (!needs(&from->items[i], source))
                continue;
            INVAR_TRY(invar_rl_samples_append(&s, &source->active_ahead));
            *s = from->items[i];
            from->items[i] = (invar_rl_sample){0};
        }
    }
    source->active = source->active_ahead.count;
    return INVAR_OK;
}

/*
 * Moves samples from `from` on into the holes, in order. Returns the first one that was not moved.
 */
static invar_rl_sample *fill_holes(invar_rl_samples *to, invar_rl_sample *from)
{
    for (int64_t i = 0; i < to->count; i++)
        if (!to->items[i].tokens) {
            to->items[i] = *from;
            *from++ = (invar_rl_sample){0};
        }
    return from;
}

invar_status invar_sample_source_poll_error(const invar_sample_source *source)
{
    return source->async_sampler ? invar_async_sampler_poll_error(source->async_sampler) : INVAR_OK;
}

void invar_sample_source_stop(invar_sample_source *source)
{
    invar_async_sampler_stop(source->async_sampler);
    source->async_sampler = NULL;
    invar_rl_samples_reset(&source->active_ahead);
}

static invar_status join_thread(invar_sample_source *source)
{
    invar_async_sampler *beside = source->async_sampler;

    source->async_sampler = NULL;
    return beside ? invar_async_sampler_join(beside) : INVAR_OK;
}

invar_status invar_sample_source_merge_ahead(invar_sample_source *source)
{
    invar_inflight *flight = &source->inflight;
    invar_rl_sample *next = source->active_ahead.items;

    INVAR_TRY(join_thread(source));
    INVAR_TRY(gather_samples(source, &source->active_ahead));
    for (int64_t r = 0; r < flight->count && source->active_ahead.count; r++)
        next = fill_holes(&flight->started[r], next);
    invar_rl_samples_reset(&source->active_ahead);
    return INVAR_OK;
}

invar_status invar_sample_source_join(invar_sample_source *source)
{
    return source->kind->join ? source->kind->join(source) : INVAR_OK;
}

/* Starts the thread that samples active_ahead. */
static invar_status start_sampling_thread(invar_sample_source *source)
{
    invar_rl_samples *samples = &source->active_ahead;

    stamp_all(source, samples);
    return samples->count
               ? invar_async_sampler_begin(&source->async_sampler, &source->options.generate,
                                           samples->items, samples->count, &source->options.verify)
               : INVAR_OK;
}

static invar_status send_heartbeat(void *payload)
{
    const invar_sample_source *source = payload;

    invar_layout_heartbeat(source->options.generate.layout);
    return INVAR_OK;
}

invar_progress_callback invar_sample_source_heartbeat(invar_sample_source *source)
{
    return (invar_progress_callback){send_heartbeat, source};
}

invar_status invar_sample_source_prefetch(invar_sample_source *source)
{
    return source->kind->prefetch && source->options.schedule.ahead > INVAR_AHEAD_WITH_BATCH
               ? source->kind->prefetch(source)
               : INVAR_OK;
}

static invar_status prefetch_declared(invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;
    const invar_progress_callback tick = invar_sample_source_heartbeat(source);

    INVAR_TRY(invar_sample_source_move_active(source, source->inflight.count, needs_tokens));
    if (o->schedule.ahead == INVAR_AHEAD_IN_THREAD)
        return start_sampling_thread(source);
    INVAR_TRY(sample_share(source, &source->active_ahead));
    if (o->verify.verify)
        INVAR_TRY(o->verify.verify(o->verify.payload, source->active_ahead.items,
                                   source->active_ahead.count, &tick));
    return o->schedule.ahead == INVAR_AHEAD_ON_RANKS ? INVAR_OK
                                                     : invar_sample_source_merge_ahead(source);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Takes surplus groups into the batch; begins rollouts unless they fill it and no lag is set. */
static invar_status start_declared(invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;

    INVAR_TRY(invar_group_selection_init(&source->selection, o->config->rollout_batch_size,
                                         o->round, invar_sample_source_max_rounds(source)));
    INVAR_TRY(invar_sample_source_take_surplus(source));
    source->selection.chosen = source->batch.reused_groups;
    if (source->inflight.count > 0 || o->schedule.lag > 0 ||
        source->selection.chosen < o->config->rollout_batch_size)
        INVAR_TRY(invar_sample_source_begin_rollouts(source));
    return INVAR_OK;
}

invar_status invar_sample_source_start(invar_sample_source *source,
                                       const invar_rollout_request *request)
{
    clear_batch(source);
    source->request = *request;
    source->batch = (invar_sample_batch){.on_policy = true};
    return source->kind->start ? source->kind->start(source) : INVAR_OK;
}

/*
 * Completes the samples of the current rollout, which may have begun earlier, as the first round.
 */
static invar_status sample_first_round(invar_rl_samples *round_out, invar_sample_source *source)
{
    invar_inflight *flight = &source->inflight;

    INVAR_TRY(invar_sample_source_move_active(
        source, source->options.schedule.ahead > INVAR_AHEAD_WITH_BATCH ? 1 : flight->count,
        needs_tokens));
    INVAR_TRY(sample_share(source, &source->active_ahead));
    INVAR_TRY(invar_sample_source_merge_ahead(source));
    invar_inflight_pop(round_out, flight);
    return INVAR_OK;
}

/* Samples `groups` further groups, after the filter has rejected too many. */
static invar_status sample_next_round(invar_rl_samples *round_out, invar_sample_source *source,
                                      int64_t groups)
{
    INVAR_TRY(
        add_groups(source, round_out, source->request.rollout, source->selection.consumed, groups));
    INVAR_TRY(sample_share(source, round_out));
    return gather_samples(source, round_out);
}

/* Returns true before the first round, if the current rollout has begun. */
static bool is_first_round(const invar_sample_source *source)
{
    return source->selection.rounds == 0 && source->inflight.count > 0;
}

static invar_status run_round(invar_sample_source *source, invar_rl_samples *round, int64_t groups)
{
    INVAR_TRY(is_first_round(source) ? sample_first_round(round, source)
                                     : sample_next_round(round, source, groups));
    INVAR_TRY(invar_generate_rewards(&source->options.generate, round->items, round->count));
    return select_groups(source, round, round->count / source->options.generate.per_prompt);
}

bool invar_sample_source_is_on_policy(const invar_sample_source *source)
{
    const invar_rl_samples *samples = &source->batch.samples;

    for (int64_t i = 0; i < samples->count; i++)
        if (samples->items[i].weights.first != source->request.weights)
            return false;
    return true;
}

static invar_status sample_declared(bool *ready_out, invar_sample_source *source)
{
    invar_rl_samples round = {0};
    invar_status status;
    int64_t groups;

    INVAR_TRY(invar_group_selection_next(&groups, &source->selection));
    *ready_out = groups == 0 && !is_first_round(source);
    if (*ready_out) {
        source->batch.on_policy = invar_sample_source_is_on_policy(source);
        source->batch.surplus_groups =
            source->inflight.surplus.count / source->options.generate.per_prompt;
        return INVAR_OK;
    }
    status = run_round(source, &round, groups);
    invar_rl_samples_reset(&round);
    return status;
}

const invar_sample_source_kind invar_sample_source_declared = {.start = start_declared,
                                                               .produce = sample_declared,
                                                               .prefetch = prefetch_declared,
                                                               .join =
                                                                   invar_sample_source_merge_ahead};

/* ---- answers of the data --------------------------------------------------------------------- */

invar_status invar_sample_source_fill_answer(invar_rl_sample *s, const invar_prompt *p)
{
    s->finish = INVAR_FINISH_STOP;
    s->n_tokens += p->n_answer;
    memcpy(s->tokens + p->n_tokens, p->answer, (size_t)p->n_answer * sizeof *s->tokens);
    INVAR_TRY(INVAR_ALLOC(s->mask, (size_t)p->n_answer, "a loss mask"));
    memcpy(s->mask, p->answer_mask, (size_t)p->n_answer);
    return INVAR_OK;
}

static invar_status add_answer(invar_sample_source *source, const invar_prompt *p)
{
    invar_rl_sample *s;

    INVAR_TRY(new_sample(&s, source, &source->batch.samples, p, source->request.rollout));
    stamp_weight_version(s, &source->request);
    s->group = source->position.groups++;
    return invar_sample_source_fill_answer(s, p);
}

static invar_status add_answers(bool *ready_out, invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;

    int64_t count = o->config->rollout_batch_size * o->generate.per_prompt;
    const invar_prompt **prompts = NULL;
    invar_status status =
        invar_sample_source_prompts(&prompts, source, source->request.rollout, count);

    for (int64_t i = 0; i < count && status == INVAR_OK; i++)
        status = add_answer(source, prompts[i]);
    invar_free(prompts);
    *ready_out = true;
    return status;
}

const invar_sample_source_kind invar_sample_source_answers = {.produce = add_answers};
