/*
 * weights.c - loads weights of checkpoints and Hugging Face folders into existing models.
 *
 * Tensors pass through host memory one at a time, and each rank keeps its shard. Every tensor of a
 * set must be read or skipped: invar_checkpoint_check_all_loaded fails otherwise. Adapters are
 * accepted only with the rank, alpha, layers and base with which they were trained.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/files/hf/hf.h"
#include "engine/model/lora/adapters.h"
#include "engine/model/shard/param_loader.h"
#include "engine/run/context/internal.h"

#include "base/invar_banned.h"

#define MODEL_SET "model" /* name of a set in a checkpoint */
#define CRITIC_SET "critic"

/* ---- sets of a checkpoint -------------------------------------------------------------------- */

invar_status invar_run_context_load_own(float *out, const invar_param *p, invar_checkpoint *c,
                                        const char *set)
{
    bool divided = invar_param_elements(p) < invar_param_all_elements(p);
    invar_tensor whole = invar_param_full_tensor(p, divided ? NULL : out);
    invar_status status;

    if (p->local.experts == 0)
        return invar_checkpoint_skip_tensor(c, set, p->name);
    if (!divided)
        return invar_checkpoint_load(&whole, c, set, p->name);
    // the complete tensor is read into host memory, and this rank keeps its part
    INVAR_TRY(invar_alloc(&whole.data, (size_t)invar_param_all_elements(p), sizeof(float),
                          "a tensor of a checkpoint"));
    status = invar_checkpoint_load(&whole, c, set, p->name);
    if (status == INVAR_OK)
        invar_param_shard_extract(out, p, &p->local, whole.data);
    invar_free(whole.data);
    return status;
}

static invar_status load_param(invar_param_loader *loader, const invar_param *p,
                               invar_checkpoint *checkpoint, const char *set)
{
    float *near;

    if (p->local.experts == 0)
        return invar_checkpoint_skip_tensor(checkpoint, set, p->name);
    INVAR_TRY(invar_param_loader_buffer_all(&near, loader, p));
    INVAR_TRY(invar_run_context_load_own(near, p, checkpoint, set));
    return invar_param_loader_store(loader);
}

static bool has_tensor(invar_checkpoint *checkpoint, const char *set, const char *name)
{
    if (invar_checkpoint_skip_tensor(checkpoint, set, name) == INVAR_OK)
        return true;
    invar_error_clear();
    return false;
}

/* Loads the head of a critic. Weights of a language model have no such head: it is zero then. */
static invar_status load_value_head(invar_param_loader *loader, const invar_param *p,
                                    invar_checkpoint *checkpoint, const char *set)
{
    if (has_tensor(checkpoint, set, p->name))
        return load_param(loader, p, checkpoint, set);
    // skipped, so that all tensors count as read
    (void)has_tensor(checkpoint, set, "lm_head.weight");
    return p->local.experts > 0 ? invar_param_loader_zero(loader, p) : INVAR_OK;
}

/* Loads the parameters of the model or of its frozen base. */
static invar_status load_params(invar_model *model, const invar_param *params, int64_t count,
                                invar_checkpoint *checkpoint, const char *set)
{
    invar_status status = INVAR_OK;
    invar_param_loader loader;

    invar_param_loader_init(&loader, model, &model->dev);
    for (int64_t i = 0; i < count && status == INVAR_OK; i++) {
        bool critic = model->spec.value_head && params[i].kind == INVAR_PARAM_HEAD;
        status = (critic ? load_value_head : load_param)(&loader, &params[i], checkpoint, set);
    }
    invar_param_loader_release(&loader);
    return status == INVAR_OK ? invar_checkpoint_check_all_loaded(checkpoint, set) : status;
}

invar_status invar_run_context_load_set(invar_model *model, invar_checkpoint *checkpoint,
                                        const char *set)
{
    return load_params(model, model->params, model->n_params, checkpoint, set);
}

/* Writes the names of target layers, such as "q_proj,v_proj". */
static void format_targets(char out[INVAR_CHECKPOINT_TARGETS_SIZE], uint32_t targets)
{
    const char *name;
    size_t used = 0;

    out[0] = '\0';
    for (int i = 0; (name = invar_lora_target(targets, i)) != NULL; i++) {
        INVAR_CHECK(used + strlen(name) + 2 <= INVAR_CHECKPOINT_TARGETS_SIZE);
        used += (size_t)snprintf(out + used, INVAR_CHECKPOINT_TARGETS_SIZE - used, "%s%s",
                                 i ? "," : "", name);
    }
}

static invar_status check_patterns(const invar_lora_spec *lora, const invar_checkpoint *checkpoint)
{
    const invar_checkpoint_adapters *had = &invar_checkpoint_state_of(checkpoint)->adapters;

    if (strcmp(had->ranks, lora->ranks) == 0 && strcmp(had->alphas, lora->alphas) == 0)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s has adapters of rank-pattern '%.500s', alpha-pattern '%.500s', and "
                      "the recipe asks for others: give what they were trained with",
                      invar_checkpoint_path(checkpoint), had->ranks, had->alphas);
}

