/*
 * config.h - configuration of a run: every key of a recipe as a typed field, and the checks.
 *
 * The table is keys.def, one entry per key, which is included to build the enum, the schema and
 * invar_config; invar_pages writes docs/keys.md from it. The text of a recipe is read once
 * (invar_config_read), and everything else reads fields: config->rollout_batch_size. The checks
 * reject impossible combinations and settings without effect, and name key, file and line.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_CONFIG_H
#define INVAR_ENGINE_CONFIG_CONFIG_H

#include "base/recipe/recipe.h"
#include "engine/config/choices.h"
#include "engine/model/format.h"
#include "engine/model/spec/spec.h"
#include "engine/rl/loss.h"
#include "kernels-deterministic/device.h"
#include "ledger/ledger.h"

typedef enum invar_key {
    INVAR_KEY_NONE = -1, /* makes the enum signed, too, like indices of keys in a recipe */
#define INVAR_KEY(ID, ...) INVAR_KEY_##ID,
#include "engine/config/keys.def"
#undef INVAR_KEY
    INVAR_KEY_COUNT
} invar_key;

/* C types of the fields, by the type of the key; that of a word is the enum of its limits. */
#define INVAR_CONFIG_BOOL(LIMITS) bool
#define INVAR_CONFIG_INT(LIMITS) int64_t
#define INVAR_CONFIG_FLOAT(LIMITS) double
#define INVAR_CONFIG_STRING(LIMITS) const char *
#define INVAR_CONFIG_ENUM(LIMITS) INVAR_CONFIG_##LIMITS
#define INVAR_CONFIG_WORDS(TYPE) TYPE

/* Values of all keys. Immutable, once read; texts are those of the recipe. */
typedef struct invar_config {
    invar_recipe *recipe; /* text and origin of the values; who made it frees it */
#define INVAR_KEY(ID, FIELD, SECTION, NAME, TYPE, EFFECT, FALLBACK, LIMITS, ...)                   \
    INVAR_CONFIG_##TYPE(LIMITS) FIELD;
#include "engine/config/keys.def"
#undef INVAR_KEY
} invar_config;

/*
 * Reads all keys of a recipe, and returns `out`. A required key without a value, in a recipe that
 * has not been checked, is 0.
 */
const invar_config *invar_config_read(invar_config *out, invar_recipe *recipe);

/* Returns the schema of recipes; static. */
const invar_recipe_schema *invar_config_schema(void);

/* Fills `out` with the keys that have a default, and their defaults; returns their number. */
size_t invar_config_defaults(invar_ledger_pair out[INVAR_KEY_COUNT]);

/*
 * Flag of Miles, Megatron-LM or SGLang with the same meaning, without its dashes; empty if they
 * have no such flag.
 */
const char *invar_config_miles(invar_key key);

/*
 * Checks a complete recipe: each value (invar_recipe_check), then the combinations. Call after all
 * flags were set.
 */
invar_status invar_config_check(const invar_config *config) INVAR_MUST_USE;

/*
 * Checks only whether each key has an effect. Fails for the first key without one, which
 * *unused_out names; it is INVAR_KEY_NONE if all have an effect, or after another failure.
 */
invar_status invar_config_check_unused(invar_key *unused_out,
                                       const invar_config *config) INVAR_MUST_USE;

/* A key whose value is a text, and its value. */
typedef struct invar_config_text {
    invar_key key;
    const char *text;
} invar_config_text;

/* ---- derived values -------------------------------------------------------------------------- */

/*
 * Values of global-batch-size and num-steps-per-rollout in a checked recipe. If one of the keys is
 * 0, its value follows from the other; if both are, a rollout is one step.
 */
int64_t invar_config_global_batch_size(const invar_config *config);
int64_t invar_config_steps_per_rollout(const invar_config *config);

/* Returns true if the recipe has evaluation sets. */
bool invar_config_evaluates(const invar_config *config);

/* ---- lists in a value ------------------------------------------------------------------------ */

/*
 * Iterates over a list value "a,b,c". *cursor is the value at first. Returns false at the end. *out
 * is not NUL-terminated.
 */
bool invar_config_list(const char **out, size_t *bytes_out, const char **cursor);

/*
 * Like invar_config_list, for words separated by blanks, as in eval-prompt-data: name path name
 * "path with blanks".
 */
bool invar_config_words(const char **out, size_t *bytes_out, const char **cursor);

/*
 * Parses "7,19" as token ids. *out is NULL if the list is empty; the caller frees it with
 * invar_free.
 */
invar_status invar_config_ids(int32_t **out, int64_t *count_out, const invar_config *config,
                              invar_key key) INVAR_MUST_USE;

/*
 * Parses a JSON list of non-empty strings, ["a", "b"]. *out is one allocation with pointers and
 * texts, which the caller frees with invar_free; NULL if the list or the value is empty.
 */
invar_status invar_config_strings(char ***out, int64_t *count_out, const invar_config *config,
                                  invar_key key) INVAR_MUST_USE;

#endif
