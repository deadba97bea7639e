/*
 * config.c - builds the recipe schema from keys.def, reads recipes, and parses list values.
 *
 * keys.def is included for the schema, for the flags of Miles and for the fields. Removed keys stay
 * in the schema with the keys that replace them, so that old recipes get a helpful error.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/config.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "base/text.h"
#include "engine/config/choices.h"
#include "engine/model/model.h"
#include "engine/rl/loss.h"
#include "engine/rl/reward/reward.h"

#include "base/invar_banned.h"

#define MAX_ITEMS 1024 /* limit of the items of a list value */

/* ---- the schema ------------------------------------------------------------------------------ */

#define ANY .int_min = 0
#define INTS(low, high) .int_min = (low), .int_max = (high)
#define FLOATS(low, high) .float_min = (low), .float_max = (high)
#define WORDS(TYPE) .choices = &TYPE##_choices

static const invar_recipe_key keys[INVAR_KEY_COUNT] = {
#define INVAR_KEY(ID, FIELD, SECTION, NAME, TYPE, EFFECT, FALLBACK, LIMITS, MILES, ...)            \
    {.section = (SECTION),                                                                         \
     .name = (NAME),                                                                               \
     .type = INVAR_RECIPE_TYPE_##TYPE,                                                             \
     .effect = INVAR_RECIPE_EFFECT_##EFFECT,                                                       \
     .default_text = (FALLBACK),                                                                   \
     LIMITS,                                                                                       \
     .doc = __VA_ARGS__}, /* doc, and see if the row has it */
#include "engine/config/keys.def"
#undef INVAR_KEY
};

static const char *const miles[INVAR_KEY_COUNT] = {
#define INVAR_KEY(ID, FIELD, SECTION, NAME, TYPE, EFFECT, FALLBACK, LIMITS, MILES, ...) MILES,
#include "engine/config/keys.def"
#undef INVAR_KEY
};

const invar_recipe_schema *invar_config_schema(void)
{
    static const invar_recipe_removed_key gone[] = {
        {"samples-per-unit", "unit-rows and unit-count"}};
    static const invar_recipe_schema schema = {keys, INVAR_KEY_COUNT, gone,
                                               sizeof gone / sizeof *gone};

    return &schema;
}

size_t invar_config_defaults(invar_ledger_pair out[INVAR_KEY_COUNT])
{
    size_t count = 0;

    for (int i = 0; i < INVAR_KEY_COUNT; i++)
        if (keys[i].default_text)
            out[count++] = (invar_ledger_pair){keys[i].name, keys[i].default_text};
    return count;
}

const char *invar_config_miles(invar_key key)
{
    return miles[key];
}

/* ---- fields ---------------------------------------------------------------------------------- */

