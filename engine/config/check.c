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

bool invar_config_set(const invar_recipe *recipe, invar_key key)
{
    invar_recipe_entry e;

    invar_recipe_entry_get(&e, recipe, key);
    return e.source > INVAR_RECIPE_SOURCE_DEFAULT &&
           (!e.key->default_text || strcmp(e.key->default_text, e.text) != 0);
}

bool invar_config_is_nonempty(const invar_recipe *recipe, invar_key key)
{
    return invar_recipe_string(recipe, key)[0] != '\0';
}

static const char *origin_of(const invar_recipe *recipe, invar_key key)
{
    invar_recipe_entry e;

    invar_recipe_entry_get(&e, recipe, key);
    return e.source > INVAR_RECIPE_SOURCE_DEFAULT ? e.origin : "recipe";
}

invar_status invar_config_fail(const invar_recipe *recipe, invar_key key, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: '%s' %s", origin_of(recipe, key),
                      invar_config_schema()->keys[key].name, why);
}

/* Like invar_config_fail, for a key with an unsuitable word, which the message quotes. */
static invar_status fail_word(const invar_recipe *recipe, invar_key key, const char *why)
{
    char text[160];
    invar_recipe_entry e;

    invar_recipe_entry_get(&e, recipe, key);
    snprintf(text, sizeof text, "= %s %s", e.text, why);
    return invar_config_fail(recipe, key, text);
}

/* Returns true if rewards are computed outside of the process. Unknown words are rejected later. */
static bool uses_external_reward(const invar_recipe *recipe)
{
    const char *word = invar_recipe_string(recipe, INVAR_KEY_RM_TYPE);
    invar_reward reward = INVAR_REWARD_NONE;
    bool boxed;

    if (invar_reward_parse(&reward, &boxed, word) != INVAR_OK)
        invar_error_clear();
    return invar_reward_is_external(reward);
}

const invar_key *invar_config_plugins(size_t *count_out)
{
    static const invar_key keys[] = {INVAR_KEY_CUSTOM_RM_PATH,
                                     INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH,
                                     INVAR_KEY_CUSTOM_AGENT_PATH,
                                     INVAR_KEY_DYNAMIC_SAMPLING_FILTER_PATH,
                                     INVAR_KEY_ROLLOUT_SAMPLE_FILTER_PATH,
                                     INVAR_KEY_BUFFER_FILTER_PATH,
                                     INVAR_KEY_DATA_SOURCE_PATH,
                                     INVAR_KEY_CUSTOM_ROLLOUT_LOG_FUNCTION_PATH,
                                     INVAR_KEY_CUSTOM_EVAL_ROLLOUT_LOG_FUNCTION_PATH,
                                     INVAR_KEY_CUSTOM_INIT_PATH,
                                     INVAR_KEY_CUSTOM_BEFORE_LOG_PROB_HOOK_PATH,
                                     INVAR_KEY_CUSTOM_LOSS_FUNCTION_PATH,
                                     INVAR_KEY_CUSTOM_BEFORE_TRAIN_STEP_HOOK_PATH};

    *count_out = sizeof keys / sizeof *keys;
    return keys;
}

bool invar_config_is_object(const invar_recipe *recipe, invar_key key)
{
    const char *text = invar_recipe_string(recipe, (int)key);
    size_t bytes = strlen(text);

    return bytes > 3 && strcmp(text + bytes - 3, ".so") == 0;
}

/* Finds plug-ins, reward and teacher servers, and the script of a built-in reward. */
static void find_plugins(invar_config_derived *f, const invar_recipe *recipe)
{
    size_t count;
    const invar_key *keys = invar_config_plugins(&count);

    f->plugin =
        uses_external_reward(recipe) || invar_config_is_nonempty(recipe, INVAR_KEY_OPD_TEACHER_URL);
    f->restarts =
        uses_external_reward(recipe) && !invar_config_is_nonempty(recipe, INVAR_KEY_RM_URL);
    for (size_t i = 0; i < count; i++) {
        bool filled = invar_config_is_nonempty(recipe, keys[i]);

        f->plugin |= filled;
        f->restarts |= filled && keys[i] != INVAR_KEY_CUSTOM_AGENT_PATH &&
                       !invar_config_is_object(recipe, keys[i]);
    }
}

static void derive_config(invar_config_derived *f, const invar_recipe *recipe)
{
    static const invar_estimator_traits none;
    const invar_estimator estimator =
        INVAR_RECIPE_ENUM(invar_estimator, recipe, INVAR_KEY_ADVANTAGE_ESTIMATOR);

    *f = (invar_config_derived){.recipe = recipe};
    f->loss = invar_loss_traits_of(INVAR_RECIPE_ENUM(invar_loss_type, recipe, INVAR_KEY_LOSS_TYPE));
    f->sft = f->loss->supervised;
    f->estimator = f->sft ? &none : invar_estimator_traits_of(estimator);
    f->hf = invar_config_is_nonempty(recipe, INVAR_KEY_HF_CHECKPOINT);
    f->task = strncmp(invar_recipe_string(recipe, INVAR_KEY_PROMPT_DATA), "task:", 5) == 0;
    f->eval = invar_config_evaluates(recipe);
    f->sampled = !f->sft || f->eval;
    f->distills =
        f->estimator->teacher || (!f->sft && invar_recipe_bool(recipe, INVAR_KEY_USE_OPD));
    find_plugins(f, recipe);
}

