/*
 * model_set.c - decides what each model of a run stores, and creates it.
 *
 * Only trained models need masters, and a reference that is updated, since checkpoints contain it.
 * All other models have weights alone. Models of the actor's shape share its frozen base.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/models/model_set.h"

#include "base/invar_banned.h"

void invar_model_specs_sample_alone(invar_model_specs *specs)
{
    specs->samples_alone = true;
    specs->format = specs->rollout_format;
    specs->reference = specs->teacher = specs->critic = NULL;
    specs->overlap = false;
}

/* Adds the key of the model to an error about its shape, if its folder has another config.json. */
static invar_status name_model(invar_status status, bool apart, const char *key)
{
    return apart ? invar_error_advise(status, INVAR_E_INVALID, key) : status;
}

invar_status invar_model_set_make_teacher(invar_model_set *models, invar_model **whole,
                                          const invar_model_specs *s, const invar_layout *layout,
                                          const invar_device *dev)
{
    invar_status status;

    *whole = NULL;
    if (!s->teacher)
        return INVAR_OK;
    status = invar_model_new(whole, s->teacher, s->format, layout, dev);
    if (status == INVAR_OK)
        status = invar_model_new_weights(&models->teacher, s->teacher, s->format, layout, dev);
    return name_model(status, s->teacher_apart, INVAR_MODEL_SET_IS_TEACHER);
}

static invar_status make_sampler(invar_model_set *models, const invar_model_specs *s,
                                 const invar_layout *layout, const invar_device *dev)
{
    bool two_formats = invar_model_specs_two_formats(s);

    if (!two_formats && !s->overlap)
        return INVAR_OK;
    return !two_formats && invar_model_is_adapted(models->actor)
               ? invar_model_new_sharing_base(&models->sampler, models->actor, dev)
               : invar_model_new_weights(&models->sampler, s->actor, s->rollout_format, layout,
                                         dev);
}

static invar_status make_reference(invar_model_set *models, const invar_model_specs *s,
                                   const invar_layout *layout, const invar_device *dev)
{
    if (!s->reference_apart && invar_model_is_adapted(models->actor))
        return invar_model_new_sharing_base(&models->reference, models->actor, dev);
    return s->reference_moves && !s->reference_apart
               ? invar_model_new(&models->reference, s->reference, s->format, layout, dev)
               : name_model(invar_model_new_weights(&models->reference, s->reference, s->format,
                                                    layout, dev),
                            s->reference_apart, INVAR_MODEL_SET_IS_REFERENCE);
}

invar_status invar_model_set_make(invar_model_set *models, invar_model_role role,
                                  const invar_model_specs *s, const invar_layout *layout,
                                  const invar_device *dev)
{
    if (role == INVAR_MODEL_ACTOR)
        return (s->samples_alone ? invar_model_new_weights : invar_model_new)(
            &models->actor, s->actor, s->format, layout, dev);
    if (role == INVAR_MODEL_SAMPLER)
        return make_sampler(models, s, layout, dev);
    if (role == INVAR_MODEL_REFERENCE && s->reference)
        return make_reference(models, s, layout, dev);
    if (role == INVAR_MODEL_CRITIC && s->critic)
        return name_model(invar_model_new(&models->critic, s->critic, s->format, layout, dev),
                          s->critic_apart, INVAR_MODEL_SET_IS_CRITIC);
    if (role == INVAR_MODEL_DRAFT && s->draft)
        return invar_model_new_weights(&models->draft, s->draft, s->draft_format, NULL, dev);
    return INVAR_OK;
}

void invar_model_set_release(invar_model_set *models)
{
    invar_model_free(models->draft);
    invar_model_free(models->critic);
    invar_model_free(models->reference);
    invar_model_free(models->sampler);
    invar_model_free(models->actor);
    invar_model_free(models->teacher);
}
