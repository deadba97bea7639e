/*
 * proposer.h - guesses of the next tokens of samples, and when one holds.
 *
 * A pass computes the rows of guesses behind the row that is due, and the sampler draws from each
 * of them. A guess holds if it is the token that the row before it yields; then its own row is what
 * a pass without guesses would have computed next. Rows behind a guess that does not hold never
 * existed. So guesses decide how many tokens a pass yields, and no token.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_PROPOSER_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_PROPOSER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/rl/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is asked for: the tokens behind those that a sample has. */
typedef struct invar_draft_request {
    const invar_rl_sample *sample;
    const struct invar_sampling_params *sampling; /* of it */
    struct invar_ngram_proposer *seen; /* where to look up; NULL: somebody else guesses */
    int64_t job;                       /* of the schedule */
    int64_t max_tokens;                /* tokens wanted; 0: none */
    int32_t *tokens;                   /* (most) to be written; they lie behind the sample's own */
    int64_t count;                     /* written */
} invar_draft_request;

/* Who makes them. */
typedef struct invar_draft_proposer {
    invar_status (*make)(void *self, invar_draft_request *guesses,
                         int64_t count); /* NULL: nobody */
    void *self;
} invar_draft_proposer;

static inline bool invar_draft_accepted(int32_t guess, int32_t token)
{
    return guess == token;
}

#ifdef __cplusplus
}
#endif
#endif
