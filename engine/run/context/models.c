/*
 * models.c - makes the models of a run and loads their initial weights.
 *
 * Order matters for memory: the teacher is loaded first, while there is space for its masters,
 * which are freed again. Then all other models are created (models/model_set.h), and the actor is
 * loaded before the others, since reference and critic are copies of it unless the recipe names
 * weights for them. Hashes of all weights are kept in the context, since the identity of the run
 * contains them. A sampling copy in the actor's format is compared bit by bit after each refresh: a
 * wrong copy would agree with its own scoring, and no later check could find it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/config/check_internal.h"
#include "engine/files/hf/hf.h"
#include "engine/files/hf/peft.h"
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
    return s->config->ref_load[0] && !s->reference.own_spec;
}

static uint32_t seed_of(const invar_run_context *s)
{
    return (uint32_t)s->config->seed;
}

/* Loads or initializes the adapters of the actor. */
static invar_status init_adapters(invar_run_context *s)
{
    if (!s->config->lora_adapter_path[0])
        return invar_model_init_adapters(s->models.actor, seed_of(s), &s->dev);
    INVAR_TRY(invar_hf_check_folder("lora-adapter-path", s->config->lora_adapter_path));
    return invar_peft_load(s->models.actor, s->config->lora_adapter_path, &s->dev);
}

static invar_status init_base(invar_run_context *s)
{
    const char *dir = s->config->hf_checkpoint;
    invar_weights_origin origin;

    s->weights_from = dir[0] ? "hf-checkpoint" : "seed";
    if (!dir[0])
        return invar_model_init_base(s->models.actor, seed_of(s), &s->dev);
    INVAR_TRY(invar_run_context_load_folder(&origin, s->models.actor, dir, 0, &s->dev));
    if (origin.adapters)
        return invar_config_fail(s->config, INVAR_KEY_HF_CHECKPOINT,
                                 "has adapters alone: name their base here, and them with "
                                 "ref-load");
    return INVAR_OK;
}

/*
 * Loads ref-load: a complete model, or only adapters, whose base is then the one without ref-load.
 */
static invar_status load_named_actor(invar_weights_origin *out, invar_run_context *s)
{
    INVAR_TRY(invar_run_context_load_named(
        out, s, s->models.actor, (invar_config_text){INVAR_KEY_REF_LOAD, s->config->ref_load}));
    if (out->adapters && s->config->lora_adapter_path[0])
        return invar_config_fail(s->config, INVAR_KEY_LORA_ADAPTER_PATH,
                                 "would be ignored: ref-load names adapters, too");
    if (out->adapters)
        INVAR_TRY(init_base(s));
    s->weights_from = "ref-load";
    return INVAR_OK;
}

/* Loads the actor, except adapters that were initialized already. */
static invar_status read_actor(invar_run_context *s)
{
    invar_weights_origin from = {.adapters = false};

    INVAR_TRY(begins_at_reference(s) ? load_named_actor(&from, s) : init_base(s));
    s->base.named = begins_at_reference(s) && !from.adapters;
    if (s->models.actor->format !=
        s->format) // a rank that only samples: training ranks check the base
        return invar_base_hash(&s->base.sampled, s->models.actor, &s->dev);
    if (invar_model_is_adapted(s->models.actor))
        INVAR_TRY(invar_base_hash(&s->base.weights, s->models.actor, &s->dev));
    return invar_run_context_check_base(s, &from);
}

/* Loads the base of the actor's adapters, or a complete model, into another model. */
static invar_status load_base_again(invar_run_context *s, invar_model *model)
{
    const char *dir = s->config->hf_checkpoint;
    invar_weights_origin from;

    if (s->base.named)
        return invar_run_context_load_named(
            &from, s, model, (invar_config_text){INVAR_KEY_REF_LOAD, s->config->ref_load});
    if (dir[0])
        return invar_run_context_load_folder(&from, model, dir, INVAR_LOAD_BODY, &s->dev);
    return invar_model_init_base(model, seed_of(s), &s->dev);
}

/*
 * Loads the actor. A rank that only samples gets trained weights from training ranks, and reads a
 * frozen base.
 */
static invar_status load_actor(invar_run_context *s, bool samples_alone)
{
    if (samples_alone)
        return invar_model_is_adapted(s->models.actor) ? read_actor(s) : INVAR_OK;
    INVAR_TRY(init_adapters(s));
    INVAR_TRY(read_actor(s));
    return invar_model_hash(&s->weights, s->models.actor, &s->dev);
}

/* ---- other models ---------------------------------------------------------------------------- */

/*
 * Sets the head of the critic to zero and, unless it has the base of the actor's adapters already,
 * copies the actor's body. Ranks that own rows of the actor may own other rows of the critic.
 */
