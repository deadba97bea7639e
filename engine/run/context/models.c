/*
 * models.c - makes the models of a run and loads their initial weights.
 *
 * Order matters for memory: the teacher is loaded first, while there is space for its masters,
 * which are freed again. The actor comes next; reference and critic are copies of it unless the
 * recipe names weights for them. Hashes of all weights are kept in the context, since the identity
 * of the run contains them. A sampling copy in the actor's format is compared bit by bit after each
 * refresh: a wrong copy would agree with its own scoring, and no later check could find it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/config/check_internal.h"
#include "engine/files/hf/hf.h"
#include "engine/files/hf/peft.h"
#include "engine/model/lora/adapters.h"
#include "engine/model/lora/frozen_base.h"
#include "engine/model/shard/master_weights.h"
#include "engine/model/shard/param_loader.h"
#include "engine/model/tensor_hasher.h"
#include "engine/run/context/internal.h"
#include "engine/run/train_settings.h"

#include "base/invar_banned.h"

/* ---- the actor ------------------------------------------------------------------------------- */

/* True if the actor begins with the weights of ref-load, unless that is another model. */
static bool begins_at_reference(const invar_run_context *s)
{
    return s->config->ref_load[0] && !s->ref_has_own_spec;
}

/* Fails if a named model folder has no weights: they are never initialized at random instead. */
static invar_status check_named_weights(const char *dir)
{
    invar_status status = invar_hf_check_weights(dir);

    if (status == INVAR_OK)
        return INVAR_OK;
    return INVAR_FAIL(status, 0, "%s; or name weights for this model with ref-load",
                      invar_error_last()->message);
}

/* Loads or initializes the adapters of the actor. */
static invar_status init_adapters(invar_run_context *s, uint32_t seed)
{
    if (!s->config->lora_adapter_path[0])
        return invar_model_init_adapters(s->actor, seed, &s->dev);
    INVAR_TRY(invar_hf_check_folder("lora-adapter-path", s->config->lora_adapter_path));
    return invar_peft_load(s->actor, s->config->lora_adapter_path, &s->dev);
}

static invar_status init_base(invar_run_context *s, uint32_t seed)
{
    const char *dir = s->config->hf_checkpoint;
    invar_weights_origin origin;

    s->weights_from = dir[0] ? "hf-checkpoint" : "seed";
    if (!dir[0])
        return invar_model_init_base(s->actor, seed, &s->dev);
    INVAR_TRY(invar_run_context_load_folder(&origin, s->actor, dir, 0, &s->dev));
    if (origin.adapters)
        return invar_config_fail(s->config, INVAR_KEY_HF_CHECKPOINT,
                                 "has adapters alone: name their base here, and them with "
                                 "ref-load");
    return INVAR_OK;
}

/*
 * Loads ref-load: a complete model, or only adapters, whose base is then the one without ref-load.
 */
static invar_status load_named_actor(invar_weights_origin *out, invar_run_context *s, uint32_t seed)
{
    INVAR_TRY(invar_run_context_load_named(
        out, s, s->actor, (invar_config_text){INVAR_KEY_REF_LOAD, s->config->ref_load}));
    if (out->adapters && s->config->lora_adapter_path[0])
        return invar_config_fail(s->config, INVAR_KEY_LORA_ADAPTER_PATH,
                                 "would be ignored: ref-load names adapters, too");
    if (out->adapters)
        INVAR_TRY(init_base(s, seed));
    s->weights_from = "ref-load";
    return INVAR_OK;
}

/* Loads the actor, except adapters that were initialized already. */
static invar_status read_actor(invar_run_context *s, uint32_t seed)
{
    invar_weights_origin from = {.adapters = false};

    INVAR_TRY(begins_at_reference(s) ? load_named_actor(&from, s, seed) : init_base(s, seed));
    s->base_named = begins_at_reference(s) && !from.adapters;
    if (s->actor->format != s->format) // a rank that only samples: training ranks check the base
        return invar_base_hash(&s->sampled_base, s->actor, &s->dev);
    if (invar_model_is_adapted(s->actor))
        INVAR_TRY(invar_base_hash(&s->base_weights, s->actor, &s->dev));
    return invar_run_context_check_base(s, &from);
}

static uint32_t seed_of(const invar_run_context *s)
{
    return (uint32_t)s->config->seed;
}

