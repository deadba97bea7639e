/*
 * draft_models.h - guessers of tokens for tests: from those that know to those that mislead.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_PROPERTY_ENGINE_DRAFT_MODELS_H
#define INVAR_TESTS_PROPERTY_ENGINE_DRAFT_MODELS_H

#include "engine/sample/rollout/model_runner.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

typedef enum guess_kind {
    GUESS_NGRAM,  /* the product's own */
    GUESS_KNOWS,  /* always right, where the sample goes on */
    GUESS_ERRS,   /* now and then wrong, and of any number */
    GUESS_RANDOM, /* any token */
    GUESS_FIXED,  /* always the same token */
    GUESS_KINDS
} guess_kind;

typedef struct guess_maker {
    guess_kind kind;
    const invar_rl_samples *expected; /* what will be drawn */
    const invar_rl_samples *samples;  /* that are on their way */
    int64_t vocab;
    int32_t fixed;
    uint64_t calls;
} guess_maker;

static inline int32_t guess_token(guess_maker *m, const invar_rl_sample *known, int64_t at)
{
    int32_t any = (int32_t)(invar_test_random(77, m->calls++) % m->vocab);
    int32_t right = at < known->n_tokens ? known->tokens[at] : any;

    switch (m->kind) {
    case GUESS_KNOWS: return right;
    case GUESS_ERRS: return any % 4 ? right : any;
    case GUESS_FIXED: return m->fixed;
    default: return any;
    }
}

static inline invar_status guess_make(void *self, invar_draft_request *guesses, int64_t count)
{
    guess_maker *m = self;

    for (int64_t i = 0; i < count; i++) {
        invar_draft_request *g = &guesses[i];
        const invar_rl_sample *known = &m->expected->items[g->sample - m->samples->items];
        int64_t from = g->sample->n_tokens, n = g->max_tokens;

        if (m->kind == GUESS_ERRS)
            n = invar_test_random(78, m->calls++) % (g->max_tokens + 1);
        for (g->count = 0; g->count < n; g->count++)
            g->tokens[g->count] = guess_token(m, known, from + g->count);
    }
    return INVAR_OK;
}

#endif
