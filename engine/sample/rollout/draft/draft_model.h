/*
 * draft_model.h - speculative decoding with a draft model: a smaller model proposes the next
 * tokens.
 *
 * The draft model computes the rows of the target model, and keeps keys and values in pages with
 * the same numbers, so sharing, copying and freeing a page holds for both. It samples with the
 * params and random coordinates of the target model, so two models with similar distributions
 * often sample the same token at any temperature. Each draft token costs a pass of the draft model.
 * Private to engine/sample/rollout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_DRAFT_MODEL_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_DRAFT_DRAFT_MODEL_H

#include "engine/sample/rollout/model_runner.h"

/*
 * Creates a draft model. `model` is borrowed; it must be unpartitioned and have the vocabulary of
 * the target model. The caller frees *out with invar_draft_model_free.
 */
invar_status invar_draft_model_new(invar_draft_model **out, const invar_model *model,
                                   const invar_device *dev,
                                   const invar_rollout_exec_options *limits) INVAR_MUST_USE;
void invar_draft_model_free(invar_draft_model *draft);

/*
 * Attaches the draft model to a model runner of the target model, and its cache to the target's as
 * draft_cache. `sampling` (NULL if every sample has its own) and `runner` are borrowed until
 * invar_draft_model_end, which must be called also after a failure.
 */
invar_status invar_draft_model_begin(invar_draft_model *draft,
                                     const invar_sampling_params *sampling,
                                     const invar_model_runner *runner) INVAR_MUST_USE;
void invar_draft_model_end(invar_draft_model *draft);

/* Implements invar_draft_proposer.propose. Call it after the slices of a pass are known. */
invar_status invar_draft_model_propose(void *self, invar_draft_request *requests,
                                       int64_t count) INVAR_MUST_USE;

/*
 * Computes rows of the last target pass that are missing in the cache of the draft model: prefill
 * rows, and decoded rows without drafts. Call it after every target pass.
 */
invar_status invar_draft_model_catch_up(invar_draft_model *draft) INVAR_MUST_USE;

/* Like invar_rollout_dry_run, for the draft model of a rollout with these resolved options. */
invar_status invar_draft_model_dry_run(invar_draft_model *draft,
                                       const invar_rollout_exec_options *resolved,
                                       const invar_sampling_params *sampling,
                                       const invar_rollout_max_shape *max_shape) INVAR_MUST_USE;

/* Returns the bytes of the keys and values of the draft model; 0 before its first use. */
int64_t invar_draft_model_cache_bytes(const invar_draft_model *draft);

#endif
