/*
 * check.c - rejects recipes with impossible values or combinations of keys.
 *
 * check_unused.c rejects settings without effect, check_conflicts.c combinations that are not
 * supported yet. Every error names the origin of the key that has to change. Order matters: later
 * checks rely on values that earlier ones have parsed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/check_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/ext/http/http.h"
#include "engine/model/family.h"
#include "engine/model/lora/adapters.h"
#include "engine/model/model.h"
#include "engine/rl/kl.h"
#include "engine/rl/reward/reward.h"
#include "kernels-deterministic/ops.h"

#include "base/invar_banned.h"

bool invar_config_set(const invar_config *config, invar_key key)
{
    invar_recipe_entry e;

    invar_recipe_entry_get(&e, config->recipe, key);
    return e.source > INVAR_RECIPE_SOURCE_DEFAULT &&
           (!e.key->default_text || strcmp(e.key->default_text, e.text) != 0);
}

static const char *origin_of(const invar_config *config, invar_key key)
{
    invar_recipe_entry e;

    invar_recipe_entry_get(&e, config->recipe, key);
    return e.source > INVAR_RECIPE_SOURCE_DEFAULT ? e.origin : "recipe";
}

invar_status invar_config_fail(const invar_config *config, invar_key key, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: '%s' %s", origin_of(config, key),
                      invar_config_schema()->keys[key].name, why);
}

/* Like invar_config_fail, for a key with an unsuitable word, which the message quotes. */
static invar_status fail_word(const invar_config *config, invar_key key, const char *why)
{
    char text[160];
    invar_recipe_entry e;

    invar_recipe_entry_get(&e, config->recipe, key);
    snprintf(text, sizeof text, "= %s %s", e.text, why);
    return invar_config_fail(config, key, text);
}

/* Returns true if rewards are computed outside of the process. Unknown words are rejected later. */
static bool uses_external_reward(const invar_config *config)
{
    invar_reward reward = INVAR_REWARD_NONE;
    bool boxed;

    if (invar_reward_parse(&reward, &boxed, config->rm_type) != INVAR_OK)
        invar_error_clear();
    return invar_reward_is_external(reward);
}

bool invar_config_is_object(const char *text)
{
    return strlen(text) > 3 && invar_text_has_suffix(text, ".so");
}

/* Finds plug-ins, reward and teacher servers, and the script of a built-in reward. */
static void find_plugins(invar_config_derived *f, const invar_config *c)
{
    const invar_config_text plugins[] = {
#define INVAR_PLUGIN_ROLE(ID, key, field, kind) {INVAR_KEY_##key, c->field},
#include "engine/ext/kinds.def"
#undef INVAR_PLUGIN_ROLE
    };

    f->plugin = uses_external_reward(c);
    f->restarts = uses_external_reward(c) && !c->rm_url[0];
    for (size_t i = 0; i < sizeof plugins / sizeof *plugins; i++) {
        bool filled = plugins[i].text[0];

        f->plugin |= filled;
        f->restarts |= filled && plugins[i].key != INVAR_KEY_CUSTOM_AGENT_PATH &&
                       plugins[i].key != INVAR_KEY_OPD_TEACHER_URL &&
                       !invar_config_is_object(plugins[i].text);
    }
}

static void derive_config(invar_config_derived *f, const invar_config *config)
{
    static const invar_estimator_traits none;

    *f = (invar_config_derived){.config = config};
    f->loss = invar_loss_traits_of(config->loss_type);
    f->sft = f->loss->supervised;
    f->estimator = f->sft ? &none : invar_estimator_traits_of(config->advantage_estimator);
    f->hf = config->hf_checkpoint[0];
    f->task = strncmp(config->prompt_data, "task:", 5) == 0;
    f->eval = invar_config_evaluates(config);
    f->sampled = !f->sft || f->eval;
    f->distills = f->estimator->teacher || (!f->sft && config->use_opd);
    find_plugins(f, config);
}

/* ---- impossible combinations ----------------------------------------------------------------- */

