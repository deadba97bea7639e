/*
 * spec.c - reads the specs of a run's models: the actor, and the models besides it.
 *
 * The actor's spec comes from config.json or from the recipe's keys; the recipe alone decides the
 * arithmetic (spans and logical parallelism) and the adapters. Reference, teacher and critic have
 * the actor's spec unless their folder has another config.json. Checks that need only specs are
 * here: the lengths fit the positions, and samples can be scored by every model.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "engine/config/check_internal.h"
#include "engine/model/family.h"
#include "engine/model/lora/adapters.h"
#include "engine/run/context/internal.h"
#include "engine/run/train_settings.h"

#include "base/invar_banned.h"

/* ---- the actor ------------------------------------------------------------------------------- */

static int64_t value_or(int64_t value, int64_t fallback)
{
    return value ? value : fallback;
}

static invar_status spec_from_recipe(invar_run_context *s)
{
    const invar_config *c = s->config;
    invar_model_spec *spec = &s->spec;
    int32_t eos = invar_tokenizer_eos(s->tokenizer);

    *spec = (invar_model_spec){.family = c->model_type,
                               .vocab = value_or(c->vocab_size, invar_tokenizer_size(s->tokenizer)),
                               .hidden = c->hidden_size,
                               .layers = c->num_layers,
                               .attention.heads = c->num_attention_heads,
                               .intermediate = c->ffn_hidden_size,
                               .max_positions = c->max_position_embeddings,
                               .norm_eps = (float)c->norm_epsilon,
                               .init_std = (float)c->init_method_std,
                               .tied = !c->untie_embeddings_and_output_weights,
                               .rope = {.theta = c->rotary_base}};
    spec->attention.kv_heads = value_or(c->num_query_groups, spec->attention.heads);
    spec->attention.head_dim =
        value_or(c->kv_channels, spec->attention.heads ? spec->hidden / spec->attention.heads : 0);
    spec->attention.qkv_bias = invar_family_traits_of(spec->family)->qkv_bias;
    spec->attention.qk_norm = invar_family_traits_of(spec->family)->qk_norm;
    if (eos >= 0) {
        spec->eos[0] = eos;
        spec->n_eos = 1;
    }
    spec->experts.count = c->num_experts;
    if (!spec->experts.count)
        return invar_model_spec_check(spec);
    spec->experts.per_token = c->moe_router_topk;
    spec->experts.intermediate = value_or(c->moe_ffn_hidden_size, spec->intermediate);
    spec->experts.normalize = true;
    for (int64_t i = 0; i < spec->layers && i < INVAR_SPEC_MAX_LAYERS; i++)
        spec->experts.sparse[i] = true;
    return invar_model_spec_check(spec);
}

/* Sets the arithmetic, which the recipe decides for every model. */
static void set_arithmetic(invar_model_spec *spec, const invar_config *c)
{
    spec->attention.kv_span = c->kv_span;
    spec->attention.q_span = c->q_span;
    spec->logical_tp = c->logical_tp;
    spec->logical_etp = c->logical_etp;
}

invar_status invar_run_context_complete_spec(invar_model_spec *spec, const invar_config *config)
{
    invar_lora_spec *lora = &spec->lora;

    set_arithmetic(spec, config);
    *lora = (invar_lora_spec){.rank = config->lora_rank};
    if (lora->rank == 0)
        return INVAR_OK;
    lora->alpha = (float)config->lora_alpha;
    lora->rslora = config->use_rslora;
    INVAR_TRY(invar_lora_patterns(lora, config->rank_pattern, config->alpha_pattern));
    return invar_lora_targets(&lora->targets, config->target_modules);
}

invar_status invar_run_context_check_actor(const invar_config *config, const invar_model_spec *spec)
{
    if (config->logical_etp > 1 && spec->experts.count == 0)
        return invar_config_fail(config, INVAR_KEY_LOGICAL_ETP,
                                 "cuts experts, and the model has none");
    if (config->expert_tensor_parallel_size > 0 && spec->experts.count == 0)
        return invar_config_fail(config, INVAR_KEY_EXPERT_TENSOR_PARALLEL_SIZE,
                                 "divides experts, and the model has none");
    return INVAR_OK;
}

