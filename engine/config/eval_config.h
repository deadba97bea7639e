/*
 * eval_config.h - evaluation sets with settings of their own: the file that eval-config names.
 *
 *     [aime]
 *     path = data/aime.jsonl
 *     n-samples-per-eval-prompt = 16
 *     temperature = 0.6
 *
 * A section is a set. A set becomes a recipe: that of the run, with the set as its eval-prompt-data
 * and the section's settings in place of its own. So whatever reads or checks a recipe does so for
 * a set.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_EVAL_CONFIG_H
#define INVAR_ENGINE_CONFIG_EVAL_CONFIG_H

#include <stddef.h>

#include "base/hash.h"
#include "base/recipe/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; release. */
typedef struct invar_eval_config {
    invar_recipe **recipes; /* (count), in the order of the file; checked */
    size_t count;
} invar_eval_config;

/* Of a checked recipe; without eval-config there are none. */
invar_status invar_eval_config_read(invar_eval_config *out,
                                    const invar_recipe *recipe) INVAR_MUST_USE;
void invar_eval_config_release(invar_eval_config *evals);

/* The settings that a section can have, as the recipe of a set has them. */
void invar_eval_config_hash(invar_hasher *hasher, const invar_recipe *recipe);

#ifdef __cplusplus
}
#endif
#endif