/* Fails with the families that have experts, which are those with a sparse half of a layer. */
static invar_status fail_experts(const invar_config *config)
{
    char families[INVAR_CHOICES_TEXT_SIZE], why[INVAR_CHOICES_TEXT_SIZE + 32];
    const char *sparse[INVAR_FAMILY_COUNT];

    for (int i = 0; i < INVAR_FAMILY_COUNT; i++)
        sparse[i] =
            invar_family_traits_of((invar_family)i)->sparse ? invar_family_choices.words[i] : NULL;
    invar_choices_text(families, sizeof families, &(invar_choices){sparse, INVAR_FAMILY_COUNT},
                       ", ", " or ");
    snprintf(why, sizeof why, "needs model-type = %s", families);
    return invar_config_fail(config, INVAR_KEY_NUM_EXPERTS, why);
}

static invar_status check_model(const invar_config_derived *f)
{
    const invar_config *c = f->config;
    const struct {
        invar_key key;
        int64_t value;
    } sizes[] = {{INVAR_KEY_NUM_LAYERS, c->num_layers},
                 {INVAR_KEY_HIDDEN_SIZE, c->hidden_size},
                 {INVAR_KEY_NUM_ATTENTION_HEADS, c->num_attention_heads}};
    const bool sparse = invar_family_traits_of(c->model_type)->sparse != NULL;

    if (f->hf)
        return INVAR_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value == 0)
            return invar_config_fail(c, sizes[i].key,
                                     "is missing: a model without hf-checkpoint needs its sizes");
    }
    if (c->ffn_hidden_size == 0 && (!sparse || c->moe_ffn_hidden_size == 0))
        return invar_config_fail(c, INVAR_KEY_FFN_HIDDEN_SIZE,
                                 "is missing: a model without hf-checkpoint needs its sizes");
    if (sparse && c->num_experts == 0)
        return fail_word(c, INVAR_KEY_MODEL_TYPE, "needs num-experts");
    if (!sparse && c->num_experts > 0)
        return fail_experts(c);
    if (sparse && c->moe_router_topk > c->num_experts)
        return invar_config_fail(c, INVAR_KEY_MOE_ROUTER_TOPK, "is larger than num-experts");
    if (!f->task && c->prompt_data[0])
        return invar_config_fail(
            c, INVAR_KEY_PROMPT_DATA,
            "needs a tokenizer, which hf-checkpoint has; without it use task:NAME");
    if (f->eval && c->apply_chat_template && !c->chat_template_path[0])
        return invar_config_fail(c, INVAR_KEY_APPLY_CHAT_TEMPLATE,
                                 "needs a template, which hf-checkpoint may have; without it "
                                 "give chat-template-path");
    return INVAR_OK;
}

static invar_status check_lora(const invar_config_derived *f)
{
    const invar_config *c = f->config;
    invar_lora_spec lora = {.rank = c->lora_rank};
    uint32_t targets;

    if (lora.rank == 0)
        return INVAR_OK;
    INVAR_TRY(invar_lora_targets(&targets, c->target_modules));
    INVAR_TRY(invar_lora_patterns(&lora, c->rank_pattern, c->alpha_pattern));
    if (c->context_parallel_size > invar_lora_rows(&lora))
        return invar_config_fail(
            c, INVAR_KEY_CONTEXT_PARALLEL_SIZE,
            "is above lora-rank, in steps of 16 (above 16 with rank-pattern): each of "
            "these ranks makes some rows of an adapter's gradient");
    return INVAR_OK;
}

static invar_status check_batch(const invar_config *c)
{
    const int64_t prompts = c->rollout_batch_size;
    const int64_t batch = c->global_batch_size;
    const int64_t steps = c->num_steps_per_rollout;
    const int64_t samples = prompts * c->n_samples_per_prompt;
    char why[200];

    if (batch > 0 && (samples % batch != 0 || (steps > 0 && batch * steps != samples))) {
        snprintf(why, sizeof why,
                 "= %" PRId64 ": rollout-batch-size * n-samples-per-prompt = %" PRId64 " * %" PRId64
                 " must be global-batch-size * num-steps-per-rollout",
                 batch, prompts, c->n_samples_per_prompt);
        return invar_config_fail(c, INVAR_KEY_GLOBAL_BATCH_SIZE, why);
    }
    if (steps > 0 && samples % steps != 0) {
        snprintf(why, sizeof why,
                 "= %" PRId64
                 " does not divide rollout-batch-size * n-samples-per-prompt = %" PRId64
                 " * %" PRId64,
                 steps, prompts, c->n_samples_per_prompt);
        return invar_config_fail(c, INVAR_KEY_NUM_STEPS_PER_ROLLOUT, why);
    }
    if (c->over_sampling_batch_size > 0 && c->over_sampling_batch_size < prompts)
        return invar_config_fail(c, INVAR_KEY_OVER_SAMPLING_BATCH_SIZE,
                                 "is less than rollout-batch-size");
    if (c->use_dynamic_batch_size && c->max_tokens_per_gpu == 0)
        return invar_config_fail(c, INVAR_KEY_USE_DYNAMIC_BATCH_SIZE, "needs max-tokens-per-gpu");
    return INVAR_OK;
}

