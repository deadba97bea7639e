/*
 * stream.c - rollout streams: samples that join and leave between passes, as a server needs.
 *
 * A stream is a running batch without an end. Finished and canceled samples keep their entries in
 * the arrays until the arrays are full; then the entries are removed and indexes are renumbered. A
 * sample joins completely or not at all. Not thread-safe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/sample/rollout/running_batch.h"

#include "base/invar_banned.h"

#define INITIAL_CAPACITY 64 // initial capacity, in samples

invar_status invar_rollout_open_stream(invar_rollout *r, int64_t context)
{
    invar_running_batch *run = NULL;
    invar_status status;

    INVAR_CHECK(!r->stream);
    if (context < 2 || context > r->model->spec.max_positions)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: a context of %" PRId64 " tokens; expected 2 to %" PRId64,
                          context, r->model->spec.max_positions);
    INVAR_TRY(INVAR_ALLOC(run, 1, "a rollout"));
    *run = (invar_running_batch){.rollout = r};
    r->stream = run;
    status = invar_running_batch_reserve(run, INITIAL_CAPACITY);
    if (status == INVAR_OK)
        status = invar_sampler_init(&run->sampler, &r->op_runner, NULL);
    if (status == INVAR_OK)
        status = invar_model_runner_resolve_options(&run->limits, r, INT32_MAX, context - 1);
    if (status == INVAR_OK)
        status = invar_running_batch_init_runner(run, run->limits.concurrency, context - 1);
    if (status == INVAR_OK)
        status = invar_running_batch_select_proposer(run);
    if (status != INVAR_OK)
        invar_rollout_close(r);
    return invar_host_staging_advise_oom(status, invar_device_is_local(&r->op_runner.dev),
                                         INVAR_MODEL_RUNNER_ADVICE);
}

void invar_rollout_close(invar_rollout *r)
{
    if (r->stream)
        invar_running_batch_end(r->stream);
    invar_free(r->stream);
    r->stream = NULL;
}

/* Removes finished samples and sequences from the arrays and renumbers the others. */
static invar_status compact_batch(invar_running_batch *run)
{
    int64_t *places = NULL, *numbers, kept = 0;

    INVAR_TRY(INVAR_ALLOC(places, (size_t)(run->n_seqs + run->count), "the order of samples"));
    numbers = places + run->n_seqs;
    invar_scheduler_compact(places, &run->runner.scheduler);
    run->n_seqs = run->runner.scheduler.n_seqs;
    for (int64_t i = 0; i < run->count; i++) {
        invar_decode_state *state = &run->states[i];

        numbers[i] = state->finished ? 0 : kept; // 0 for a kept prompt; its index is no longer used
        if (state->finished)
            continue;
        state->seq = places[state->seq];
        run->states[kept++] = *state;
    }
    for (int64_t i = 0; i < run->n_seqs; i++)
        run->seqs[i].sample = numbers[run->seqs[i].sample];
    run->count = kept;
    invar_free(places);
    return INVAR_OK;
}

/* Ensures capacity for `more` samples. Doubles the need, so that growing is rare. */
static invar_status reserve_samples(invar_running_batch *run, int64_t more)
{
    int64_t room = run->capacity;

    if (run->count + more <= room)
        return INVAR_OK;
    INVAR_TRY(compact_batch(run));
    while (2 * (run->count + more) > room)
        room *= 2;
    if (room == run->capacity)
        return INVAR_OK;
    INVAR_TRY(invar_running_batch_make_draws(run, room));
    return invar_running_batch_reserve(run, room);
}

/* Removes the samples from `first` on, which failed to join, and their sequences. */
static void discard_samples(invar_running_batch *run, int64_t first)
{
    for (int64_t i = first; i < run->count; i++)
        invar_running_batch_release_state(&run->states[i]);
    run->count = first;
    run->n_seqs = run->runner.scheduler.n_seqs;
}

invar_status invar_rollout_add(invar_rollout *r, invar_rl_sample *samples, int64_t count,
                               const invar_sampling_params *sampling)
{
    invar_running_batch *run = r->stream;
    invar_status status;
    int64_t first;

    INVAR_CHECK(run);
    INVAR_TRY(reserve_samples(run, count));
    first = run->count;
    status = invar_running_batch_add_samples(run, samples, count, sampling);
    if (status == INVAR_OK)
        status = invar_running_batch_add_seqs(run, first);
    if (status == INVAR_OK)
        status = invar_running_batch_add_ngrams(run, first);
    if (status == INVAR_OK)
        status = invar_scheduler_add(&run->runner.scheduler, run->seqs,
                                     run->n_seqs - run->runner.scheduler.n_seqs);
    if (status != INVAR_OK)
        discard_samples(run, first);
    return status;
}

void invar_rollout_cancel(invar_rollout *r, const invar_rl_sample *samples, int64_t count)
{
    invar_running_batch *run = r->stream;

    INVAR_CHECK(run);
    for (int64_t i = 0; i < run->count; i++) {
        invar_decode_state *state = &run->states[i];

        if (state->finished || state->sample < samples || state->sample >= samples + count)
            continue;
        state->finished = true;
        invar_running_batch_release_state(state);
        invar_scheduler_cancel(&run->runner.scheduler, state->seq);
    }
}

invar_status invar_rollout_step(invar_rollout *r)
{
    INVAR_CHECK(r->stream);
    return invar_host_staging_advise_oom(invar_running_batch_step(r->stream),
                                         invar_device_is_local(&r->op_runner.dev),
                                         INVAR_MODEL_RUNNER_ADVICE);
}
