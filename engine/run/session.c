/*
 * session.c - from a recipe to a device, a tokenizer, models and data.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/session.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/text.h"
#include "base/process/process.h"
#include "engine/config/check.h"
#include "engine/hf/hf.h"
#include "engine/hf/peft.h"
#include "engine/model/family.h"
#include "engine/model/lora/adapters.h"
#include "engine/model/lora/base.h"
#include "engine/model/shard/fill.h"
#include "engine/model/shard/masters.h"
#include "engine/program/near.h"
#include "engine/rl/loss.h"
#include "engine/run/settings.h"

#include "base/invar_banned.h"

#define TASK_PREFIX "task:"
#define MODEL_SET "model" /* of a checkpoint */

static bool given(const invar_recipe *recipe, invar_key key)
{
    return invar_recipe_string(recipe, (int)key)[0] != '\0';
}

/* ---- device ---------------------------------------------------------------------------------- */

#define SMALL_HIDDEN 256 /* narrower models do not keep more threads busy than */
#define SMALL_THREADS 2  /* these: waking others costs more than they do */

static int64_t default_threads(const invar_model_spec *spec, const invar_session_crowd *crowd)
{
    int64_t most = invar_process_cores(crowd->process, crowd->host);

    return spec->hidden <= SMALL_HIDDEN && most > SMALL_THREADS ? SMALL_THREADS : most;
}

static int64_t threads_of(const invar_session *s, const invar_session_crowd *crowd)
{
    int64_t threads = invar_recipe_int(s->recipe, INVAR_KEY_THREADS);

    if (threads == 0)
        return default_threads(&s->spec, crowd);
    return threads > crowd->process ? threads / crowd->process : 1;
}

static invar_backend imagined_table;

static void imagine_gpu(void)
{
    imagined_table = *invar_backend_cpu();
    imagined_table.name = "cuda";
    imagined_table.memory.far = true;
}

/* A GPU as far as its memory goes. Ranks that are threads share it. */
static const invar_backend *imagined_gpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, imagine_gpu);
    return &imagined_table;
}

/* `any`: see INVAR_SESSION_ANY_DEVICE. */
static invar_status open_device(invar_session *s, bool any, const invar_session_crowd *crowd)
{
    invar_device_kind kind = INVAR_RECIPE_ENUM(invar_device_kind, s->recipe, INVAR_KEY_DEVICE);
    int64_t threads = threads_of(s, crowd);
    invar_status status;

    if (threads > 1)
        INVAR_TRY(invar_pool_new(&s->pool, (int)threads));
    s->dev =
        (invar_device){.numerics = INVAR_RECIPE_ENUM(invar_numerics, s->recipe, INVAR_KEY_NUMERICS),
                       .pool = s->pool,
                       .ordinal = crowd->place};
    status = invar_backend_find(&s->dev.backend, kind);
    if (status == INVAR_OK)
        status = invar_device_open(&s->dev);
    if (status != INVAR_E_NODEVICE || !any || kind == INVAR_DEVICE_CPU)
        return status;
    invar_error_clear();
    s->imagined = true;
    s->dev.backend = imagined_gpu();
    return INVAR_OK;
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

static invar_status open_tokenizer(invar_session *s, unsigned wants)
{
    const char *dir = invar_recipe_string(s->recipe, INVAR_KEY_HF_CHECKPOINT);
    const char *data = invar_recipe_string(s->recipe, INVAR_KEY_PROMPT_DATA);
    const char *alphabet;
    char path[INVAR_PATH_SIZE];

    if (dir[0]) {
        INVAR_TRY(invar_path_join(path, sizeof path, dir, "tokenizer.json"));
        if ((wants & INVAR_SESSION_NO_TOKENIZER) && !invar_path_exists(path))
            return INVAR_OK;
        return invar_tokenizer_read(&s->tokenizer, dir);
    }
    if (strncmp(data, TASK_PREFIX, strlen(TASK_PREFIX)) != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "no tokenizer: give hf-checkpoint, or a built-in task as prompt-data");
    alphabet = invar_task_alphabet(data + strlen(TASK_PREFIX));
    if (!alphabet)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "prompt-data: there is no task \"%.60s\"",
                          data + strlen(TASK_PREFIX));
    return invar_tokenizer_alphabet(&s->tokenizer, alphabet);
}

/* ---- spec ------------------------------------------------------------------------------------ */

static int64_t or_else(int64_t value, int64_t fallback)
{
    return value ? value : fallback;
}

static void read_experts(invar_model_spec *spec, const invar_recipe *r)
{
    spec->experts = invar_recipe_int(r, INVAR_KEY_NUM_EXPERTS);
    if (!spec->experts)
        return;
    spec->experts_per_token = invar_recipe_int(r, INVAR_KEY_MOE_ROUTER_TOPK);
    spec->expert_intermediate =
        or_else(invar_recipe_int(r, INVAR_KEY_MOE_FFN_HIDDEN_SIZE), spec->intermediate);
    spec->normalise_experts = true;
    for (int64_t i = 0; i < spec->layers && i < INVAR_SPEC_MAX_LAYERS; i++)
        spec->sparse[i] = true;
}

