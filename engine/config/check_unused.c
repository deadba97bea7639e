/*
 * check_unused.c - rejects settings of a recipe that have no effect.
 *
 * For each key that depends on others a table row has the condition under which it is used, and the
 * advice if it is not. A row is an error only if the key was given a value other than its default
 * (invar_config_set). A key with several conditions has several rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine/config/check_internal.h"
#include "engine/rl/reward/reward.h"

#include "base/invar_banned.h"

#define NEEDS_SIZE (INVAR_CHOICES_TEXT_SIZE + 80)

typedef struct key_use {
    invar_key key;
    bool used;
    const char *needs;
} key_use;

static invar_status check_uses(const invar_config_derived *f, const key_use *uses, size_t count)
{
    const invar_config *config = f->config;
    char why[NEEDS_SIZE + 40];

    for (size_t i = 0; i < count; i++) {
        if (uses[i].used || !invar_config_set(config, uses[i].key))
            continue;
        *f->unused = uses[i].key;
        snprintf(why, sizeof why, "would be ignored: it needs %s", uses[i].needs);
        return invar_config_fail(config, uses[i].key, why);
    }
    return INVAR_OK;
}

/* ---- estimators with a trait ----------------------------------------------------------------- */

#define TRAIT(name) offsetof(invar_estimator_traits, name)

/* Formats the estimators with a trait, "advantage-estimator = grpo or gspo", followed by `rest`. */
static void format_estimators(char out[NEEDS_SIZE], size_t trait, const char *rest)
{
    const char *words[INVAR_ESTIMATOR_COUNT];
    char text[INVAR_CHOICES_TEXT_SIZE];

    for (int i = 0; i < INVAR_ESTIMATOR_COUNT; i++) {
        const invar_estimator_traits *e = invar_estimator_traits_of((invar_estimator)i);
        bool has = *(const bool *)((const char *)e + trait);
        if (trait == TRAIT(penalized))
            has = has && !e->critic; // kl-coef must be 0 with a critic
        words[i] = has ? invar_estimator_choices.words[i] : NULL;
    }
    invar_choices_text(text, sizeof text, &(invar_choices){words, INVAR_ESTIMATOR_COUNT}, ", ",
                       " or ");
    (void)snprintf(out, NEEDS_SIZE, "advantage-estimator = %s%s", text, rest);
}

/* ---- groups of keys -------------------------------------------------------------------------- */

#define CHECK_USES(f, uses) check_uses(f, uses, sizeof(uses) / sizeof *(uses))

static invar_status check_model_uses(const invar_config_derived *f)
{
    static const char own[] = "a model without files (hf-checkpoint empty)";
    static const char experts[] = "num-experts above 0";
    static const char adapters[] = "lora-rank above 0";
    const bool moe = f->config->num_experts > 0;
    const bool lora = f->config->lora_rank > 0;
    const key_use uses[] = {
        {INVAR_KEY_HF_IGNORE_KEYS, f->hf, "hf-checkpoint"},
        {INVAR_KEY_MODEL_TYPE, !f->hf, own},
        {INVAR_KEY_NUM_LAYERS, !f->hf, own},
        {INVAR_KEY_HIDDEN_SIZE, !f->hf, own},
        {INVAR_KEY_FFN_HIDDEN_SIZE, !f->hf, own},
        {INVAR_KEY_NUM_ATTENTION_HEADS, !f->hf, own},
        {INVAR_KEY_NUM_QUERY_GROUPS, !f->hf, own},
        {INVAR_KEY_KV_CHANNELS, !f->hf, own},
        {INVAR_KEY_VOCAB_SIZE, !f->hf, own},
        {INVAR_KEY_MAX_POSITION_EMBEDDINGS, !f->hf, own},
        {INVAR_KEY_NORM_EPSILON, !f->hf, own},
        {INVAR_KEY_ROTARY_BASE, !f->hf, own},
        {INVAR_KEY_UNTIE_EMBEDDINGS_AND_OUTPUT_WEIGHTS, !f->hf, own},
        {INVAR_KEY_INIT_METHOD_STD, !f->hf, own},
        {INVAR_KEY_NUM_EXPERTS, !f->hf, own},
        {INVAR_KEY_MOE_ROUTER_TOPK, !f->hf, own},
        {INVAR_KEY_MOE_ROUTER_TOPK, moe, experts},
        {INVAR_KEY_MOE_FFN_HIDDEN_SIZE, !f->hf, own},
        {INVAR_KEY_MOE_FFN_HIDDEN_SIZE, moe, experts},
        {INVAR_KEY_USE_ROLLOUT_ROUTING_REPLAY, f->hf || moe, experts},
        {INVAR_KEY_USE_ROLLOUT_ROUTING_REPLAY, !f->sft || f->config->load_debug_rollout_data[0],
         "samples with recorded routing, and sft_loss trains on answers of the data"},
        {INVAR_KEY_LORA_ALPHA, lora, adapters},
        {INVAR_KEY_USE_RSLORA, lora, adapters},
        {INVAR_KEY_RANK_PATTERN, lora, adapters},
        {INVAR_KEY_ALPHA_PATTERN, lora, adapters},
        {INVAR_KEY_TARGET_MODULES, lora, adapters},
        {INVAR_KEY_LORA_ADAPTER_PATH, lora, adapters},
    };

    return CHECK_USES(f, uses);
}

