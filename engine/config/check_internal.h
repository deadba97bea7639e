/*
 * check_internal.h - functions and derived values that the checks of a recipe share. Private to
 * engine/config/.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_CHECK_INTERNAL_H
#define INVAR_ENGINE_CONFIG_CHECK_INTERNAL_H

#include "engine/config/config.h"
#include "engine/rl/estimator.h"

/* Properties of a recipe that several checks use, computed once. */
typedef struct invar_config_derived {
    const invar_config *config;
    const invar_loss_traits *loss;
    const invar_estimator_traits *estimator; /* all zero for a loss without advantages */
    bool sft;
    bool hf;           /* the model is loaded from files */
    bool task;         /* prompts come from a built-in task */
    bool eval;         /* evaluation sets exist */
    bool sampled;      /* samples are generated */
    bool distills;     /* a teacher is used */
    bool plugin;       /* a plug-in or server is used */
    bool restarts;     /* a program is used that may be restarted; agents may not */
    invar_key *unused; /* output: first key that has no effect */
} invar_config_derived;

/*
 * Returns true if the key was given and differs from its default; spelling out a default is
 * allowed.
 */
bool invar_config_set(const invar_config *config, invar_key key);

/* Returns true if the text names a shared object, not a program. */
bool invar_config_is_object(const char *text);

/* Returns true for a valid name of an evaluation set: letters, digits, '-', '_', '.'. */
bool invar_config_is_set_name(const char *text, size_t bytes);

/* Fails with the origin of the key, its name, and `why`. */
invar_status invar_config_fail(const invar_config *config, invar_key key,
                               const char *why) INVAR_MUST_USE;

/* Returns true if rollout-schedule = recorded. */
bool invar_config_is_recorded_schedule(const invar_config *config);

#define INVAR_CONFIG_MAX_LAG 64 /* largest rollout-lag + rollout-max-delay, in rollouts */

/* Rejects combinations of keys that are not supported yet. */
invar_status invar_config_check_conflicts(const invar_config_derived *derived) INVAR_MUST_USE;

/* Rejects settings without effect. */
invar_status invar_config_check_no_effect(const invar_config_derived *derived) INVAR_MUST_USE;

#endif