/* ---- impossible combinations ----------------------------------------------------------------- */

/* Fails with the families that have experts, which are those with a sparse half of a layer. */
static invar_status fail_experts(const invar_recipe *recipe)
{
    char families[INVAR_CHOICES_TEXT_SIZE], why[INVAR_CHOICES_TEXT_SIZE + 32];
    const char *sparse[INVAR_FAMILY_COUNT];

    for (int i = 0; i < INVAR_FAMILY_COUNT; i++)
        sparse[i] =
            invar_family_traits_of((invar_family)i)->sparse ? invar_family_choices.words[i] : NULL;
    invar_choices_text(families, sizeof families, &(invar_choices){sparse, INVAR_FAMILY_COUNT},
                       ", ", " or ");
    snprintf(why, sizeof why, "needs model-type = %s", families);
    return invar_config_fail(recipe, INVAR_KEY_NUM_EXPERTS, why);
}

static invar_status check_model(const invar_config_derived *f)
{
    static const invar_key sizes[] = {INVAR_KEY_NUM_LAYERS, INVAR_KEY_HIDDEN_SIZE,
                                      INVAR_KEY_NUM_ATTENTION_HEADS};
    const invar_recipe *r = f->recipe;
    const int64_t experts = invar_recipe_int(r, INVAR_KEY_NUM_EXPERTS);
    const invar_family family = INVAR_RECIPE_ENUM(invar_family, r, INVAR_KEY_MODEL_TYPE);
    const bool sparse = invar_family_traits_of(family)->sparse != NULL;

    if (f->hf)
        return INVAR_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (invar_recipe_int(r, sizes[i]) == 0)
            return invar_config_fail(r, sizes[i],
                                     "is missing: a model without hf-checkpoint needs its sizes");
    }
    if (invar_recipe_int(r, INVAR_KEY_FFN_HIDDEN_SIZE) == 0 &&
        (!sparse || invar_recipe_int(r, INVAR_KEY_MOE_FFN_HIDDEN_SIZE) == 0))
        return invar_config_fail(r, INVAR_KEY_FFN_HIDDEN_SIZE,
                                 "is missing: a model without hf-checkpoint needs its sizes");
    if (sparse && experts == 0)
        return fail_word(r, INVAR_KEY_MODEL_TYPE, "needs num-experts");
    if (!sparse && experts > 0)
        return fail_experts(r);
    if (sparse && invar_recipe_int(r, INVAR_KEY_MOE_ROUTER_TOPK) > experts)
        return invar_config_fail(r, INVAR_KEY_MOE_ROUTER_TOPK, "is larger than num-experts");
    if (!f->task && invar_config_is_nonempty(r, INVAR_KEY_PROMPT_DATA))
        return invar_config_fail(
            r, INVAR_KEY_PROMPT_DATA,
            "needs a tokenizer, which hf-checkpoint has; without it use task:NAME");
    if (f->eval && invar_recipe_bool(r, INVAR_KEY_APPLY_CHAT_TEMPLATE) &&
        !invar_config_is_nonempty(r, INVAR_KEY_CHAT_TEMPLATE_PATH))
        return invar_config_fail(r, INVAR_KEY_APPLY_CHAT_TEMPLATE,
                                 "needs a template, which hf-checkpoint may have; without it "
                                 "give chat-template-path");
    return INVAR_OK;
}

static invar_status check_lora(const invar_config_derived *f)
{
    const invar_recipe *r = f->recipe;
    invar_lora_spec lora = {.rank = invar_recipe_int(r, INVAR_KEY_LORA_RANK)};
    uint32_t targets;

    if (lora.rank == 0)
        return INVAR_OK;
    INVAR_TRY(invar_lora_targets(&targets, invar_recipe_string(r, INVAR_KEY_TARGET_MODULES)));
    INVAR_TRY(invar_lora_patterns(&lora, invar_recipe_string(r, INVAR_KEY_RANK_PATTERN),
                                  invar_recipe_string(r, INVAR_KEY_ALPHA_PATTERN)));
    if (invar_recipe_int(r, INVAR_KEY_CONTEXT_PARALLEL_SIZE) > invar_lora_rows(&lora))
        return invar_config_fail(
            r, INVAR_KEY_CONTEXT_PARALLEL_SIZE,
            "is above lora-rank, in steps of 16 (above 16 with rank-pattern): each of "
            "these ranks makes some rows of an adapter's gradient");
    return INVAR_OK;
}

