/*
 * async_verify.c - verifies tokens of later rollouts while the weights that sampled them still
 * exist.
 *
 * With rollout-lag, a sample can have tokens of several weight versions, and its log-probs cannot
 * be compared once those weights have changed. So the tokens of the current version are scored and
 * compared before the weights change: by the trainer, or during training by the thread or the rank
 * that samples them.
 *
 * The sampling thread scores with the sampling copy of the weights, and with a trainer and memory
 * of its own (async_verifier). Until it is joined it alone uses loop->async_status, and of the rest
 * of the loop it reads only what does not change between two rollouts. A mismatch found by a
 * thread, or by a rank that only samples, is reported to all ranks when the thread is joined.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/run/train_loop.h"

#include "base/invar_banned.h"

/* ---- tokens that the weights of now have drawn ----------------------------------------------- */

/*
 * Returns the first sampled token of the current weight version whose log-prob differs from
 * `scored` (response); -1 if all are equal.
 */
static int64_t first_mismatch(const invar_rl_sample *s, const float *scored)
{
    int64_t first = s->weights.last_from - s->prompt_tokens, n = invar_rl_sample_response(s);

    for (int64_t t = first; t < n; t++)
        if (s->mask[t] && memcmp(&s->logp[t], &scored[t], sizeof *scored) != 0)
            return t;
    return -1;
}

/* Describes the first mismatch in the samples; `out` is empty if all log-probs are equal. */
static void describe_mismatch(char out[INVAR_TRAIN_LOOP_MISMATCH_SIZE], const invar_run_flow *flow,
                              const invar_rl_sample *samples, int64_t count, const float *scored)
{
    out[0] = '\0';
    for (int64_t i = 0; i < count; scored += invar_rl_sample_response(&samples[i++])) {
        const invar_rl_sample *s = &samples[i];
        int64_t odd =
            s->weights.last == flow->source.request.weights ? first_mismatch(s, scored) : -1;

        if (odd < 0)
            continue;
        (void)snprintf(out, INVAR_TRAIN_LOOP_MISMATCH_SIZE,
                       "log-probabilities of rollout and scoring differ at token %" PRId64
                       " of sample %" PRId64 " of rollout %" PRIu32 ", which version %" PRId64
                       " of the weights drew (its first token: %" PRId64 "): %g and %g",
                       odd, s->index, s->rollout, s->weights.last, s->weights.first,
                       (double)s->logp[odd], (double)scored[odd]);
        return;
    }
}

static invar_status report_mismatch(invar_run_storage *storage, const char *odd)
{
    return odd[0] ? invar_run_mismatch(storage, "logp-mismatch", odd) : INVAR_OK;
}

invar_status invar_run_compare_fresh(invar_run_storage *storage, invar_run_flow *flow,
                                     const invar_rl_sample *samples, int64_t count,
                                     const float *scored)
{
    char odd[INVAR_TRAIN_LOOP_MISMATCH_SIZE];

    describe_mismatch(odd, flow, samples, count, scored);
    return report_mismatch(storage, odd);
}

/*
 * Like describe_mismatch, but first scores the samples with `model`, which has the current weights.
 */
static invar_status score_and_compare(char out[INVAR_TRAIN_LOOP_MISMATCH_SIZE],
                                      const invar_run_flow *flow, invar_trainer *trainer,
                                      const invar_model *model, const invar_rl_samples *fresh)
{
    int64_t tokens = invar_trainer_tokens(fresh->items, fresh->count);
    float *scored = NULL;
    invar_status status;

    out[0] = '\0';
    if (fresh->count == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(scored, (size_t)tokens, "log-probabilities"));
    status = invar_trainer_score(trainer, model, fresh->items, fresh->count, scored, NULL);
    if (status == INVAR_OK)
        describe_mismatch(out, flow, fresh->items, fresh->count, scored);
    invar_free(scored);
    return status;
}

/* Appends shallow copies of the samples that have tokens of the current weights. */
static invar_status append_current_version(invar_rl_samples *out, const invar_run_flow *flow,
                                           const invar_rl_sample *samples, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const invar_rl_sample *s = &samples[i];
        invar_rl_sample *to;

        if (s->weights.last != flow->source.request.weights || s->weights.last_from == s->n_tokens)
            continue;
        INVAR_TRY(invar_rl_samples_append(&to, out));
        *to = *s;
    }
    return INVAR_OK;
}