/* Fails because neither num-rollout nor num-epoch is above 0. */
static invar_status fail_no_duration(const invar_config *c)
{
    static const invar_key keys[] = {INVAR_KEY_NUM_ROLLOUT, INVAR_KEY_NUM_EPOCH};
    invar_recipe_entry e;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        invar_recipe_entry_get(&e, c->recipe, keys[i]);
        if (e.source > INVAR_RECIPE_SOURCE_DEFAULT)
            return fail_word(c, keys[i], "is too few: give at least 1");
    }
    return invar_config_fail(c, INVAR_KEY_NUM_ROLLOUT, "is missing (or num-epoch)");
}

static invar_status check_data(const invar_config_derived *f)
{
    const invar_config *c = f->config;
    const bool rollouts = c->num_rollout > 0;
    const bool epochs = c->num_epoch > 0;

    if (!c->prompt_data[0] && !c->load_debug_rollout_data[0])
        return invar_config_fail(c, INVAR_KEY_PROMPT_DATA, "is missing");
    if (rollouts && epochs)
        return invar_config_fail(c, INVAR_KEY_NUM_EPOCH,
                                 "and num-rollout both say how long; give one");
    if (!rollouts && !epochs)
        return fail_no_duration(c);
    if (!c->input_key[0])
        return invar_config_fail(c, INVAR_KEY_INPUT_KEY, "is empty");
    return INVAR_OK;
}

static invar_status check_lengths(const invar_config_derived *f)
{
    const invar_config *c = f->config;
    const int64_t response = c->rollout_max_response_len;
    const int64_t context = c->rollout_max_context_len;

    if (f->sampled && response == 0 && (!f->sft || c->eval_max_response_len == 0))
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_MAX_RESPONSE_LEN, "is missing");
    if (context > 0 && response >= context)
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_MAX_RESPONSE_LEN,
                                 "leaves no room for a prompt in rollout-max-context-len");
    if (context > 0 && c->eval_max_response_len >= context)
        return invar_config_fail(c, INVAR_KEY_EVAL_MAX_RESPONSE_LEN,
                                 "leaves no room for a prompt in rollout-max-context-len");
    if (context > 0 && c->rollout_max_prompt_len >= context)
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_MAX_PROMPT_LEN,
                                 "leaves no room for a response in rollout-max-context-len");
    if (!f->hf && context > c->max_position_embeddings)
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_MAX_CONTEXT_LEN,
                                 "is above max-position-embeddings");
    return INVAR_OK;
}

static invar_status check_span(const invar_config *c, invar_key key, int64_t span)
{
    return span % INVAR_ATTENTION_BLOCK == 0 ? INVAR_OK
                                             : invar_config_fail(c, key, "is no multiple of 128");
}

/* Checks that logical shards are a power of 2, because they are added by a binary tree. */
static invar_status check_logical_shards(const invar_config *c, invar_key key, int64_t pieces)
{
    return (pieces & (pieces - 1)) == 0 ? INVAR_OK
                                        : invar_config_fail(c, key, "is not 1, 2, 4 or 8");
}

