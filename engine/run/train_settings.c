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

static invar_rl_options read_rl(const invar_config *c)
{
    float low = (float)c->eps_clip, high = (float)c->eps_clip_high;

    return (invar_rl_options){.loss = c->loss_type,
                              .estimator = c->advantage_estimator,
                              .rewards_normalization = !c->disable_rewards_normalization,
                              .std_normalization = !c->disable_grpo_std_normalization,
                              .normalize_advantages = c->normalize_advantages,
                              .gamma = (float)c->gamma,
                              .lambd = (float)c->lambd,
                              .kl = {.type = c->kl_loss_type,
                                     .reward_coef = (float)c->kl_coef,
                                     .use_loss = c->use_kl_loss,
                                     .loss_coef = (float)c->kl_loss_coef,
                                     .unbiased = c->use_unbiased_kl},
                              .clip = {.low = low,
                                       .high = high < 0.0f ? low : high,
                                       .dual = (float)c->eps_clip_c,
                                       .value = (float)c->value_clip},
                              .entropy_coef = (float)c->entropy_coef,
                              .per_token_loss = c->calculate_per_token_loss,
                              .constant_divisor = (float)c->loss_divisor,
                              .opd_kl_coef =
                                  invar_train_settings_distills(c) ? (float)c->opd_kl_coef : 0.0f,
                              .opsm = {.use = c->use_opsm, .delta = (float)c->opsm_delta},
                              .tis = {.use = c->use_tis,
                                      .low = (float)c->tis_clip_low,
                                      .high = (float)c->tis_clip,
                                      .mode = c->tis_mode},
                              .mis = {.use = c->use_mis,
                                      .level = c->mis_level,
                                      .mode = c->mis_mode,
                                      .low = (float)c->mis_lower_bound,
                                      .high = (float)c->mis_upper_bound,
                                      .rs = {.use = c->use_rs,
                                             .level = c->rs_level,
                                             .low = (float)c->rs_lower_bound,
                                             .high = (float)c->rs_upper_bound,
                                             .veto = (float)c->rs_veto_threshold},
                                      .batch_normalize = c->mis_batch_normalize}};
}

static void read_schedules(invar_train_settings *set, const invar_config *c)
{
    set->schedule = (invar_lr_schedule){.style = c->lr_decay_style,
                                        .lr = c->lr,
                                        .min_lr = c->min_lr,
                                        .warmup_init = c->lr_warmup_init,
                                        .warmup_steps = c->lr_warmup_iters,
                                        .decay_steps = c->lr_decay_iters};
    set->critic_schedule = set->schedule;
    set->critic_schedule.warmup_steps = c->critic_lr_warmup_iters;
    if (c->critic_lr > 0.0)
        set->critic_schedule.lr = c->critic_lr;
    set->adamw = (invar_adamw_options){.beta1 = (float)c->adam_beta1,
                                       .beta2 = (float)c->adam_beta2,
                                       .eps = (float)c->adam_eps,
                                       .weight_decay = (float)c->weight_decay,
                                       .clip_grad = (float)c->clip_grad};
}

/*
 * Returns num-rollout, or the rollouts of num-epoch epochs; an incomplete last rollout is left out.
 */
static int64_t count_rollouts(const invar_config *c, int64_t data)
{
    if (c->num_rollout || !data)
        return c->num_rollout;
    return c->num_epoch * data / c->rollout_batch_size;
}

static invar_run_schedule read_schedule(const invar_config *c, int64_t data, int64_t until)
{
    return (invar_run_schedule){.rollouts = count_rollouts(c, data),
                                .until = until,
                                .max_rollouts = c->debug_exit_after_rollout,
                                .ref_interval = c->ref_update_interval,
                                .eval_interval = c->eval_interval,
                                .save_interval = c->save_interval};
}

/*
 * Reads which weights sample what. Ranks that only sample cannot sample during training if their
 * in-flight samples must first be scored with weights that training changes. A sampling engine of
 * several ranks does not score, since its ranks would have to do so together.
 */
static invar_sample_schedule read_sampling(const invar_config *c, bool split)
{
    invar_sample_schedule s = {
        .lag = c->rollout_lag,
        .segment = c->rollout_segment_tokens,
        .recorded = invar_config_is_recorded_schedule(c),
        .max_delay = c->rollout_max_delay,
        .surplus = c->over_sampling_keep_surplus,
        .compares = c->check_logprobs && invar_train_settings_rollout_format(c) == c->dtype,
        .sampler_scores =
            c->rollout_overlap || (c->rollout_num_gpus > 0 && c->rollout_num_gpus_per_engine == 1)};

    if (c->rollout_overlap)
        s.ahead = INVAR_AHEAD_IN_THREAD;
    else if (split && s.lag > 0 && (!s.compares || s.sampler_scores))
        s.ahead = INVAR_AHEAD_ON_RANKS;
    else if (c->debug_determinism > INVAR_PROBE_STEP ||
             // the calls that a plug-in gets must not depend on probes or checkpoints
             (s.lag > 0 && c->custom_generate_function_path[0]))
        s.ahead = INVAR_AHEAD_AFTER_BATCH;
    return s;
}