static invar_status check_ckpt_uses(const invar_config_derived *f)
{
    const bool save = strcmp(f->config->save, "none") != 0;
    const bool export = f->config->save_hf[0];
    const bool load = f->config->load[0] || save;
    char critic[NEEDS_SIZE];
    const key_use uses[] = {
        {INVAR_KEY_SAVE_INTERVAL, save || export, "a save that is not none, or save-hf"},
        {INVAR_KEY_SAVE_INTERVAL_MINUTES, save || f->config->save_interval_minutes == 0.0,
         "a save that is not none"},
        {INVAR_KEY_NO_SAVE_OPTIM, save, "a save that is not none"},
        {INVAR_KEY_ASYNC_SAVE, save, "a save that is not none"},
        {INVAR_KEY_KEEP_CHECKPOINTS, save, "a save that is not none"},
        {INVAR_KEY_CKPT_STEP, load, "load, or a save that is not none"},
        {INVAR_KEY_SKIP_DAMAGED, load, "load, or a save that is not none"},
        {INVAR_KEY_CRITIC_LOAD, f->estimator->critic, critic},
        {INVAR_KEY_OPD_TEACHER_LOAD, f->distills, "use-opd = true"},
        {INVAR_KEY_OPD_TEACHER_URL, f->distills, "use-opd = true"},
        {INVAR_KEY_OPD_TEACHER_NAME, f->config->opd_teacher_url[0], "opd-teacher-url"},
    };

    format_estimators(critic, TRAIT(critic), "");
    return CHECK_USES(f, uses);
}

static invar_reward reward_of(const char *word)
{
    invar_reward reward = INVAR_REWARD_NONE;
    bool boxed, known = !word[0] || invar_reward_parse(&reward, &boxed, word) == INVAR_OK;

    INVAR_CHECK(known); // invar_config_check checks rewards before uses
    return reward;
}

/* Returns true if rewards may have parts: those of plug-ins, and of some built-in rewards. */
static bool has_parts(const invar_config *c, const char *rule)
{
    return c->custom_generate_function_path[0] || c->custom_agent_path[0] ||
           invar_reward_has_parts(reward_of(rule));
}

/* Returns true if groups may be dropped and other prompts sampled instead. */
static bool filters_groups(const invar_config *c)
{
    return c->dynamic_sampling_filter != INVAR_GROUP_FILTER_NONE ||
           c->dynamic_sampling_filter_path[0];
}

/* Returns true if samples of older weights may be trained on. */
static bool trains_late(const invar_config *c)
{
    return c->rollout_lag > 0 || c->over_sampling_keep_surplus || c->load_debug_rollout_data[0];
}

/* Returns true if several ranks compute one model together. */
static bool divides_model(const invar_config *c)
{
    return c->tensor_model_parallel_size > 1 || c->context_parallel_size > 1 ||
           c->expert_model_parallel_size > 1 || c->pipeline_model_parallel_size > 1;
}

