/*
 * speculation.c - measures speculative decoding: the same responses with and without drafts.
 *
 * Responses are given, so the acceptance of drafts depends on the text alone and is equal on every
 * machine; passes and draws are those of a rollout. Two texts: lines of a table, each with one new
 * word, and worked answers of word problems, whose prompts are the questions. Words, digits and
 * signs are one token each. Every sequence is a group of its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/sampling/sampling.h"

#include <string.h>

#include "base/alloc.h"
#include "cli/bench/bench.h"
#include "engine/sample/rollout/rollout.h"

enum { LINE = 24, LINES = 12, MAX_TOKENS = 512 };

typedef struct problem {
    const char *question, *answer;
} problem;

static const problem problems[] = {
#define PROBLEM(QUESTION, ANSWER) {QUESTION, ANSWER},
#include "tests/bench/sampling/problems.def"
#undef PROBLEM
};

enum { PROBLEMS = (int)(sizeof problems / sizeof *problems) };

/* ---- texts ----------------------------------------------------------------------------------- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Writes the tokens of a text: arbitrary ids, equal for equal words. */
static int64_t tokenize(int32_t *out, const char *text, int64_t vocab)
{
    int64_t n = 0;

    while (*text) {
        uint64_t hash = 0;

        do
            hash = (hash ^ (uint64_t)(unsigned char)*text) * UINT64_C(0x9E3779B97F4A7C15);
        while (is_letter(*text++) && is_letter(*text));
        if (text[-1] != ' ')
            out[n++] = (int32_t)((hash >> 32) % (uint64_t)vocab);
        INVAR_CHECK(n < MAX_TOKENS / 2);
    }
    return n;
}

/* Writes a table. Its heading is the prompt. */
static void write_table(invar_rl_sample *s, int64_t vocab, uint64_t state)
{
    invar_bench_tokens(s->tokens, LINE, &state, vocab);
    s->prompt_tokens = LINE;
    s->n_tokens = LINE * LINES;
    for (int64_t at = LINE; at < s->n_tokens; at++)
        if (at % LINE == 2)
            invar_bench_tokens(s->tokens + at, 1, &state, vocab);
        else
            s->tokens[at] = s->tokens[at - LINE];
}

static void write_problem(invar_rl_sample *s, int64_t vocab, int64_t i)
{
    s->prompt_tokens = tokenize(s->tokens, problems[i % PROBLEMS].question, vocab);
    s->n_tokens = s->prompt_tokens +
                  tokenize(s->tokens + s->prompt_tokens, problems[i % PROBLEMS].answer, vocab);
}

static invar_status write_samples(invar_rl_sample *samples, int64_t count, int64_t vocab,
                                  invar_bench_text text)
{
    for (int64_t i = 0; i < count; i++) {
        invar_rl_sample *s = &samples[i];

        INVAR_TRY(INVAR_ALLOC(s->tokens, MAX_TOKENS, "tokens of a text"));
        s->index = s->group = i;
        s->draw_index = (uint32_t)i;
        s->finish = INVAR_FINISH_LENGTH;
        if (text == INVAR_BENCH_TEXT_TABLE)
            write_table(s, vocab, (uint64_t)i);
        else
            write_problem(s, vocab, i);
    }
    return INVAR_OK;
}

/* ---- measurement ----------------------------------------------------------------------------- */

static invar_status store_tokens(void *payload, int64_t samples_done, int64_t tokens_done)
{
    invar_bench_draft_result *g = payload;

    (void)samples_done;
    g->tokens = tokens_done;
    return INVAR_OK;
}

/* Measures the second of two runs, because the first one captures the graphs. */
static invar_status measure_drafts(invar_bench_draft_result *g, const invar_bench_subject *on,
                                   const invar_rl_sample *samples, int64_t count)
{
    const invar_sampling_params sampling = {
        .seed = 1, .temperature = 1.0f, .top_p = 1.0f, .max_response = MAX_TOKENS};
    const invar_rollout_exec_options limits = {
        .concurrency = count,
        .speculation = {g->n_draft_tokens ? INVAR_SPECULATIVE_ALGORITHM_NGRAM
                                          : INVAR_SPECULATIVE_ALGORITHM_NONE,
                        g->n_draft_tokens,
                        {2, 12},
                        NULL}};
    invar_rollout_counters counted;
    invar_rollout *rollout;
    invar_status status = INVAR_OK;

    INVAR_TRY(invar_rollout_new(&rollout, on->model, NULL, &on->dev, &limits));
    for (int i = 0; i < 2 && status == INVAR_OK; i++) {
        double begun = invar_bench_now();
        status = invar_rollout_teacher_force(rollout, samples, count, &sampling, store_tokens, g);
        g->seconds = invar_bench_now() - begun;
    }
    invar_rollout_get_counters(&counted, rollout);
    g->passes = counted.passes;
    g->drafted = counted.drafted;
    g->accepted = counted.accepted;
    invar_rollout_free(rollout);
    return status;
}

static invar_status measure_text(invar_bench_speculation *s, const invar_bench_subject *on,
                                 invar_rl_sample *samples, invar_bench_text text)
{
    static const int64_t ahead[INVAR_BENCH_DRAFTED] = {0, 2, 4, 8};

    INVAR_TRY(write_samples(samples, s->batch, on->model->spec.vocab, text));
    for (int i = 0; i < INVAR_BENCH_DRAFTED; i++) {
        s->drafted[text][i].n_draft_tokens = ahead[i];
        INVAR_TRY(measure_drafts(&s->drafted[text][i], on, samples, s->batch));
    }
    return INVAR_OK;
}

invar_status invar_bench_speculation_run(invar_bench_speculation *s, const invar_bench_subject *on)
{
    invar_rl_sample *samples;
    invar_status status = INVAR_OK;

    INVAR_TRY(INVAR_ALLOC(samples, (size_t)s->batch, "samples"));
    for (int text = 0; text < INVAR_BENCH_TEXT_COUNT && status == INVAR_OK; text++) {
        memset(samples, 0, (size_t)s->batch * sizeof *samples);
        status = measure_text(s, on, samples, (invar_bench_text)text);
        for (int64_t i = 0; i < s->batch; i++)
            invar_rl_sample_release(&samples[i]);
    }
    invar_free(samples);
    return status;
}