static invar_status check_batch(const invar_recipe *r)
{
    const int64_t prompts = invar_recipe_int(r, INVAR_KEY_ROLLOUT_BATCH_SIZE);
    const int64_t each = invar_recipe_int(r, INVAR_KEY_N_SAMPLES_PER_PROMPT);
    const int64_t batch = invar_recipe_int(r, INVAR_KEY_GLOBAL_BATCH_SIZE);
    const int64_t steps = invar_recipe_int(r, INVAR_KEY_NUM_STEPS_PER_ROLLOUT);
    const int64_t over = invar_recipe_int(r, INVAR_KEY_OVER_SAMPLING_BATCH_SIZE);
    const int64_t samples = prompts * each;
    char why[200];

    if (batch > 0 && (samples % batch != 0 || (steps > 0 && batch * steps != samples))) {
        snprintf(why, sizeof why,
                 "= %" PRId64 ": rollout-batch-size * n-samples-per-prompt = %" PRId64 " * %" PRId64
                 " must be global-batch-size * num-steps-per-rollout",
                 batch, prompts, each);
        return invar_config_fail(r, INVAR_KEY_GLOBAL_BATCH_SIZE, why);
    }
    if (steps > 0 && samples % steps != 0) {
        snprintf(why, sizeof why,
                 "= %" PRId64
                 " does not divide rollout-batch-size * n-samples-per-prompt = %" PRId64
                 " * %" PRId64,
                 steps, prompts, each);
        return invar_config_fail(r, INVAR_KEY_NUM_STEPS_PER_ROLLOUT, why);
    }
    if (over > 0 && over < prompts)
        return invar_config_fail(r, INVAR_KEY_OVER_SAMPLING_BATCH_SIZE,
                                 "is less than rollout-batch-size");
    if (invar_recipe_bool(r, INVAR_KEY_USE_DYNAMIC_BATCH_SIZE) &&
        invar_recipe_int(r, INVAR_KEY_MAX_TOKENS_PER_GPU) == 0)
        return invar_config_fail(r, INVAR_KEY_USE_DYNAMIC_BATCH_SIZE, "needs max-tokens-per-gpu");
    return INVAR_OK;
}

/* Fails because neither num-rollout nor num-epoch is above 0. */
static invar_status fail_no_duration(const invar_recipe *r)
{
    static const invar_key keys[] = {INVAR_KEY_NUM_ROLLOUT, INVAR_KEY_NUM_EPOCH};
    invar_recipe_entry e;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        invar_recipe_entry_get(&e, r, keys[i]);
        if (e.source > INVAR_RECIPE_SOURCE_DEFAULT)
            return fail_word(r, keys[i], "is too few: give at least 1");
    }
    return invar_config_fail(r, INVAR_KEY_NUM_ROLLOUT, "is missing (or num-epoch)");
}

static invar_status check_data(const invar_config_derived *f)
{
    const invar_recipe *r = f->recipe;
    const bool loads = invar_config_is_nonempty(r, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA);
    const bool rollouts = invar_recipe_int(r, INVAR_KEY_NUM_ROLLOUT) > 0;
    const bool epochs = invar_recipe_int(r, INVAR_KEY_NUM_EPOCH) > 0;

    if (!invar_config_is_nonempty(r, INVAR_KEY_PROMPT_DATA) && !loads)
        return invar_config_fail(r, INVAR_KEY_PROMPT_DATA, "is missing");
    if (rollouts && epochs)
        return invar_config_fail(r, INVAR_KEY_NUM_EPOCH,
                                 "and num-rollout both say how long; give one");
    if (!rollouts && !epochs)
        return fail_no_duration(r);
    if (!invar_config_is_nonempty(r, INVAR_KEY_INPUT_KEY))
        return invar_config_fail(r, INVAR_KEY_INPUT_KEY, "is empty");
    return INVAR_OK;
}

static invar_status check_lengths(const invar_config_derived *f)
{
    const invar_recipe *r = f->recipe;
    const int64_t response = invar_recipe_int(r, INVAR_KEY_ROLLOUT_MAX_RESPONSE_LEN);
    const int64_t prompt = invar_recipe_int(r, INVAR_KEY_ROLLOUT_MAX_PROMPT_LEN);
    const int64_t context = invar_recipe_int(r, INVAR_KEY_ROLLOUT_MAX_CONTEXT_LEN);

    if (f->sampled && response == 0 &&
        (!f->sft || invar_recipe_int(r, INVAR_KEY_EVAL_MAX_RESPONSE_LEN) == 0))
        return invar_config_fail(r, INVAR_KEY_ROLLOUT_MAX_RESPONSE_LEN, "is missing");
    if (context > 0 && response >= context)
        return invar_config_fail(r, INVAR_KEY_ROLLOUT_MAX_RESPONSE_LEN,
                                 "leaves no room for a prompt in rollout-max-context-len");
    if (context > 0 && invar_recipe_int(r, INVAR_KEY_EVAL_MAX_RESPONSE_LEN) >= context)
        return invar_config_fail(r, INVAR_KEY_EVAL_MAX_RESPONSE_LEN,
                                 "leaves no room for a prompt in rollout-max-context-len");
    if (context > 0 && prompt >= context)
        return invar_config_fail(r, INVAR_KEY_ROLLOUT_MAX_PROMPT_LEN,
                                 "leaves no room for a response in rollout-max-context-len");
    if (!f->hf && context > invar_recipe_int(r, INVAR_KEY_MAX_POSITION_EMBEDDINGS))
        return invar_config_fail(r, INVAR_KEY_ROLLOUT_MAX_CONTEXT_LEN,
                                 "is above max-position-embeddings");
    return INVAR_OK;
}