static invar_status fill_critic(const invar_run_context *s, invar_param_loader *loader)
{
    for (int64_t i = 0; i < s->models.critic->n_params; i++) {
        const invar_param *to = &s->models.critic->params[i];
        float *values;

        if (to->local.experts == 0)
            continue;
        if (to->kind == INVAR_PARAM_HEAD)
            INVAR_TRY(invar_param_loader_zero(loader, to));
        if (to->kind == INVAR_PARAM_HEAD || invar_model_is_adapted(s->models.actor))
            continue;
        INVAR_TRY(invar_param_loader_buffer_all(&values, loader, to));
        INVAR_TRY(invar_full_masters_read(values, s->models.actor,
                                          invar_model_find(s->models.actor, to->name) -
                                              s->models.actor->params));
        INVAR_TRY(invar_param_loader_store(loader));
    }
    return INVAR_OK;
}

/*
 * Initializes a critic that has no weights of its own from the actor, with a zero head. A frozen
 * base has no masters to copy, so it is read again.
 */
static invar_status critic_from_actor(invar_run_context *s)
{
    invar_param_loader loader;
    invar_status status;

    if (invar_model_is_adapted(s->models.actor))
        INVAR_TRY(load_base_again(s, s->models.critic));
    invar_param_loader_init(&loader, s->models.critic, &s->dev);
    status = fill_critic(s, &loader);
    invar_param_loader_release(&loader);
    return status;
}

/* Loads a reference of another shape; any other is a copy of the actor at the start. */
static invar_status load_reference(invar_run_context *s)
{
    invar_weights_origin from;

    if (!s->reference.own_spec)
        return invar_model_copy(s->models.reference, s->models.actor);
    INVAR_TRY(
        invar_run_context_load_named(&from, s, s->models.reference,
                                     (invar_config_text){INVAR_KEY_REF_LOAD, s->config->ref_load}));
    return invar_base_hash(&s->reference.weights, s->models.reference, &s->dev);
}

/*
 * Loads the teacher into `whole`, hashes it, and copies it without masters, which the hash alone
 * needs.
 */
static invar_status load_teacher(invar_run_context *s, invar_model *whole)
{
    invar_weights_origin from;

    INVAR_TRY(invar_run_context_load_named(
        &from, s, whole,
        (invar_config_text){INVAR_KEY_OPD_TEACHER_LOAD, s->config->opd_teacher_load}));
    INVAR_TRY(invar_model_hash(&s->teacher.weights, whole, &s->dev));
    memcpy(s->models.teacher->load_checksum, whole->load_checksum, sizeof whole->load_checksum);
    return invar_model_copy(s->models.teacher, whole);
}

/* Makes the teacher before all other models, while there is space for its masters. */
static invar_status make_teacher(invar_run_context *s, const invar_model_specs *specs)
{
    invar_model *whole;
    invar_status status =
        invar_model_set_make_teacher(&s->models, &whole, specs, s->layout, &s->dev);

    if (status == INVAR_OK && whole)
        status = load_teacher(s, whole);
    invar_model_free(whole);
    return status;
}

const invar_device *invar_run_context_sampler_dev(const invar_run_context *s)
{
    return s->sampler.dev.backend ? &s->sampler.dev : &s->dev;
}

/*
 * Fails if a weight of the sampling copy differs. A wrong copy would agree with its own scoring, so
 * the weights themselves are compared.
 */
static invar_status compare_copy(const invar_run_context *s)
{
    int64_t count = s->models.actor->n_params;
    invar_status status = INVAR_OK;
    invar_digest *of = NULL;
    invar_tensor_hasher hasher;

    INVAR_TRY(INVAR_ALLOC(of, (size_t)(2 * count), "digests of weights"));
    invar_tensor_hasher_init(&hasher, &s->dev);
    for (int64_t i = 0; i < 2 * count && status == INVAR_OK; i++)
        status = invar_tensor_hasher_add(
            &hasher, &(i < count ? s->models.actor : s->models.sampler)->params[i % count].weight,
            1);
    if (status == INVAR_OK)
        status = invar_tensor_hasher_read(of, &hasher);
    for (int64_t i = 0; i < count && status == INVAR_OK; i++)
        if (!invar_digest_equal(&of[i], &of[count + i]))
            status = INVAR_FAIL(INVAR_E_MISMATCH, 0,
                                "rollout-overlap: %s of the copy that samples is not that of the "
                                "weights that learn: check the memory of the device",
                                s->models.actor->params[i].name);
    invar_tensor_hasher_release(&hasher);
    invar_free(of);
    return status;
}

/* Ops of one device context do not wait for those of another, hence the synchronization. */
invar_status invar_run_context_refresh_sampler(invar_run_context *s)
{
    if (!s->models.sampler)
        return INVAR_OK;
    if (invar_run_context_two_formats(s)) {
        INVAR_TRY(invar_model_refresh_from(s->models.sampler, s->models.actor, &s->dev));
    } else {
        INVAR_TRY(invar_model_copy(s->models.sampler, s->models.actor));
        INVAR_TRY(compare_copy(s));
    }
    return s->sampler.dev.backend ? invar_device_synchronize(&s->dev) : INVAR_OK;
}

