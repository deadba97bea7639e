/*
 * model_set.h - creates the models of a run, on a real device or on one that only counts bytes.
 *
 * The memory plan and the run create their models here, so they cannot disagree. Values are
 * undefined afterwards: engine/run/context/models.c loads the weights.
 *
 *     invar_model_set_make_teacher   the teacher, with a second copy that has masters, to load it
 *     invar_model_set_make           the other models, once that copy is freed
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_MODELS_MODEL_SET_H
#define INVAR_ENGINE_RUN_MODELS_MODEL_SET_H

#include "engine/model/model.h"

/* Ends of error messages about a model with another shape than the actor; they name its key. */
#define INVAR_MODEL_SET_IS_REFERENCE "this is the reference (ref-load)"
#define INVAR_MODEL_SET_IS_TEACHER "this is the teacher (opd-teacher-load)"
#define INVAR_MODEL_SET_IS_CRITIC "this is the critic (critic-load)"

/* The models that a rank has, and how they are stored. A spec is NULL if there is no such model. */
typedef struct invar_model_specs {
    const invar_model_spec *actor, *reference, *teacher, *critic, *draft; /* borrowed */
    bool reference_apart, teacher_apart,
        critic_apart;     /* the folder of this model has another config.json than the actor */
    bool reference_moves; /* the reference is updated: it has masters and is in checkpoints */
    bool overlap;         /* sampling runs during training, with its own copy of the weights */
    bool samples_alone;   /* this rank only samples, and the actor has no masters */
    invar_format format, draft_format;
    invar_format rollout_format; /* if it differs from `format`, sampling has its own weights */
} invar_model_specs;

/* The roles of models, in the order in which the models are made. */
typedef enum invar_model_role {
    INVAR_MODEL_TEACHER,
    INVAR_MODEL_ACTOR,
    INVAR_MODEL_SAMPLER,
    INVAR_MODEL_REFERENCE,
    INVAR_MODEL_CRITIC,
    INVAR_MODEL_DRAFT,
    INVAR_MODEL_ROLES
} invar_model_role;

/* The models of a rank; NULL if there is no such model. Release with invar_model_set_release. */
typedef struct invar_model_set {
    invar_model *teacher, *actor;
    invar_model *sampler; /* copy of the actor's weights that samples, in another format or during
                             training; NULL if the actor samples */
    invar_model *reference, *critic;
    invar_model *draft; /* complete on every rank that samples */
} invar_model_set;

/* Reduces the models to those of a rank that only samples: an actor in the sampling format. */
void invar_model_specs_sample_alone(invar_model_specs *specs);

/* True if sampling and training use weights of different formats. */
static inline bool invar_model_specs_two_formats(const invar_model_specs *specs)
{
    return specs->rollout_format != specs->format;
}

/*
 * Creates the teacher, if the run has one, and *whole, a copy with masters. The caller frees
 * *whole, which is NULL without a teacher, before it creates other models.
 */
invar_status invar_model_set_make_teacher(invar_model_set *models, invar_model **whole,
                                          const invar_model_specs *specs,
                                          const invar_layout *layout,
                                          const invar_device *dev) INVAR_MUST_USE;

/*
 * Creates the model of a role other than the teacher, if the rank has one. Roles are created in
 * ascending order. `layout` is borrowed; NULL for one rank.
 */
invar_status invar_model_set_make(invar_model_set *models, invar_model_role role,
                                  const invar_model_specs *specs, const invar_layout *layout,
                                  const invar_device *dev) INVAR_MUST_USE;
void invar_model_set_release(invar_model_set *models);

/* Returns the model that samples: the actor, or its copy. */
static inline invar_model *invar_model_set_sampler(const invar_model_set *models)
{
    return models->sampler ? models->sampler : models->actor;
}

#endif
