/*
 * prompts.h - prompts in groups and bitwise comparison of samples, for tests of the rollout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_SAMPLE_ROLLOUT_PROMPTS_H
#define INVAR_TESTS_UNIT_ENGINE_SAMPLE_ROLLOUT_PROMPTS_H

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/sample/rollout/rollout.h"
#include "tests/model.h"

/* Sampling parameters: responses end at one of several tokens, or after `response` tokens. */
static const int32_t prompts_ends[] = {96, 3, 17, 40, 55, 60};
#define PROMPTS_SAMPLING(response)                                                                 \
    {                                                                                              \
        .seed = 11, .temperature = 0.8f, .top_p = 1.0f, .max_response = (response),                \
        .stop_ids = prompts_ends, .n_stop_ids = 6                                                  \
    }

/* Appends a sample with the given prompt tokens; `draw` determines its random numbers. */
static inline invar_status prompts_add(invar_rl_samples *out, const int32_t *prompt, int64_t n,
                                       int64_t group, uint32_t draw)
{
    invar_rl_sample *s;

    INVAR_TRY(invar_rl_samples_append(&s, out));
    s->index = out->count - 1;
    s->group = group;
    s->draw_index = draw;
    s->rollout = 7;
    INVAR_TRY(INVAR_ALLOC(s->tokens, (size_t)n, "a prompt"));
    memcpy(s->tokens, prompt, (size_t)n * sizeof *prompt);
    s->prompt_tokens = s->n_tokens = n;
    return INVAR_OK;
}

/* Makes groups of 1 to `each` samples with prompts of 1 to `longest` random tokens. */
static inline invar_status prompts_new(invar_rl_samples *out, int64_t groups, int64_t each,
                                       int64_t longest, int64_t vocab)
{
    int32_t prompt[64];
    uint64_t n = 0;

    *out = (invar_rl_samples){0};
    for (int64_t g = 0; g < groups; g++) {
        int64_t tokens = 1 + invar_test_random(5, n++) % longest;
        for (int64_t i = 0; i < tokens; i++)
            prompt[i] = (int32_t)(invar_test_random(5, n++) % vocab);
        for (int64_t i = 0; i <= g % each; i++)
            INVAR_TRY(prompts_add(out, prompt, tokens, g, (uint32_t)(g * each + i)));
    }
    return INVAR_OK;
}

static inline bool prompts_same(const void *a, const void *b, int64_t count, size_t size)
{
    return count == 0 || memcmp(a, b, (size_t)count * size) == 0;
}

/* Returns whether two samples have the same tokens, log-probs, routing, text and finish. */
static inline bool prompts_equal(const invar_rl_sample *a, const invar_rl_sample *b)
{
    int64_t n = invar_rl_sample_response(a);

    return a->n_tokens == b->n_tokens && a->prompt_tokens == b->prompt_tokens &&
           a->route_size == b->route_size && a->finish == b->finish &&
           a->response_bytes == b->response_bytes &&
           prompts_same(a->tokens, b->tokens, a->n_tokens, sizeof *a->tokens) &&
           prompts_same(a->logp, b->logp, n, sizeof *a->logp) &&
           prompts_same(a->mask, b->mask, n, sizeof *a->mask) &&
           prompts_same(a->routing, b->routing, (a->n_tokens - 1) * a->route_size,
                        sizeof *a->routing) &&
           prompts_same(a->response, b->response, (int64_t)a->response_bytes, 1);
}

static inline void prompts_assert_equal(const invar_rl_samples *got,
                                        const invar_rl_samples *expected, const char *what)
{
    assert_int_equal(got->count, expected->count);
    for (int64_t i = 0; i < got->count; i++)
        if (!prompts_equal(&got->items[i], &expected->items[i]))
            fail_msg("%s: sample %d differs", what, (int)i);
}

#endif