static invar_status check_spans(const invar_config_derived *f)
{
    static const invar_key keys[] = {INVAR_KEY_KV_SPAN, INVAR_KEY_Q_SPAN};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (invar_recipe_int(f->recipe, keys[i]) % INVAR_ATTENTION_BLOCK != 0)
            return invar_config_fail(f->recipe, keys[i], "is no multiple of 128");
    return INVAR_OK;
}

/* Checks that logical shards are a power of 2, because they are added by a binary tree. */
static invar_status check_logical_shards(const invar_config_derived *f)
{
    static const invar_key keys[] = {INVAR_KEY_LOGICAL_TP, INVAR_KEY_LOGICAL_ETP};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t pieces = invar_recipe_int(f->recipe, keys[i]);
        if ((pieces & (pieces - 1)) != 0)
            return invar_config_fail(f->recipe, keys[i], "is not 1, 2, 4 or 8");
    }
    return INVAR_OK;
}

/* Checks that rollout-dtype is a word of dtype, and differs from dtype. */
static invar_status check_formats(const invar_config_derived *f)
{
    const invar_recipe *r = f->recipe;
    const char *word = invar_recipe_string(r, INVAR_KEY_ROLLOUT_DTYPE);
    const int format = invar_choices_find(&invar_format_choices, word, strlen(word));
    char words[INVAR_CHOICES_TEXT_SIZE], why[INVAR_CHOICES_TEXT_SIZE + 80];

    if (!word[0])
        return INVAR_OK;
    if (format < 0) {
        invar_choices_text(words, sizeof words, &invar_format_choices, ", ", " or ");
        snprintf(why, sizeof why, "= %.40s is none of %s", word, words);
        return invar_config_fail(r, INVAR_KEY_ROLLOUT_DTYPE, why);
    }
    if ((invar_format)format == INVAR_RECIPE_ENUM(invar_format, r, INVAR_KEY_DTYPE))
        return fail_word(r, INVAR_KEY_ROLLOUT_DTYPE, "is dtype already: leave it out");
    return INVAR_OK;
}

static invar_status check_sampling(const invar_config_derived *f)
{
    const invar_recipe *r = f->recipe;
    const double eval = invar_recipe_float(r, INVAR_KEY_EVAL_TEMPERATURE);
    char **strings;
    int32_t *ids;
    int64_t count;

    if (invar_recipe_float(r, INVAR_KEY_ROLLOUT_TEMPERATURE) == 0 &&
        !invar_recipe_bool(r, INVAR_KEY_DEBUG_ROLLOUT_ONLY))
        return invar_config_fail(r, INVAR_KEY_ROLLOUT_TEMPERATURE,
                                 "= 0 gives a group of equal samples and no gradient; for greedy "
                                 "evaluation use eval-temperature");
    if (invar_recipe_int(r, INVAR_KEY_ROLLOUT_TOP_K) == 0)
        return invar_config_fail(r, INVAR_KEY_ROLLOUT_TOP_K, "= 0 leaves no token; -1 is all");
    if (INVAR_RECIPE_ENUM(invar_speculative_algorithm, r, INVAR_KEY_SPECULATIVE_ALGORITHM) ==
            INVAR_SPECULATIVE_ALGORITHM_DRAFT &&
        !invar_config_is_nonempty(r, INVAR_KEY_SPECULATIVE_DRAFT_MODEL_PATH))
        return fail_word(r, INVAR_KEY_SPECULATIVE_ALGORITHM, "needs speculative-draft-model-path");
    if (invar_recipe_int(r, INVAR_KEY_SPECULATIVE_NGRAM_MIN_MATCH_WINDOW_SIZE) >
        invar_recipe_int(r, INVAR_KEY_SPECULATIVE_NGRAM_MAX_MATCH_WINDOW_SIZE))
        return invar_config_fail(r, INVAR_KEY_SPECULATIVE_NGRAM_MIN_MATCH_WINDOW_SIZE,
                                 "is above speculative-ngram-max-match-window-size");
    if (eval < 0 && eval != -1)
        return invar_config_fail(r, INVAR_KEY_EVAL_TEMPERATURE, "is negative; -1 is as rollout");
    INVAR_TRY(invar_config_strings(&strings, &count, r, INVAR_KEY_ROLLOUT_STOP));
    invar_free(strings);
    INVAR_TRY(invar_config_ids(&ids, &count, r, INVAR_KEY_ROLLOUT_STOP_TOKEN_IDS));
    invar_free(ids);
    return INVAR_OK;
}