static invar_status spec_from_recipe(invar_session *s)
{
    const invar_recipe *r = s->recipe;
    invar_model_spec *spec = &s->spec;
    int32_t eos = invar_tokenizer_eos(s->tokenizer);

    *spec = (invar_model_spec){
        .family = INVAR_RECIPE_ENUM(invar_family, r, INVAR_KEY_MODEL_TYPE),
        .vocab =
            or_else(invar_recipe_int(r, INVAR_KEY_VOCAB_SIZE), invar_tokenizer_size(s->tokenizer)),
        .hidden = invar_recipe_int(r, INVAR_KEY_HIDDEN_SIZE),
        .layers = invar_recipe_int(r, INVAR_KEY_NUM_LAYERS),
        .heads = invar_recipe_int(r, INVAR_KEY_NUM_ATTENTION_HEADS),
        .intermediate = invar_recipe_int(r, INVAR_KEY_FFN_HIDDEN_SIZE),
        .max_positions = invar_recipe_int(r, INVAR_KEY_MAX_POSITION_EMBEDDINGS),
        .norm_eps = (float)invar_recipe_float(r, INVAR_KEY_NORM_EPSILON),
        .init_std = (float)invar_recipe_float(r, INVAR_KEY_INIT_METHOD_STD),
        .tied = !invar_recipe_bool(r, INVAR_KEY_UNTIE_EMBEDDINGS_AND_OUTPUT_WEIGHTS),
        .rope = {.theta = invar_recipe_float(r, INVAR_KEY_ROTARY_BASE)}};
    spec->kv_heads = or_else(invar_recipe_int(r, INVAR_KEY_NUM_QUERY_GROUPS), spec->heads);
    spec->head_dim = or_else(invar_recipe_int(r, INVAR_KEY_KV_CHANNELS),
                             spec->heads ? spec->hidden / spec->heads : 0);
    spec->qkv_bias = invar_family_facts_of(spec->family)->qkv_bias;
    spec->qk_norm = invar_family_facts_of(spec->family)->qk_norm;
    if (eos >= 0) {
        spec->eos[0] = eos;
        spec->n_eos = 1;
    }
    read_experts(spec, r);
    return invar_model_spec_check(spec);
}

static invar_status read_lora(invar_lora_spec *out, const invar_recipe *r)
{
    *out = (invar_lora_spec){.rank = invar_recipe_int(r, INVAR_KEY_LORA_RANK)};
    if (out->rank == 0)
        return INVAR_OK;
    out->alpha = (float)invar_recipe_float(r, INVAR_KEY_LORA_ALPHA);
    return invar_lora_targets(&out->targets, invar_recipe_string(r, INVAR_KEY_TARGET_MODULES));
}

/* What the recipe says about any model. */
static void set_arithmetic(invar_model_spec *spec, const invar_recipe *r)
{
    spec->kv_span = invar_recipe_int(r, INVAR_KEY_KV_SPAN);
    spec->q_span = invar_recipe_int(r, INVAR_KEY_Q_SPAN);
    spec->logical_tp = invar_recipe_int(r, INVAR_KEY_LOGICAL_TP);
    spec->logical_etp = invar_recipe_int(r, INVAR_KEY_LOGICAL_ETP);
}

static invar_status read_spec(invar_session *s)
{
    if (given(s->recipe, INVAR_KEY_HF_CHECKPOINT))
        INVAR_TRY(invar_model_spec_read(&s->spec,
                                        invar_recipe_string(s->recipe, INVAR_KEY_HF_CHECKPOINT),
                                        invar_recipe_string(s->recipe, INVAR_KEY_HF_IGNORE_KEYS)));
    else
        INVAR_TRY(spec_from_recipe(s));
    set_arithmetic(&s->spec, s->recipe);
    INVAR_TRY(read_lora(&s->spec.lora, s->recipe));
    if (s->spec.logical_etp > 1 && s->spec.experts == 0)
        return invar_config_refuse(s->recipe, INVAR_KEY_LOGICAL_ETP,
                                   "cuts experts, and the model has none");
    if (invar_recipe_int(s->recipe, INVAR_KEY_EXPERT_TENSOR_PARALLEL_SIZE) > 0 &&
        s->spec.experts == 0)
        return invar_config_refuse(s->recipe, INVAR_KEY_EXPERT_TENSOR_PARALLEL_SIZE,
                                   "divides experts, and the model has none");
    if (s->spec.value_head)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "hf-checkpoint has a critic, not a language model");
    if (s->tokenizer && invar_tokenizer_size(s->tokenizer) > s->spec.vocab)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the tokenizer has %lld tokens, the model only %lld",
                          (long long)invar_tokenizer_size(s->tokenizer), (long long)s->spec.vocab);
    return INVAR_OK;
}

/* ---- models beside the actor ----------------------------------------------------------------- */

/* Tokens of both models mean the same, as far as its folder says. */
static invar_status check_tokenizer(const invar_session *s, const char *dir, invar_key key)
{
    invar_tokenizer *tokenizer = NULL;
    char path[INVAR_PATH_SIZE];
    invar_digest own, other;

    INVAR_TRY(invar_path_join(path, sizeof path, dir, "tokenizer.json"));
    if (!s->tokenizer || !invar_path_exists(path))
        return INVAR_OK;
    INVAR_TRY(invar_tokenizer_read(&tokenizer, dir));
    invar_tokenizer_hash(&own, s->tokenizer);
    invar_tokenizer_hash(&other, tokenizer);
    invar_tokenizer_free(tokenizer);
    if (!invar_digest_equal(&own, &other))
        return invar_config_refuse(s->recipe, key,
                                   "has another tokenizer than the model: give a model of its "
                                   "family");
    return INVAR_OK;
}

bool invar_session_drafts(const invar_session *s)
{
    return INVAR_RECIPE_ENUM(invar_speculative_algorithm, s->recipe,
                             INVAR_KEY_SPECULATIVE_ALGORITHM) == INVAR_SPECULATIVE_ALGORITHM_DRAFT;
}

invar_format invar_session_draft_format(const invar_session *s)
{
    return s->format == INVAR_FORMAT_FP32 ? INVAR_FORMAT_FP32 : INVAR_FORMAT_BF16;
}