/*
 * Loads the sampling copy. With adapters and another format the base is read again, since the
 * actor's is rounded; later only the adapters change.
 */
static invar_status load_sampler(invar_run_context *s)
{
    if (invar_model_is_adapted(s->models.actor) && invar_run_context_two_formats(s)) {
        INVAR_TRY(load_base_again(s, s->models.sampler));
        INVAR_TRY(invar_base_hash(&s->base.sampled, s->models.sampler, &s->dev));
    }
    return invar_run_context_refresh_sampler(s);
}

static invar_status load_critic(invar_run_context *s)
{
    invar_weights_origin from;

    INVAR_TRY(s->config->critic_load[0]
                  ? invar_run_context_load_named(
                        &from, s, s->models.critic,
                        (invar_config_text){INVAR_KEY_CRITIC_LOAD, s->config->critic_load})
                  : critic_from_actor(s));
    return invar_model_hash(&s->critic.weights, s->models.critic, &s->dev);
}

/* Fails if a folder has no weights, before memory is allocated for them. */
static invar_status check_folders(const invar_run_context *s, const invar_model_specs *specs)
{
    const char *dir = s->config->hf_checkpoint;
    invar_status status;

    if (specs->draft)
        INVAR_TRY(invar_hf_check_weights(s->config->speculative_draft_model_path));
    if (!dir[0] || specs->samples_alone || begins_at_reference(s))
        return INVAR_OK;
    status = invar_hf_check_weights(dir); // weights are never initialized at random instead
    return status == INVAR_OK
               ? INVAR_OK
               : invar_error_advise(status, status, "or name weights for this model with ref-load");
}

invar_model_specs invar_run_context_model_specs(const invar_run_context *s, unsigned wants)
{
    const invar_config *c = s->config;
    invar_model_specs out = {.actor = &s->spec,
                             .draft = invar_run_context_drafts(s) ? &s->draft_spec : NULL,
                             .format = s->format,
                             .rollout_format = s->rollout_format,
                             .draft_format = s->format == INVAR_FORMAT_FP32 ? INVAR_FORMAT_FP32
                                                                            : INVAR_FORMAT_BF16};

    if (wants & INVAR_RUN_CONTEXT_SAMPLE)
        invar_model_specs_sample_alone(&out);
    if (!(wants & INVAR_RUN_CONTEXT_LEARN))
        return out;
    out.reference = invar_train_settings_reference(c) ? &s->reference.spec : NULL;
    out.teacher = invar_train_settings_teacher(c) ? &s->teacher.spec : NULL;
    out.critic = invar_train_settings_critic(c) ? &s->critic.spec : NULL;
    out.reference_apart = s->reference.own_spec;
    out.teacher_apart = s->teacher.own_spec;
    out.critic_apart = s->critic.own_spec;
    out.reference_moves = c->ref_update_interval > 0;
    out.overlap = c->rollout_overlap;
    return out;
}

static invar_status load_models(invar_run_context *s, bool samples_alone)
{
    const char *draft = s->config->speculative_draft_model_path;
    invar_weights_origin origin;

    if (s->models.draft)
        INVAR_TRY(invar_run_context_load_folder(&origin, s->models.draft, draft, 0, &s->dev));
    INVAR_TRY(load_actor(s, samples_alone));
    if (s->models.sampler)
        INVAR_TRY(load_sampler(s));
    if (s->models.reference)
        INVAR_TRY(load_reference(s));
    return s->models.critic ? load_critic(s) : INVAR_OK;
}

invar_status invar_run_context_make_models(invar_run_context *s, const invar_model_specs *specs)
{
    INVAR_TRY(make_teacher(s, specs));
    INVAR_TRY(check_folders(s, specs));
    for (int i = INVAR_MODEL_ACTOR; i < INVAR_MODEL_ROLES; i++)
        INVAR_TRY(invar_model_set_make(&s->models, (invar_model_role)i, specs, s->layout, &s->dev));
    return load_models(s, specs->samples_alone);
}

/*
 * The longest sequence, the end tokens and the initialization of weights change no log-prob, so the
 * hash of the model leaves them out. It includes what hashes of weights leave out: a frozen base,
 * and the arithmetic that the recipe chooses.
 */
invar_status invar_run_context_policy(invar_rollout_policy *out, const invar_run_context *s)
{
    invar_model_spec spec = s->spec;
    const int64_t arithmetic[] = {spec.attention.kv_span, spec.attention.q_span, spec.logical_tp,
                                  spec.logical_etp,       spec.lora.rank,        spec.lora.targets};
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
        invar_hasher_update(&hasher, s->base.weights.bytes, sizeof s->base.weights.bytes);
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