/* Parses a reward; an empty value is INVAR_REWARD_NONE. */
static invar_status read_reward(invar_reward *out, const invar_recipe *r, invar_key key)
{
    invar_status status = INVAR_OK;
    invar_error reason;
    bool boxed;

    *out = INVAR_REWARD_NONE;
    if (invar_config_is_nonempty(r, key))
        status = invar_reward_parse(out, &boxed, invar_recipe_string(r, key));
    if (status == INVAR_OK)
        return INVAR_OK;
    invar_error_take(&reason);
    return invar_config_fail(r, key, reason.message);
}

/* Returns true if an evaluation set comes from a file; tasks have labels of their own. */
static bool evaluates_files(const invar_recipe *r)
{
    const char *cursor = invar_recipe_string(r, INVAR_KEY_EVAL_PROMPT_DATA), *name, *path;
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
    const invar_recipe *r = f->recipe;
    const bool own = invar_config_is_nonempty(r, INVAR_KEY_EVAL_RM_TYPE);
    const bool trains = !f->sft && !f->task && invar_config_is_nonempty(r, INVAR_KEY_PROMPT_DATA) &&
                        !invar_config_is_nonempty(r, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA);

    if (invar_config_is_nonempty(r, INVAR_KEY_LABEL_KEY))
        return INVAR_OK;
    if (trains && invar_reward_needs_label(reward))
        return invar_config_fail(r, INVAR_KEY_RM_TYPE,
                                 "compares with a label: name the member of prompt-data that "
                                 "is the label with label-key");
    if (evaluates_files(r) && !invar_config_is_nonempty(r, INVAR_KEY_EVAL_LABEL_KEY) &&
        invar_reward_needs_label(own ? eval : reward))
        return invar_config_fail(r, own ? INVAR_KEY_EVAL_RM_TYPE : INVAR_KEY_RM_TYPE,
                                 "compares with a label: name the member of eval-prompt-data "
                                 "that is the label with label-key or eval-label-key");
    return INVAR_OK;
}

/* Rejects the boxed_ form of an external reward. */
static invar_status check_boxed(const invar_recipe *r, invar_reward reward, invar_key key)
{
    if (invar_reward_is_external(reward) && strncmp(invar_recipe_string(r, key), "boxed_", 6) == 0)
        return invar_config_fail(r, key, "would be judged elsewhere, where boxed_ is not known");
    return INVAR_OK;
}

/* Returns true for "https://user:secret@host/", which identity, ledger and packs would store. */
static bool names_user(const char *url)
{
    const char *host = strstr(url, "://");

    return host && host[3 + strcspn(host + 3, "/?#@")] == '@';
}

static invar_status check_url(const invar_recipe *r, invar_key key)
{
    const char *url = invar_recipe_string(r, key);

    if (names_user(url))
        return invar_config_fail(r, key,
                                 "names a user, which ledgers and packs would keep: leave that "
                                 "out; a proxy of yours can add it to the questions");
    if (url[0] && !invar_http_is_url(url))
        return invar_config_fail(r, key,
                                 "is no address of a server; expected http://HOST:PORT/PATH or "
                                 "https://HOST/PATH");
    return INVAR_OK;
}

/* Checks external rewards: they reward all samples, of training and of evaluations. */
static invar_status check_external_rewards(const invar_recipe *r, invar_reward reward,
                                           invar_reward eval)
{
    if (reward == INVAR_REWARD_REMOTE_RM && !invar_config_is_nonempty(r, INVAR_KEY_RM_URL))
        return invar_config_fail(r, INVAR_KEY_RM_URL, "is missing: rm-type = remote_rm asks it");
    INVAR_TRY(check_url(r, INVAR_KEY_RM_URL));
    INVAR_TRY(check_boxed(r, reward, INVAR_KEY_RM_TYPE));
    INVAR_TRY(check_boxed(r, eval, INVAR_KEY_EVAL_RM_TYPE));
    if (invar_reward_is_external(eval) && eval != reward)
        return invar_config_fail(r, INVAR_KEY_EVAL_RM_TYPE,
                                 "can be judged elsewhere only if rm-type is the same");
    return INVAR_OK;
}