static invar_status read_draft(invar_session *s)
{
    const invar_key key = INVAR_KEY_SPECULATIVE_DRAFT_MODEL_PATH;
    const char *dir = invar_recipe_string(s->recipe, key);

    if (!invar_session_drafts(s))
        return INVAR_OK;
    INVAR_TRY(invar_model_spec_read(&s->draft_spec, dir, ""));
    s->draft_spec.kv_span = s->spec.kv_span;
    s->draft_spec.q_span = s->spec.q_span;
    s->draft_spec.logical_tp = s->draft_spec.logical_etp = 1;
    if (s->draft_spec.vocab != s->spec.vocab)
        return invar_config_refuse(s->recipe, key,
                                   "has another vocabulary than the model: give a model of its "
                                   "family");
    return check_tokenizer(s, dir, key);
}

/* The folder whose config.json describes weights: that of the newest checkpoint, or itself. */
static invar_status find_config(char out[INVAR_PATH_SIZE], const char *path)
{
    char latest[INVAR_PATH_SIZE], name[40];
    int64_t step;

    INVAR_TRY(invar_path_join(latest, sizeof latest, path, "latest_checkpointed_iteration.txt"));
    (void)snprintf(out, INVAR_PATH_SIZE, "%s", path);
    if (!invar_path_exists(latest))
        return INVAR_OK;
    INVAR_TRY(invar_checkpoint_latest(&step, path));
    (void)snprintf(name, sizeof name, "iter_%07lld", (long long)step);
    return invar_path_join(out, INVAR_PATH_SIZE, path, name);
}

/* All that is sampled can be scored. */
static invar_status check_beside(const invar_session *s, const invar_model_spec *spec,
                                 const char *dir, invar_key key)
{
    int64_t context = or_else(invar_recipe_int(s->recipe, INVAR_KEY_ROLLOUT_MAX_CONTEXT_LEN),
                              s->spec.max_positions);
    char why[160];

    if (spec->vocab < s->spec.vocab)
        return invar_config_refuse(s->recipe, key,
                                   "has fewer tokens than the model: give one that knows them all");
    (void)snprintf(why, sizeof why,
                   "takes %lld tokens, and samples may have %lld: lower rollout-max-context-len",
                   (long long)spec->max_positions, (long long)context);
    if (spec->max_positions < context)
        return invar_config_refuse(s->recipe, key, why);
    return check_tokenizer(s, dir, key);
}

/* The spec of a model with a folder of its own; `out` is the actor's, and stays if that agrees. */
static invar_status read_beside(invar_model_spec *out, bool *apart, const invar_session *s,
                                invar_key key)
{
    const char *path = invar_recipe_string(s->recipe, key);
    char dir[INVAR_PATH_SIZE];

    if (!path[0] || !invar_path_exists(path)) // whoever loads it says so
        return INVAR_OK;
    INVAR_TRY(find_config(dir, path));
    if (invar_model_spec_compare(out, dir) == INVAR_OK)
        return INVAR_OK;
    invar_error_clear();
    *apart = true;
    INVAR_TRY(invar_model_spec_read(out, dir, ""));
    set_arithmetic(out, s->recipe);
    return check_beside(s, out, dir, key);
}

static invar_status read_others(invar_session *s)
{
    const invar_key teacher = INVAR_KEY_OPD_TEACHER_LOAD;

    s->teacher_spec = s->critic_spec = s->spec;
    s->teacher_spec.lora = (invar_lora_spec){0};
    if (invar_settings_teacher(s->recipe))
        INVAR_TRY(read_beside(&s->teacher_spec, &s->teacher_apart, s, teacher));
    if (invar_settings_critic(s->recipe))
        INVAR_TRY(read_beside(&s->critic_spec, &s->critic_apart, s, INVAR_KEY_CRITIC_LOAD));
    s->critic_spec.value_head = true;
    s->critic_spec.tied = false;
    if (s->teacher_spec.value_head)
        return invar_config_refuse(s->recipe, teacher, "has a critic, not a language model");
    return INVAR_OK;
}

/* ---- stops ----------------------------------------------------------------------------------- */

static void add_stop(invar_session *s, int32_t id)
{
    for (int64_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == id)
            return;
    s->stop_ids[s->n_stop_ids++] = id;
}

