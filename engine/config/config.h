/*
 * config.h - the recipe of a run: every key, its group, its default and whether it may change bits.
 *
 * The table is keys.def, one entry a key, included to build the enum and the schema, and checked
 * against docs/recipes.md by a test. `check` refuses impossible combinations and settings that
 * would be ignored, by key, file and line. Values are read with base/recipe/recipe.h's getters:
 * invar_recipe_int(recipe, INVAR_KEY_ROLLOUT_BATCH_SIZE).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_CONFIG_H
#define INVAR_ENGINE_CONFIG_CONFIG_H

#include "base/recipe/recipe.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_key {
    INVAR_KEY_NONE = -1, /* also makes it a signed type, as places in a recipe are */
#define INVAR_KEY(ID, ...) INVAR_KEY_##ID,
#include "engine/config/keys.def"
#undef INVAR_KEY
    INVAR_KEY_COUNT
} invar_key;

const invar_recipe_schema *invar_config_schema(void);

/* Keys and their defaults, of those that have one; returns how many. */
size_t invar_config_defaults(invar_ledger_pair out[INVAR_KEY_COUNT]);

/* Miles' (or Megatron's, SGLang's) flag for the same thing; "" where they have none. */
const char *invar_config_miles(invar_key key);

/* After all flags: recipe_check, then the combinations. */
invar_status invar_config_check(const invar_recipe *recipe) INVAR_MUST_USE;

/* Only whether something would read every key: *unused_out is the first of which that is not so. */
invar_status invar_config_check_unused(invar_key *unused_out,
                                       const invar_recipe *recipe) INVAR_MUST_USE;

/* The keys that name a plug-in: a shared object, or a command. */
const invar_key *invar_config_plugins(size_t *count_out);

/* ---- derived values -------------------------------------------------------------------------- */

/* Of a checked recipe: what 0 stands for in the two keys that follow from each other. */
int64_t invar_config_global_batch_size(const invar_recipe *recipe);
int64_t invar_config_steps_per_rollout(const invar_recipe *recipe);

/* True when it names evaluation sets. */
bool invar_config_evaluates(const invar_recipe *recipe);

/* ---- lists in a value ------------------------------------------------------------------------ */

/* Tokens of a list value "a,b,c" one after another; false at the end. *out is not terminated. */
bool invar_config_list(const char **out, size_t *bytes_out, const char **cursor);

/* The same for words, as eval-prompt-data has them: name path name "path with blanks". */
bool invar_config_words(const char **out, size_t *bytes_out, const char **cursor);

/* "7,19" as numbers, none for "". The caller owns *out (invar_free); NULL when there is none. */
invar_status invar_config_ids(int32_t **out, int64_t *count_out, const invar_recipe *recipe,
                              invar_key key) INVAR_MUST_USE;

/*
 * ["a", "b"], a JSON list of strings that are not empty; none for "". One block: the caller owns
 * *out (invar_free), which holds the texts, too; NULL when there is none.
 */
invar_status invar_config_strings(char ***out, int64_t *count_out, const invar_recipe *recipe,
                                  invar_key key) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
