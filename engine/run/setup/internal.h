/*
 * internal.h - the setup of a run from the inside: what its files ask of each other.
 *
 * Only engine/run/setup includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_SETUP_INTERNAL_H
#define INVAR_ENGINE_RUN_SETUP_INTERNAL_H

#include "engine/run/train_loop.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ranks.c --------------------------------------------------------------------------------- */

/* What all ranks are refused for alike is no fault of one of them: each tells it by itself. */
invar_status invar_setup_find_together(invar_train_loop *loop, invar_status status) INVAR_MUST_USE;

/* Ranks that this one shares its process and its host with. */
invar_local_ranks invar_setup_crowd(const invar_train_loop *loop);

/* The layout of the ranks, and which of them only sample. */
invar_status invar_setup_open_layout(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * ---- memory.c ----------------------------------------------------------------------------------
 */

/* Before any weights: what cannot fit is refused, and what is open is chosen. */
invar_status invar_setup_plan_memory(invar_memory_plan *out, invar_train_loop *loop) INVAR_MUST_USE;

/* Rollout and trainer have all their memory afterwards. */
invar_status invar_setup_settle_memory(invar_train_loop *loop) INVAR_MUST_USE;

/* ---- models.c -------------------------------------------------------------------------------- */

/* What this rank wants of the session: of the models, one that only samples has the actor's. */
unsigned invar_setup_wants(const invar_train_loop *loop);

/* The models with their weights, which are part of what ranks compare. */
invar_status invar_setup_make_models(invar_train_loop *loop) INVAR_MUST_USE;

/* The same, and all else that is large. */
invar_status invar_setup_take_memory(invar_train_loop *loop,
                                     const invar_memory_plan *plan) INVAR_MUST_USE;

/* ---- source.c -------------------------------------------------------------------------------- */

/* Where anything is sampled. */
invar_status invar_setup_make_rollout(invar_train_loop *loop) INVAR_MUST_USE;
invar_status invar_setup_open_source(invar_train_loop *loop) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