static invar_status check_rollout_uses(const invar_config_derived *f)
{
    static const char filter[] = "dynamic-sampling-filter or dynamic-sampling-filter-path";
    static const char sampled[] =
        "rollouts that are sampled, and load-debug-rollout-data gives them";
    static const char generation[] = "generation, which sft_loss without eval-prompt-data lacks";
    static const char files[] = "prompt-data from a file";
    static const char leader[] = "custom-generate-function-path";
    static const char recorded[] = "rollout-schedule = recorded";
    static const char agent[] = "custom-agent-path";
    static const char alone[] = "rollout-num-gpus, of ranks that only sample";
    static const char parts[] =
        "rewards with parts: custom-rm-path, custom-generate-function-path, custom-agent-path, or "
        "rm-type = dapo, "
        "ifeval or remote_rm";
    const invar_config *c = f->config;
    const bool chat = c->apply_chat_template;
    const bool read = !f->task || f->eval;
    const bool agents = c->custom_agent_path[0];
    const bool apart = c->rollout_num_gpus > 0;
    const bool chosen = c->data_source_path[0];
    const bool loads = c->load_debug_rollout_data[0];
    const bool tasks = f->task || c->eval_config[0] || strstr(c->eval_prompt_data, "task:");
    const key_use uses[] = {
        {INVAR_KEY_TASK_SIZE, tasks, "a built-in task (task:NAME)"},
        {INVAR_KEY_INPUT_KEY, read, files},
        {INVAR_KEY_LABEL_KEY, read, files},
        {INVAR_KEY_METADATA_KEY, read, files},
        {INVAR_KEY_APPLY_CHAT_TEMPLATE, read, files},
        {INVAR_KEY_TOOL_KEY, chat, "apply-chat-template = true"},
        {INVAR_KEY_APPLY_CHAT_TEMPLATE_KWARGS, chat, "apply-chat-template = true"},
        {INVAR_KEY_CHAT_TEMPLATE_PATH, chat, "apply-chat-template = true"},
        {INVAR_KEY_ROLLOUT_TEMPERATURE, f->sampled, generation},
        {INVAR_KEY_ROLLOUT_TOP_P, f->sampled, generation},
        {INVAR_KEY_ROLLOUT_TOP_K, f->sampled, generation},
        {INVAR_KEY_ROLLOUT_MIN_P, f->sampled, generation},
        {INVAR_KEY_ROLLOUT_DTYPE, !f->sft, "another loss-type"},
        {INVAR_KEY_ROLLOUT_LAG, !f->sft, "another loss-type"},
        {INVAR_KEY_ROLLOUT_LAG, !loads, sampled},
        {INVAR_KEY_ROLLOUT_LAG, !c->debug_rollout_only,
         "training, which debug-rollout-only leaves out"},
        {INVAR_KEY_ROLLOUT_SEGMENT_TOKENS, c->rollout_lag > 0, "a rollout-lag above 0"},
        {INVAR_KEY_ROLLOUT_SCHEDULE, c->rollout_lag > 0, "a rollout-lag above 0"},
        {INVAR_KEY_ROLLOUT_MAX_DELAY, invar_config_is_recorded_schedule(c), recorded},
        {INVAR_KEY_ROLLOUT_RECORD, invar_config_is_recorded_schedule(c), recorded},
        {INVAR_KEY_ROLLOUT_STOP, f->sampled, generation},
        {INVAR_KEY_ROLLOUT_STOP_TOKEN_IDS, f->sampled, generation},
        {INVAR_KEY_ROLLOUT_MAX_RESPONSE_LEN, f->sampled, generation},
        {INVAR_KEY_RM_TYPE, f->sampled, generation},
        {INVAR_KEY_RM_TYPE, !c->custom_rm_path[0], "an empty custom-rm-path"},
        {INVAR_KEY_CUSTOM_RM_PATH, f->sampled, generation},
        {INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH, f->sampled, generation},
        {INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH, !loads,
         "samples that are generated, not those of load-debug-rollout-data"},
        {INVAR_KEY_CUSTOM_AGENT_PATH, !f->sft, "another loss-type"},
        {INVAR_KEY_CUSTOM_AGENT_PATH, !c->load_debug_rollout_data[0],
         "samples that are generated, not those of load-debug-rollout-data"},
        {INVAR_KEY_CUSTOM_AGENT_PATH, !divides_model(c) && !apart,
         "ranks that each have the whole model and train: rank 0 draws what agents ask for"},
        {INVAR_KEY_AGENT_CONCURRENCY, agents, agent},
        {INVAR_KEY_AGENT_MAX_CALLS, agents, agent},
        {INVAR_KEY_AGENT_MAX_BRANCHES, agents, agent},
        {INVAR_KEY_AGENT_FAILURE, agents, agent},
        {INVAR_KEY_AGENT_RECORD, agents, agent},
        {INVAR_KEY_ROLLOUT_MAX_TURNS, c->custom_generate_function_path[0], leader},
        {INVAR_KEY_ROLLOUT_MAX_TURN_LEN, c->custom_generate_function_path[0], leader},
        {INVAR_KEY_ROLLOUT_NUM_GPUS, f->sampled, generation},
        {INVAR_KEY_ROLLOUT_NUM_GPUS_PER_ENGINE, apart, alone},
        {INVAR_KEY_UPDATE_WEIGHT_BUFFER_SIZE, apart, alone},
        {INVAR_KEY_ROLLOUT_OVERLAP, c->rollout_lag > 0, "a rollout-lag above 0"},
        {INVAR_KEY_ROLLOUT_OVERLAP, !c->custom_generate_function_path[0],
         "an empty custom-generate-function-path: all ranks ask it together"},
        {INVAR_KEY_ROLLOUT_OVERLAP, !apart,
         "rollout-num-gpus = 0: ranks that only sample go on beside training by themselves"},
        {INVAR_KEY_ROLLOUT_OVERLAP, !divides_model(c),
         "ranks that sample by themselves, and here several compute a model together; let other "
         "ranks sample (rollout-num-gpus)"},
        {INVAR_KEY_ROLLOUT_OVERLAP, c->audit == 0,
         "audit = 0, which looks at one phase at a time; 'invar replay --audit' audits the run"},
        {INVAR_KEY_GROUP_RM, c->custom_rm_path[0], "custom-rm-path"},
        {INVAR_KEY_RM_URL, reward_of(c->rm_type) == INVAR_REWARD_REMOTE_RM, "rm-type = remote_rm"},
        {INVAR_KEY_REWARD_KEY, c->custom_rm_path[0] || has_parts(c, c->rm_type), parts},
        {INVAR_KEY_DYNAMIC_SAMPLING_FILTER, !f->sft, "another loss-type"},
        {INVAR_KEY_DYNAMIC_SAMPLING_FILTER_PATH, !f->sft, "another loss-type"},
        {INVAR_KEY_OVER_SAMPLING_BATCH_SIZE, filters_groups(c), filter},
        {INVAR_KEY_OVER_SAMPLING_KEEP_SURPLUS, filters_groups(c), filter},
        {INVAR_KEY_OVER_SAMPLING_KEEP_SURPLUS, !loads, sampled},
        {INVAR_KEY_BUFFER_FILTER_PATH, c->over_sampling_keep_surplus,
         "over-sampling-keep-surplus = true"},
        {INVAR_KEY_DATA_SOURCE_PATH, !loads, sampled},
        {INVAR_KEY_ROLLOUT_SHUFFLE, !chosen, "an empty data-source-path, which chooses prompts"},
        {INVAR_KEY_NUM_EPOCH, !chosen, "an empty data-source-path, which knows no epochs"},
        {INVAR_KEY_ROLLOUT_SAMPLE_FILTER_PATH, !f->sft, "another loss-type"},
        {INVAR_KEY_CUSTOM_BEFORE_LOG_PROB_HOOK_PATH, !f->sft, "another loss-type"},
        {INVAR_KEY_PLUGIN_TIMEOUT, f->plugin, "a plug-in"},
        {INVAR_KEY_MAX_RESTARTS, f->restarts,
         "a plug-in that is a program and no agent; for agents there is agent-failure = zero"},
        {INVAR_KEY_SINK_TIMEOUT, c->sink[0], "sink"},
    };

    return CHECK_USES(f, uses);
}