static invar_status read_stops(invar_session *s)
{
    int32_t *given_ids = NULL, eos = s->tokenizer ? invar_tokenizer_eos(s->tokenizer) : -1;
    int64_t count = 0;
    invar_status status;

    INVAR_TRY(invar_config_ids(&given_ids, &count, s->recipe, INVAR_KEY_ROLLOUT_STOP_TOKEN_IDS));
    status = invar_alloc((void **)&s->stop_ids, (size_t)(count + s->spec.n_eos + 1),
                         sizeof *s->stop_ids, "stop ids");
    if (status == INVAR_OK) {
        for (int64_t i = 0; i < s->spec.n_eos; i++)
            add_stop(s, s->spec.eos[i]);
        if (eos >= 0)
            add_stop(s, eos);
        for (int64_t i = 0; i < count; i++)
            add_stop(s, given_ids[i]);
    }
    invar_free(given_ids);
    if (status == INVAR_OK)
        status = invar_config_strings(&s->stop, &s->n_stop, s->recipe, INVAR_KEY_ROLLOUT_STOP);
    return status;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Of a parameter of which the rank has not all: through the host's memory. */
static invar_status cut_out(float *out, const invar_param *p, invar_checkpoint *c, const char *set)
{
    invar_tensor whole = invar_param_whole(p, NULL);
    invar_status status;

    INVAR_TRY(invar_alloc(&whole.data, (size_t)invar_param_all_elements(p), sizeof(float),
                          "a tensor of a checkpoint"));
    status = invar_checkpoint_load(&whole, c, set, p->name);
    if (status == INVAR_OK)
        invar_box_take(out, p, &p->own, whole.data);
    invar_free(whole.data);
    return status;
}

invar_status invar_session_load_own(float *out, const invar_param *p, invar_checkpoint *c,
                                    const char *set)
{
    invar_tensor whole = invar_param_whole(p, out);

    if (p->own.experts == 0)
        return invar_checkpoint_pass(c, set, p->name);
    if (invar_param_elements(p) < invar_param_all_elements(p))
        return cut_out(out, p, c, set);
    return invar_checkpoint_load(&whole, c, set, p->name);
}

static invar_status load_param(invar_fill *fill, const invar_param *p, invar_checkpoint *checkpoint,
                               const char *set)
{
    float *near;

    if (p->own.experts == 0)
        return invar_checkpoint_pass(checkpoint, set, p->name);
    INVAR_TRY(invar_fill_room_all(&near, fill, p));
    INVAR_TRY(invar_session_load_own(near, p, checkpoint, set));
    return invar_fill_put(fill);
}

/* The model's parameters, or those of its frozen base. */
static invar_status load_params(invar_model *model, const invar_param *params, int64_t count,
                                invar_checkpoint *checkpoint, const char *set)
{
    invar_status status = INVAR_OK;
    invar_fill fill;

    invar_fill_init(&fill, model, &model->dev);
    for (int64_t i = 0; i < count && status == INVAR_OK; i++)
        status = load_param(&fill, &params[i], checkpoint, set);
    invar_fill_release(&fill);
    return status == INVAR_OK ? invar_checkpoint_loaded(checkpoint, set) : status;
}

invar_status invar_session_load_set(invar_model *model, invar_checkpoint *checkpoint,
                                    const char *set)
{
    return load_params(model, model->params, model->n_params, checkpoint, set);
}

/* "q_proj,v_proj" */
static void name_targets(char out[INVAR_CHECKPOINT_TARGETS_SIZE], uint32_t targets)
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

/* Adapters that would compute something else here than where they were trained. */
static invar_status check_trained(const invar_lora_spec *lora, const invar_checkpoint *checkpoint)
{
    const invar_checkpoint_adapters *had = &invar_checkpoint_state_of(checkpoint)->adapters;
    char targets[INVAR_CHECKPOINT_TARGETS_SIZE];

    if (had->rank == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s does not say how its adapters were trained: an earlier version "
                          "wrote it; resume its run once, which writes another",
                          invar_checkpoint_path(checkpoint));
    name_targets(targets, lora->targets);
    if (had->rank == lora->rank && had->alpha == lora->alpha && strcmp(had->targets, targets) == 0)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s has adapters of lora-rank %lld, lora-alpha %.9g, target-modules %s, "
                      "and the recipe asks for %lld, %.9g, %s: give what they were trained with",
                      invar_checkpoint_path(checkpoint), (long long)had->rank, (double)had->alpha,
                      had->targets, (long long)lora->rank, (double)lora->alpha, targets);
}

/* Adapters alone need the base that they were trained with. */
static invar_status check_set(const invar_model *model, const invar_checkpoint *checkpoint)
{
    if (!invar_checkpoint_has(checkpoint, INVAR_SESSION_ADAPTERS))
        return INVAR_OK;
    if (invar_model_is_adapted(model))
        return check_trained(&model->spec.lora, checkpoint);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s has adapters alone: give the lora-rank and the hf-checkpoint that "
                      "they were trained with; invar convert makes a folder of peft of them",
                      invar_checkpoint_path(checkpoint));
}

/* Of a model with adapters: these, or, where a whole model is there, its base. */
static invar_status load_sets(invar_model *model, invar_checkpoint *checkpoint)
{
    const char *set = MODEL_SET;

    INVAR_TRY(check_set(model, checkpoint));
    if (invar_model_is_adapted(model) && !invar_checkpoint_has(checkpoint, INVAR_SESSION_ADAPTERS))
        return load_params(model, model->base, model->n_base, checkpoint, MODEL_SET);
    if (invar_model_is_adapted(model))
        set = INVAR_SESSION_ADAPTERS;
    if (model->spec.value_head && invar_checkpoint_has(checkpoint, "critic"))
        set = "critic"; // of a run; a converted critic is the only model there
    return invar_session_load_set(model, checkpoint, set);
}

/* `compared`: a config.json beside the weights must agree with the model. */
static invar_status check_config(const invar_model *model, const char *dir, bool compared)
{
    return compared ? invar_model_spec_compare(&model->spec, dir) : INVAR_OK;
}

static void describe(invar_session_origin *out, const invar_checkpoint *checkpoint)
{
    const invar_checkpoint_state *state = invar_checkpoint_state_of(checkpoint);

    *out =
        (invar_session_origin){.rollout = state->rollout,
                               .adapters = invar_checkpoint_has(checkpoint, INVAR_SESSION_ADAPTERS),
                               .base = state->adapters.base};
    (void)snprintf(out->folder, sizeof out->folder, "%s", invar_checkpoint_path(checkpoint));
    memcpy(out->format, state->format, sizeof out->format);
}

/* The checkpoint is closed. */
static invar_status load_checkpoint(invar_session_origin *out, invar_model *model,
                                    invar_checkpoint *checkpoint, bool compared)
{
    invar_status status;

    describe(out, checkpoint);
    status = check_config(model, invar_checkpoint_path(checkpoint), compared);
    if (status == INVAR_OK)
        status = load_sets(model, checkpoint);
    invar_checkpoint_close(checkpoint);
    return status;
}