static invar_status read_spec(invar_run_context *s)
{
    if (s->config->hf_checkpoint[0])
        INVAR_TRY(
            invar_model_spec_read(&s->spec, s->config->hf_checkpoint, s->config->hf_ignore_keys));
    else
        INVAR_TRY(spec_from_recipe(s));
    INVAR_TRY(invar_run_context_complete_spec(&s->spec, s->config));
    INVAR_TRY(invar_run_context_check_actor(s->config, &s->spec));
    if (s->spec.value_head)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "hf-checkpoint has a critic, not a language model");
    if (s->tokenizer && invar_tokenizer_size(s->tokenizer) > s->spec.vocab)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the tokenizer has %lld tokens, the model only %lld",
                          (long long)invar_tokenizer_size(s->tokenizer), (long long)s->spec.vocab);
    return INVAR_OK;
}

/* ---- other models ---------------------------------------------------------------------------- */

/* Fails if the folder has another tokenizer. A folder without a tokenizer is accepted. */
static invar_status check_tokenizer(const invar_run_context *s, const char *dir, invar_key key)
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
        return invar_config_fail(s->config, key,
                                 "has another tokenizer than the model: give a model of its "
                                 "family");
    return INVAR_OK;
}

bool invar_run_context_drafts(const invar_run_context *s)
{
    return s->config->speculative_algorithm == INVAR_SPECULATIVE_ALGORITHM_DRAFT;
}

static invar_status read_draft(invar_run_context *s)
{
    const invar_key key = INVAR_KEY_SPECULATIVE_DRAFT_MODEL_PATH;

    if (!invar_run_context_drafts(s))
        return INVAR_OK;
    INVAR_TRY(invar_model_spec_read(&s->draft_spec, s->config->speculative_draft_model_path, ""));
    s->draft_spec.attention.kv_span = s->spec.attention.kv_span;
    s->draft_spec.attention.q_span = s->spec.attention.q_span;
    s->draft_spec.logical_tp = s->draft_spec.logical_etp = 1;
    if (s->draft_spec.vocab != s->spec.vocab)
        return invar_config_fail(s->config, key,
                                 "has another vocabulary than the model: give a model of its "
                                 "family");
    return check_tokenizer(s, s->config->speculative_draft_model_path, key);
}

/*
 * Finds the folder whose config.json describes the weights: the newest checkpoint, or `path`
 * itself.
 */
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

int64_t invar_run_context_context(const invar_run_context *s)
{
    return value_or(s->config->rollout_max_context_len, s->spec.max_positions);
}

/* Fails if the longest prompt and response of the recipe exceed the positions of the model. */
static invar_status check_lengths(const invar_run_context *s, invar_key key)
{
    const invar_config *c = s->config;
    const long long response =
        (long long)(key == INVAR_KEY_EVAL_MAX_RESPONSE_LEN ? c->eval_max_response_len
                                                           : c->rollout_max_response_len);
    const long long prompt = (long long)c->rollout_max_prompt_len;
    const long long context = (long long)c->rollout_max_context_len;
    const long long positions = (long long)s->spec.max_positions;
    char why[240];

    if (context > positions) {
        (void)snprintf(why, sizeof why,
                       "= %lld is above max_position_embeddings = %lld of the model; lower it",
                       context, positions);
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_MAX_CONTEXT_LEN, why);
    }
    if (response >= positions) {
        (void)snprintf(why, sizeof why,
                       "= %lld leaves no room for a prompt in max_position_embeddings = %lld of "
                       "the model; lower it",
                       response, positions);
        return invar_config_fail(c, key, why);
    }
    if (context > 0 || prompt + response <= positions)
        return INVAR_OK;
    (void)snprintf(why, sizeof why,
                   "= %lld and rollout-max-prompt-len = %lld exceed max_position_embeddings = %lld "
                   "of the model: lower one of them, or give rollout-max-context-len, at which "
                   "responses end",
                   response, prompt, positions);
    return invar_config_fail(c, key, why);
}

/* Stop strings need a tokenizer, which a plan may not have. */
invar_status invar_run_context_check_sampling(const invar_run_context *s, invar_key key,
                                              const invar_sampling_params *sampling)
{
    INVAR_TRY(check_lengths(s, key));
    return s->tokenizer ? invar_rollout_check(&s->spec, s->tokenizer, sampling) : INVAR_OK;
}

invar_status invar_run_context_check_rollouts(const invar_run_context *s)
{
    const invar_sampling_params sampling = invar_run_context_sampling(s);

    if (invar_train_settings_supervised(s->config))
        return INVAR_OK;
    return invar_run_context_check_sampling(s, INVAR_KEY_ROLLOUT_MAX_RESPONSE_LEN, &sampling);
}

/*
 * Fails if the model could not score every sample: too few tokens or positions, or another
 * tokenizer.
 */