/* Fails if the adapters were trained with other settings than the recipe's. */
static invar_status check_trained(const invar_lora_spec *lora, const invar_checkpoint *checkpoint)
{
    const invar_checkpoint_adapters *had = &invar_checkpoint_state_of(checkpoint)->adapters;
    char targets[INVAR_CHECKPOINT_TARGETS_SIZE];

    if (had->rank == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s does not say how its adapters were trained: an earlier version "
                          "wrote it; resume its run once, which writes another",
                          invar_checkpoint_path(checkpoint));
    format_targets(targets, lora->targets);
    if (had->rank == lora->rank && had->alpha == lora->alpha && had->rslora == lora->rslora &&
        strcmp(had->targets, targets) == 0)
        return check_patterns(lora, checkpoint);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s has adapters of lora-rank %lld, lora-alpha %.9g, target-modules %s, "
                      "use-rslora %s, and the recipe asks for %lld, %.9g, %s, %s: give what they "
                      "were trained with",
                      invar_checkpoint_path(checkpoint), (long long)had->rank, (double)had->alpha,
                      had->targets, had->rslora ? "true" : "false", (long long)lora->rank,
                      (double)lora->alpha, targets, lora->rslora ? "true" : "false");
}

/* Fails if the checkpoint has no weights, or has adapters that do not fit the model. */
static invar_status check_weights(const invar_model *model, const invar_checkpoint *checkpoint)
{
    if (invar_checkpoint_is_bare(checkpoint))
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "%.1000s has no weights: its run has debug-rollout-only and changed none; "
            "take those that it began with (hf-checkpoint, ref-load)",
            invar_checkpoint_path(checkpoint));
    if (!invar_checkpoint_has_set(checkpoint, INVAR_RUN_CONTEXT_ADAPTERS))
        return INVAR_OK;
    if (invar_model_is_adapted(model))
        return check_trained(&model->spec.lora, checkpoint);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s has adapters alone: give the lora-rank and the hf-checkpoint that "
                      "they were trained with; invar convert makes a folder of peft of them",
                      invar_checkpoint_path(checkpoint));
}

/*
 * Loads the sets that the model needs. A model with adapters gets adapters or, from a full model,
 * its base.
 */
static invar_status load_sets(invar_model *model, invar_checkpoint *checkpoint, unsigned how)
{
    const char *set = MODEL_SET;

    // the checkpoint of a run has both models; a critic without a run is in the set "model"
    if (model->spec.value_head && !(how & INVAR_LOAD_BODY) &&
        invar_checkpoint_has_set(checkpoint, CRITIC_SET))
        return invar_run_context_load_set(model, checkpoint, CRITIC_SET);
    INVAR_TRY(check_weights(model, checkpoint));
    if (invar_model_is_adapted(model) &&
        !invar_checkpoint_has_set(checkpoint, INVAR_RUN_CONTEXT_ADAPTERS))
        return load_params(model, model->base, model->n_base, checkpoint, MODEL_SET);
    if (invar_model_is_adapted(model))
        set = INVAR_RUN_CONTEXT_ADAPTERS;
    return invar_run_context_load_set(model, checkpoint, set);
}

/* ---- folders --------------------------------------------------------------------------------- */

static invar_status check_config(const invar_model *model, const char *dir, unsigned how)
{
    return how & INVAR_LOAD_COMPARED ? invar_model_spec_compare(&model->spec, dir) : INVAR_OK;
}

static void describe_origin(invar_weights_origin *out, const invar_checkpoint *checkpoint)
{
    const invar_checkpoint_state *state = invar_checkpoint_state_of(checkpoint);

    *out = (invar_weights_origin){
        .rollout = state->rollout,
        .adapters = invar_checkpoint_has_set(checkpoint, INVAR_RUN_CONTEXT_ADAPTERS),
        .base = state->adapters.base};
    (void)snprintf(out->folder, sizeof out->folder, "%s", invar_checkpoint_path(checkpoint));
    memcpy(out->format, state->format, sizeof out->format);
}

/* Loads weights of an open checkpoint, and closes it. */
static invar_status load_checkpoint(invar_weights_origin *out, invar_model *model,
                                    invar_checkpoint *checkpoint, unsigned how)
{
    invar_status status;

    describe_origin(out, checkpoint);
    status = check_config(model, invar_checkpoint_path(checkpoint), how);
    if (status == INVAR_OK)
        status = load_sets(model, checkpoint, how);
    invar_checkpoint_close(checkpoint);
    return status;
}

invar_status invar_run_context_load_folder(invar_weights_origin *out, invar_model *model,
                                           const char *path, unsigned how, const invar_device *dev)
{
    invar_checkpoint *checkpoint;

    if (invar_checkpoint_is_folder(path)) {
        INVAR_TRY(invar_checkpoint_open_folder(&checkpoint, path));
        return load_checkpoint(out, model, checkpoint, how);
    }
    *out = (invar_weights_origin){.rollout = 0};
    (void)snprintf(out->folder, sizeof out->folder, "%s", path);
    INVAR_TRY(check_config(model, path, how));
    return invar_hf_load(model, path, dev);
}

