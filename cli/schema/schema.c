/*
 * schema.c - prints JSON Schemas of recipes and of the output of commands with --json.
 *
 * The schema of a command is made from the members of its result, from which its output is written,
 * and the schema of recipes from the key table, so neither can miss a member.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/schema/schema.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/spelling.h"
#include "base/json/json.h"
#include "base/json/result.h"
#include "base/text.h"
#include "cli/command.h"
#include "engine/config/config.h"

#include "base/invar_banned.h"

#define RECIPE "recipe"
#define TITLE_SIZE 64
#define DRAFT "https://json-schema.org/draft/2020-12/schema"

/* The commands with --json, a subcommand after a dash. */
static const char names[] =
    "ab bench bisect bug-report ci-check ci-review ci-status diff doctor eval generate"
    " ledger-backup ledger-import ledger-ls ledger-query ledger-show ledger-verify plan replay"
    " score selfcheck train triage version blame bisect-view bisect-resume-log ledger-sql " RECIPE;

/* ---- names ----------------------------------------------------------------------------------- */

/* Returns the result of the command of this name below `list`, or NULL; extends its title. */
static const char *find_result(char title[TITLE_SIZE], const char *name,
                               const invar_cli_command *const *list)
{
    size_t used = strlen(title);

    for (; *list; list++) {
        size_t length = strlen((*list)->name);
        if (strncmp(name, (*list)->name, length) != 0)
            continue;
        (void)snprintf(title + used, TITLE_SIZE - used, " %s", (*list)->name);
        if (name[length] == '\0')
            return (*list)->result;
        if (name[length] == '-' && (*list)->subcommands)
            return find_result(title, name + length + 1, (*list)->subcommands);
    }
    return NULL;
}

static const char *result_of(char title[TITLE_SIZE], const char *name)
{
    (void)snprintf(title, TITLE_SIZE, "invar");
    return find_result(title, name, invar_cmds);
}

const char *invar_schema_name(int index)
{
    static char name[TITLE_SIZE];
    char title[TITLE_SIZE];
    const char *cursor = names, *word;
    size_t bytes;

    while (invar_text_item(&word, &bytes, &cursor, ' ')) {
        (void)snprintf(name, sizeof name, "%.*s", (int)bytes, word);
        if ((strcmp(name, RECIPE) == 0 || result_of(title, name)) && index-- == 0)
            return name;
    }
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

/* Writes a schema and releases it. */
static invar_status write_schema(FILE *out, json_t *schema)
{
    invar_status status;
    size_t bytes;
    char *text;

    status = invar_json_dump(&text, &bytes, schema, JSON_INDENT(2), "the schema");
    json_decref(schema);
    INVAR_TRY(status);
    if (fwrite(text, 1, bytes, out) != bytes || fputc('\n', out) == EOF)
        status = INVAR_FAIL(INVAR_E_IO, errno, "cannot write the schema: %s", strerror(errno));
    invar_free(text);
    return status;
}

/* ---- recipes --------------------------------------------------------------------------------- */

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

    INVAR_TRY(invar_recipe_new(&defaults, schema));
    include = json_pack("{s:s, s:{s:s}, s:s}", "type", "array", "items", "type", "string",
                        "description", "recipes that are read before this one, in order");
    (void)json_object_set_new(sections, "include", include);
    for (int i = 0; i < schema->count;) {
        const char *name = schema->keys[i].section;
        (void)json_object_set_new(sections, name, section_of(defaults, &i));
    }
    invar_recipe_free(defaults);
    whole = json_pack("{s:s, s:s, s:s, s:s, s:b, s:o}", "$schema", DRAFT, "title", "invar recipe",
                      "description",
                      "a recipe as an object: sections, and in each its keys with typed values",
                      "type", "object", "additionalProperties", 0, "properties", sections);
    return write_schema(out, whole);
}

/* ---- output ---------------------------------------------------------------------------------- */

invar_status invar_schema_write(FILE *out, const char *name)
{
    char title[TITLE_SIZE];
    const char *result;
    json_t *schema, *members;

    if (strcmp(name, RECIPE) == 0)
        return write_recipe(out);
    result = result_of(title, name);
    if (!result)
        return fail_unknown_schema(name);
    schema = json_pack("{s:s, s:o}", "$schema", DRAFT, "title", json_sprintf("%s --json", title));
    members = invar_result_schema(result);
    (void)json_object_update(schema, members);
    json_decref(members);
    return write_schema(out, schema);
}

/* Prints a schema. `ledger show` and `ledger-show` name the same one. */
int invar_schema_help(int argc, char **argv)
{
    char name[TITLE_SIZE];
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