#undef WORDS
#define READ_BOOL(key, ...) invar_recipe_bool(recipe, key)
#define READ_INT(key, ...) invar_recipe_int(recipe, key)
#define READ_FLOAT(key, ...) invar_recipe_float(recipe, key)
#define READ_STRING(key, ...) invar_recipe_string(recipe, key)
#define READ_ENUM(key, limits)                                                                     \
    (INVAR_CONFIG_##limits) invar_recipe_enum(recipe, key, keys[key].choices)

static bool has_value(const invar_recipe *recipe, invar_key key)
{
    invar_recipe_entry e;

    invar_recipe_entry_get(&e, recipe, key);
    return e.source != INVAR_RECIPE_SOURCE_NONE;
}

const invar_config *invar_config_read(invar_config *out, invar_recipe *recipe)
{
    *out = (invar_config){.recipe = recipe};
#define INVAR_KEY(ID, FIELD, SECTION, NAME, TYPE, EFFECT, FALLBACK, LIMITS, ...)                   \
    if (has_value(recipe, INVAR_KEY_##ID))                                                         \
        out->FIELD = READ_##TYPE(INVAR_KEY_##ID, LIMITS);
#include "engine/config/keys.def"
#undef INVAR_KEY
    return out;
}

/* ---- derived values -------------------------------------------------------------------------- */

static int64_t samples_of_rollout(const invar_config *config)
{
    return config->rollout_batch_size * config->n_samples_per_prompt;
}

int64_t invar_config_steps_per_rollout(const invar_config *config)
{
    int64_t steps = config->num_steps_per_rollout;
    int64_t batch = config->global_batch_size;

    if (steps > 0)
        return steps;
    return batch > 0 ? samples_of_rollout(config) / batch : 1;
}

int64_t invar_config_global_batch_size(const invar_config *config)
{
    return samples_of_rollout(config) / invar_config_steps_per_rollout(config);
}

bool invar_config_evaluates(const invar_config *config)
{
    return config->eval_prompt_data[0] || config->eval_config[0];
}

/* ---- lists in a value ------------------------------------------------------------------------ */

bool invar_config_list(const char **out, size_t *bytes_out, const char **cursor)
{
    return invar_text_item(out, bytes_out, cursor, ',');
}

bool invar_config_words(const char **out, size_t *bytes_out, const char **cursor)
{
    return invar_text_word(out, bytes_out, cursor);
}

static bool parse_id(int32_t *out, const char *text, size_t bytes)
{
    int64_t value = 0;

    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9' || value > INT32_MAX)
            return false;
        value = value * 10 + (text[i] - '0');
    }
    *out = (int32_t)value;
    return value <= INT32_MAX;
}

invar_status invar_config_ids(int32_t **out, int64_t *count_out, const invar_config *config,
                              invar_key key)
{
    const char *cursor, *item;
    invar_recipe_entry entry;
    int32_t ids[MAX_ITEMS];
    size_t bytes;
    int64_t count = 0;

    *out = NULL;
    *count_out = 0;
    invar_recipe_entry_get(&entry, config->recipe, key);
    cursor = entry.text;
    while (invar_config_list(&item, &bytes, &cursor)) {
        if (count == MAX_ITEMS)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: '%s' has more than %d tokens", entry.origin,
                              entry.key->name, MAX_ITEMS);
        if (!parse_id(&ids[count], item, bytes))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: '%s': expected token ids as in 7,19, found '%s'", entry.origin,
                              entry.key->name,
                              INVAR_QUOTED_BYTES(INVAR_TEXT_QUOTE_SIZE, item, bytes));
        count++;
    }
    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(*out, (size_t)count, entry.key->name));
    memcpy(*out, ids, (size_t)count * sizeof *ids);
    *count_out = count;
    return INVAR_OK;
}

/* Copies the strings of a list to one allocation: pointers, then texts. */
static invar_status copy_strings(char ***out, int64_t *count_out, const json_t *list,
                                 const invar_recipe_entry *entry)
{
    size_t count = json_array_size(list), bytes = 0;
    char **strings, *text;

    if (!json_is_array(list) || count > MAX_ITEMS)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: '%s': expected a JSON list of at most %d strings, as [\"###\"]",
                          entry->origin, entry->key->name, MAX_ITEMS);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        size_t length = json_string_length(item);

        if (length == 0 || strlen(json_string_value(item)) != length)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: '%s': item %zu is no string, or an empty one", entry->origin,
                              entry->key->name, i + 1);
        bytes += length + 1;
    }
    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC_SIZED(strings, count * sizeof *strings + bytes, 1, entry->key->name));
    text = (char *)(strings + count);
    for (size_t i = 0; i < count; i++) {
        size_t length = json_string_length(json_array_get(list, i));
        memcpy(text, json_string_value(json_array_get(list, i)), length + 1);
        strings[i] = text;
        text += length + 1;
    }
    *out = strings;
    *count_out = (int64_t)count;
    return INVAR_OK;
}

invar_status invar_config_strings(char ***out, int64_t *count_out, const invar_config *config,
                                  invar_key key)
{
    INVAR_AUTO_JSON json_t *list = NULL;
    invar_recipe_entry entry;

    *out = NULL;
    *count_out = 0;
    invar_recipe_entry_get(&entry, config->recipe, key);
    if (entry.text[0] == '\0')
        return INVAR_OK;
    INVAR_TRY(invar_json_parse(&list, entry.origin, entry.text, strlen(entry.text)));
    return copy_strings(out, count_out, list, &entry);
}