/* Loads the base of the actor's adapters, or a complete model, into another model. */
static invar_status load_base_again(invar_run_context *s, invar_model *model)
{
    const char *dir = s->config->hf_checkpoint;
    invar_weights_origin from;

    if (s->base_named)
        return invar_run_context_load_named(
            &from, s, model, (invar_config_text){INVAR_KEY_REF_LOAD, s->config->ref_load});
    if (dir[0])
        return invar_run_context_load_folder(&from, model, dir, INVAR_LOAD_BODY, &s->dev);
    return invar_model_init_base(model, seed_of(s), &s->dev);
}

static invar_status make_actor(invar_run_context *s)
{
    if (s->config->hf_checkpoint[0] && !begins_at_reference(s))
        INVAR_TRY(check_named_weights(s->config->hf_checkpoint)); // fail before memory is allocated
    INVAR_TRY(invar_model_new(&s->actor, &s->spec, s->format, s->layout, &s->dev));
    INVAR_TRY(init_adapters(s, seed_of(s)));
    INVAR_TRY(read_actor(s, seed_of(s)));
    return invar_model_hash(&s->weights, s->actor, &s->dev);
}

/*
 * Makes the actor of a rank that only samples. Trained weights come from training ranks; a frozen
 * base is read.
 */
static invar_status make_sampling_actor(invar_run_context *s)
{
    INVAR_TRY(invar_model_new_weights(&s->actor, &s->spec, s->rollout_format, s->layout, &s->dev));
    return invar_model_is_adapted(s->actor) ? read_actor(s, seed_of(s)) : INVAR_OK;
}

/* ---- other models ---------------------------------------------------------------------------- */

/*
 * Fills the critic with the actor's body and a zero head. Ranks that own rows of the actor may own
 * other rows of the critic.
 */
static invar_status copy_actor_body(const invar_run_context *s, invar_param_loader *loader)
{
    for (int64_t i = 0; i < s->critic->n_params; i++) {
        const invar_param *to = &s->critic->params[i];
        float *values;

        if (to->local.experts == 0)
            continue;
        if (to->kind == INVAR_PARAM_HEAD) {
            INVAR_TRY(invar_param_loader_zero(loader, to));
            continue;
        }
        INVAR_TRY(invar_param_loader_buffer_all(&values, loader, to));
        INVAR_TRY(invar_full_masters_read(values, s->actor,
                                          invar_model_find(s->actor, to->name) - s->actor->params));
        INVAR_TRY(invar_param_loader_store(loader));
    }
    return INVAR_OK;
}

static invar_status zero_head(const invar_run_context *s, invar_param_loader *loader)
{
    for (int64_t i = 0; i < s->critic->n_params; i++)
        if (s->critic->params[i].kind == INVAR_PARAM_HEAD && s->critic->params[i].local.experts > 0)
            INVAR_TRY(invar_param_loader_zero(loader, &s->critic->params[i]));
    return INVAR_OK;
}

/*
 * Initializes a critic that has no weights of its own from the actor, with a zero head. A frozen
 * base has no masters to copy, so it is read again.
 */
static invar_status critic_from_actor(invar_run_context *s)
{
    bool adapted = invar_model_is_adapted(s->actor);
    invar_param_loader loader;
    invar_status status;

    if (adapted)
        INVAR_TRY(load_base_again(s, s->critic));
    invar_param_loader_init(&loader, s->critic, &s->dev);
    status = adapted ? zero_head(s, &loader) : copy_actor_body(s, &loader);
    invar_param_loader_release(&loader);
    return status;
}

/*
 * Makes a reference of the actor's shape. With adapters it shares the actor's base. If it is never
 * updated, it is in no checkpoint and needs no masters.
 */
static invar_status alloc_reference(invar_run_context *s)
{
    if (invar_model_is_adapted(s->actor))
        return invar_model_new_sharing_base(&s->reference, s->actor, &s->dev);
    if (s->config->ref_update_interval == 0)
        return invar_model_new_weights(&s->reference, &s->spec, s->format, s->layout, &s->dev);
    return invar_model_new(&s->reference, &s->spec, s->format, s->layout, &s->dev);
}

/* Makes the reference: loaded if it has another shape, else a copy of the actor at the start. */
static invar_status make_reference(invar_run_context *s)
{
    invar_weights_origin from;

    if (!s->ref_has_own_spec) {
        INVAR_TRY(alloc_reference(s));
        return invar_model_copy(s->reference, s->actor);
    }
    INVAR_TRY(invar_model_new_weights(&s->reference, &s->ref_spec, s->format, s->layout, &s->dev));
    INVAR_TRY(invar_run_context_load_named(
        &from, s, s->reference, (invar_config_text){INVAR_KEY_REF_LOAD, s->config->ref_load}));
    return invar_base_hash(&s->ref_weights, s->reference, &s->dev);
}

