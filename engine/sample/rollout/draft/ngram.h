/*
 * ngram.h - speculative decoding by n-gram look-up: drafts what followed the last tokens before.
 *
 * The proposer searches prompt and response of the sample itself and of the other samples of its
 * group. Among the positions where the last tokens occurred, it takes the one with the longest
 * match, and the newest among equals. It only knows the samples that joined together.
 *
 * Indexing a token takes constant time and 12 bytes; a look-up compares a bounded number of
 * positions.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_NGRAM_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_NGRAM_H

#include "engine/rl/sample.h"
#include "engine/sample/rollout/draft/proposer.h"

/* Lengths of the n-grams that are matched. */
typedef struct invar_ngram_proposer_window {
    int64_t min_n; /* smallest number of matching tokens; >= 1 */
    int64_t max_n; /* largest number of tokens compared; >= min_n */
} invar_ngram_proposer_window;

typedef struct invar_ngram_proposer invar_ngram_proposer;

/*
 * Creates a proposer for samples[0, count), in which groups are adjacent. The samples are borrowed;
 * they may grow, but the array must not move. The proposer is freed when the last sample has left.
 */
invar_status invar_ngram_proposer_new(invar_ngram_proposer **out, const invar_rl_sample *samples,
                                      int64_t count,
                                      const invar_ngram_proposer_window *window) INVAR_MUST_USE;

/* Records that one of the samples needs no more drafts; the last one frees it. May be NULL. */
void invar_ngram_proposer_leave(invar_ngram_proposer *ngram);

/*
 * Implements invar_draft_proposer.propose. The proposer of a request is its `ngrams`, and its
 * sample is an element of the proposer's samples; `self` is not used.
 */
invar_status invar_ngram_proposer_propose(void *self, invar_draft_request *requests,
                                          int64_t count) INVAR_MUST_USE;

#endif
