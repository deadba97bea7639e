/*
 * train_settings.h - what the recipe says about learning, read once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_TRAIN_SETTINGS_H
#define INVAR_ENGINE_RUN_TRAIN_SETTINGS_H

#include "base/recipe/recipe.h"
#include "engine/model/model.h"
#include "engine/ranks/layout/rank_roles.h"
#include "engine/rl/loss.h"
#include "engine/run/run_schedule.h"
#include "engine/sample/source/lag.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_train_settings {
    invar_rl_options rl;
    invar_adamw_options adamw;
    invar_lr_schedule schedule;
    invar_lr_schedule critic_schedule;
    invar_run_schedule course;
    int64_t prompts;           /* of a rollout */
    int64_t per_prompt;        /* samples of a prompt */
    int64_t round;             /* prompts of a round of sampling */
    invar_lag lag;             /* of sampling behind training */
    bool recorded;             /* a clock decides when groups are trained on, */
    int64_t max_delay;         /* at most so many rollouts after their turn */
    bool surplus;              /* groups beyond the batch are kept for the next one */
    bool off_policy;           /* so samples of older weights are trained on */
    int64_t global_batch;      /* samples of an optimizer step */
    int64_t steps_per_rollout; /* optimizer steps */
    int64_t critic_only;       /* rollouts in which the actor rests */
    bool overlap;              /* what is ahead is sampled while others are learned from */
    bool checks_flight;        /* what is in flight is scored before its weights change, */
    bool sampler_verifies;     /* by whoever draws it; else by those who train */
    bool sft, rollout_only, replay_routing, check_logprobs, rollout_logprobs, stop_on_mismatch;
    float max_logp_diff;  /* of rollout and scoring, where they may differ; 0: no bound */
    bool skip_updates;    /* no weights move */
    bool reset_optimizer; /* before each rollout */
} invar_train_settings;

/* `data` prompts (0: none), which num-epoch counts; `until` is of the course. */
void invar_train_settings_read(invar_train_settings *out, const invar_recipe *recipe, int64_t data,
                               int64_t until);

/* The answers come from the data: nothing is sampled. */
bool invar_train_settings_supervised(const invar_recipe *recipe);

/* How the recipe divides the model among ranks; INVAR_E_INVALID where its keys contradict. */
invar_status invar_train_settings_sizes(invar_layout_sizes *out,
                                        const invar_recipe *recipe) INVAR_MUST_USE;

/* The same with ranks that only sample, `rollout_ranks` of them; 0: all ranks sample. */
invar_status invar_train_settings_sides(invar_rank_role_sizes *out,
                                        const invar_recipe *recipe) INVAR_MUST_USE;

/* What is sampled in: rollout-dtype, or dtype where it is empty. */
invar_format invar_train_settings_rollout_format(const invar_recipe *recipe);

/* There is a teacher: a model of this run, or one that a server has. */
bool invar_train_settings_distills(const invar_recipe *recipe);

/* Which models beside the actor take part. */
bool invar_train_settings_reference(const invar_recipe *recipe);
bool invar_train_settings_reference_moves(const invar_recipe *recipe);
bool invar_train_settings_teacher(const invar_recipe *recipe);
bool invar_train_settings_critic(const invar_recipe *recipe);

#ifdef __cplusplus
}
#endif
#endif