/* Checks that rollout-dtype is a word of dtype, and differs from dtype. */
static invar_status check_formats(const invar_config_derived *f)
{
    const invar_config *c = f->config;
    const char *word = c->rollout_dtype;
    const int format = invar_choices_find(&invar_format_choices, word, strlen(word));
    char words[INVAR_CHOICES_TEXT_SIZE], why[INVAR_CHOICES_TEXT_SIZE + 80];

    if (!word[0])
        return INVAR_OK;
    if (format < 0) {
        invar_choices_text(words, sizeof words, &invar_format_choices, ", ", " or ");
        snprintf(why, sizeof why, "= %.40s is none of %s", word, words);
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_DTYPE, why);
    }
    if ((invar_format)format == c->dtype)
        return fail_word(c, INVAR_KEY_ROLLOUT_DTYPE, "is dtype already: leave it out");
    return INVAR_OK;
}

static invar_status check_sampling(const invar_config_derived *f)
{
    const invar_config *c = f->config;
    char **strings;
    int32_t *ids;
    int64_t count;

    if (c->rollout_temperature == 0 && !c->debug_rollout_only)
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_TEMPERATURE,
                                 "= 0 gives a group of equal samples and no gradient; for greedy "
                                 "evaluation use eval-temperature");
    if (c->rollout_top_k == 0)
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_TOP_K, "= 0 leaves no token; -1 is all");
    if (c->speculative_algorithm == INVAR_SPECULATIVE_ALGORITHM_DRAFT &&
        !c->speculative_draft_model_path[0])
        return fail_word(c, INVAR_KEY_SPECULATIVE_ALGORITHM, "needs speculative-draft-model-path");
    if (c->speculative_ngram_min_match_window_size > c->speculative_ngram_max_match_window_size)
        return invar_config_fail(c, INVAR_KEY_SPECULATIVE_NGRAM_MIN_MATCH_WINDOW_SIZE,
                                 "is above speculative-ngram-max-match-window-size");
    if (c->eval_temperature < 0 && c->eval_temperature != -1)
        return invar_config_fail(c, INVAR_KEY_EVAL_TEMPERATURE, "is negative; -1 is as rollout");
    INVAR_TRY(invar_config_strings(&strings, &count, c, INVAR_KEY_ROLLOUT_STOP));
    invar_free(strings);
    INVAR_TRY(invar_config_ids(&ids, &count, c, INVAR_KEY_ROLLOUT_STOP_TOKEN_IDS));
    invar_free(ids);
    return INVAR_OK;
}

/* Parses a reward; an empty value is INVAR_REWARD_NONE. */
static invar_status read_reward(invar_reward *out, const invar_config *c, invar_key key,
                                const char *word)
{
    invar_status status = INVAR_OK;
    invar_error reason;
    bool boxed;

    *out = INVAR_REWARD_NONE;
    if (word[0])
        status = invar_reward_parse(out, &boxed, word);
    if (status == INVAR_OK)
        return INVAR_OK;
    invar_error_take(&reason);
    return invar_config_fail(c, key, reason.message);
}

/* Returns true if an evaluation set comes from a file; tasks have labels of their own. */
static bool evaluates_files(const invar_config *c)
{
    const char *cursor = c->eval_prompt_data, *name, *path;
    size_t bytes;

    while (invar_config_words(&name, &bytes, &cursor) && invar_config_words(&path, &bytes, &cursor))
        if (bytes < 5 || strncmp(path, "task:", 5) != 0)
            return true;
    return false;
}

/* Checks that label-key is given if a reward compares with a label of the data. */
static invar_status check_labels(const invar_config_derived *f, invar_reward reward,
                                 invar_reward eval)
{
    const invar_config *c = f->config;
    const bool trains = !f->sft && !f->task && c->prompt_data[0] && !c->load_debug_rollout_data[0];

    if (c->label_key[0])
        return INVAR_OK;
    if (trains && invar_reward_needs_label(reward))
        return invar_config_fail(c, INVAR_KEY_RM_TYPE,
                                 "compares with a label: name the member of prompt-data that "
                                 "is the label with label-key");
    if (evaluates_files(c) && !c->eval_label_key[0] &&
        invar_reward_needs_label(c->eval_rm_type[0] ? eval : reward))
        return invar_config_fail(c, c->eval_rm_type[0] ? INVAR_KEY_EVAL_RM_TYPE : INVAR_KEY_RM_TYPE,
                                 "compares with a label: name the member of eval-prompt-data "
                                 "that is the label with label-key or eval-label-key");
    return INVAR_OK;
}