/* One folder with weights: a checkpoint, which is verified, or Hugging Face's. */
static invar_status load_folder(invar_session_origin *out, invar_model *model, const char *path,
                                bool compared, const invar_device *dev)
{
    invar_checkpoint *checkpoint;

    if (invar_checkpoint_is(path)) {
        INVAR_TRY(invar_checkpoint_open_folder(&checkpoint, path));
        return load_checkpoint(out, model, checkpoint, compared);
    }
    *out = (invar_session_origin){.rollout = 0};
    (void)snprintf(out->folder, sizeof out->folder, "%s", path);
    INVAR_TRY(check_config(model, path, compared));
    return invar_hf_load(model, path, dev);
}

static invar_status load_weights(invar_session_origin *out, invar_model *model, const char *path,
                                 const invar_checkpoint_choice *choice, bool compared,
                                 const invar_device *dev)
{
    char latest[INVAR_PATH_SIZE], whole[INVAR_PATH_WHOLE_SIZE], hint[INVAR_CHECKPOINT_HINT_SIZE];
    invar_checkpoint *checkpoint;
    invar_status status;

    invar_path_whole(whole, path);
    INVAR_TRY(invar_path_join(latest, sizeof latest, path, "latest_checkpointed_iteration.txt"));
    if (invar_path_exists(latest)) {
        INVAR_TRY(invar_checkpoint_open(&checkpoint, path, choice));
        return load_checkpoint(out, model, checkpoint, compared);
    }
    if (!invar_path_exists(path))
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "%s: there is no such folder%s", path, whole);
    status = invar_checkpoint_is(path) ? INVAR_OK : invar_hf_check_weights(path);
    invar_checkpoint_hint(hint, path);
    if (status != INVAR_OK)
        return INVAR_FAIL(status, 0, "%s; nor are there checkpoints of a run%s",
                          invar_error_last()->message, hint);
    if (choice->step != INVAR_CHECKPOINT_LATEST)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "'ckpt-step' would be ignored: %.1000s is no folder of checkpoints",
                          path);
    return load_folder(out, model, path, compared, dev);
}

invar_status invar_session_load(invar_model *model, const char *path, int64_t step,
                                const invar_device *dev)
{
    const invar_checkpoint_choice choice = {.step = step, .settings = INVAR_CHECKPOINT_CKPT_STEP};
    invar_session_origin origin;

    return load_weights(&origin, model, path, &choice, false, dev);
}

/* The newest weights of what the key names, which must be of this model. */
static invar_status load_named(invar_session_origin *out, const invar_session *s,
                               invar_model *model, int key)
{
    const invar_checkpoint_choice newest = {.step = INVAR_CHECKPOINT_LATEST};

    return load_weights(out, model, invar_recipe_string(s->recipe, key), &newest, true, &s->dev);
}

/* Adapters beside another base are another model. In other number formats any base is another. */
static invar_status check_base(const invar_session *s, const invar_session_origin *from)
{
    if (!from->adapters || strcmp(from->format, invar_format_name(s->format)) != 0 ||
        invar_digest_equal(&from->base, &s->base_weights))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s has adapters of another base: give the hf-checkpoint, ref-load or "
                      "seed that they were trained with",
                      from->folder);
}

void invar_session_describe_adapters(invar_checkpoint_adapters *out, const invar_session *session)
{
    const invar_lora_spec *lora = &session->spec.lora;

    *out = (invar_checkpoint_adapters){
        .rank = lora->rank, .alpha = lora->alpha, .base = session->base_weights};
    name_targets(out->targets, lora->targets);
}

invar_status invar_session_check_adapters(const invar_session *session,
                                          const invar_checkpoint *checkpoint)
{
    invar_session_origin from;

    describe(&from, checkpoint);
    INVAR_TRY(check_set(session->actor, checkpoint));
    return check_base(session, &from);
}

invar_status invar_session_load_newest(invar_session *s)
{
    const invar_recipe *r = s->recipe;
    invar_checkpoint_choice choice = {.step = invar_recipe_int(r, INVAR_KEY_CKPT_STEP),
                                      .skip_damaged = invar_recipe_bool(r, INVAR_KEY_SKIP_DAMAGED),
                                      .settings = INVAR_CHECKPOINT_CKPT_STEP |
                                                  INVAR_CHECKPOINT_SKIP_DAMAGED};

    if (!given(r, INVAR_KEY_LOAD) && choice.step >= 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "'ckpt-step' would be ignored: it needs run or load");
    if (!given(r, INVAR_KEY_LOAD))
        return INVAR_OK;
    INVAR_TRY(load_weights(&s->loaded, s->actor, invar_recipe_string(r, INVAR_KEY_LOAD), &choice,
                           true, &s->dev));
    INVAR_TRY(check_base(s, &s->loaded));
    INVAR_TRY(invar_session_refresh_sampler(s));
    return invar_model_hash(&s->weights, s->actor, &s->dev);
}

/* A model that was named is never made up. */
static invar_status check_given(const char *dir)
{
    invar_status status = invar_hf_check_weights(dir);

    if (status == INVAR_OK)
        return INVAR_OK;
    return INVAR_FAIL(status, 0, "%s; or name weights for this model with ref-load",
                      invar_error_last()->message);
}

/* Of a model that has any. */
static invar_status first_adapters(invar_session *s, uint32_t seed)
{
    const char *dir = invar_recipe_string(s->recipe, INVAR_KEY_LORA_ADAPTER_PATH);

    if (dir[0])
        return invar_peft_load(s->actor, dir, &s->dev);
    return invar_model_init_adapters(s->actor, seed, &s->dev);
}