static invar_status check_rewards(const invar_config_derived *f)
{
    const invar_recipe *r = f->recipe;
    const bool single = invar_recipe_int(r, INVAR_KEY_N_SAMPLES_PER_PROMPT) == 1;
    const bool raw = invar_recipe_bool(r, INVAR_KEY_DISABLE_REWARDS_NORMALIZATION);
    invar_reward reward, eval;

    INVAR_TRY(read_reward(&eval, r, INVAR_KEY_EVAL_RM_TYPE));
    INVAR_TRY(read_reward(&reward, r, INVAR_KEY_RM_TYPE));
    INVAR_TRY(check_labels(f, reward, eval));
    INVAR_TRY(check_external_rewards(r, reward, eval));
    if (f->estimator->needs_reward && reward == INVAR_REWARD_NONE &&
        !invar_config_is_nonempty(r, INVAR_KEY_CUSTOM_RM_PATH) &&
        !invar_config_is_nonempty(r, INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH) &&
        !invar_config_is_nonempty(r, INVAR_KEY_CUSTOM_AGENT_PATH) &&
        !invar_config_is_nonempty(r, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA))
        return invar_config_fail(r, INVAR_KEY_RM_TYPE, "is missing (or custom-rm-path)");
    if (invar_config_is_nonempty(r, INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH) &&
        invar_recipe_int(r, INVAR_KEY_ROLLOUT_SEGMENT_TOKENS) > 0)
        return invar_config_fail(r, INVAR_KEY_ROLLOUT_SEGMENT_TOKENS,
                                 "must be 0 with custom-generate-function-path: the weights that "
                                 "begin a sample draw all of its turns");
    if (f->eval && !invar_recipe_bool(r, INVAR_KEY_EVAL_TURNS) && reward == INVAR_REWARD_NONE &&
        eval == INVAR_REWARD_NONE && !invar_config_is_nonempty(r, INVAR_KEY_CUSTOM_RM_PATH))
        return invar_config_fail(r, INVAR_KEY_EVAL_TURNS,
                                 "= false: nobody judges evaluations then; give eval-rm-type");
    if (f->estimator->grouped && single && !raw)
        return invar_config_fail(
            r, INVAR_KEY_N_SAMPLES_PER_PROMPT,
            "= 1: a reward minus the mean of its own group is 0 and trains nothing; "
            "take more samples or disable-rewards-normalization");
    if (f->sft && !single)
        return invar_config_fail(r, INVAR_KEY_N_SAMPLES_PER_PROMPT, "must be 1 with sft_loss");
    if (single && INVAR_RECIPE_ENUM(invar_group_filter, r, INVAR_KEY_DYNAMIC_SAMPLING_FILTER) !=
                      INVAR_GROUP_FILTER_NONE)
        return invar_config_fail(r, INVAR_KEY_DYNAMIC_SAMPLING_FILTER,
                                 "would drop every group: n-samples-per-prompt is 1");
    return INVAR_OK;
}

static invar_status check_kl(const invar_config_derived *f)
{
    const invar_recipe *r = f->recipe;
    const double in_reward = invar_recipe_float(r, INVAR_KEY_KL_COEF);
    const double in_loss = invar_recipe_float(r, INVAR_KEY_KL_LOSS_COEF);
    invar_recipe_entry estimator;
    char why[160];

    if (in_reward > 0 && in_loss > 0)
        return invar_config_fail(r, INVAR_KEY_KL_COEF, "and kl-loss-coef exclude each other");
    if (f->estimator->critic && in_reward > 0) {
        invar_recipe_entry_get(&estimator, r, INVAR_KEY_ADVANTAGE_ESTIMATOR);
        snprintf(why, sizeof why, "must be 0 with %s; use kl-loss-coef", estimator.text);
        return invar_config_fail(r, INVAR_KEY_KL_COEF, why);
    }
    if (in_loss > 0 &&
        invar_kl_traits_of(INVAR_RECIPE_ENUM(invar_kl, r, INVAR_KEY_KL_LOSS_TYPE))->flat)
        return fail_word(
            r, INVAR_KEY_KL_LOSS_TYPE,
            "has no useful gradient as a loss; use low_var_kl, or kl-loss-coef = 0 to monitor it");
    return INVAR_OK;
}

static invar_status check_order(const invar_recipe *r, invar_key low, invar_key high)
{
    char why[100];

    if (invar_recipe_float(r, low) <= invar_recipe_float(r, high))
        return INVAR_OK;
    snprintf(why, sizeof why, "is above %s", invar_config_schema()->keys[high].name);
    return invar_config_fail(r, invar_config_set(r, low) ? low : high,
                             invar_config_set(r, low) ? why : "is below its lower bound");
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
    const invar_recipe *r = f->recipe;
    bool load = invar_config_is_nonempty(r, INVAR_KEY_OPD_TEACHER_LOAD);
    bool url = invar_config_is_nonempty(r, INVAR_KEY_OPD_TEACHER_URL);

    if (f->distills && !load && !url)
        return invar_config_fail(
            r, f->estimator->teacher ? INVAR_KEY_ADVANTAGE_ESTIMATOR : INVAR_KEY_USE_OPD,
            "needs opd-teacher-load, or opd-teacher-url");
    if (load && url)
        return invar_config_fail(r, INVAR_KEY_OPD_TEACHER_URL,
                                 "and opd-teacher-load exclude each other");
    if (url && is_not_base_url(invar_recipe_string(r, INVAR_KEY_OPD_TEACHER_URL)))
        return invar_config_fail(r, INVAR_KEY_OPD_TEACHER_URL,
                                 "ends with a slash, or has a query: give the address that "
                                 "/completions is put behind, such as http://HOST:8000/v1");
    return check_url(r, INVAR_KEY_OPD_TEACHER_URL);
}

