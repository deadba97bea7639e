/*
 * decode.c - measures a decode pass, in which every sequence gets one token.
 *
 * Different random prompts of equal length go through the rollout with a KV cache that has room for
 * all of them. Timed are consecutive passes in which all sequences drew a token and none was still
 * in prefill.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "cli/bench/bench.h"
#include "cli/bench/model.h"
#include "engine/sample/rollout/rollout.h"

#include "base/invar_banned.h"

enum { WARM_UP = 3, PAGE = 16, MAX_TIMES = 256, PASSES_PER_REPETITION = 4 };

/* State of a rollout that is timed pass by pass. */
typedef struct pass_watch {
    const invar_bench_subject *on;
    int64_t batch;
    int64_t n_timed;    /* number of passes to time */
    int64_t n_profiled; /* number of further passes to profile */
    int64_t tokens;     /* tokens drawn before this pass */
    int64_t full;       /* consecutive passes in which all sequences drew a token */
    double begin_s, last_pass_s, prefill_s;
    double times[MAX_TIMES];
    int64_t count;
    bool enough;
} pass_watch;

static invar_status time_pass(void *payload, int64_t samples_done, int64_t tokens_done)
{
    pass_watch *w = payload;
    double now = invar_bench_now();
    bool full = tokens_done - w->tokens == w->batch;

    (void)samples_done;
    w->tokens = tokens_done;
    if (!full)
        w->full = 0;
    else if (w->full++ == 0)
        w->prefill_s = now - w->begin_s; // the last prompts were part of this pass
    else if (w->full > WARM_UP && w->count < w->n_timed)
        w->times[w->count++] = now - w->last_pass_s;
    w->last_pass_s = invar_bench_now();
    if (w->count < w->n_timed)
        return INVAR_OK;
    if (w->n_profiled > 0 && w->full == WARM_UP + w->n_timed)
        INVAR_TRY(invar_profiling_backend_begin(w->on->profiler, &w->on->dev));
    w->enough = w->full >= WARM_UP + w->n_timed + w->n_profiled;
    if (w->enough && w->n_profiled > 0)
        invar_profiling_backend_end(w->on->profiler);
    return w->enough ? INVAR_FAIL(INVAR_E_STATE, 0, "bench: it has run long enough") : INVAR_OK;
}

static invar_status make_prompts(invar_rl_sample *samples, int64_t count, int64_t tokens,
                                 int64_t vocabulary)
{
    uint64_t state = 11;

    for (int64_t i = 0; i < count; i++) {
        invar_rl_sample *s = &samples[i];
        INVAR_TRY(INVAR_ALLOC(s->tokens, (size_t)tokens, "tokens"));
        s->index = s->group = i;
        s->draw_index = (uint32_t)i;
        s->prompt_tokens = s->n_tokens = tokens;
        invar_bench_tokens(s->tokens, tokens, &state, vocabulary);
    }
    return INVAR_OK;
}

/*
 * Returns the response length that keeps the first sequence running until the last prompt is read
 * and all passes are timed.
 */
static int64_t response_length(const invar_bench_decode *d, const pass_watch *w, int64_t chunk)
{
    return 2 * ((d->batch * d->context + chunk - 1) / chunk) + WARM_UP + w->n_timed +
           w->n_profiled + 8;
}

static invar_status run_rollout(pass_watch *w, invar_bench_decode *d, invar_rl_sample *samples)
{
    const invar_bench_subject *on = w->on;
    int64_t chunk = invar_device_is_local(&on->dev) ? 4096 : 512, longest;
    invar_sampling_params sampling = {.seed = 1,
                                      .temperature = 1.0f,
                                      .top_p = 1.0f,
                                      .max_response = response_length(d, w, chunk)};
    invar_rollout_exec_options limits = {
        .concurrency = d->batch, .prefill_chunk = chunk, .page_size = PAGE};
    invar_rollout *rollout = NULL;
    invar_status status;

    longest = d->context + sampling.max_response;
    limits.pages = d->batch * ((longest + PAGE - 1) / PAGE + 1);
    INVAR_TRY(invar_rollout_new(&rollout, on->model, NULL, &on->dev, &limits));
    status = make_prompts(samples, d->batch, d->context, on->model->spec.vocab);
    w->begin_s = w->last_pass_s = invar_bench_now();
    if (status == INVAR_OK)
        status = invar_rollout_run(rollout, samples, d->batch, &sampling, time_pass, w);
    if (w->enough) {
        invar_error_clear();
        status = INVAR_OK;
    }
    d->last_context = samples[0].n_tokens;
    d->cache = invar_profiling_backend_allocated_bytes(on->profiler, "the KV cache");
    d->activations = invar_profiling_backend_allocated_bytes(on->profiler, "activations");
    invar_rollout_free(rollout);
    if (status == INVAR_OK && !w->enough)
        return INVAR_FAIL(INVAR_E_STATE, 0, "bench: too few passes had all sequences in them");
    return status;
}

static invar_status run_watched(pass_watch *w, invar_bench_decode *d)
{
    invar_rl_sample *samples = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(samples, (size_t)d->batch, "samples"));
    status = run_rollout(w, d, samples);
    for (int64_t i = 0; i < d->batch; i++)
        invar_rl_sample_release(&samples[i]);
    invar_free(samples);
    return status;
}

/* Profiles the passes of a separate rollout, op by op. */
static invar_status profile_passes(invar_bench_profile *out, invar_bench_decode *d,
                                   const invar_bench_subject *on)
{
    pass_watch w = {.on = on, .batch = d->batch, .n_timed = 1, .n_profiled = PASSES_PER_REPETITION};

    if (!on->profile)
        return INVAR_OK;
    INVAR_TRY(run_watched(&w, d));
    return invar_bench_profile_take(out, on->profiler, w.n_profiled);
}

invar_status invar_bench_decode_run(invar_bench_decode *d, const invar_bench_subject *on)
{
    pass_watch w = {
        .on = on, .batch = d->batch, .n_timed = PASSES_PER_REPETITION * on->repetitions};

    INVAR_CHECK(w.n_timed <= MAX_TIMES);
    INVAR_TRY(profile_passes(&d->profile, d, on));
    INVAR_TRY(run_watched(&w, d));
    d->seconds = invar_bench_median(w.times, w.count);
    d->prefill_seconds = w.prefill_s;
    return INVAR_OK;
}