/*
 * Loads the teacher into `whole`, hashes it, and copies it without masters, which the hash alone
 * needs.
 */
static invar_status read_teacher(invar_run_context *s, invar_model *whole)
{
    invar_weights_origin from;

    INVAR_TRY(invar_run_context_load_named(
        &from, s, whole,
        (invar_config_text){INVAR_KEY_OPD_TEACHER_LOAD, s->config->opd_teacher_load}));
    INVAR_TRY(invar_model_hash(&s->teacher_weights, whole, &s->dev));
    INVAR_TRY(
        invar_model_new_weights(&s->teacher, &s->teacher_spec, s->format, s->layout, &s->dev));
    memcpy(s->teacher->load_checksum, whole->load_checksum, sizeof whole->load_checksum);
    return invar_model_copy(s->teacher, whole);
}

/* Makes the teacher before all other models, while there is space for its masters. */
static invar_status make_teacher(invar_run_context *s)
{
    invar_model *whole = NULL;
    invar_status status = invar_model_new(&whole, &s->teacher_spec, s->format, s->layout, &s->dev);

    if (status == INVAR_OK)
        status = read_teacher(s, whole);
    invar_model_free(whole);
    return status;
}

const invar_model *invar_run_context_sampler(const invar_run_context *s)
{
    return s->sampler_model ? s->sampler_model : s->actor;
}

const invar_device *invar_run_context_sampler_dev(const invar_run_context *s)
{
    return s->sampler_dev.backend ? &s->sampler_dev : &s->dev;
}

/*
 * Fails if a weight of the sampling copy differs. A wrong copy would agree with its own scoring, so
 * the weights themselves are compared.
 */
static invar_status compare_copy(const invar_run_context *s)
{
    int64_t count = s->actor->n_params;
    invar_status status = INVAR_OK;
    invar_digest *of = NULL;
    invar_tensor_hasher hasher;

    INVAR_TRY(INVAR_ALLOC(of, (size_t)(2 * count), "digests of weights"));
    invar_tensor_hasher_init(&hasher, &s->dev);
    for (int64_t i = 0; i < 2 * count && status == INVAR_OK; i++)
        status = invar_tensor_hasher_add(
            &hasher, &(i < count ? s->actor : s->sampler_model)->params[i % count].weight, 1);
    if (status == INVAR_OK)
        status = invar_tensor_hasher_read(of, &hasher);
    for (int64_t i = 0; i < count && status == INVAR_OK; i++)
        if (!invar_digest_equal(&of[i], &of[count + i]))
            status = INVAR_FAIL(INVAR_E_MISMATCH, 0,
                                "rollout-overlap: %s of the copy that samples is not that of the "
                                "weights that learn: check the memory of the device",
                                s->actor->params[i].name);
    invar_tensor_hasher_release(&hasher);
    invar_free(of);
    return status;
}

static invar_status copy_actor(const invar_run_context *s)
{
    INVAR_TRY(invar_model_copy(s->sampler_model, s->actor));
    return compare_copy(s);
}

/* Ops of one device context do not wait for those of another, hence the synchronization. */
invar_status invar_run_context_refresh_sampler(invar_run_context *s)
{
    if (!s->sampler_model)
        return INVAR_OK;
    INVAR_TRY(invar_run_context_two_formats(s)
                  ? invar_model_refresh_from(s->sampler_model, s->actor, &s->dev)
                  : copy_actor(s));
    return s->sampler_dev.backend ? invar_device_synchronize(&s->dev) : INVAR_OK;
}

/*
 * Makes the sampling copy of a model with adapters. In another format the base is read again, since
 * the actor's is rounded; later only the adapters change.
 */
static invar_status make_adapted_sampler(invar_run_context *s)
{
    if (!invar_run_context_two_formats(s))
        return invar_model_new_sharing_base(&s->sampler_model, s->actor, &s->dev);
    INVAR_TRY(invar_model_new_weights(&s->sampler_model, &s->spec, s->rollout_format, s->layout,
                                      &s->dev));
    INVAR_TRY(load_base_again(s, s->sampler_model));
    return invar_base_hash(&s->sampled_base, s->sampler_model, &s->dev);
}