static invar_status check_speculation_uses(const invar_config_derived *f)
{
    static const char of_ngram[] = "speculative-algorithm = ngram";
    const invar_config *c = f->config;
    const invar_speculative_algorithm algorithm = c->speculative_algorithm;
    const bool ngram = algorithm == INVAR_SPECULATIVE_ALGORITHM_NGRAM;
    const key_use uses[] = {
        {INVAR_KEY_SPECULATIVE_NUM_DRAFT_TOKENS, algorithm != INVAR_SPECULATIVE_ALGORITHM_NONE,
         "a speculative-algorithm other than none"},
        {INVAR_KEY_SPECULATIVE_DRAFT_MODEL_PATH, algorithm == INVAR_SPECULATIVE_ALGORITHM_DRAFT,
         "speculative-algorithm = draft"},
        {INVAR_KEY_SPECULATIVE_NGRAM_MIN_MATCH_WINDOW_SIZE, ngram, of_ngram},
        {INVAR_KEY_SPECULATIVE_NGRAM_MAX_MATCH_WINDOW_SIZE, ngram, of_ngram},
    };

    return CHECK_USES(f, uses);
}

static invar_status check_eval_uses(const invar_config_derived *f)
{
    static const char data[] = "eval-prompt-data or eval-config";
    const invar_config *c = f->config;
    const bool sampler = !c->debug_train_only;
    const bool own = c->eval_rm_type[0];
    const key_use uses[] = {
        {INVAR_KEY_EVAL_CONFIG, !c->eval_prompt_data[0],
         "an empty eval-prompt-data: it names the sets itself"},
        {INVAR_KEY_EVAL_INTERVAL, f->eval, data},
        {INVAR_KEY_EVAL_INTERVAL, sampler, "a rollout engine, which debug-train-only leaves out"},
        {INVAR_KEY_N_SAMPLES_PER_EVAL_PROMPT, f->eval, data},
        {INVAR_KEY_EVAL_TEMPERATURE, f->eval, data},
        {INVAR_KEY_EVAL_TOP_P, f->eval, data},
        {INVAR_KEY_EVAL_TOP_K, f->eval, data},
        {INVAR_KEY_EVAL_MAX_RESPONSE_LEN, f->eval, data},
        {INVAR_KEY_EVAL_INPUT_KEY, f->eval, data},
        {INVAR_KEY_EVAL_LABEL_KEY, f->eval, data},
        {INVAR_KEY_EVAL_RM_TYPE, f->eval, data},
        {INVAR_KEY_EVAL_REWARD_KEY, f->eval, data},
        {INVAR_KEY_EVAL_REWARD_KEY,
         own ? has_parts(c, c->eval_rm_type) : c->custom_rm_path[0] || has_parts(c, c->rm_type),
         "evaluations whose rewards have parts: a plug-in's, or those of dapo or ifeval"},
        {INVAR_KEY_EVAL_TURNS, f->eval, data},
        {INVAR_KEY_CUSTOM_EVAL_ROLLOUT_LOG_FUNCTION_PATH, f->eval, data},
        {INVAR_KEY_EVAL_TURNS, c->custom_generate_function_path[0] || c->custom_agent_path[0],
         "custom-generate-function-path or custom-agent-path"},
        {INVAR_KEY_SKIP_EVAL_BEFORE_TRAIN, f->config->eval_interval > 0, "eval-interval"},
        {INVAR_KEY_LOG_PASSRATE, f->sampled, "generation"},
    };

    return CHECK_USES(f, uses);
}