/* Rejects the boxed_ form of an external reward. */
static invar_status check_boxed(const invar_config *c, invar_reward reward, invar_key key,
                                const char *word)
{
    if (invar_reward_is_external(reward) && strncmp(word, "boxed_", 6) == 0)
        return invar_config_fail(c, key, "would be judged elsewhere, where boxed_ is not known");
    return INVAR_OK;
}

/* Returns true for "https://user:secret@host/", which identity, ledger and packs would store. */
static bool names_user(const char *url)
{
    const char *host = strstr(url, "://");

    return host && host[3 + strcspn(host + 3, "/?#@")] == '@';
}

static invar_status check_url(const invar_config *c, invar_key key, const char *url)
{
    if (names_user(url))
        return invar_config_fail(c, key,
                                 "names a user, which ledgers and packs would keep: leave that "
                                 "out; a proxy of yours can add it to the questions");
    if (url[0] && !invar_http_is_url(url))
        return invar_config_fail(c, key,
                                 "is no address of a server; expected http://HOST:PORT/PATH or "
                                 "https://HOST/PATH");
    return INVAR_OK;
}

/* Checks external rewards: they reward all samples, of training and of evaluations. */
static invar_status check_external_rewards(const invar_config *c, invar_reward reward,
                                           invar_reward eval)
{
    if (reward == INVAR_REWARD_REMOTE_RM && !c->rm_url[0])
        return invar_config_fail(c, INVAR_KEY_RM_URL, "is missing: rm-type = remote_rm asks it");
    INVAR_TRY(check_url(c, INVAR_KEY_RM_URL, c->rm_url));
    INVAR_TRY(check_boxed(c, reward, INVAR_KEY_RM_TYPE, c->rm_type));
    INVAR_TRY(check_boxed(c, eval, INVAR_KEY_EVAL_RM_TYPE, c->eval_rm_type));
    if (invar_reward_is_external(eval) && eval != reward)
        return invar_config_fail(c, INVAR_KEY_EVAL_RM_TYPE,
                                 "can be judged elsewhere only if rm-type is the same");
    return INVAR_OK;
}

static invar_status check_rewards(const invar_config_derived *f)
{
    const invar_config *c = f->config;
    const bool single = c->n_samples_per_prompt == 1;
    invar_reward reward, eval;

    INVAR_TRY(read_reward(&eval, c, INVAR_KEY_EVAL_RM_TYPE, c->eval_rm_type));
    INVAR_TRY(read_reward(&reward, c, INVAR_KEY_RM_TYPE, c->rm_type));
    INVAR_TRY(check_labels(f, reward, eval));
    INVAR_TRY(check_external_rewards(c, reward, eval));
    if (f->estimator->needs_reward && reward == INVAR_REWARD_NONE && !c->custom_rm_path[0] &&
        !c->custom_generate_function_path[0] && !c->custom_agent_path[0] &&
        !c->load_debug_rollout_data[0])
        return invar_config_fail(c, INVAR_KEY_RM_TYPE, "is missing (or custom-rm-path)");
    if (c->custom_generate_function_path[0] && c->rollout_segment_tokens > 0)
        return invar_config_fail(c, INVAR_KEY_ROLLOUT_SEGMENT_TOKENS,
                                 "must be 0 with custom-generate-function-path: the weights that "
                                 "begin a sample draw all of its turns");
    if (f->eval && !c->eval_turns && reward == INVAR_REWARD_NONE && eval == INVAR_REWARD_NONE &&
        !c->custom_rm_path[0])
        return invar_config_fail(c, INVAR_KEY_EVAL_TURNS,
                                 "= false: nobody judges evaluations then; give eval-rm-type");
    if (f->estimator->grouped && single && !c->disable_rewards_normalization)
        return invar_config_fail(
            c, INVAR_KEY_N_SAMPLES_PER_PROMPT,
            "= 1: a reward minus the mean of its own group is 0 and trains nothing; "
            "take more samples or disable-rewards-normalization");
    if (f->sft && !single)
        return invar_config_fail(c, INVAR_KEY_N_SAMPLES_PER_PROMPT, "must be 1 with sft_loss");
    if (single && c->dynamic_sampling_filter != INVAR_GROUP_FILTER_NONE)
        return invar_config_fail(c, INVAR_KEY_DYNAMIC_SAMPLING_FILTER,
                                 "would drop every group: n-samples-per-prompt is 1");
    return INVAR_OK;
}