static invar_status check_algorithm(const invar_config_derived *f)
{
    const invar_recipe *r = f->recipe;
    const double high = invar_recipe_float(r, INVAR_KEY_EPS_CLIP_HIGH);
    const double dual = invar_recipe_float(r, INVAR_KEY_EPS_CLIP_C);

    if (f->loss->plugin && !invar_config_is_nonempty(r, INVAR_KEY_CUSTOM_LOSS_FUNCTION_PATH))
        return fail_word(r, INVAR_KEY_LOSS_TYPE, "needs custom-loss-function-path");
    if (f->estimator->whitened && !invar_recipe_bool(r, INVAR_KEY_NORMALIZE_ADVANTAGES))
        return fail_word(r, INVAR_KEY_ADVANTAGE_ESTIMATOR, "needs normalize-advantages = true");
    INVAR_TRY(check_teacher(f));
    if (high < 0 && high != -1)
        return invar_config_fail(r, INVAR_KEY_EPS_CLIP_HIGH, "is negative; -1 is eps-clip");
    if (dual > 0 && dual <= 1)
        return invar_config_fail(r, INVAR_KEY_EPS_CLIP_C, "must be above 1 (or 0: off)");
    if (invar_recipe_bool(r, INVAR_KEY_USE_ROLLOUT_LOGPROBS) &&
        (invar_recipe_bool(r, INVAR_KEY_USE_TIS) || invar_recipe_bool(r, INVAR_KEY_USE_MIS)))
        return invar_config_fail(r, INVAR_KEY_USE_ROLLOUT_LOGPROBS,
                                 "leaves use-tis and use-mis nothing to weigh");
    if (invar_recipe_bool(r, INVAR_KEY_USE_TIS) && invar_recipe_bool(r, INVAR_KEY_USE_MIS))
        return invar_config_fail(r, INVAR_KEY_USE_MIS, "and use-tis exclude each other");
    if (invar_recipe_bool(r, INVAR_KEY_CALCULATE_PER_TOKEN_LOSS) &&
        invar_recipe_float(r, INVAR_KEY_LOSS_DIVISOR) > 0)
        return invar_config_fail(r, INVAR_KEY_LOSS_DIVISOR,
                                 "and calculate-per-token-loss exclude each other");
    INVAR_TRY(check_order(r, INVAR_KEY_TIS_CLIP_LOW, INVAR_KEY_TIS_CLIP));
    INVAR_TRY(check_order(r, INVAR_KEY_RS_LOWER_BOUND, INVAR_KEY_RS_UPPER_BOUND));
    if (INVAR_RECIPE_ENUM(invar_mis_mode, r, INVAR_KEY_MIS_MODE) != INVAR_MIS_MODE_TRUNCATE)
        INVAR_TRY(check_order(r, INVAR_KEY_MIS_LOWER_BOUND, INVAR_KEY_MIS_UPPER_BOUND));
    return check_kl(f);
}

static invar_status check_optimizer(const invar_recipe *r)
{
    const int64_t warmup = invar_recipe_int(r, INVAR_KEY_LR_WARMUP_ITERS);
    const int64_t decay = invar_recipe_int(r, INVAR_KEY_LR_DECAY_ITERS);

    INVAR_TRY(check_order(r, INVAR_KEY_MIN_LR, INVAR_KEY_LR));
    INVAR_TRY(check_order(r, INVAR_KEY_LR_WARMUP_INIT, INVAR_KEY_LR));
    if (INVAR_RECIPE_ENUM(invar_decay, r, INVAR_KEY_LR_DECAY_STYLE) == INVAR_DECAY_CONSTANT)
        return INVAR_OK;
    if (decay == 0)
        return invar_config_fail(r, INVAR_KEY_LR_DECAY_STYLE, "needs lr-decay-iters");
    if (decay <= warmup)
        return invar_config_fail(r, INVAR_KEY_LR_DECAY_ITERS, "must be above lr-warmup-iters");
    return INVAR_OK;
}

/* Checks that parts of fused calls are computed if they are to be dumped. */
static invar_status check_dump(const invar_recipe *r)
{
    bool full =
        INVAR_RECIPE_ENUM(invar_probe_level, r, INVAR_KEY_DEBUG_DETERMINISM) == INVAR_PROBE_FULL;

    if (!full && strstr(invar_recipe_string(r, INVAR_KEY_DEBUG_DUMP), ".parts"))
        return invar_config_fail(r, INVAR_KEY_DEBUG_DUMP,
                                 "names parts of fused calls, which run with "
                                 "debug-determinism = full alone");
    return INVAR_OK;
}

