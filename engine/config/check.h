/*
 * check.h - what the rules of a recipe share. Private to config.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_CHECK_H
#define INVAR_ENGINE_CONFIG_CHECK_H

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Indices of words in keys.def, where the order is not that of an enum elsewhere. */
enum { INVAR_WORD_POLICY_LOSS, INVAR_WORD_SFT_LOSS, INVAR_WORD_CUSTOM_LOSS };
enum { INVAR_WORD_TRUNCATE = 0, INVAR_WORD_CONSTANT = 0, INVAR_WORD_NO_FILTER = 0 };

/* What most rules ask for, once. */
typedef struct invar_config_facts {
    const invar_recipe *recipe;
    int loss;
    int estimator;
    bool sft;
    bool grouped; /* rewards are compared within a group */
    bool ppo;
    bool hf;       /* the model comes from files */
    bool task;     /* prompts of a built-in task */
    bool eval;     /* there are evaluation data sets */
    bool sampled;  /* something is generated */
    bool distills; /* there is a teacher */
    bool plugin;
} invar_config_facts;

/* True when the key was given and differs from its default: spelling out a default is no harm. */
bool invar_config_set(const invar_recipe *recipe, invar_key key);

/* True when a string is not empty. */
bool invar_config_filled(const invar_recipe *recipe, invar_key key);

/* Fails: the key's place, its name, then `why`. */
invar_status invar_config_refuse(const invar_recipe *recipe, invar_key key,
                                 const char *why) INVAR_MUST_USE;

/* Refuses settings that nothing would read. */
invar_status invar_config_check_uses(const invar_config_facts *facts) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
