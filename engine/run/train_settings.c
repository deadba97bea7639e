/*
 * train_settings.c - derives training settings from the keys of a recipe.
 *
 * Settings that depend on several keys are combined here, in one place: off-policy training, the
 * verification of in-flight samples, the number of rollouts, and how ranks divide the model.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/train_settings.h"

#include <string.h>

#include "engine/config/check_internal.h"
#include "engine/config/config.h"
#include "engine/rl/estimator.h"

#include "base/invar_banned.h"

static float recipe_float(const invar_recipe *r, invar_key key)
{
    return (float)invar_recipe_float(r, (int)key);
}

static void read_importance(invar_rl_options *o, const invar_recipe *r)
{
    o->use_tis = invar_recipe_bool(r, INVAR_KEY_USE_TIS);
    o->tis_clip = recipe_float(r, INVAR_KEY_TIS_CLIP);
    o->tis_clip_low = recipe_float(r, INVAR_KEY_TIS_CLIP_LOW);
    o->tis_mode = INVAR_RECIPE_ENUM(invar_tis_mode, r, INVAR_KEY_TIS_MODE);
    o->use_mis = invar_recipe_bool(r, INVAR_KEY_USE_MIS);
    o->mis_level = INVAR_RECIPE_ENUM(invar_mis_level, r, INVAR_KEY_MIS_LEVEL);
    o->mis_mode = INVAR_RECIPE_ENUM(invar_mis_mode, r, INVAR_KEY_MIS_MODE);
    o->mis_low = recipe_float(r, INVAR_KEY_MIS_LOWER_BOUND);
    o->mis_high = recipe_float(r, INVAR_KEY_MIS_UPPER_BOUND);
    o->mis_batch_normalize = invar_recipe_bool(r, INVAR_KEY_MIS_BATCH_NORMALIZE);
    o->mis_rs = invar_recipe_bool(r, INVAR_KEY_USE_RS);
    o->mis_rs_level = INVAR_RECIPE_ENUM(invar_mis_level, r, INVAR_KEY_RS_LEVEL);
    o->mis_rs_low = recipe_float(r, INVAR_KEY_RS_LOWER_BOUND);
    o->mis_rs_high = recipe_float(r, INVAR_KEY_RS_UPPER_BOUND);
    o->mis_veto = recipe_float(r, INVAR_KEY_RS_VETO_THRESHOLD);
    o->use_opsm = invar_recipe_bool(r, INVAR_KEY_USE_OPSM);
    o->opsm_delta = recipe_float(r, INVAR_KEY_OPSM_DELTA);
}

static void read_rl(invar_rl_options *o, const invar_recipe *r)
{
    float high = recipe_float(r, INVAR_KEY_EPS_CLIP_HIGH);

    *o = (invar_rl_options){
        .loss = INVAR_RECIPE_ENUM(invar_loss_type, r, INVAR_KEY_LOSS_TYPE),
        .estimator = INVAR_RECIPE_ENUM(invar_estimator, r, INVAR_KEY_ADVANTAGE_ESTIMATOR),
        .rewards_normalization = !invar_recipe_bool(r, INVAR_KEY_DISABLE_REWARDS_NORMALIZATION),
        .std_normalization = !invar_recipe_bool(r, INVAR_KEY_DISABLE_GRPO_STD_NORMALIZATION),
        .normalize_advantages = invar_recipe_bool(r, INVAR_KEY_NORMALIZE_ADVANTAGES),
        .gamma = recipe_float(r, INVAR_KEY_GAMMA),
        .lambd = recipe_float(r, INVAR_KEY_LAMBD),
        .kl_coef = recipe_float(r, INVAR_KEY_KL_COEF),
        .kl_type = INVAR_RECIPE_ENUM(invar_kl, r, INVAR_KEY_KL_LOSS_TYPE),
        .use_kl_loss = invar_recipe_bool(r, INVAR_KEY_USE_KL_LOSS),
        .kl_loss_coef = recipe_float(r, INVAR_KEY_KL_LOSS_COEF),
        .unbiased_kl = invar_recipe_bool(r, INVAR_KEY_USE_UNBIASED_KL),
        .eps_clip = recipe_float(r, INVAR_KEY_EPS_CLIP),
        .eps_clip_high = high < 0.0f ? recipe_float(r, INVAR_KEY_EPS_CLIP) : high,
        .eps_clip_c = recipe_float(r, INVAR_KEY_EPS_CLIP_C),
        .value_clip = recipe_float(r, INVAR_KEY_VALUE_CLIP),
        .entropy_coef = recipe_float(r, INVAR_KEY_ENTROPY_COEF),
        .per_token_loss = invar_recipe_bool(r, INVAR_KEY_CALCULATE_PER_TOKEN_LOSS),
        .constant_divisor = recipe_float(r, INVAR_KEY_LOSS_DIVISOR),
        .opd_kl_coef =
            invar_train_settings_distills(r) ? recipe_float(r, INVAR_KEY_OPD_KL_COEF) : 0.0f};
    read_importance(o, r);
}

static void read_schedules(invar_train_settings *set, const invar_recipe *r)
{
    double critic_lr = invar_recipe_float(r, INVAR_KEY_CRITIC_LR);

    set->schedule =
        (invar_lr_schedule){.style = INVAR_RECIPE_ENUM(invar_decay, r, INVAR_KEY_LR_DECAY_STYLE),
                            .lr = invar_recipe_float(r, INVAR_KEY_LR),
                            .min_lr = invar_recipe_float(r, INVAR_KEY_MIN_LR),
                            .warmup_init = invar_recipe_float(r, INVAR_KEY_LR_WARMUP_INIT),
                            .warmup_steps = invar_recipe_int(r, INVAR_KEY_LR_WARMUP_ITERS),
                            .decay_steps = invar_recipe_int(r, INVAR_KEY_LR_DECAY_ITERS)};
    set->critic_schedule = set->schedule;
    set->critic_schedule.warmup_steps = invar_recipe_int(r, INVAR_KEY_CRITIC_LR_WARMUP_ITERS);
    if (critic_lr > 0.0)
        set->critic_schedule.lr = critic_lr;
    set->adamw = (invar_adamw_options){.beta1 = recipe_float(r, INVAR_KEY_ADAM_BETA1),
                                       .beta2 = recipe_float(r, INVAR_KEY_ADAM_BETA2),
                                       .eps = recipe_float(r, INVAR_KEY_ADAM_EPS),
                                       .weight_decay = recipe_float(r, INVAR_KEY_WEIGHT_DECAY),
                                       .clip_grad = recipe_float(r, INVAR_KEY_CLIP_GRAD)};
}

/*
 * Returns num-rollout, or the rollouts of num-epoch epochs; an incomplete last rollout is left out.
 */