static invar_status check_scoring_model(const invar_run_context *s, const invar_model_spec *spec,
                                        const char *dir, invar_key key)
{
    int64_t context = invar_run_context_context(s);
    char why[160];

    if (spec->vocab < s->spec.vocab)
        return invar_config_fail(s->config, key,
                                 "has fewer tokens than the model: give one that knows them all");
    (void)snprintf(why, sizeof why,
                   "takes %lld tokens, and samples may have %lld: lower rollout-max-context-len",
                   (long long)spec->max_positions, (long long)context);
    if (spec->max_positions < context)
        return invar_config_fail(s->config, key, why);
    return check_tokenizer(s, dir, key);
}

/* True if weights of one spec fit the other. */
static bool same_shapes(const invar_model_spec *a, const invar_model_spec *b)
{
    return a->family == b->family && a->vocab == b->vocab && a->hidden == b->hidden &&
           a->layers == b->layers && a->attention.heads == b->attention.heads &&
           a->attention.kv_heads == b->attention.kv_heads &&
           a->attention.head_dim == b->attention.head_dim && a->intermediate == b->intermediate &&
           a->tied == b->tied && a->experts.count == b->experts.count &&
           a->experts.intermediate == b->experts.intermediate &&
           memcmp(a->experts.sparse, b->experts.sparse, sizeof a->experts.sparse) == 0;
}

/*
 * Reads the spec of a model with a folder of its own. `out` is the actor's spec, and stays so if
 * the folder agrees with it.
 */
static invar_status read_other_spec(invar_model_spec *out, bool *apart, const invar_run_context *s,
                                    invar_config_text from)
{
    const char *path = from.text;
    invar_model_spec found;
    char dir[INVAR_PATH_SIZE];

    if (!path[0] || !invar_path_exists(path)) // loading the model will report the error
        return INVAR_OK;
    INVAR_TRY(find_config(dir, path));
    if (invar_model_spec_compare(out, dir) == INVAR_OK)
        return INVAR_OK;
    invar_error_clear();
    INVAR_TRY(invar_model_spec_read(&found, dir, ""));
    // equal shapes, but other settings: the actor could not begin with these weights
    if (from.key == INVAR_KEY_REF_LOAD && same_shapes(&found, out))
        return invar_model_spec_compare(out, dir);
    *apart = true;
    *out = found;
    set_arithmetic(out, s->config);
    return check_scoring_model(s, out, dir, from.key);
}

static invar_status check_language(const invar_run_context *s, const invar_model_spec *spec,
                                   invar_key key)
{
    if (spec->value_head)
        return invar_config_fail(s->config, key, "has a critic, not a language model");
    return INVAR_OK;
}

/* Reads the reference's spec, which decides whether ref-load has the actor's weights. */
static invar_status read_reference(invar_run_context *s)
{
    s->reference.spec = s->spec;
    s->reference.spec.lora = (invar_lora_spec){0};
    if (!invar_train_settings_reference(s->config))
        return INVAR_OK;
    INVAR_TRY(read_other_spec(&s->reference.spec, &s->reference.own_spec, s,
                              (invar_config_text){INVAR_KEY_REF_LOAD, s->config->ref_load}));
    return check_language(s, &s->reference.spec, INVAR_KEY_REF_LOAD);
}

static invar_status read_others(invar_run_context *s)
{
    const invar_config_text teacher = {INVAR_KEY_OPD_TEACHER_LOAD, s->config->opd_teacher_load};
    const invar_config_text critic = {INVAR_KEY_CRITIC_LOAD, s->config->critic_load};

    s->teacher.spec = s->critic.spec = s->spec;
    s->teacher.spec.lora = s->critic.spec.lora = (invar_lora_spec){0};
    if (invar_train_settings_teacher(s->config))
        INVAR_TRY(read_other_spec(&s->teacher.spec, &s->teacher.own_spec, s, teacher));
    if (invar_train_settings_critic(s->config))
        INVAR_TRY(read_other_spec(&s->critic.spec, &s->critic.own_spec, s, critic));
    s->critic.spec.value_head = true;
    s->critic.spec.tied = false;
    return check_language(s, &s->teacher.spec, teacher.key);
}

invar_status invar_run_context_read_specs(invar_run_context *s, unsigned wants)
{
    INVAR_TRY(read_spec(s));
    INVAR_TRY(read_draft(s));
    INVAR_TRY(read_reference(s));
    if (wants & (INVAR_RUN_CONTEXT_LEARN | INVAR_RUN_CONTEXT_SAMPLE | INVAR_RUN_CONTEXT_NO_WEIGHTS))
        INVAR_TRY(read_others(s));
    return INVAR_OK;
}
