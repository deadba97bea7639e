/*
 * dry_models.h - the models and learners of a run on a device that only counts bytes.
 *
 * Private to engine/run/memory_plan.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_MEMORY_PLAN_DRY_MODELS_H
#define INVAR_ENGINE_RUN_MEMORY_PLAN_DRY_MODELS_H

#include "engine/run/memory_plan/memory_plan.h"
#include "engine/train/weight_sync/weight_sync.h"

/*
 * Models without memory. Zero-initialize before use. Release with invar_dry_models_release, also
 * after a failure. Must not be moved after invar_dry_models_make.
 */
typedef struct invar_dry_models {
    const invar_memory_workload *workload;
    invar_phase_arena resident; /* device of the models */
    invar_phase_arena work;     /* device of the current phase */
    invar_model_set run;
    invar_learner actor_learner, critic_learner;
    invar_weight_sync *sync; /* NULL without a weight sync */
    size_t overhead_bytes;   /* resident memory besides the models: norms, hashes */
} invar_dry_models;

/* Makes all models and learners, and sets the resident items of *out. */
invar_status invar_dry_models_make(invar_dry_models *models, invar_memory_plan *out,
                                   const invar_memory_workload *workload) INVAR_MUST_USE;

/* Sets overhead_bytes. Call before invar_dry_models_train. */
invar_status invar_dry_models_measure_overhead(const invar_memory_plan *out,
                                               invar_dry_models *models) INVAR_MUST_USE;
void invar_dry_models_release(invar_dry_models *models);

/*
 * Dry-run sampling, the verification of in-flight samples, and scoring with learning, with the
 * settings of out->choice; each sets the bytes of its phases in *out. The last
 * one also sets outside_block_bytes.
 */
invar_status invar_dry_models_sample(invar_memory_plan *out,
                                     invar_dry_models *models) INVAR_MUST_USE;
invar_status invar_dry_models_check(invar_memory_plan *out,
                                    invar_dry_models *models) INVAR_MUST_USE;
invar_status invar_dry_models_train(invar_memory_plan *out,
                                    invar_dry_models *models) INVAR_MUST_USE;

#endif