static int64_t count_rollouts(const invar_recipe *r, int64_t data)
{
    int64_t rollouts = invar_recipe_int(r, INVAR_KEY_NUM_ROLLOUT);
    int64_t epochs = invar_recipe_int(r, INVAR_KEY_NUM_EPOCH);

    if (rollouts || !data)
        return rollouts;
    return epochs * data / invar_recipe_int(r, INVAR_KEY_ROLLOUT_BATCH_SIZE);
}

static invar_run_schedule read_schedule(const invar_recipe *r, int64_t data, int64_t until)
{
    return (invar_run_schedule){.rollouts = count_rollouts(r, data),
                                .until = until,
                                .max_rollouts =
                                    invar_recipe_int(r, INVAR_KEY_DEBUG_EXIT_AFTER_ROLLOUT),
                                .ref_interval = invar_recipe_int(r, INVAR_KEY_REF_UPDATE_INTERVAL),
                                .eval_interval = invar_recipe_int(r, INVAR_KEY_EVAL_INTERVAL),
                                .save_interval = invar_recipe_int(r, INVAR_KEY_SAVE_INTERVAL)};
}

/*
 * Sets who verifies in-flight samples. A sampling engine of several ranks does not, since its ranks
 * would have to score together.
 */
static void read_checks(invar_train_settings *out, const invar_recipe *r)
{
    bool alone = invar_recipe_int(r, INVAR_KEY_ROLLOUT_NUM_GPUS) > 0 &&
                 invar_recipe_int(r, INVAR_KEY_ROLLOUT_NUM_GPUS_PER_ENGINE) == 1;

    out->checks_flight = out->off_policy && out->check_logprobs &&
                         invar_train_settings_rollout_format(r) ==
                             INVAR_RECIPE_ENUM(invar_format, r, INVAR_KEY_DTYPE);
    out->sampler_verifies = out->checks_flight && out->lag.rollouts > 0 && (out->overlap || alone);
}