void invar_train_settings_read(invar_train_settings *out, const invar_config *c, int64_t data,
                               int64_t until, bool split)
{
    *out = (invar_train_settings){
        .config = c,
        .run_schedule = read_schedule(c, data, until),
        .round = c->over_sampling_batch_size ? c->over_sampling_batch_size : c->rollout_batch_size,
        .sampling = read_sampling(c, split),
        .global_batch = invar_config_global_batch_size(c),
        .steps_per_rollout = c->debug_rollout_only ? 1 : invar_config_steps_per_rollout(c),
        .sft = invar_train_settings_supervised(c)};
    out->rl = read_rl(c);
    read_schedules(out, c);
}

bool invar_train_settings_supervised(const invar_config *c)
{
    return invar_loss_traits_of(c->loss_type)->supervised;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/*
 * Returns the default of expert-tensor-parallel-size: the ranks that divide a layer also divide
 * each expert if they divide logical-etp.
 */
static int64_t expert_tensors(const invar_config *c, int64_t tensor)
{
    return c->logical_etp % tensor == 0 ? tensor : 1;
}

invar_status invar_train_settings_sizes(invar_layout_sizes *out, const invar_config *c)
{
    int64_t expert = c->expert_tensor_parallel_size;

    if (expert == 0)
        expert = expert_tensors(c, c->tensor_model_parallel_size);
    *out = (invar_layout_sizes){.tensor = (int)c->tensor_model_parallel_size,
                                .expert_tensor = (int)expert,
                                .expert = (int)c->expert_model_parallel_size,
                                .context = (int)c->context_parallel_size,
                                .pipeline = (int)c->pipeline_model_parallel_size,
                                .virtual_stages = (int)c->num_virtual_stages_per_pipeline_rank,
                                .sequence = c->sequence_parallel};
    if (expert != 1 && expert != c->tensor_model_parallel_size)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "expert-tensor-parallel-size %d: it is 1 or that of "
                          "tensor-model-parallel-size, %d",
                          out->expert_tensor, out->tensor);
    if (out->virtual_stages > 1 && out->pipeline == 1)
        return invar_config_fail(c, INVAR_KEY_NUM_VIRTUAL_STAGES_PER_PIPELINE_RANK,
                                 "needs a pipeline-model-parallel-size of 2 or more");
    return INVAR_OK;
}

invar_status invar_train_settings_roles(invar_rank_role_sizes *out, const invar_config *c)
{
    int64_t each = c->rollout_num_gpus_per_engine;

    *out = (invar_rank_role_sizes){.rollout_ranks = (int)c->rollout_num_gpus,
                                   .rollout = {.tensor = (int)each,
                                               .expert_tensor = (int)expert_tensors(c, each),
                                               .pipeline = 1,
                                               .virtual_stages = 1,
                                               .expert = 1}};
    if (c->logical_tp % each != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout-num-gpus-per-engine = %d does not divide logical-tp = %d: take "
                          "a divisor of that, or another logical-tp, which is semantic",
                          (int)each, (int)c->logical_tp);
    return invar_train_settings_sizes(&out->train, c);
}

/* ---- models ---------------------------------------------------------------------------------- */

invar_format invar_train_settings_rollout_format(const invar_config *c)
{
    const char *word = c->rollout_dtype;
    int format = invar_choices_find(&invar_format_choices, word, strlen(word));

    return format < 0 ? c->dtype : (invar_format)format;
}

static const invar_estimator_traits *estimator_of(const invar_config *c)
{
    return invar_estimator_traits_of(c->advantage_estimator);
}

bool invar_train_settings_reference(const invar_config *c)
{
    return c->use_kl_loss || c->kl_coef > 0.0;
}

bool invar_train_settings_distills(const invar_config *c)
{
    return c->use_opd || estimator_of(c)->teacher;
}

bool invar_train_settings_teacher(const invar_config *c)
{
    return invar_train_settings_distills(c) && !c->opd_teacher_url[0];
}

bool invar_train_settings_critic(const invar_config *c)
{
    return estimator_of(c)->critic;
}
