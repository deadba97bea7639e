/*
 * rollout.c - measures a complete rollout: prefill, decoding, sampling, stops and admission.
 *
 * Random prompts of one length have several samples each, whose responses are given: their lengths
 * come from a fixed list, whatever is drawn. Passes and draws are those of a rollout whose samples
 * end at different times, and are equal in every run and on every machine. A pass counts as one
 * with prefill or recomputed tokens, as one in which all sequences drew a token, or as one with
 * fewer sequences, because the KV cache is full or the rollout ends. For comparison, decoding alone
 * is measured with the same number of sequences, each with the mean context.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/sampling/sampling.h"

#include <string.h>

#include "base/alloc.h"
#include "cli/bench/bench.h"
#include "engine/sample/rollout/rollout.h"
#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/philox.h"

/* State of a rollout that is timed pass by pass. */
typedef struct pass_watch {
    const invar_rollout *rollout;
    invar_bench_rollout *out;
    double last;
    int64_t tokens, known; /* drawn tokens and computed prompt tokens before this pass */
} pass_watch;

int64_t invar_bench_rollout_length(int64_t shortest, int64_t longest, int64_t sample)
{
    const uint32_t counter[4] = {(uint32_t)sample, 0, 0, 0}, key[2] = {0x6C656E67, 0};
    float low = (float)shortest, ratio = (float)longest / low;
    uint32_t word[4];

    invar_philox4x32(word, counter, key);
    return (int64_t)(low * invar_exp((float)(word[0] >> 8) * 0x1p-24f * invar_log(ratio)));
}

static int64_t rollout_length(const invar_bench_rollout *r, int64_t i)
{
    return invar_bench_rollout_length(r->shortest, r->longest, i);
}

static invar_status time_pass(void *payload, int64_t samples_done, int64_t tokens_done)
{
    pass_watch *w = payload;
    invar_rollout_counters counted;
    invar_bench_passes *passes;
    double now = invar_bench_now();

    (void)samples_done;
    invar_rollout_get_counters(&counted, w->rollout);
    if (counted.prefilled + counted.recomputed > w->known)
        passes = &w->out->prompts;
    else if (tokens_done - w->tokens == w->out->batch)
        passes = &w->out->all;
    else
        passes = &w->out->fewer;
    passes->count++;
    passes->tokens += tokens_done - w->tokens;
    passes->seconds += now - w->last;
    w->tokens = tokens_done;
    w->known = counted.prefilled + counted.recomputed;
    w->last = invar_bench_now();
    return INVAR_OK;
}

static invar_status make_samples(invar_rl_sample *samples, const invar_bench_rollout *r,
                                 int64_t vocabulary)
{
    uint64_t state = 11;

    for (int64_t i = 0; i < r->groups * r->group; i++) {
        invar_rl_sample *s = &samples[i];
        const invar_rl_sample *first = &samples[i / r->group * r->group];
        int64_t prompt = r->context, all = prompt + rollout_length(r, i);
        INVAR_TRY(INVAR_ALLOC(s->tokens, (size_t)all, "tokens"));
        s->index = i;
        s->group = i / r->group;
        s->draw_index = (uint32_t)i;
        s->prompt_tokens = prompt;
        s->n_tokens = all;
        s->finish = INVAR_FINISH_LENGTH;
        if (s == first)
            invar_bench_tokens(s->tokens, prompt, &state, vocabulary);
        else
            memcpy(s->tokens, first->tokens, (size_t)prompt * sizeof *s->tokens);
        invar_bench_tokens(s->tokens + prompt, all - prompt, &state, vocabulary);
    }
    return INVAR_OK;
}

static invar_status run_watched(invar_bench_rollout *r, const invar_bench_subject *on,
                                const invar_rl_sample *samples)
{
    const invar_sampling_params sampling = {
        .seed = 1, .temperature = 1.0f, .top_p = 1.0f, .max_response = r->longest};
    const invar_rollout_exec_options limits = {.concurrency = r->batch};
    pass_watch w = {.out = r};
    invar_rollout_counters counted;
    invar_rollout *rollout;
    invar_status status;
    double begun;

    INVAR_TRY(invar_rollout_new(&rollout, on->model, NULL, &on->dev, &limits));
    w.rollout = rollout;
    begun = w.last = invar_bench_now();
    status = invar_rollout_teacher_force(rollout, samples, r->groups * r->group, &sampling,
                                         time_pass, &w);
    r->seconds = invar_bench_now() - begun;
    r->tokens = w.tokens;
    invar_rollout_get_counters(&counted, rollout);
    r->recomputed_rows = counted.recomputed;
    r->cache = invar_profiling_backend_allocated_bytes(on->profiler, "the KV cache");
    r->activations = invar_profiling_backend_allocated_bytes(on->profiler, "activations");
    invar_rollout_free(rollout);
    return status;
}

/* Returns the mean number of tokens before a response token. */
static int64_t mean_context(const invar_bench_rollout *r)
{
    int64_t tokens = 0, before = 0;

    for (int64_t i = 0; i < r->groups * r->group; i++) {
        int64_t length = rollout_length(r, i);
        tokens += length;
        before += length * r->context + length * (length - 1) / 2;
    }
    return before / tokens;
}

invar_status invar_bench_rollout_run(invar_bench_rollout *r, const invar_bench_subject *on)
{
    int64_t count = r->groups * r->group;
    invar_rl_sample *samples;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(samples, (size_t)count, "samples"));
    status = make_samples(samples, r, on->model->spec.vocab);
    if (status == INVAR_OK)
        status = run_watched(r, on, samples);
    for (int64_t i = 0; i < count; i++)
        invar_rl_sample_release(&samples[i]);
    invar_free(samples);
    r->steady = (invar_bench_decode){.batch = r->batch, .context = mean_context(r)};
    return status == INVAR_OK ? invar_bench_decode_run(&r->steady, on) : status;
}