void invar_train_settings_read(invar_train_settings *out, const invar_recipe *r, int64_t data,
                               int64_t until)
{
    int64_t over = invar_recipe_int(r, INVAR_KEY_OVER_SAMPLING_BATCH_SIZE);

    *out = (invar_train_settings){
        .run_schedule = read_schedule(r, data, until),
        .prompts = invar_recipe_int(r, INVAR_KEY_ROLLOUT_BATCH_SIZE),
        .per_prompt = invar_recipe_int(r, INVAR_KEY_N_SAMPLES_PER_PROMPT),
        .lag = {invar_recipe_int(r, INVAR_KEY_ROLLOUT_LAG),
                invar_recipe_int(r, INVAR_KEY_ROLLOUT_SEGMENT_TOKENS)},
        .recorded = invar_config_is_recorded_schedule(r),
        .max_delay = invar_recipe_int(r, INVAR_KEY_ROLLOUT_MAX_DELAY),
        .surplus = invar_recipe_bool(r, INVAR_KEY_OVER_SAMPLING_KEEP_SURPLUS),
        .overlap = invar_recipe_bool(r, INVAR_KEY_ROLLOUT_OVERLAP),
        .global_batch = invar_config_global_batch_size(r),
        .steps_per_rollout = invar_config_steps_per_rollout(r),
        .critic_only = invar_recipe_int(r, INVAR_KEY_NUM_CRITIC_ONLY_STEPS),
        .rollout_only = invar_recipe_bool(r, INVAR_KEY_DEBUG_ROLLOUT_ONLY),
        .replay_routing = invar_recipe_bool(r, INVAR_KEY_USE_ROLLOUT_ROUTING_REPLAY),
        .check_logprobs = invar_recipe_bool(r, INVAR_KEY_CHECK_LOGPROBS),
        .rollout_logprobs = invar_recipe_bool(r, INVAR_KEY_USE_ROLLOUT_LOGPROBS),
        .max_logp_diff = recipe_float(r, INVAR_KEY_MAX_LOGP_DIFF),
        .stop_on_mismatch = INVAR_RECIPE_ENUM(invar_on_mismatch, r, INVAR_KEY_ON_MISMATCH) ==
                            INVAR_ON_MISMATCH_STOP,
        .skip_updates = invar_recipe_bool(r, INVAR_KEY_DEBUG_DISABLE_OPTIMIZER),
        .reset_optimizer = invar_recipe_bool(r, INVAR_KEY_RESET_OPTIMIZER_STATES)};
    out->round = over ? over : out->prompts;
    out->off_policy = out->lag.rollouts > 0 || out->surplus;
    read_checks(out, r);
    read_rl(&out->rl, r);
    out->sft = invar_train_settings_supervised(r);
    read_schedules(out, r);
}

