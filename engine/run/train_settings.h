/*
 * train_settings.h - training settings derived from several keys, once when a run begins.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_TRAIN_SETTINGS_H
#define INVAR_ENGINE_RUN_TRAIN_SETTINGS_H

#include "engine/config/config.h"
#include "engine/model/model.h"
#include "engine/ranks/layout/rank_roles.h"
#include "engine/rl/loss.h"
#include "engine/run/run_schedule.h"
#include "engine/sample/source/sample_schedule.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/optimizer.h"

typedef struct invar_train_settings {
    const invar_config *config; /* borrowed */
    invar_rl_options rl;
    invar_adamw_options adamw;
    invar_lr_schedule schedule;
    invar_lr_schedule critic_schedule;
    invar_run_schedule run_schedule; /* intervals and limits of the run */
    int64_t round;                   /* prompts per sampling round */
    invar_sample_schedule sampling;  /* the weight version that samples each token */
    int64_t global_batch;            /* samples per optimizer step */
    int64_t steps_per_rollout; /* optimizer steps per rollout; 1 with debug-rollout-only, which has
                                  an entry in the ledger per rollout */
    bool sft;
} invar_train_settings;

/*
 * Reads the settings. `data` is the number of prompts, which num-epoch counts; 0 if unknown.
 * `until` is that of invar_run_schedule. `split` says that some ranks of this run only sample.
 */
void invar_train_settings_read(invar_train_settings *out, const invar_config *config, int64_t data,
                               int64_t until, bool split);

/* True for supervised training: the answers come from the data and nothing is sampled. */
bool invar_train_settings_supervised(const invar_config *config);

/*
 * *out = how the recipe divides the model over ranks. Returns INVAR_E_INVALID if its keys
 * contradict each other.
 */
invar_status invar_train_settings_sizes(invar_layout_sizes *out,
                                        const invar_config *config) INVAR_MUST_USE;

/*
 * Like invar_train_settings_sizes, and also for ranks that only sample: out->rollout_ranks of them,
 * 0 if all ranks sample.
 */
invar_status invar_train_settings_roles(invar_rank_role_sizes *out,
                                        const invar_config *config) INVAR_MUST_USE;

/* Returns the format of sampling: rollout-dtype, or dtype if it is empty. */
invar_format invar_train_settings_rollout_format(const invar_config *config);

/* True if there is a teacher: a model of this run, or one behind a server. */
bool invar_train_settings_distills(const invar_config *config);

/* True if the run has this model besides the actor. */
bool invar_train_settings_reference(const invar_config *config);
bool invar_train_settings_teacher(const invar_config *config);
bool invar_train_settings_critic(const invar_config *config);

#endif