static invar_status check_debug(const invar_config_derived *f)
{
    static const invar_key numbered[] = {INVAR_KEY_SAVE_HF, INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA,
                                         INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA};
    const invar_recipe *r = f->recipe;
    const bool only = invar_recipe_bool(r, INVAR_KEY_DEBUG_ROLLOUT_ONLY);
    const bool loads = invar_config_is_nonempty(r, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA);

    if (only && loads)
        return invar_config_fail(r, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA,
                                 "trains from files, but debug-rollout-only does not train");
    if (only && invar_recipe_bool(r, INVAR_KEY_DEBUG_TRAIN_ONLY))
        return invar_config_fail(r, INVAR_KEY_DEBUG_TRAIN_ONLY,
                                 "and debug-rollout-only exclude each other");
    if (only && f->sft)
        return invar_config_fail(r, INVAR_KEY_DEBUG_ROLLOUT_ONLY,
                                 "leaves nothing to do with sft_loss");
    if (invar_recipe_bool(r, INVAR_KEY_DEBUG_TRAIN_ONLY) && !loads)
        return invar_config_fail(r, INVAR_KEY_DEBUG_TRAIN_ONLY, "needs load-debug-rollout-data");
    if (loads && invar_config_is_nonempty(r, INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA))
        return invar_config_fail(r, INVAR_KEY_SAVE_DEBUG_ROLLOUT_DATA,
                                 "would only copy load-debug-rollout-data");
    for (size_t i = 0; i < sizeof numbered / sizeof *numbered; i++) {
        if (invar_config_is_nonempty(r, numbered[i]) &&
            !strstr(invar_recipe_string(r, numbered[i]), "{rollout_id}"))
            return invar_config_fail(r, numbered[i],
                                     "must contain {rollout_id}: there is one per rollout");
    }
    if (invar_recipe_int(r, INVAR_KEY_PROFILE_STEP_START) > 0 &&
        invar_recipe_int(r, INVAR_KEY_PROFILE_STEP_START) >=
            invar_recipe_int(r, INVAR_KEY_PROFILE_STEP_END))
        return invar_config_fail(r, INVAR_KEY_PROFILE_STEP_START,
                                 "is not before profile-step-end: no step would be profiled");
    return check_dump(r);
}

static invar_status check_dashboards(const invar_recipe *r)
{
    const char *file = invar_recipe_string(r, INVAR_KEY_PROMETHEUS_FILE);

    return file[0] && !invar_text_has_suffix(file, ".prom")
               ? invar_config_fail(r, INVAR_KEY_PROMETHEUS_FILE,
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

static invar_status check_eval_data(const invar_recipe *r)
{
    const char *cursor = invar_recipe_string(r, INVAR_KEY_EVAL_PROMPT_DATA);
    const char *name, *path, *earlier, *other, *at;
    size_t name_bytes, path_bytes, other_bytes;

    for (const char *start = cursor; invar_config_words(&name, &name_bytes, &cursor);) {
        if (!invar_config_is_set_name(name, name_bytes))
            return invar_config_fail(
                r, INVAR_KEY_EVAL_PROMPT_DATA,
                "is name path name path; a name has letters, digits, '-', '_', '.'");
        if (!invar_config_words(&path, &path_bytes, &cursor) || path_bytes == 0)
            return invar_config_fail(r, INVAR_KEY_EVAL_PROMPT_DATA, "has a name without a path");
        if (*path == '"' || *path == '\'')
            return invar_config_fail(r, INVAR_KEY_EVAL_PROMPT_DATA, "has a quote without its end");
        for (earlier = start; invar_config_words(&other, &other_bytes, &earlier) && other < name;) {
            if (other_bytes == name_bytes && memcmp(other, name, name_bytes) == 0)
                return invar_config_fail(r, INVAR_KEY_EVAL_PROMPT_DATA, "has a name twice");
            if (!invar_config_words(&at, &other_bytes, &earlier))
                break;
        }
    }
    return INVAR_OK;
}

invar_status invar_config_check(const invar_recipe *recipe)
{
    invar_config_derived f;
    invar_key unused;

    INVAR_TRY(invar_recipe_check(recipe));
    derive_config(&f, recipe);
    f.unused = &unused;
    INVAR_TRY(check_data(&f));
    INVAR_TRY(check_model(&f));
    INVAR_TRY(check_lora(&f));
    INVAR_TRY(check_batch(recipe));
    INVAR_TRY(check_lengths(&f));
    INVAR_TRY(check_spans(&f));
    INVAR_TRY(check_logical_shards(&f));
    INVAR_TRY(check_formats(&f));
    INVAR_TRY(check_sampling(&f));
    INVAR_TRY(check_eval_data(recipe));
    INVAR_TRY(check_rewards(&f));
    INVAR_TRY(invar_config_check_conflicts(&f));
    INVAR_TRY(check_algorithm(&f));
    INVAR_TRY(check_optimizer(recipe));
    INVAR_TRY(check_debug(&f));
    INVAR_TRY(check_dashboards(recipe));
    return invar_config_check_no_effect(&f);
}

invar_status invar_config_check_unused(invar_key *unused_out, const invar_recipe *recipe)
{
    invar_config_derived f;
    invar_reward reward;

    *unused_out = INVAR_KEY_NONE;
    INVAR_TRY(invar_recipe_check(recipe));
    INVAR_TRY(read_reward(&reward, recipe, INVAR_KEY_RM_TYPE));
    INVAR_TRY(read_reward(&reward, recipe, INVAR_KEY_EVAL_RM_TYPE));
    derive_config(&f, recipe);
    f.unused = unused_out;
    return invar_config_check_no_effect(&f);
}
