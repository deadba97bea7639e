/*
 * internal.h - functions that the files of engine/run/setup share.
 *
 * Private to engine/run/setup. Setup has this order: layout of ranks, inputs and memory plan,
 * models with weights, memory of rollout and trainer, then on rank 0 outputs, and last the
 * checkpoint.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_SETUP_INTERNAL_H
#define INVAR_ENGINE_RUN_SETUP_INTERNAL_H

#include "engine/run/train_loop.h"

/* ---- ranks.c --------------------------------------------------------------------------------- */

/*
 * Returns `status`. If all ranks have failed with INVAR_E_INVALID and the same message, sets
 * world->all_failed: each rank then reports the failure by itself, and none has to abort the
 * others. Collective; a rank with any other failure returns at once, and has to abort the others.
 */
invar_status invar_setup_find_together(invar_run_world *world, invar_status status) INVAR_MUST_USE;

/* Returns how many ranks share the process and the host with this one. */
invar_local_ranks invar_setup_local_ranks(const invar_run_world *world, const invar_run_job *job);

/* Opens the layout of the ranks and their roles, and compares the ranks' recipes. Collective. */
invar_status invar_setup_open_layout(invar_run_storage *storage) INVAR_MUST_USE;

/* ---- models.c -------------------------------------------------------------------------------- */

/*
 * Plans the memory before there are weights: fails if the run cannot fit, and chooses the settings
 * that the recipe leaves open. Collective.
 */
invar_status invar_setup_plan_memory(invar_memory_plan *out, invar_run_storage *storage,
                                     invar_run_models *models) INVAR_MUST_USE;

/*
 * Makes the models with their weights, computes the identity, and compares it over all ranks.
 * Collective.
 */
invar_status invar_setup_make_models(invar_run_storage *storage,
                                     invar_run_models *models) INVAR_MUST_USE;

/*
 * Makes the models; the block of device memory, with rollout and trainers in it; and beside it the
 * learners and the weight sync. Collective.
 */
invar_status invar_setup_take_memory(invar_train_loop *loop,
                                     const invar_memory_plan *plan) INVAR_MUST_USE;

/* ---- source.c -------------------------------------------------------------------------------- */

/* Makes the rollout, if this rank samples anything. */
invar_status invar_setup_make_rollout(invar_run_storage *storage,
                                      invar_run_models *models) INVAR_MUST_USE;
/* Opens the sample source and the agents that lead samples. */
invar_status invar_setup_open_source(invar_train_loop *loop) INVAR_MUST_USE;

#endif