static invar_status check_kl(const invar_config_derived *f)
{
    const invar_config *c = f->config;
    char why[160];

    if (c->kl_coef > 0 && c->kl_loss_coef > 0)
        return invar_config_fail(c, INVAR_KEY_KL_COEF, "and kl-loss-coef exclude each other");
    if (f->estimator->critic && c->kl_coef > 0) {
        snprintf(why, sizeof why, "must be 0 with %s; use kl-loss-coef",
                 invar_choices_word(&invar_estimator_choices, c->advantage_estimator));
        return invar_config_fail(c, INVAR_KEY_KL_COEF, why);
    }
    if (c->kl_loss_coef > 0 && invar_kl_traits_of(c->kl_loss_type)->flat)
        return fail_word(
            c, INVAR_KEY_KL_LOSS_TYPE,
            "has no useful gradient as a loss; use low_var_kl, or kl-loss-coef = 0 to monitor it");
    return INVAR_OK;
}

/* A bound of a range, and its key. */
typedef struct bound {
    invar_key key;
    double value;
} bound;

static invar_status check_order(const invar_config *c, bound low, bound high)
{
    char why[100];

    if (low.value <= high.value)
        return INVAR_OK;
    snprintf(why, sizeof why, "is above %s", invar_config_schema()->keys[high.key].name);
    return invar_config_set(c, low.key)
               ? invar_config_fail(c, low.key, why)
               : invar_config_fail(c, high.key, "is below its lower bound");
}

/*
 * Returns true if no route can be appended to the URL, or the same address would have two
 * spellings.
 */
static bool is_not_base_url(const char *url)
{
    return strpbrk(url, "?#") || url[strlen(url) - 1] == '/';
}

/* Checks that there is exactly one teacher, local or on a server, if one is needed. */
static invar_status check_teacher(const invar_config_derived *f)
{
    const invar_config *c = f->config;

    if (f->distills && !c->opd_teacher_load[0] && !c->opd_teacher_url[0])
        return invar_config_fail(
            c, f->estimator->teacher ? INVAR_KEY_ADVANTAGE_ESTIMATOR : INVAR_KEY_USE_OPD,
            "needs opd-teacher-load, or opd-teacher-url");
    if (c->opd_teacher_load[0] && c->opd_teacher_url[0])
        return invar_config_fail(c, INVAR_KEY_OPD_TEACHER_URL,
                                 "and opd-teacher-load exclude each other");
    if (c->opd_teacher_url[0] && is_not_base_url(c->opd_teacher_url))
        return invar_config_fail(c, INVAR_KEY_OPD_TEACHER_URL,
                                 "ends with a slash, or has a query: give the address that "
                                 "/completions is put behind, such as http://HOST:8000/v1");
    return check_url(c, INVAR_KEY_OPD_TEACHER_URL, c->opd_teacher_url);
}