static invar_status check_advantage_uses(const invar_config_derived *f)
{
    static const char rl[] = "another loss-type than sft_loss";
    const invar_config *c = f->config;
    const invar_estimator_traits *e = f->estimator;
    const bool raw = c->disable_rewards_normalization;
    char critic[NEEDS_SIZE], discount[NEEDS_SIZE], penalty[NEEDS_SIZE], grouped[NEEDS_SIZE],
        scaled[NEEDS_SIZE];
    const key_use uses[] = {
        {INVAR_KEY_ADVANTAGE_ESTIMATOR, !f->sft, rl},
        {INVAR_KEY_NORMALIZE_ADVANTAGES, !f->sft, rl},
        {INVAR_KEY_USE_OPD, !f->sft, rl},
        {INVAR_KEY_OPD_KL_COEF, f->distills, "use-opd = true"},
        {INVAR_KEY_GAMMA, e->discounts, discount},
        {INVAR_KEY_LAMBD, e->critic, critic},
        {INVAR_KEY_VALUE_CLIP, e->critic, critic},
        {INVAR_KEY_NUM_CRITIC_ONLY_STEPS, e->critic, critic},
        {INVAR_KEY_CRITIC_LR, e->critic, critic},
        {INVAR_KEY_CRITIC_LR_WARMUP_ITERS, e->critic, critic},
        {INVAR_KEY_KL_COEF, e->penalized, penalty},
        {INVAR_KEY_DISABLE_REWARDS_NORMALIZATION, e->grouped, grouped},
        {INVAR_KEY_DISABLE_GRPO_STD_NORMALIZATION, e->scaled && !raw, scaled},
    };

    format_estimators(critic, TRAIT(critic), "");
    format_estimators(discount, TRAIT(discounts), "");
    format_estimators(penalty, TRAIT(penalized), "; with others use kl-loss-coef");
    format_estimators(grouped, TRAIT(grouped), "");
    format_estimators(scaled, TRAIT(scaled), " and their normalisation of rewards");
    return CHECK_USES(f, uses);
}

