/*
 * eval_config.h - evaluation sets with settings of their own: the file of the key eval-config.
 *
 *     [aime]
 *     path = data/aime.jsonl
 *     n-samples-per-eval-prompt = 16
 *     temperature = 0.6
 *
 * Each section is a set. A set becomes a recipe: that of the run, with the set as its
 * eval-prompt-data and with the section's settings. All code that reads or checks a recipe
 * therefore works for a set.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_EVAL_CONFIG_H
#define INVAR_ENGINE_CONFIG_EVAL_CONFIG_H

#include <stddef.h>

#include "base/hash.h"
#include "engine/config/config.h"

/* Evaluation sets. Zero-initialize before use; release with invar_eval_config_release. */
typedef struct invar_eval_config {
    invar_config *sets; /* (count) checked, in file order; their recipes are owned */
    size_t count;
} invar_eval_config;

/* Reads the sets of a checked configuration; *out is empty if there is no eval-config. */
invar_status invar_eval_config_read(invar_eval_config *out,
                                    const invar_config *config) INVAR_MUST_USE;
void invar_eval_config_release(invar_eval_config *evals);

/*
 * Adds the values of the settings that a section can have to a hash, from the configuration of a
 * set. A setting that is newer than recorded sets is added only if it is not its default.
 */
void invar_eval_config_hash(invar_hasher *hasher, const invar_config *config);

#endif
