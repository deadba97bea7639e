/*
 * draft.h - guesses by a smaller model.
 *
 * It reads the rows that the large one reads, and keeps keys and values in pages of the same
 * numbers: what is shared, copied or given back is so for both. It draws with the settings and the
 * coordinates of the large one, so that two models which agree about a token draw the same one, at
 * any temperature. A guess costs a pass of the small model.
 *
 * Only engine/rollout includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_ROLLOUT_DRAFT_DRAFT_H
#define INVAR_ENGINE_ROLLOUT_DRAFT_DRAFT_H

#include "engine/rollout/feed.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The model is borrowed: whole, and with the vocabulary of the large one. */
invar_status invar_draft_new(invar_draft **out, const invar_model *model, const invar_device *dev,
                             const invar_rollout_limits *limits) INVAR_MUST_USE;
void invar_draft_free(invar_draft *draft);

/*
 * For the runs of a feed, whose cache has it as its twin from now on; sampling and feed are
 * borrowed until the end. `sampling` NULL: every sample has its own. Ended also after a failure.
 */
invar_status invar_draft_begin(invar_draft *draft, const invar_sampling *sampling,
                               const invar_feed *feed) INVAR_MUST_USE;
void invar_draft_end(invar_draft *draft);

/* A guesser's (guess.h), after the turns of a pass are known. */
invar_status invar_draft_make(void *self, invar_guess *guesses, int64_t count) INVAR_MUST_USE;

/* After a pass of the large model: rows of it that nothing was guessed behind. */
invar_status invar_draft_read(invar_draft *draft) INVAR_MUST_USE;

/* As invar_rollout_rehearse, of a rollout with such limits. */
invar_status invar_draft_rehearse(invar_draft *draft, const invar_rollout_limits *settled,
                                  const invar_sampling *sampling,
                                  const invar_rollout_most *most) INVAR_MUST_USE;

/* Bytes of its keys and values. */
int64_t invar_draft_cache_bytes(const invar_draft *draft);

#ifdef __cplusplus
}
#endif
#endif