static invar_status check_loss_uses(const invar_config_derived *f)
{
    static const char pol[] = "loss-type = policy_loss", rl[] = "another loss-type than sft_loss";
    const invar_config *c = f->config;
    const bool policy = f->loss->policy;
    const bool reference = c->use_kl_loss || c->kl_coef > 0;
    const key_use uses[] = {
        {INVAR_KEY_CUSTOM_LOSS_FUNCTION_PATH, f->loss->plugin, "loss-type = custom_loss"},
        {INVAR_KEY_EPS_CLIP, policy, pol},
        {INVAR_KEY_EPS_CLIP_HIGH, policy, pol},
        {INVAR_KEY_EPS_CLIP_C, policy, pol},
        {INVAR_KEY_ENTROPY_COEF, !f->sft, rl},
        {INVAR_KEY_USE_KL_LOSS, !f->sft, rl},
        {INVAR_KEY_KL_LOSS_COEF, c->use_kl_loss, "use-kl-loss = true"},
        {INVAR_KEY_USE_UNBIASED_KL, c->use_kl_loss, "use-kl-loss = true"},
        {INVAR_KEY_KL_LOSS_TYPE, reference, "use-kl-loss = true or a kl-coef"},
        {INVAR_KEY_REF_UPDATE_INTERVAL, reference, "use-kl-loss = true or a kl-coef"},
        {INVAR_KEY_LOSS_DIVISOR, !f->sft, rl},
        {INVAR_KEY_USE_OPSM, policy, pol},
        {INVAR_KEY_USE_OPSM, invar_config_steps_per_rollout(c) > 1 || trains_late(c),
         "num-steps-per-rollout above 1 or rollout-lag: else the first step is on the policy that "
         "sampled"},
        {INVAR_KEY_OPSM_DELTA, c->use_opsm, "use-opsm = true"},
    };

    return CHECK_USES(f, uses);
}