static invar_status check_algorithm(const invar_config_derived *f)
{
    const invar_config *c = f->config;

    if (f->loss->plugin && !c->custom_loss_function_path[0])
        return fail_word(c, INVAR_KEY_LOSS_TYPE, "needs custom-loss-function-path");
    if (f->estimator->whitened && !c->normalize_advantages)
        return fail_word(c, INVAR_KEY_ADVANTAGE_ESTIMATOR, "needs normalize-advantages = true");
    INVAR_TRY(check_teacher(f));
    if (c->eps_clip_high < 0 && c->eps_clip_high != -1)
        return invar_config_fail(c, INVAR_KEY_EPS_CLIP_HIGH, "is negative; -1 is eps-clip");
    if (c->eps_clip_c > 0 && c->eps_clip_c <= 1)
        return invar_config_fail(c, INVAR_KEY_EPS_CLIP_C, "must be above 1 (or 0: off)");
    if (c->use_rollout_logprobs && (c->use_tis || c->use_mis))
        return invar_config_fail(c, INVAR_KEY_USE_ROLLOUT_LOGPROBS,
                                 "leaves use-tis and use-mis nothing to weigh");
    if (c->use_tis && c->use_mis)
        return invar_config_fail(c, INVAR_KEY_USE_MIS, "and use-tis exclude each other");
    if (c->calculate_per_token_loss && c->loss_divisor > 0)
        return invar_config_fail(c, INVAR_KEY_LOSS_DIVISOR,
                                 "and calculate-per-token-loss exclude each other");
    INVAR_TRY(check_order(c, (bound){INVAR_KEY_TIS_CLIP_LOW, c->tis_clip_low},
                          (bound){INVAR_KEY_TIS_CLIP, c->tis_clip}));
    INVAR_TRY(check_order(c, (bound){INVAR_KEY_RS_LOWER_BOUND, c->rs_lower_bound},
                          (bound){INVAR_KEY_RS_UPPER_BOUND, c->rs_upper_bound}));
    if (c->mis_mode != INVAR_MIS_MODE_TRUNCATE)
        INVAR_TRY(check_order(c, (bound){INVAR_KEY_MIS_LOWER_BOUND, c->mis_lower_bound},
                              (bound){INVAR_KEY_MIS_UPPER_BOUND, c->mis_upper_bound}));
    return check_kl(f);
}

static invar_status check_optimizer(const invar_config *c)
{
    INVAR_TRY(check_order(c, (bound){INVAR_KEY_MIN_LR, c->min_lr}, (bound){INVAR_KEY_LR, c->lr}));
    INVAR_TRY(check_order(c, (bound){INVAR_KEY_LR_WARMUP_INIT, c->lr_warmup_init},
                          (bound){INVAR_KEY_LR, c->lr}));
    if (c->lr_decay_style == INVAR_DECAY_CONSTANT)
        return INVAR_OK;
    if (c->lr_decay_iters == 0)
        return invar_config_fail(c, INVAR_KEY_LR_DECAY_STYLE, "needs lr-decay-iters");
    if (c->lr_decay_iters <= c->lr_warmup_iters)
        return invar_config_fail(c, INVAR_KEY_LR_DECAY_ITERS, "must be above lr-warmup-iters");
    return INVAR_OK;
}

/* Checks that parts of fused calls are computed if they are to be dumped. */
static invar_status check_dump(const invar_config *c)
{
    bool full = c->debug_determinism == INVAR_PROBE_FULL;

    if (!full && strstr(c->debug_dump, ".parts"))
        return invar_config_fail(c, INVAR_KEY_DEBUG_DUMP,
                                 "names parts of fused calls, which run with "
                                 "debug-determinism = full alone");
    return INVAR_OK;
}

static invar_status check_debug(const invar_config_derived *f)
{
    const invar_config *c = f->config;
    const invar_config_text numbered[] = {
        {INVAR_KEY_SAVE_HF, c->save_hf},
        {INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA, c->save_debug_rollout_data},
        {INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA, c->load_debug_rollout_data}};

    if (c->debug_rollout_only && c->load_debug_rollout_data[0])
        return invar_config_fail(c, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA,
                                 "trains from files, but debug-rollout-only does not train");
    if (c->debug_rollout_only && c->debug_train_only)
        return invar_config_fail(c, INVAR_KEY_DEBUG_TRAIN_ONLY,
                                 "and debug-rollout-only exclude each other");
    if (c->debug_rollout_only && f->sft)
        return invar_config_fail(c, INVAR_KEY_DEBUG_ROLLOUT_ONLY,
                                 "leaves nothing to do with sft_loss");
    if (c->debug_train_only && !c->load_debug_rollout_data[0])
        return invar_config_fail(c, INVAR_KEY_DEBUG_TRAIN_ONLY, "needs load-debug-rollout-data");
    if (c->load_debug_rollout_data[0] && c->save_debug_rollout_data[0])
        return invar_config_fail(c, INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA,
                                 "would only copy load-debug-rollout-data");
    for (size_t i = 0; i < sizeof numbered / sizeof *numbered; i++) {
        if (numbered[i].text[0] && !strstr(numbered[i].text, "{rollout_id}"))
            return invar_config_fail(c, numbered[i].key,
                                     "must contain {rollout_id}: there is one per rollout");
    }
    if (c->profile_step_start > 0 && c->profile_step_start >= c->profile_step_end)
        return invar_config_fail(c, INVAR_KEY_PROFILE_STEP_START,
                                 "is not before profile-step-end: no step would be profiled");
    return check_dump(c);
}