static invar_status make_sampler(invar_run_context *s)
{
    if (!invar_run_context_two_formats(s) && !s->sampler_dev.backend)
        return INVAR_OK;
    INVAR_TRY(invar_model_is_adapted(s->actor)
                  ? make_adapted_sampler(s)
                  : invar_model_new_weights(&s->sampler_model, &s->spec, s->rollout_format,
                                            s->layout, &s->dev));
    return invar_run_context_refresh_sampler(s);
}

static invar_status make_other_models(invar_run_context *s)
{
    const invar_config *c = s->config;
    invar_weights_origin from;

    if (invar_train_settings_reference(c))
        INVAR_TRY(make_reference(s));
    if (invar_train_settings_critic(c)) {
        INVAR_TRY(invar_model_new(&s->critic, &s->critic_spec, s->format, s->layout, &s->dev));
        INVAR_TRY(c->critic_load[0]
                      ? invar_run_context_load_named(
                            &from, s, s->critic,
                            (invar_config_text){INVAR_KEY_CRITIC_LOAD, s->config->critic_load})
                      : critic_from_actor(s));
        INVAR_TRY(invar_model_hash(&s->critic_weights, s->critic, &s->dev));
    }
    return INVAR_OK;
}

/* Loads the draft model. Training ranks do not need it if other ranks sample. */
static invar_status load_draft(invar_run_context *s, bool samples)
{
    const char *dir = s->config->speculative_draft_model_path;
    invar_weights_origin origin;

    if (!invar_run_context_drafts(s) || (s->layout && !samples && s->config->rollout_num_gpus > 0))
        return INVAR_OK;
    INVAR_TRY(invar_hf_check_weights(dir));
    INVAR_TRY(invar_model_new_weights(&s->draft, &s->draft_spec, invar_run_context_draft_format(s),
                                      NULL, &s->dev));
    return invar_run_context_load_folder(&origin, s->draft, dir, 0, &s->dev);
}

invar_status invar_run_context_make_models(invar_run_context *s, unsigned wants)
{
    if ((wants & INVAR_RUN_CONTEXT_LEARN) && invar_train_settings_teacher(s->config))
        INVAR_TRY(make_teacher(s));
    INVAR_TRY(load_draft(s, (wants & INVAR_RUN_CONTEXT_SAMPLE) != 0));
    if (wants & INVAR_RUN_CONTEXT_SAMPLE)
        return make_sampling_actor(s);
    INVAR_TRY(make_actor(s));
    INVAR_TRY(make_sampler(s));
    return wants & INVAR_RUN_CONTEXT_LEARN ? make_other_models(s) : INVAR_OK;
}

/*
 * The longest sequence, the end tokens and the initialization of weights change no log-prob, so the
 * hash of the model leaves them out. It includes what hashes of weights leave out: a frozen base,
 * and the arithmetic that the recipe chooses.
 */
invar_status invar_run_context_policy(invar_rollout_policy *out, const invar_run_context *s)
{
    invar_model_spec spec = s->spec;
    const int64_t arithmetic[] = {spec.kv_span,     spec.q_span,    spec.logical_tp,
                                  spec.logical_etp, spec.lora.rank, spec.lora.targets};
    const bool adapted = spec.lora.rank > 0;
    invar_hasher hasher;
    invar_digest model;

    spec.max_positions = INVAR_SPEC_MAX_POSITIONS;
    spec.n_eos = 0;
    spec.init_std = 1.0f;
    INVAR_TRY(invar_model_spec_hash(&model, &spec));
    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, model.bytes, sizeof model.bytes);
    invar_hasher_update(&hasher, arithmetic, sizeof arithmetic);
    if (adapted) {
        invar_hasher_update(&hasher, &spec.lora.alpha, sizeof spec.lora.alpha);
        invar_hasher_update(&hasher, s->base_weights.bytes, sizeof s->base_weights.bytes);
    }
    if (spec.lora.rslora)
        invar_hasher_update(&hasher, "rslora", sizeof "rslora");
    if (spec.lora.ranks[0] || spec.lora.alphas[0]) {
        invar_hasher_update(&hasher, spec.lora.ranks, strlen(spec.lora.ranks) + 1);
        invar_hasher_update(&hasher, spec.lora.alphas, strlen(spec.lora.alphas) + 1);
    }
    *out = (invar_rollout_policy){.dtype = invar_format_name(s->rollout_format),
                                  .numerics = invar_numerics_name(s->dev.numerics)};
    invar_hasher_final(&out->model, &hasher);
    return INVAR_OK;
}
