/*
 * dry_models.h - the models and learners of a run, on a device that only counts.
 *
 * Only engine/run/memory_plan includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_MEMORY_PLAN_DRY_MODELS_H
#define INVAR_ENGINE_RUN_MEMORY_PLAN_DRY_MODELS_H

#include "engine/run/memory_plan/memory_plan.h"
#include "engine/train/weight_sync/weight_sync.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; release. */
typedef struct invar_dry_models {
    const invar_memory_workload *ask;
    invar_phase_arena resident; /* whose memory the models have */
    invar_phase_arena work;     /* a phase at a time */
    invar_model *actor, *reference, *teacher, *critic, *draft;
    invar_model *rollout_actor; /* NULL: the actor samples */
    invar_learner actor_learner, critic_learner;
    invar_weight_sync *sync; /* NULL: no weights travel */
    size_t overhead_bytes;   /* of the resident memory: norms, hashes */
} invar_dry_models;

/* All of them, and what is resident of `out`. The cast stays where it is. */
invar_status invar_dry_models_make(invar_dry_models *cast, invar_memory_plan *out,
                                   const invar_memory_workload *ask) INVAR_MUST_USE;

/* What norms and hashes need of the resident memory; before what learning needs. */
invar_status invar_dry_models_around(const invar_memory_plan *out,
                                     invar_dry_models *cast) INVAR_MUST_USE;
void invar_dry_models_release(invar_dry_models *cast);

/* Whose weights sample. */
const invar_model *invar_dry_models_sampler(const invar_dry_models *cast);

/* Of the run's trainer, with the settings of `choice`. */
invar_trainer_options invar_dry_models_options(const invar_dry_models *cast,
                                               const invar_memory_plan_choice *choice);

/* What the phases need with the settings of out->choice. */
invar_status invar_dry_models_sample(invar_memory_plan *out, invar_dry_models *cast) INVAR_MUST_USE;
invar_status invar_dry_models_check(invar_memory_plan *out, invar_dry_models *cast) INVAR_MUST_USE;
invar_status invar_dry_models_train(invar_memory_plan *out, invar_dry_models *cast) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
