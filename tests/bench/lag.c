/*
 * lag.c - invar with responses that have the lengths of the list of bench.sampling.
 *
 * BENCH_LENGTHS="SHORTEST LONGEST" in the environment sets the range of the lengths. Nothing else
 * ends a response; sampled tokens, scores and training are those of the model. Runs with and
 * without rollout-lag therefore have the same number of samples with the same lengths, whatever
 * their weights are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/sampling/sampling.h"
#include "tests/device/wrapped_rollout.h"

#define LISTED                                                                                     \
    2048 // samples in the rollout of bench.sampling; further samples repeat their lengths

/* Returns the length of the complete sample in tokens. */
static int64_t end_of(const invar_rl_sample *s, int64_t shortest, int64_t longest)
{
    return s->prompt_tokens + invar_bench_rollout_length(shortest, longest, s->index % LISTED);
}

/*
 * Payload of on_progress: a rollout whose samples end at their listed lengths, and the callback of
 * the caller, called after each pass.
 */
typedef struct listed_rollout {
    invar_rl_sample *samples;
    int64_t count;
    long shortest, longest;
    progress_fn on_progress;
    void *payload;
} listed_rollout;

static void end_samples(const listed_rollout *rollout_run)
{
    for (int64_t i = 0; i < rollout_run->count; i++)
        if (rollout_run->samples[i].n_tokens ==
            end_of(&rollout_run->samples[i], rollout_run->shortest, rollout_run->longest))
            rollout_run->samples[i].finish = INVAR_FINISH_LENGTH;
}

static invar_status on_progress(void *payload, int64_t samples_done, int64_t tokens_done)
{
    const listed_rollout *rollout_run = payload;

    end_samples(rollout_run);
    return rollout_run->on_progress
               ? rollout_run->on_progress(rollout_run->payload, samples_done, tokens_done)
               : INVAR_OK;
}

invar_status __wrap_invar_rollout_run(invar_rollout *rollout, invar_rl_sample *samples,
                                      int64_t count, const invar_sampling_params *sampling,
                                      progress_fn progress, void *payload)
{
    const char *text = getenv("BENCH_LENGTHS");
    invar_sampling_params without_stops = *sampling;
    listed_rollout rollout_run = {
        .samples = samples, .count = count, .on_progress = progress, .payload = payload};

    if (!text || sscanf(text, "%ld %ld", &rollout_run.shortest, &rollout_run.longest) != 2 ||
        rollout_run.shortest < 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "BENCH_LENGTHS: expected two numbers of tokens");
    without_stops.n_stop_ids = without_stops.n_stop = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t end = end_of(&samples[i], rollout_run.shortest, rollout_run.longest);
        if (samples[i].suspend_at == 0 || samples[i].suspend_at > end)
            samples[i].suspend_at = end;
    }
    INVAR_TRY(__real_invar_rollout_run(rollout, samples, count, &without_stops, on_progress,
                                       &rollout_run));
    end_samples(&rollout_run);
    return INVAR_OK;
}
