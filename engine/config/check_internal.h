/*
 * check_internal.h - what the rules of a recipe share. Private to config.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_CHECK_INTERNAL_H
#define INVAR_ENGINE_CONFIG_CHECK_INTERNAL_H

#include "engine/config/config.h"
#include "engine/rl/estimator.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What most rules ask for, once. */
typedef struct invar_config_derived {
    const invar_recipe *recipe;
    const invar_loss_traits *loss;
    const invar_estimator_traits *estimator; /* of a loss without advantages: nothing is set */
    bool sft;
    bool hf;           /* the model comes from files */
    bool task;         /* prompts of a built-in task */
    bool eval;         /* there are evaluation data sets */
    bool sampled;      /* something is generated */
    bool distills;     /* there is a teacher */
    bool plugin;       /* something is asked: a program, a shared object, a server */
    bool restarts;     /* a program is asked that may be asked the same again: no agent */
    invar_key *unused; /* which key nothing would read is put here */
} invar_config_derived;

/* True when the key was given and differs from its default: spelling out a default is no harm. */
bool invar_config_set(const invar_recipe *recipe, invar_key key);

/* True when a string is not empty. */
bool invar_config_is_nonempty(const invar_recipe *recipe, invar_key key);

/* Whether the plug-in that the key names is a shared object, not a program. */
bool invar_config_is_object(const invar_recipe *recipe, invar_key key);

/* A name of a set in eval-prompt-data: letters, digits, '-', '_', '.'. */
bool invar_config_is_set_name(const char *text, size_t bytes);

/* Fails: the key's place, its name, then `why`. */
invar_status invar_config_fail(const invar_recipe *recipe, invar_key key,
                               const char *why) INVAR_MUST_USE;

/* rollout-schedule = recorded. */
bool invar_config_recorded(const invar_recipe *recipe);

#define INVAR_CONFIG_MAX_LAG 64 /* rollouts in flight, beside the one in turn */

/* Refuses keys that do not go together yet. */
invar_status invar_config_check_together(const invar_config_derived *facts) INVAR_MUST_USE;

/* Refuses settings that nothing would read. */
invar_status invar_config_check_uses(const invar_config_derived *facts) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
