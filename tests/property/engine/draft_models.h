/*
 * draft_models.h - proposers of draft tokens for tests, from an oracle to random tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_PROPERTY_ENGINE_DRAFT_MODELS_H
#define INVAR_TESTS_PROPERTY_ENGINE_DRAFT_MODELS_H

#include "engine/sample/rollout/model_runner.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

typedef enum draft_kind {
    DRAFT_NGRAM,  /* the product's own proposer */
    DRAFT_ORACLE, /* always right, as long as the sample has further tokens */
    DRAFT_NOISY,  /* sometimes wrong, with a random number of tokens */
    DRAFT_RANDOM, /* random tokens */
    DRAFT_FIXED,  /* always the same token */
    DRAFT_KINDS
} draft_kind;

/* Proposes draft tokens of one kind; self of draft_propose. */
typedef struct draft_source {
    draft_kind kind;
    const invar_rl_samples *expected; /* samples with the tokens that will be sampled */
    const invar_rl_samples *samples;  /* samples of the rollout, which have the same indices */
    int64_t vocab;                    /* number of tokens of the vocabulary */
    int32_t fixed;                    /* token of DRAFT_FIXED */
    uint64_t calls;                   /* random numbers drawn so far */
} draft_source;

static inline int32_t draft_token(draft_source *m, const invar_rl_sample *known, int64_t at)
{
    int32_t any = (int32_t)(invar_test_random(77, m->calls++) % m->vocab);
    int32_t right = at < known->n_tokens ? known->tokens[at] : any;

    switch (m->kind) {
    case DRAFT_ORACLE: return right;
    case DRAFT_NOISY: return any % 4 ? right : any;
    case DRAFT_FIXED: return m->fixed;
    default: return any;
    }
}

static inline invar_status draft_propose(void *self, invar_draft_request *requests, int64_t count)
{
    draft_source *m = self;

    for (int64_t i = 0; i < count; i++) {
        invar_draft_request *g = &requests[i];
        const invar_rl_sample *known = &m->expected->items[g->sample - m->samples->items];
        int64_t from = g->sample->n_tokens, n = g->max_tokens;

        if (m->kind == DRAFT_NOISY)
            n = invar_test_random(78, m->calls++) % (g->max_tokens + 1);
        for (g->count = 0; g->count < n; g->count++)
            g->tokens[g->count] = draft_token(m, known, from + g->count);
    }
    return INVAR_OK;
}

#endif