bool invar_train_settings_supervised(const invar_recipe *r)
{
    return invar_loss_traits_of(INVAR_RECIPE_ENUM(invar_loss_type, r, INVAR_KEY_LOSS_TYPE))
        ->supervised;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/*
 * Returns the default of expert-tensor-parallel-size: the ranks that divide a layer also divide
 * each expert if they divide logical-etp.
 */
static int64_t expert_tensors(const invar_recipe *r, int64_t tensor)
{
    return invar_recipe_int(r, INVAR_KEY_LOGICAL_ETP) % tensor == 0 ? tensor : 1;
}

invar_status invar_train_settings_sizes(invar_layout_sizes *out, const invar_recipe *r)
{
    int64_t tensor = invar_recipe_int(r, INVAR_KEY_TENSOR_MODEL_PARALLEL_SIZE);
    int64_t expert = invar_recipe_int(r, INVAR_KEY_EXPERT_TENSOR_PARALLEL_SIZE);

    if (expert == 0)
        expert = expert_tensors(r, tensor);
    *out = (invar_layout_sizes){
        .tensor = (int)tensor,
        .expert_tensor = (int)expert,
        .expert = (int)invar_recipe_int(r, INVAR_KEY_EXPERT_MODEL_PARALLEL_SIZE),
        .context = (int)invar_recipe_int(r, INVAR_KEY_CONTEXT_PARALLEL_SIZE),
        .pipeline = (int)invar_recipe_int(r, INVAR_KEY_PIPELINE_MODEL_PARALLEL_SIZE),
        .virtual_stages = (int)invar_recipe_int(r, INVAR_KEY_NUM_VIRTUAL_STAGES_PER_PIPELINE_RANK),
        .sequence = invar_recipe_bool(r, INVAR_KEY_SEQUENCE_PARALLEL)};
    if (expert != 1 && expert != tensor)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "expert-tensor-parallel-size %d: it is 1 or that of "
                          "tensor-model-parallel-size, %d",
                          out->expert_tensor, out->tensor);
    if (out->virtual_stages > 1 && out->pipeline == 1)
        return invar_config_fail(r, INVAR_KEY_NUM_VIRTUAL_STAGES_PER_PIPELINE_RANK,
                                 "needs a pipeline-model-parallel-size of 2 or more");
    return INVAR_OK;
}

invar_status invar_train_settings_roles(invar_rank_role_sizes *out, const invar_recipe *r)
{
    int64_t each = invar_recipe_int(r, INVAR_KEY_ROLLOUT_NUM_GPUS_PER_ENGINE);

    *out = (invar_rank_role_sizes){.rollout_ranks =
                                       (int)invar_recipe_int(r, INVAR_KEY_ROLLOUT_NUM_GPUS),
                                   .rollout = {.tensor = (int)each,
                                               .expert_tensor = (int)expert_tensors(r, each),
                                               .pipeline = 1,
                                               .virtual_stages = 1,
                                               .expert = 1}};
    if (invar_recipe_int(r, INVAR_KEY_LOGICAL_TP) % each != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout-num-gpus-per-engine = %d does not divide logical-tp = %d: take "
                          "a divisor of that, or another logical-tp, which is semantic",
                          (int)each, (int)invar_recipe_int(r, INVAR_KEY_LOGICAL_TP));
    return invar_train_settings_sizes(&out->train, r);
}

/* ---- models ---------------------------------------------------------------------------------- */

invar_format invar_train_settings_rollout_format(const invar_recipe *r)
{
    const char *word = invar_recipe_string(r, INVAR_KEY_ROLLOUT_DTYPE);
    int format = invar_choices_find(&invar_format_choices, word, strlen(word));

    return format < 0 ? INVAR_RECIPE_ENUM(invar_format, r, INVAR_KEY_DTYPE) : (invar_format)format;
}

static const invar_estimator_traits *estimator_of(const invar_recipe *r)
{
    return invar_estimator_traits_of(
        INVAR_RECIPE_ENUM(invar_estimator, r, INVAR_KEY_ADVANTAGE_ESTIMATOR));
}

bool invar_train_settings_reference(const invar_recipe *r)
{
    return invar_recipe_bool(r, INVAR_KEY_USE_KL_LOSS) ||
           invar_recipe_float(r, INVAR_KEY_KL_COEF) > 0.0;
}

bool invar_train_settings_reference_moves(const invar_recipe *r)
{
    return invar_recipe_int(r, INVAR_KEY_REF_UPDATE_INTERVAL) > 0;
}

bool invar_train_settings_distills(const invar_recipe *r)
{
    return invar_recipe_bool(r, INVAR_KEY_USE_OPD) || estimator_of(r)->teacher;
}

bool invar_train_settings_teacher(const invar_recipe *r)
{
    return invar_train_settings_distills(r) &&
           !invar_recipe_string(r, INVAR_KEY_OPD_TEACHER_URL)[0];
}

bool invar_train_settings_critic(const invar_recipe *r)
{
    return estimator_of(r)->critic;
}