invar_status invar_train_loop_check_flight(invar_train_loop *loop)
{
    const invar_inflight *flight = &loop->flow.source.inflight;
    const invar_rl_samples *batch = &loop->flow.batch.samples;
    invar_rl_samples fresh = {0};
    char odd[INVAR_TRAIN_LOOP_MISMATCH_SIZE];
    invar_status status = INVAR_OK;

    if (!invar_sample_schedule_checks(&loop->job.settings.sampling))
        return INVAR_OK;
    if (loop->flow.arrays.copied)
        status = append_current_version(&fresh, &loop->flow, batch->items, batch->count);
    for (int64_t r = 0; r < flight->count && status == INVAR_OK; r++)
        status = append_current_version(&fresh, &loop->flow, flight->started[r].items,
                                        flight->started[r].count);
    if (status == INVAR_OK)
        status = append_current_version(&fresh, &loop->flow, flight->surplus.items,
                                        flight->surplus.count);
    if (status == INVAR_OK)
        status = score_and_compare(odd, &loop->flow, loop->models.trainer,
                                   loop->models.context.models.actor, &fresh);
    invar_free(fresh.items);
    return status == INVAR_OK ? report_mismatch(&loop->storage, odd) : status;
}

/* ---- beside training ------------------------------------------------------------------------- */

invar_status invar_run_async_progress(void *payload)
{
    const invar_progress_callback *tick = &((const invar_run_flow *)payload)->async_status.tick;

    return tick->run ? tick->run(tick->payload) : INVAR_OK; // no callback before there are samples
}

invar_status invar_train_loop_verify_async(void *payload, const invar_rl_sample *samples,
                                           int64_t count, const invar_progress_callback *tick)
{
    invar_train_loop *loop = payload;
    invar_rl_samples fresh = {0};
    invar_status status = INVAR_OK;

    loop->flow.async_status.tick = *tick;
    if (loop->models.async_verifier) {
        status = append_current_version(&fresh, &loop->flow, samples, count);
        if (status == INVAR_OK)
            status = score_and_compare(
                loop->flow.async_status.mismatch_text, &loop->flow, loop->models.async_verifier,
                invar_model_set_sampler(&loop->models.context.models), &fresh);
        invar_free(fresh.items);
    }
    loop->flow.async_status.end_ns = invar_trace_clock();
    return status;
}

/* Broadcasts the mismatch text of the first rank that has one. Collective. */
static invar_status broadcast_mismatch(invar_run_flow *flow)
{
    char *odd = flow->async_status.mismatch_text;
    int64_t own = 0, first;

    if (odd[0])
        own = 1 + (flow->world->all ? invar_comm_rank(flow->world->all->world) : 0);
    INVAR_TRY(invar_ranks_first_nonzero(&first, flow->world->all, "samples ahead", own));
    return first ? invar_ranks_broadcast(flow->world->all, "samples ahead", (int)first - 1, odd,
                                         INVAR_TRAIN_LOOP_MISMATCH_SIZE)
                 : INVAR_OK;
}

invar_status invar_run_join_async(invar_run_storage *storage, invar_run_flow *flow)
{
    const invar_sample_schedule *schedule = &storage->job->settings.sampling;
    const bool threaded = schedule->ahead == INVAR_AHEAD_IN_THREAD;
    invar_status status;

    if (!invar_sample_schedule_sampler_checks(schedule) && !threaded)
        return invar_sample_source_join(&flow->source);
    invar_trace_begin(storage->recorder.trace, "rollout"); // only the time of waiting
    status = invar_sample_source_join(&flow->source);
    invar_trace_end(storage->recorder.trace);
    INVAR_TRY(status);
    if (threaded && flow->async_status.end_ns > 0)
        invar_trace_add_phase(storage->recorder.trace, "ahead", flow->async_status.begin_ns,
                              flow->async_status.end_ns);
    INVAR_TRY(broadcast_mismatch(flow));
    status = report_mismatch(storage, flow->async_status.mismatch_text);
    flow->async_status = (invar_async_status){.end_ns = 0};
    return status;
}