/* `key` names the path in error messages; "" if it comes from no key. */
static invar_status load_weights(invar_weights_origin *out, invar_model *model, const char *key,
                                 const char *path, const invar_checkpoint_open_options *choice,
                                 unsigned how, const invar_device *dev)
{
    char latest[INVAR_PATH_SIZE], hint[INVAR_CHECKPOINT_HINT_SIZE];
    invar_checkpoint *checkpoint;
    invar_status status;

    INVAR_TRY(invar_path_join(latest, sizeof latest, path, "latest_checkpointed_iteration.txt"));
    if (invar_path_exists(latest)) {
        INVAR_TRY(invar_checkpoint_open(&checkpoint, path, choice));
        return load_checkpoint(out, model, checkpoint, how);
    }
    INVAR_TRY(invar_hf_check_folder(key, path));
    status = invar_checkpoint_is_folder(path) ? INVAR_OK : invar_hf_check_weights(path);
    invar_checkpoint_hint(hint, path);
    if (status != INVAR_OK)
        return INVAR_FAIL(status, 0, "%s; nor are there checkpoints of a run%s",
                          invar_error_last()->message, hint);
    if (choice->step != INVAR_CHECKPOINT_LATEST)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "'ckpt-step' would be ignored: %.1000s is no folder of checkpoints",
                          path);
    return invar_run_context_load_folder(out, model, path, how, dev);
}

invar_status invar_run_context_load(invar_model *model, const char *path, int64_t step,
                                    const invar_device *dev)
{
    const invar_checkpoint_open_options choice = {.step = step,
                                                  .settings = INVAR_CHECKPOINT_CKPT_STEP};
    invar_weights_origin origin;

    return load_weights(&origin, model, "", path, &choice, 0, dev);
}

invar_status invar_run_context_load_named(invar_weights_origin *out, const invar_run_context *s,
                                          invar_model *model, invar_config_text weights)
{
    const invar_checkpoint_open_options newest = {.step = INVAR_CHECKPOINT_LATEST};

    unsigned how =
        INVAR_LOAD_COMPARED | (weights.key == INVAR_KEY_CRITIC_LOAD ? 0 : INVAR_LOAD_BODY);

    return load_weights(out, model, invar_config_schema()->keys[weights.key].name, weights.text,
                        &newest, how, &s->dev);
}

/*
 * Equal adapters on another base are another model. Bases are compared only if the number format is
 * equal, since the digest of a base depends on it.
 */
invar_status invar_run_context_check_base(const invar_run_context *s,
                                          const invar_weights_origin *from)
{
    if (!from->adapters || strcmp(from->format, invar_format_name(s->format)) != 0 ||
        invar_digest_equal(&from->base, &s->base.weights))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s has adapters of another base: give the hf-checkpoint, ref-load or "
                      "seed that they were trained with",
                      from->folder);
}

void invar_run_context_describe_adapters(invar_checkpoint_adapters *out,
                                         const invar_run_context *session)
{
    const invar_lora_spec *lora = &session->spec.lora;

    *out = (invar_checkpoint_adapters){.rank = lora->rank,
                                       .alpha = lora->alpha,
                                       .rslora = lora->rslora,
                                       .base = session->base.weights};
    memcpy(out->ranks, lora->ranks, sizeof out->ranks);
    memcpy(out->alphas, lora->alphas, sizeof out->alphas);
    format_targets(out->targets, lora->targets);
}

invar_status invar_run_context_check_adapters(const invar_run_context *session,
                                              const invar_checkpoint *checkpoint)
{
    invar_weights_origin from;

    describe_origin(&from, checkpoint);
    INVAR_TRY(check_weights(session->models.actor, checkpoint));
    return invar_run_context_check_base(session, &from);
}

invar_status invar_run_context_load_newest(invar_run_context *s)
{
    const invar_config *c = s->config;
    invar_checkpoint_open_options choice = {.step = c->ckpt_step,
                                            .skip_damaged = c->skip_damaged,
                                            .settings = INVAR_CHECKPOINT_CKPT_STEP |
                                                        INVAR_CHECKPOINT_SKIP_DAMAGED};

    if (!c->load[0] && choice.step >= 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "'ckpt-step' would be ignored: it needs run or load");
    if (!c->load[0])
        return INVAR_OK;
    INVAR_TRY(load_weights(&s->loaded, s->models.actor, "load", c->load, &choice,
                           INVAR_LOAD_COMPARED, &s->dev));
    INVAR_TRY(invar_run_context_check_base(s, &s->loaded));
    INVAR_TRY(invar_run_context_refresh_sampler(s));
    return invar_model_hash(&s->weights, s->models.actor, &s->dev);
}
