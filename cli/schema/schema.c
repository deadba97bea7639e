/*
 * schema.c - prints JSON Schemas of recipes and of the output of commands with --json.
 *
 * Schemas of commands are embedded files of this folder. The schema of recipes is generated from
 * the key table, so it cannot miss a key. Commands with the same output share a schema.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/schema/schema.h"

#include <errno.h>
#include <string.h>

#include "base/console/spelling.h"
#include "base/embedded.h"
#include "base/text.h"
#include "cli/command.h"

#ifdef INVAR_LEDGER
#include "base/alloc.h"
#include "base/json/json.h"
#include "engine/config/config.h"
#endif

#include "base/invar_banned.h"

extern const invar_embedded invar_schema_files[];

#define RECIPE "recipe"
#define NAME_SIZE 64

/* Commands with the same output as another one. */
static const struct {
    const char *name, *as;
} others[] = {{"blame", "bisect"},
              {"bisect-view", "bisect"},
              {"bisect-resume-log", "bisect"},
              {"ledger-sql", "ledger-query"}};

#define OTHERS ((int)(sizeof others / sizeof *others))

/* ---- names ----------------------------------------------------------------------------------- */

const char *invar_schema_name(int index)
{
    static char name[NAME_SIZE];
    int files = 0;

    while (invar_schema_files[files].name)
        files++;
    if (index < files) {
        const char *file = invar_schema_files[index].name;
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(file, "."), file);
        return name;
    }
    if (index < files + OTHERS)
        return others[index - files].name;
#ifdef INVAR_LEDGER
    if (index == files + OTHERS)
        return RECIPE;
#endif
    return NULL;
}

static const invar_embedded *find_file(const char *name)
{
    for (int i = 0; i < OTHERS; i++)
        if (strcmp(name, others[i].name) == 0)
            name = others[i].as;
    for (const invar_embedded *file = invar_schema_files; file->name; file++)
        if (strncmp(file->name, name, strlen(name)) == 0 &&
            strcmp(file->name + strlen(name), ".json") == 0)
            return file;
    return NULL;
}

static invar_status fail_unknown_schema(const char *name)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];
    const char *known;
    invar_spelling spelling;

    invar_spelling_init(&spelling, name, strlen(name));
    for (int i = 0; (known = invar_schema_name(i)) != NULL; i++)
        invar_spelling_offer(&spelling, known);
    invar_text_quote(quote, sizeof quote, name, strlen(name));
    return INVAR_FAIL(INVAR_E_INVALID, 0, "no schema '%s'%s; 'invar help --schema' lists them",
                      quote, invar_spelling_hint(&spelling));
}

static invar_status write_text(FILE *out, const char *text, size_t bytes)
{
    if (fwrite(text, 1, bytes, out) != bytes)
        return INVAR_FAIL(INVAR_E_IO, errno, "cannot write the schema: %s", strerror(errno));
    return INVAR_OK;
}

/* ---- recipes --------------------------------------------------------------------------------- */

#ifdef INVAR_LEDGER

static json_t *words_of(const invar_choices *choices)
{
    json_t *list = json_array();

    for (int i = 0; i < choices->count; i++)
        (void)json_array_append_new(list, json_string(choices->words[i]));
    return list;
}

/*
 * Returns the type of a key with its limits. A missing object becomes an error when the schema is
 * written.
 */
static json_t *type_of(const invar_recipe_key *key)
{
    json_t *type;

    switch (key->type) {
    case INVAR_RECIPE_TYPE_BOOL: return json_pack("{s:s}", "type", "boolean");
    case INVAR_RECIPE_TYPE_INT:
        type = json_pack("{s:s}", "type", "integer");
        if (key->int_min != 0 || key->int_max != 0) {
            (void)json_object_set_new(type, "minimum", json_integer(key->int_min));
            (void)json_object_set_new(type, "maximum", json_integer(key->int_max));
        }
        return type;
    case INVAR_RECIPE_TYPE_FLOAT:
        type = json_pack("{s:s}", "type", "number");
        if (key->float_min != 0 || key->float_max != 0) {
            (void)json_object_set_new(type, "minimum", json_real(key->float_min));
            (void)json_object_set_new(type, "maximum", json_real(key->float_max));
        }
        return type;
    case INVAR_RECIPE_TYPE_STRING: return json_pack("{s:s}", "type", "string");
    case INVAR_RECIPE_TYPE_ENUM: break;
    }
    return json_pack("{s:o}", "enum", words_of(key->choices));
}