static invar_status first_base(invar_session *s, uint32_t seed)
{
    const char *dir = invar_recipe_string(s->recipe, INVAR_KEY_HF_CHECKPOINT);
    invar_session_origin origin;

    s->weights_from = dir[0] ? "hf-checkpoint" : "seed";
    if (!dir[0])
        return invar_model_init_base(s->actor, seed, &s->dev);
    INVAR_TRY(load_folder(&origin, s->actor, dir, false, &s->dev));
    if (origin.adapters)
        return invar_config_refuse(s->recipe, INVAR_KEY_HF_CHECKPOINT,
                                   "has adapters alone: name their base here, and them with "
                                   "ref-load");
    return INVAR_OK;
}

/* ref-load: a whole model; or adapters alone, whose base is the one that the recipe has without. */
static invar_status named_weights(invar_session_origin *out, invar_session *s, uint32_t seed)
{
    INVAR_TRY(load_named(out, s, s->actor, INVAR_KEY_REF_LOAD));
    if (out->adapters && given(s->recipe, INVAR_KEY_LORA_ADAPTER_PATH))
        return invar_config_refuse(s->recipe, INVAR_KEY_LORA_ADAPTER_PATH,
                                   "would be ignored: ref-load names adapters, too");
    if (out->adapters)
        INVAR_TRY(first_base(s, seed));
    s->weights_from = "ref-load";
    return INVAR_OK;
}

/* All of the actor but adapters that no checkpoint has. */
static invar_status read_actor(invar_session *s, uint32_t seed)
{
    invar_session_origin from = {.adapters = false};

    INVAR_TRY(given(s->recipe, INVAR_KEY_REF_LOAD) ? named_weights(&from, s, seed)
                                                   : first_base(s, seed));
    if (invar_model_is_adapted(s->actor))
        INVAR_TRY(invar_base_hash(&s->base_weights, s->actor, &s->dev));
    return check_base(s, &from);
}

static uint32_t seed_of(const invar_session *s)
{
    return (uint32_t)invar_recipe_int(s->recipe, INVAR_KEY_SEED);
}

static invar_status first_weights(invar_session *s)
{
    const invar_recipe *r = s->recipe;
    const char *dir = invar_recipe_string(r, INVAR_KEY_HF_CHECKPOINT);

    if (dir[0] && !given(r, INVAR_KEY_REF_LOAD))
        INVAR_TRY(check_given(dir)); // before any memory
    INVAR_TRY(invar_model_new(&s->actor, &s->spec, s->format, s->layout, &s->dev));
    INVAR_TRY(first_adapters(s, seed_of(s)));
    INVAR_TRY(read_actor(s, seed_of(s)));
    return invar_model_hash(&s->weights, s->actor, &s->dev);
}

/* What is trained comes from those who train it; a frozen base stays what it is. */
static invar_status weights_that_sample(invar_session *s)
{
    INVAR_TRY(invar_model_new_weights(&s->actor, &s->spec, s->rollout_format, s->layout, &s->dev));
    return invar_model_is_adapted(s->actor) ? read_actor(s, seed_of(s)) : INVAR_OK;
}

/* The actor's body; ranks that own its rows may own others of the critic. */
static invar_status take_body(const invar_session *s, invar_fill *fill)
{
    for (int64_t i = 0; i < s->critic->n_params; i++) {
        const invar_param *to = &s->critic->params[i];
        float *values;

        if (to->own.experts == 0)
            continue;
        if (to->kind == INVAR_PARAM_HEAD) {
            INVAR_TRY(invar_fill_zero(fill, to));
            continue;
        }
        INVAR_TRY(invar_fill_room_all(&values, fill, to));
        INVAR_TRY(invar_masters_read(values, s->actor,
                                     invar_model_find(s->actor, to->name) - s->actor->params));
        INVAR_TRY(invar_fill_put(fill));
    }
    return INVAR_OK;
}

/* Where the critic has no weights of its own; its head starts at zero. */
static invar_status critic_from_actor(invar_session *s)
{
    invar_fill fill;
    invar_status status;

    invar_fill_init(&fill, s->critic, &s->dev);
    status = take_body(s, &fill);
    invar_fill_release(&fill);
    return status;
}

/* With adapters it has the actor's base. One that never moves is in no checkpoint. */
static invar_status new_reference(invar_session *s)
{
    if (invar_model_is_adapted(s->actor))
        return invar_model_new_beside(&s->reference, s->actor, &s->dev);
    if (!invar_settings_reference_moves(s->recipe))
        return invar_model_new_weights(&s->reference, &s->spec, s->format, s->layout, &s->dev);
    return invar_model_new(&s->reference, &s->spec, s->format, s->layout, &s->dev);
}

const invar_model *invar_session_sampler(const invar_session *s)
{
    return s->rollout_actor ? s->rollout_actor : s->actor;
}

invar_status invar_session_refresh_sampler(invar_session *s)
{
    if (!s->rollout_actor)
        return INVAR_OK;
    return invar_model_refresh_from(s->rollout_actor, s->actor, &s->dev);
}

static invar_status make_sampler(invar_session *s)
{
    if (s->rollout_format == s->format)
        return INVAR_OK;
    INVAR_TRY(invar_model_new_weights(&s->rollout_actor, &s->spec, s->rollout_format, s->layout,
                                      &s->dev));
    return invar_session_refresh_sampler(s);
}