static invar_status check_dashboards(const invar_config *c)
{
    return c->prometheus_file[0] && !invar_text_has_suffix(c->prometheus_file, ".prom")
               ? invar_config_fail(c, INVAR_KEY_PROMETHEUS_FILE,
                                   "must end in .prom: node_exporter reads no other file")
               : INVAR_OK;
}

bool invar_config_is_set_name(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '-' || c == '_' || c == '.'))
            return false;
    }
    return true;
}

static invar_status check_eval_data(const invar_config *c)
{
    const char *cursor = c->eval_prompt_data;
    const char *name, *path, *earlier, *other, *at;
    size_t name_bytes, path_bytes, other_bytes;

    for (const char *start = cursor; invar_config_words(&name, &name_bytes, &cursor);) {
        if (!invar_config_is_set_name(name, name_bytes))
            return invar_config_fail(
                c, INVAR_KEY_EVAL_PROMPT_DATA,
                "is name path name path; a name has letters, digits, '-', '_', '.'");
        if (!invar_config_words(&path, &path_bytes, &cursor) || path_bytes == 0)
            return invar_config_fail(c, INVAR_KEY_EVAL_PROMPT_DATA, "has a name without a path");
        if (*path == '"' || *path == '\'')
            return invar_config_fail(c, INVAR_KEY_EVAL_PROMPT_DATA, "has a quote without its end");
        for (earlier = start; invar_config_words(&other, &other_bytes, &earlier) && other < name;) {
            if (other_bytes == name_bytes && memcmp(other, name, name_bytes) == 0)
                return invar_config_fail(c, INVAR_KEY_EVAL_PROMPT_DATA, "has a name twice");
            if (!invar_config_words(&at, &other_bytes, &earlier))
                break;
        }
    }
    return INVAR_OK;
}

invar_status invar_config_check(const invar_config *config)
{
    invar_config_derived f;
    invar_key unused;

    INVAR_TRY(invar_recipe_check(config->recipe));
    derive_config(&f, config);
    f.unused = &unused;
    INVAR_TRY(check_data(&f));
    INVAR_TRY(check_model(&f));
    INVAR_TRY(check_lora(&f));
    INVAR_TRY(check_batch(config));
    INVAR_TRY(check_lengths(&f));
    INVAR_TRY(check_span(config, INVAR_KEY_KV_SPAN, config->kv_span));
    INVAR_TRY(check_span(config, INVAR_KEY_Q_SPAN, config->q_span));
    INVAR_TRY(check_logical_shards(config, INVAR_KEY_LOGICAL_TP, config->logical_tp));
    INVAR_TRY(check_logical_shards(config, INVAR_KEY_LOGICAL_ETP, config->logical_etp));
    INVAR_TRY(check_formats(&f));
    INVAR_TRY(check_sampling(&f));
    INVAR_TRY(check_eval_data(config));
    INVAR_TRY(check_rewards(&f));
    INVAR_TRY(invar_config_check_conflicts(&f));
    INVAR_TRY(check_algorithm(&f));
    INVAR_TRY(check_optimizer(config));
    INVAR_TRY(check_debug(&f));
    INVAR_TRY(check_dashboards(config));
    return invar_config_check_no_effect(&f);
}

invar_status invar_config_check_unused(invar_key *unused_out, const invar_config *config)
{
    invar_config_derived f;
    invar_reward reward;

    *unused_out = INVAR_KEY_NONE;
    INVAR_TRY(invar_recipe_check(config->recipe));
    INVAR_TRY(read_reward(&reward, config, INVAR_KEY_RM_TYPE, config->rm_type));
    INVAR_TRY(read_reward(&reward, config, INVAR_KEY_EVAL_RM_TYPE, config->eval_rm_type));
    derive_config(&f, config);
    f.unused = unused_out;
    return invar_config_check_no_effect(&f);
}