static json_t *default_of(const invar_recipe *recipe, int index)
{
    switch (invar_config_schema()->keys[index].type) {
    case INVAR_RECIPE_TYPE_BOOL: return json_boolean(invar_recipe_bool(recipe, index));
    case INVAR_RECIPE_TYPE_INT: return json_integer(invar_recipe_int(recipe, index));
    case INVAR_RECIPE_TYPE_FLOAT: return json_real(invar_recipe_float(recipe, index));
    case INVAR_RECIPE_TYPE_STRING:
    case INVAR_RECIPE_TYPE_ENUM: break;
    }
    return json_string(invar_config_schema()->keys[index].default_text);
}

static json_t *key_of(const invar_recipe *defaults, int index)
{
    const invar_recipe_key *key = &invar_config_schema()->keys[index];
    json_t *out = type_of(key);

    (void)json_object_set_new(out, "description", json_string(key->doc));
    (void)json_object_set_new(out, "x-effect", json_string(invar_recipe_effect_name(key->effect)));
    if (invar_config_miles((invar_key)index)[0])
        (void)json_object_set_new(out, "x-miles",
                                  json_string(invar_config_miles((invar_key)index)));
    if (key->default_text)
        (void)json_object_set_new(out, "default", default_of(defaults, index));
    return out;
}

/* Returns the keys of a section, starting at *first. Keys without a default are required. */
static json_t *section_of(const invar_recipe *defaults, int *first)
{
    const invar_recipe_schema *schema = invar_config_schema();
    const char *name = schema->keys[*first].section;
    json_t *keys = json_object(), *required = json_array(), *out;

    for (; *first < schema->count && strcmp(schema->keys[*first].section, name) == 0; ++*first) {
        const invar_recipe_key *key = &schema->keys[*first];
        (void)json_object_set_new(keys, key->name, key_of(defaults, *first));
        if (!key->default_text)
            (void)json_array_append_new(required, json_string(key->name));
    }
    out = json_pack("{s:s, s:b, s:o}", "type", "object", "additionalProperties", 0, "properties",
                    keys);
    if (json_array_size(required))
        (void)json_object_set(out, "required", required);
    json_decref(required);
    return out;
}

static invar_status write_recipe(FILE *out)
{
    const invar_recipe_schema *schema = invar_config_schema();
    json_t *sections = json_object(), *include, *whole;
    invar_recipe *defaults;
    invar_status status;
    char *text = NULL;
    size_t bytes;

    INVAR_TRY(invar_recipe_new(&defaults, schema));
    include = json_pack("{s:s, s:{s:s}, s:s}", "type", "array", "items", "type", "string",
                        "description", "recipes that are read before this one, in order");
    (void)json_object_set_new(sections, "include", include);
    for (int i = 0; i < schema->count;) {
        const char *name = schema->keys[i].section;
        (void)json_object_set_new(sections, name, section_of(defaults, &i));
    }
    invar_recipe_free(defaults);
    whole = json_pack("{s:s, s:s, s:s, s:s, s:b, s:o}", "$schema",
                      "https://json-schema.org/draft/2020-12/schema", "title", "invar recipe",
                      "description",
                      "a recipe as an object: sections, and in each its keys with typed values",
                      "type", "object", "additionalProperties", 0, "properties", sections);
    status = invar_json_dump(&text, &bytes, whole, JSON_INDENT(2), "the schema of recipes");
    json_decref(whole);
    INVAR_TRY(status);
    status = write_text(out, text, bytes);
    invar_free(text);
    return status == INVAR_OK ? write_text(out, "\n", 1) : status;
}

#endif

/* ---- output ---------------------------------------------------------------------------------- */

invar_status invar_schema_write(FILE *out, const char *name)
{
    const invar_embedded *file = find_file(name);

#ifdef INVAR_LEDGER
    if (strcmp(name, RECIPE) == 0)
        return write_recipe(out);
#endif
    if (!file)
        return fail_unknown_schema(name);
    return write_text(out, file->text, file->bytes);
}

/* Prints a schema. `ledger show` and `ledger-show` name the same one. */
int invar_schema_help(int argc, char **argv)
{
    char name[NAME_SIZE];
    const char *known;

    if (argc == 0) {
        for (int i = 0; (known = invar_schema_name(i)) != NULL; i++)
            puts(known);
        return INVAR_EXIT_OK;
    }
    (void)snprintf(name, sizeof name, "%s%s%s", argv[0], argc > 1 ? "-" : "",
                   argc > 1 ? argv[1] : "");
    if (invar_schema_write(stdout, name) != INVAR_OK)
        return invar_report_error();
    return INVAR_EXIT_OK;
}