static invar_status other_models(invar_session *s)
{
    const invar_recipe *r = s->recipe;
    invar_session_origin from;

    if (invar_settings_reference(r)) {
        INVAR_TRY(new_reference(s));
        INVAR_TRY(invar_model_copy(s->reference, s->actor));
    }
    if (invar_settings_teacher(r)) {
        INVAR_TRY(invar_model_new(&s->teacher, &s->teacher_spec, s->format, s->layout, &s->dev));
        INVAR_TRY(load_named(&from, s, s->teacher, INVAR_KEY_OPD_TEACHER_LOAD));
        INVAR_TRY(invar_model_hash(&s->teacher_weights, s->teacher, &s->dev));
    }
    if (invar_settings_critic(r)) {
        INVAR_TRY(invar_model_new(&s->critic, &s->critic_spec, s->format, s->layout, &s->dev));
        INVAR_TRY(given(r, INVAR_KEY_CRITIC_LOAD)
                      ? load_named(&from, s, s->critic, INVAR_KEY_CRITIC_LOAD)
                      : critic_from_actor(s));
        INVAR_TRY(invar_model_hash(&s->critic_weights, s->critic, &s->dev));
    }
    return INVAR_OK;
}

/* Ranks that train beside ranks that only sample need none. */
static invar_status load_draft(invar_session *s, bool samples)
{
    const char *dir = invar_recipe_string(s->recipe, INVAR_KEY_SPECULATIVE_DRAFT_MODEL_PATH);
    invar_session_origin origin;

    if (!invar_session_drafts(s) ||
        (s->layout && !samples && invar_recipe_int(s->recipe, INVAR_KEY_ROLLOUT_NUM_GPUS) > 0))
        return INVAR_OK;
    INVAR_TRY(invar_hf_check_weights(dir));
    INVAR_TRY(invar_model_new_weights(&s->draft, &s->draft_spec, invar_session_draft_format(s),
                                      NULL, &s->dev));
    return load_folder(&origin, s->draft, dir, false, &s->dev);
}

/* ---- data ------------------------------------------------------------------------------------ */

static invar_dataset_options data_options(const invar_session *s, const char *path, bool eval)
{
    const invar_recipe *r = s->recipe;
    int64_t context = invar_recipe_int(r, INVAR_KEY_ROLLOUT_MAX_CONTEXT_LEN);
    int64_t longest = invar_recipe_int(r, INVAR_KEY_ROLLOUT_MAX_PROMPT_LEN);
    invar_dataset_options o = {
        .path = path,
        .input_key = invar_recipe_string(r, INVAR_KEY_INPUT_KEY),
        .label_key = invar_recipe_string(r, INVAR_KEY_LABEL_KEY),
        .metadata_key = invar_recipe_string(r, INVAR_KEY_METADATA_KEY),
        .tool_key = invar_recipe_string(r, INVAR_KEY_TOOL_KEY),
        .apply_chat_template = invar_recipe_bool(r, INVAR_KEY_APPLY_CHAT_TEMPLATE),
        .chat_template_path = invar_recipe_string(r, INVAR_KEY_CHAT_TEMPLATE_PATH),
        .chat_template_kwargs = invar_recipe_string(r, INVAR_KEY_APPLY_CHAT_TEMPLATE_KWARGS),
        .hf_dir = invar_recipe_string(r, INVAR_KEY_HF_CHECKPOINT),
        .max_prompt_tokens = or_else(longest, or_else(context, s->spec.max_positions) - 1),
        .max_total_tokens = or_else(context, s->spec.max_positions),
        .sft = invar_settings_supervised(r) && !eval,
        // a task is evaluated on other prompts than it is trained on
        .seed = (uint32_t)invar_recipe_int(r, INVAR_KEY_ROLLOUT_SEED) + (eval ? 1 : 0),
        .task_size = invar_recipe_int(r, INVAR_KEY_TASK_SIZE)};

    if (eval && given(r, INVAR_KEY_EVAL_INPUT_KEY))
        o.input_key = invar_recipe_string(r, INVAR_KEY_EVAL_INPUT_KEY);
    if (eval && given(r, INVAR_KEY_EVAL_LABEL_KEY))
        o.label_key = invar_recipe_string(r, INVAR_KEY_EVAL_LABEL_KEY);
    return o;
}

invar_status invar_session_data(invar_dataset **out, const invar_session *s, const char *path,
                                bool eval)
{
    invar_dataset_options o = data_options(s, path, eval);

    return invar_dataset_open(out, &o, s->tokenizer);
}

invar_status invar_session_prompt(invar_dataset **out, const invar_session *s, const char *text)
{
    invar_dataset_options o = data_options(s, "prompt", true);
    invar_json_text line = {0};
    invar_status status;

    o.input_key = "prompt";
    o.label_key = o.metadata_key = o.tool_key = "";
    invar_json_text_open(&line, '{');
    invar_json_text_key(&line, o.input_key);
    invar_json_text_string(&line, text, strlen(text));
    invar_json_text_close(&line, '}');
    status = line.status;
    if (status == INVAR_OK)
        status = invar_dataset_parse(out, &o, s->tokenizer, line.data, line.bytes);
    invar_json_text_release(&line);
    return status;
}

invar_sampling invar_session_sampling(const invar_session *s)
{
    const invar_recipe *r = s->recipe;
    int64_t top_k = invar_recipe_int(r, INVAR_KEY_ROLLOUT_TOP_K);

    return (invar_sampling){
        .seed = (uint32_t)invar_recipe_int(r, INVAR_KEY_ROLLOUT_SEED),
        .purpose = INVAR_PURPOSE_TRAIN,
        .temperature = (float)invar_recipe_float(r, INVAR_KEY_ROLLOUT_TEMPERATURE),
        .top_k = top_k > 0 ? (int32_t)top_k : 0,
        .top_p = (float)invar_recipe_float(r, INVAR_KEY_ROLLOUT_TOP_P),
        .min_p = (float)invar_recipe_float(r, INVAR_KEY_ROLLOUT_MIN_P),
        .max_response = invar_recipe_int(r, INVAR_KEY_ROLLOUT_MAX_RESPONSE_LEN),
        .max_context = invar_recipe_int(r, INVAR_KEY_ROLLOUT_MAX_CONTEXT_LEN),
        .stop_ids = s->stop_ids,
        .n_stop_ids = s->n_stop_ids,
        .stop = (const char *const *)s->stop,
        .n_stop = s->n_stop,
        .skip_special = invar_recipe_bool(r, INVAR_KEY_ROLLOUT_SKIP_SPECIAL_TOKENS)};
}

