/*
 * cast.h - the models and learners of a run, on a device that only counts.
 *
 * Only engine/budget includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_BUDGET_CAST_H
#define INVAR_ENGINE_BUDGET_CAST_H

#include "engine/budget/budget.h"
#include "engine/sync/sync.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; release. */
typedef struct invar_budget_cast {
    const invar_budget_ask *ask;
    invar_stage resident; /* whose memory the models have */
    invar_stage work;     /* a phase at a time */
    invar_model *actor, *reference, *teacher, *critic, *draft;
    invar_model *rollout_actor; /* NULL: the actor samples */
    invar_learner actor_learner, critic_learner;
    invar_sync *sync; /* NULL: no weights travel */
    size_t around;    /* of the resident memory: norms, hashes */
} invar_budget_cast;

/* All of them, and what is resident of `out`. The cast stays where it is. */
invar_status invar_budget_cast_make(invar_budget_cast *cast, invar_budget *out,
                                    const invar_budget_ask *ask) INVAR_MUST_USE;

/* What norms and hashes need of the resident memory; before what learning needs. */
invar_status invar_budget_cast_around(const invar_budget *out,
                                      invar_budget_cast *cast) INVAR_MUST_USE;
void invar_budget_cast_release(invar_budget_cast *cast);

/* Whose weights sample. */
const invar_model *invar_budget_cast_sampler(const invar_budget_cast *cast);

/* Of the run's trainer, with the settings of `choice`. */
invar_trainer_options invar_budget_cast_options(const invar_budget_cast *cast,
                                                const invar_budget_choice *choice);

/* What the phases need with the settings of out->choice. */
invar_status invar_budget_cast_sample(invar_budget *out, invar_budget_cast *cast) INVAR_MUST_USE;
invar_status invar_budget_cast_check(invar_budget *out, invar_budget_cast *cast) INVAR_MUST_USE;
invar_status invar_budget_cast_train(invar_budget *out, invar_budget_cast *cast) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
