/*
 * lag.c - the program, but each response has the length that the list of `invar bench` gives it.
 *
 * BENCH_LENGTHS="SHORTEST LONGEST" says between which. Nothing else ends a response, and what is
 * sampled, scored and learned from is what the model draws. So runs with and without rollout-lag
 * have the same samples in number and length, whatever their weights are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/bench.h"
#include "cli/bench/model.h"
#include "tests/device/wrapped_rollout.h"

#define LISTED 2048 // samples of the rollout of `invar bench`; others have their lengths again

/* Tokens of the whole sample. */
static int64_t end_of(const invar_rl_sample *s, int64_t shortest, int64_t longest)
{
    return s->prompt_tokens + invar_bench_rollout_length(shortest, longest, s->index % LISTED);
}

/* A run whose samples end by the list; whoever is told of a pass sees that. */
typedef struct listed {
    invar_rl_sample *samples;
    int64_t count;
    long shortest, longest;
    told tick;
    void *payload;
} listed;

static void end_samples(const listed *run)
{
    for (int64_t i = 0; i < run->count; i++)
        if (run->samples[i].n_tokens == end_of(&run->samples[i], run->shortest, run->longest))
            run->samples[i].finish = INVAR_FINISH_LENGTH;
}

static invar_status tick(void *payload, int64_t samples_done, int64_t tokens_done)
{
    const listed *run = payload;

    end_samples(run);
    return run->tick ? run->tick(run->payload, samples_done, tokens_done) : INVAR_OK;
}

invar_status __wrap_invar_rollout_run(invar_rollout *rollout, invar_rl_sample *samples,
                                      int64_t count, const invar_sampling_params *sampling,
                                      told told_of, void *payload)
{
    const char *text = getenv("BENCH_LENGTHS");
    invar_sampling_params endless = *sampling;
    listed run = {.samples = samples, .count = count, .tick = told_of, .payload = payload};

    if (!text || sscanf(text, "%ld %ld", &run.shortest, &run.longest) != 2 || run.shortest < 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "BENCH_LENGTHS: expected two numbers of tokens");
    endless.n_stop_ids = endless.n_stop = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t end = end_of(&samples[i], run.shortest, run.longest);
        if (samples[i].suspend_at == 0 || samples[i].suspend_at > end)
            samples[i].suspend_at = end;
    }
    INVAR_TRY(__real_invar_rollout_run(rollout, samples, count, &endless, tick, &run));
    end_samples(&run);
    return INVAR_OK;
}
