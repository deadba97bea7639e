/*
 * ngram.h - guesses by look-up: what followed the last tokens when they occurred before.
 *
 * Looked up are the sample itself and the other samples of its group, prompt and response. Of the
 * places where the last tokens occur, the one that agrees furthest back is taken, and of several
 * the newest. Nothing is learned but the samples of one run.
 *
 * Cost: a token is learned in constant time and 12 bytes; a look-up compares a few places.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_NGRAM_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_NGRAM_H

#include "engine/rl/sample.h"
#include "engine/sample/rollout/draft/proposer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How many of the last tokens must have occurred before, and how many are compared at most. */
typedef struct invar_ngram_proposer_window {
    int64_t min_n; /* 1 or more */
    int64_t max_n; /* least or more */
} invar_ngram_proposer_window;

typedef struct invar_ngram_proposer invar_ngram_proposer;

/*
 * The samples are borrowed; groups are neighbours. They may grow, but lie where they are. It goes
 * with the last of them that leaves.
 */
invar_status invar_ngram_proposer_new(invar_ngram_proposer **out, const invar_rl_sample *samples,
                                      int64_t count,
                                      const invar_ngram_proposer_window *window) INVAR_MUST_USE;

/* One of the samples needs no more guesses. `ngram` may be NULL. */
void invar_ngram_proposer_leave(invar_ngram_proposer *ngram);

/* A guesser's (proposer.h): each guess has its look-up, and `self` is nothing. */
invar_status invar_ngram_proposer_make(void *self, invar_draft_request *guesses,
                                       int64_t count) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