static invar_status check_importance_uses(const invar_config_derived *f)
{
    static const char pol[] = "loss-type = policy_loss";
    static const char differing[] =
        "rollout-dtype, rollout-lag, over-sampling-keep-surplus or load-debug-rollout-data: "
        "log-probs of rollout and training are equal otherwise";
    const invar_config *c = f->config;
    const bool policy = f->loss->policy;
    const bool differ = c->rollout_dtype[0] || trains_late(c);
    const bool copied = c->use_rollout_logprobs;
    const bool tis = c->use_tis;
    const bool mis = c->use_mis;
    const bool rs = c->use_rs;
    const key_use uses[] = {
        {INVAR_KEY_USE_ROLLOUT_LOGPROBS, !f->sft, "another loss-type"},
        {INVAR_KEY_USE_ROLLOUT_LOGPROBS, differ, differing},
        {INVAR_KEY_MAX_LOGP_DIFF, differ, differing},
        {INVAR_KEY_MAX_LOGP_DIFF, !copied, "use-rollout-logprobs = false, to have both"},
        {INVAR_KEY_CHECK_LOGPROBS, !c->rollout_dtype[0],
         "rollouts in dtype; with rollout-dtype, use-rollout-logprobs = true leaves scoring out"},
        {INVAR_KEY_USE_TIS, policy, pol},
        {INVAR_KEY_USE_TIS, differ, differing},
        {INVAR_KEY_TIS_CLIP, tis, "use-tis = true"},
        {INVAR_KEY_TIS_CLIP_LOW, tis, "use-tis = true"},
        {INVAR_KEY_TIS_MODE, tis, "use-tis = true"},
        {INVAR_KEY_USE_MIS, policy, pol},
        {INVAR_KEY_USE_MIS, differ, differing},
        {INVAR_KEY_MIS_LEVEL, mis, "use-mis = true"},
        {INVAR_KEY_MIS_MODE, mis, "use-mis = true"},
        {INVAR_KEY_MIS_LOWER_BOUND, mis && c->mis_mode != INVAR_MIS_MODE_TRUNCATE,
         "use-mis = true and mis-mode clip or mask"},
        {INVAR_KEY_MIS_UPPER_BOUND, mis, "use-mis = true"},
        {INVAR_KEY_MIS_BATCH_NORMALIZE, mis, "use-mis = true"},
        {INVAR_KEY_USE_RS, mis, "use-mis = true"},
        {INVAR_KEY_RS_LEVEL, mis && rs, "use-rs = true"},
        {INVAR_KEY_RS_LOWER_BOUND, mis && rs, "use-rs = true"},
        {INVAR_KEY_RS_UPPER_BOUND, mis && rs, "use-rs = true"},
        {INVAR_KEY_RS_VETO_THRESHOLD, mis && rs, "use-rs = true"},
    };

    return CHECK_USES(f, uses);
}

static invar_status check_step_uses(const invar_config_derived *f)
{
    const invar_config *c = f->config;
    const bool decays = c->lr_decay_style != INVAR_DECAY_CONSTANT;
    const key_use uses[] = {
        {INVAR_KEY_MIN_LR, decays, "lr-decay-style linear or cosine"},
        {INVAR_KEY_LR_DECAY_ITERS, decays, "lr-decay-style linear or cosine"},
        {INVAR_KEY_LR_WARMUP_INIT, c->lr_warmup_iters > 0, "lr-warmup-iters"},
        {INVAR_KEY_MICRO_BATCH_SIZE, !c->use_dynamic_batch_size, "use-dynamic-batch-size = false"},
        {INVAR_KEY_MAX_TOKENS_PER_GPU, c->use_dynamic_batch_size, "use-dynamic-batch-size = true"},
        {INVAR_KEY_DEBUG_DUMP_DIR, c->debug_dump[0], "debug-dump"},
    };

    return CHECK_USES(f, uses);
}

invar_status invar_config_check_no_effect(const invar_config_derived *derived)
{
    INVAR_TRY(check_model_uses(derived));
    INVAR_TRY(check_ckpt_uses(derived));
    INVAR_TRY(check_rollout_uses(derived));
    INVAR_TRY(check_speculation_uses(derived));
    INVAR_TRY(check_eval_uses(derived));
    INVAR_TRY(check_advantage_uses(derived));
    INVAR_TRY(check_loss_uses(derived));
    INVAR_TRY(check_importance_uses(derived));
    return check_step_uses(derived);
}
