/*
 * draft_model.h - guesses by a smaller model.
 *
 * It reads the rows that the large one reads, and keeps keys and values in pages of the same
 * numbers: what is shared, copied or given back is so for both. It draws with the settings and the
 * coordinates of the large one, so that two models which agree about a token draw the same one, at
 * any temperature. A guess costs a pass of the small model.
 *
 * Only engine/sample/rollout includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_DRAFT_MODEL_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_DRAFT_MODEL_H

#include "engine/sample/rollout/model_runner.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The model is borrowed: whole, and with the vocabulary of the large one. */
invar_status invar_draft_model_new(invar_draft_model **out, const invar_model *model,
                                   const invar_device *dev,
                                   const invar_rollout_exec_options *limits) INVAR_MUST_USE;
void invar_draft_model_free(invar_draft_model *draft);

/*
 * For the runs of a feed, whose cache has it as its twin from now on; sampling and feed are
 * borrowed until the end. `sampling` NULL: every sample has its own. Ended also after a failure.
 */
invar_status invar_draft_model_begin(invar_draft_model *draft,
                                     const invar_sampling_params *sampling,
                                     const invar_model_runner *feed) INVAR_MUST_USE;
void invar_draft_model_end(invar_draft_model *draft);

/* A guesser's (proposer.h), after the turns of a pass are known. */
invar_status invar_draft_model_make(void *self, invar_draft_request *guesses,
                                    int64_t count) INVAR_MUST_USE;

/* After a pass of the large model: rows of it that nothing was guessed behind. */
invar_status invar_draft_model_read(invar_draft_model *draft) INVAR_MUST_USE;

/* As invar_rollout_dry_run, of a rollout with such limits. */
invar_status invar_draft_model_rehearse(invar_draft_model *draft,
                                        const invar_rollout_exec_options *settled,
                                        const invar_sampling_params *sampling,
                                        const invar_rollout_max_shape *most) INVAR_MUST_USE;

/* Bytes of its keys and values. */
int64_t invar_draft_model_cache_bytes(const invar_draft_model *draft);

#ifdef __cplusplus
}
#endif
#endif