static invar_speculation speculation_of(const invar_session *s)
{
    const invar_recipe *r = s->recipe;

    return (invar_speculation){
        .model = s->draft,
        .algorithm =
            INVAR_RECIPE_ENUM(invar_speculative_algorithm, r, INVAR_KEY_SPECULATIVE_ALGORITHM),
        .tokens = invar_recipe_int(r, INVAR_KEY_SPECULATIVE_NUM_DRAFT_TOKENS),
        .window = {invar_recipe_int(r, INVAR_KEY_SPECULATIVE_NGRAM_MIN_MATCH_WINDOW_SIZE),
                   invar_recipe_int(r, INVAR_KEY_SPECULATIVE_NGRAM_MAX_MATCH_WINDOW_SIZE)}};
}

invar_rollout_limits invar_session_limits(const invar_session *s)
{
    const invar_recipe *r = s->recipe;

    return (invar_rollout_limits){.concurrency = invar_recipe_int(r, INVAR_KEY_ROLLOUT_CONCURRENCY),
                                  .chunk = invar_recipe_int(r, INVAR_KEY_CHUNKED_PREFILL_SIZE),
                                  .page_size = invar_recipe_int(r, INVAR_KEY_PAGE_SIZE),
                                  .pages = invar_recipe_int(r, INVAR_KEY_KV_PAGES),
                                  .no_prefix_sharing =
                                      invar_recipe_bool(r, INVAR_KEY_DISABLE_PREFIX_SHARING),
                                  .no_graphs = invar_recipe_bool(r, INVAR_KEY_DISABLE_CUDA_GRAPH),
                                  .speculation = speculation_of(s)};
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Said once, of the folder: else it would be the first file of it that is missing. */
static invar_status find_model(const invar_recipe *recipe)
{
    const char *dir = invar_recipe_string(recipe, INVAR_KEY_HF_CHECKPOINT);
    char shown[INVAR_PATH_SHOWN_SIZE], whole[INVAR_PATH_WHOLE_SIZE];

    if (!dir[0] || invar_path_exists(dir))
        return INVAR_OK;
    invar_path_show(shown, dir);
    invar_path_whole(whole, dir);
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "hf-checkpoint: %s: no such folder%s", shown, whole);
}

static invar_status open_all(invar_session *s, unsigned wants, const invar_session_crowd *crowd)
{
    INVAR_TRY(find_model(s->recipe));
    INVAR_TRY(open_tokenizer(s, wants));
    INVAR_TRY(read_spec(s));
    INVAR_TRY(read_draft(s));
    if (wants & (INVAR_SESSION_LEARN | INVAR_SESSION_SAMPLE | INVAR_SESSION_NO_WEIGHTS))
        INVAR_TRY(read_others(s));
    INVAR_TRY(open_device(s, (wants & INVAR_SESSION_ANY_DEVICE) != 0, crowd));
    INVAR_TRY(read_stops(s));
    if ((wants & INVAR_SESSION_DATA) && given(s->recipe, INVAR_KEY_PROMPT_DATA))
        INVAR_TRY(invar_session_data(&s->data, s,
                                     invar_recipe_string(s->recipe, INVAR_KEY_PROMPT_DATA), false));
    return wants & INVAR_SESSION_NO_WEIGHTS ? INVAR_OK : invar_session_make_models(s, wants);
}

invar_status invar_session_make_models(invar_session *s, unsigned wants)
{
    INVAR_TRY(load_draft(s, (wants & INVAR_SESSION_SAMPLE) != 0));
    if (wants & INVAR_SESSION_SAMPLE)
        return weights_that_sample(s);
    INVAR_TRY(first_weights(s));
    INVAR_TRY(make_sampler(s));
    return wants & INVAR_SESSION_LEARN ? other_models(s) : INVAR_OK;
}

invar_status invar_session_open(invar_session *session, const invar_recipe *recipe, unsigned wants)
{
    return invar_session_open_beside(session, recipe, wants,
                                     &(invar_session_crowd){.process = 1, .host = 1});
}

invar_status invar_session_open_beside(invar_session *session, const invar_recipe *recipe,
                                       unsigned wants, const invar_session_crowd *crowd)
{
    invar_status status;

    *session = (invar_session){.recipe = recipe,
                               .format = INVAR_RECIPE_ENUM(invar_format, recipe, INVAR_KEY_DTYPE),
                               .rollout_format = invar_settings_rollout_format(recipe),
                               .layout = crowd->layout};
    status = open_all(session, wants, crowd);
    if (status != INVAR_OK)
        invar_session_close(session);
    return status;
}

void invar_session_close(invar_session *session)
{
    invar_evals_release(&session->evals);
    invar_dataset_close(session->data);
    invar_model_free(session->draft);
    invar_model_free(session->critic);
    invar_model_free(session->teacher);
    invar_model_free(session->reference);
    invar_model_free(session->rollout_actor);
    invar_model_free(session->actor);
    invar_tokenizer_free(session->tokenizer);
    invar_free(session->stop_ids);
    invar_free(session->stop);
    invar_device_close(&session->dev);
    invar_pool_free(session->pool);
    *session = (invar_session){0};
}
