/*
 * proposer.h - interface of draft token proposers for speculative decoding.
 *
 * A pass computes the rows of the draft tokens after the regular row of a sequence, and the sampler
 * samples a token from each row. A draft token is accepted if it equals the token sampled from the
 * row before it; its own row is then the one that a pass without drafts would have computed next.
 * Rows after the first rejected draft are discarded. So drafts decide how many tokens a pass
 * yields, but never which tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_PROPOSER_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_PROPOSER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/rl/sample.h"

/* Request for draft tokens after the current tokens of a sample. */
typedef struct invar_draft_request {
    const invar_rl_sample *sample;
    const struct invar_sampling_params *sampling; /* sampling params of the sample */
    struct invar_ngram_proposer *ngrams;          /* n-gram table; NULL for other proposers */
    int64_t seq;                                  /* index of the sequence in the scheduler */
    int64_t max_tokens;                           /* largest number of draft tokens; may be 0 */
    int32_t *tokens; /* (max_tokens) out; directly after the sample's own tokens */
    int64_t count;   /* out: number of draft tokens written; 0 on entry */
} invar_draft_request;

/*
 * A proposer. `propose` answers `count` requests with `self` as its state; it is NULL if nothing is
 * drafted.
 */
typedef struct invar_draft_proposer {
    invar_status (*propose)(void *self, invar_draft_request *guesses, int64_t count);
    void *self;
} invar_draft_proposer;

/* Returns true if a draft token is accepted when `token` was sampled. */
static inline bool invar_draft_accepted(int32_t draft, int32_t token)
{
    return draft == token;
}

#endif
