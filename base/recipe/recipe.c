/*
 * recipe.c - recipes: strict INI files, read against a schema of typed keys.
 *
 * Each line is checked against the schema as it is read (lines.c), without a tree of raw text. So
 * an error can name its location, and memory is bounded by the schema and the limits, whatever the
 * file contains.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/recipe/recipe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/spelling.h"
#include "base/file.h"
#include "base/recipe/lines.h"
#include "base/recipe/value.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define ORIGIN_SIZE (INVAR_PATH_SHOWN_SIZE + 12) /* "file:line" or a flag */
#define WHERE_SIZE (ORIGIN_SIZE + INVAR_RECIPE_MAX_NAME + 3)

/* The location of a section or key, for the message about a duplicate in the same file. */
typedef struct source_line {
    int file, line; /* numbers counted from 1; 0 if it has not occurred */
} source_line;

typedef struct slot {
    invar_recipe_value value;
    invar_recipe_source source;
    source_line said;
    char origin[ORIGIN_SIZE];
} slot;

struct invar_recipe {
    const invar_recipe_schema *schema;
    slot *slots;           /* (schema->count) values; owned */
    source_line *sections; /* (schema->count) location of a section, at its first key; owned */
    int section;           /* index of the first key of the current section */
    bool parsed;           /* a file was read */
    bool flagged;          /* a flag was set */
    char file[INVAR_PATH_SHOWN_SIZE]; /* path of the file, as shown in messages */
};

typedef invar_recipe_span span;

/* ---- names ----------------------------------------------------------------------------------- */

static span span_of(const char *text)
{
    return (span){text, strlen(text)};
}

static int find_key(const invar_recipe_schema *schema, span name)
{
    for (int i = 0; i < schema->count; i++) {
        if (invar_recipe_span_is(name, schema->keys[i].name))
            return i;
    }
    return -1;
}

/* Returns the index of the section's first key; -1 if the section is unknown. */
static int find_section(const invar_recipe_schema *schema, span name)
{
    for (int i = 0; i < schema->count; i++) {
        if (invar_recipe_span_is(name, schema->keys[i].section))
            return i;
    }
    return -1;
}

const char *invar_recipe_effect_name(invar_recipe_effect effect)
{
    static const char *const names[] = {[INVAR_RECIPE_EFFECT_SEMANTIC] = "semantic",
                                        [INVAR_RECIPE_EFFECT_SEMANTIC_IF_SET] = "semantic if set",
                                        [INVAR_RECIPE_EFFECT_FREE] = "free"};

    return names[effect];
}

int invar_recipe_find(const invar_recipe_schema *schema, const char *name)
{
    return find_key(schema, span_of(name));
}

const char *invar_recipe_replacement(const invar_recipe_schema *schema, const char *name,
                                     size_t length)
{
    for (int i = 0; i < schema->n_gone; i++)
        if (invar_recipe_span_is((span){name, length}, schema->removed_keys[i].name))
            return schema->removed_keys[i].instead;
    return NULL;
}

/* Returns " (did you mean 'x'?)", " (gone: use x)", or an empty text if no name is near. */
static const char *suggest_name(invar_spelling *spelling, const invar_recipe_schema *schema,
                                span name, bool sections)
{
    const char *instead =
        sections ? NULL : invar_recipe_replacement(schema, name.start, name.length);

    if (instead) {
        (void)snprintf(spelling->hint, sizeof spelling->hint, " (gone: use %s)", instead);
        return spelling->hint;
    }
    invar_spelling_init(spelling, name.start, name.length);
    for (int i = 0; i < schema->count; i++)
        invar_spelling_offer(spelling, sections ? schema->keys[i].section : schema->keys[i].name);
    return invar_spelling_hint(spelling);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Replaces a value; a failure leaves the old one. */
static invar_status assign_value(invar_recipe *recipe, int key, span text,
                                 invar_recipe_source source, const char *origin, const char *where)
{
    slot *s = &recipe->slots[key];
    invar_recipe_value value;

    INVAR_TRY(invar_recipe_value_parse(&value, &recipe->schema->keys[key], text.start, text.length,
                                       where));
    invar_free(s->value.text);
    s->value = value;
    s->source = source;
    snprintf(s->origin, sizeof s->origin, "%s", origin);
    return INVAR_OK;
}

/* Checks a key of the schema, so that a mistake in the schema does not become a wrong value. */
static invar_status check_schema_key(const invar_recipe_schema *schema, int index)
{
    const invar_recipe_key *key = &schema->keys[index];
    int section = find_section(schema, span_of(key->section));

    if (!invar_recipe_is_name(span_of(key->name)) || !invar_recipe_is_name(span_of(key->section)))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "recipe schema: '%s' in [%s] is not a valid name",
                          key->name, key->section);
    if (find_key(schema, span_of(key->name)) != index)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "recipe schema: two keys '%s'", key->name);
    if (section != index && strcmp(schema->keys[index - 1].section, key->section) != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "recipe schema: '%s' stands apart from [%s]",
                          key->name, key->section);
    if (key->effect == INVAR_RECIPE_EFFECT_SEMANTIC_IF_SET && !key->default_text)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "recipe schema: '%s' came later and has no default",
                          key->name);
    if (!key->doc || (key->type == INVAR_RECIPE_TYPE_ENUM && !key->choices))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "recipe schema: '%s' lacks its doc or its choices",
                          key->name);
    return INVAR_OK;
}

static invar_status assign_default(invar_recipe *recipe, int index)
{
    const invar_recipe_key *key = &recipe->schema->keys[index];
    char where[WHERE_SIZE];

    if (!key->default_text)
        return INVAR_OK;
    snprintf(where, sizeof where, "recipe schema: %s", key->name);
    return assign_value(recipe, index, span_of(key->default_text), INVAR_RECIPE_SOURCE_DEFAULT,
                        "default", where);
}

static invar_status fill_defaults(invar_recipe *recipe)
{
    for (int i = 0; i < recipe->schema->count; i++) {
        INVAR_TRY(check_schema_key(recipe->schema, i));
        INVAR_TRY(assign_default(recipe, i));
    }
    return INVAR_OK;
}

invar_status invar_recipe_new(invar_recipe **out, const invar_recipe_schema *schema)
{
    size_t count = (size_t)schema->count;
    invar_recipe *recipe;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(recipe, 1, "recipe"));
    recipe->schema = schema;
    status = INVAR_ALLOC(recipe->slots, count, "recipe");
    if (status != INVAR_OK)
        goto done;
    memset(recipe->slots, 0, count * sizeof *recipe->slots);
    status = INVAR_ALLOC(recipe->sections, count, "recipe");
    if (status != INVAR_OK)
        goto done;
    memset(recipe->sections, 0, count * sizeof *recipe->sections);
    status = fill_defaults(recipe);
done:
    if (status == INVAR_OK)
        *out = recipe;
    else
        invar_recipe_free(recipe);
    return status;
}

void invar_recipe_free(invar_recipe *recipe)
{
    if (!recipe)
        return;
    for (int i = 0; recipe->slots && i < recipe->schema->count; i++)
        invar_free(recipe->slots[i].value.text);
    invar_free(recipe->slots);
    invar_free(recipe->sections);
    invar_free(recipe);
}

/* ---- the file -------------------------------------------------------------------------------- */

static invar_status read_section(void *payload, const invar_recipe_location *at, span name)
{
    invar_recipe *recipe = payload;
    int section = find_section(recipe->schema, name);
    invar_spelling spelling;
    source_line *begun;

    if (section < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: unknown section [%.*s]%s", at->file, at->line,
                          (int)name.length, name.start,
                          suggest_name(&spelling, recipe->schema, name, true));
    begun = &recipe->sections[section];
    if (begun->file == at->number)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: section [%.*s] is already in line %d",
                          at->file, at->line, (int)name.length, name.start, begun->line);
    *begun = (source_line){at->number, at->line};
    recipe->section = section;
    return INVAR_OK;
}

/* Finds the key of this name, which must belong to the current section and be new in the file. */
static invar_status locate_key(int *out, const invar_recipe *recipe,
                               const invar_recipe_location *at, span name)
{
    const invar_recipe_key *keys = recipe->schema->keys;
    invar_spelling spelling;
    int key = find_key(recipe->schema, name);

    if (key >= 0 && strcmp(keys[key].section, keys[recipe->section].section) != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: key '%s' belongs to [%s], not to [%s]",
                          at->file, at->line, keys[key].name, keys[key].section,
                          keys[recipe->section].section);
    if (key < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: unknown key '%.*s'%s", at->file, at->line,
                          (int)name.length, name.start,
                          suggest_name(&spelling, recipe->schema, name, false));
    if (recipe->slots[key].said.file == at->number)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: key '%s' is already in line %d", at->file,
                          at->line, keys[key].name, recipe->slots[key].said.line);
    *out = key;
    return INVAR_OK;
}

static invar_status read_key(void *payload, const invar_recipe_location *at, span name, span value)
{
    invar_recipe *recipe = payload;
    char origin[ORIGIN_SIZE], where[WHERE_SIZE];
    int key = -1;

    INVAR_TRY(locate_key(&key, recipe, at, name));
    snprintf(origin, sizeof origin, "%s:%d", at->file, at->line);
    snprintf(where, sizeof where, "%s: %s", origin, recipe->schema->keys[key].name);
    INVAR_TRY(assign_value(recipe, key, value, INVAR_RECIPE_SOURCE_FILE, origin, where));
    recipe->slots[key].said = (source_line){at->number, at->line};
    return INVAR_OK;
}

invar_status invar_recipe_parse_with_includes(invar_recipe *recipe, const char *file,
                                              const char *text, size_t bytes,
                                              invar_recipe_open_fn open, void *files)
{
    const invar_recipe_line_callbacks visitor = {
        .section = read_section, .key = read_key, .payload = recipe, .open = open, .files = files};

    if (recipe->parsed || recipe->flagged)
        return INVAR_FAIL(INVAR_E_STATE, 0, "recipe: the file comes once, before all flags");
    recipe->parsed = true;
    invar_path_show(recipe->file, file);
    return invar_recipe_read_lines(&visitor, file, text, bytes);
}

invar_status invar_recipe_parse(invar_recipe *recipe, const char *file, const char *text,
                                size_t bytes)
{
    return invar_recipe_parse_with_includes(recipe, file, text, bytes, NULL, NULL);
}

/* Reads at most one byte more than the maximum size, so that a longer file is noticed. */
static invar_status load_file(char *text, size_t *bytes_out, const char *path, const char *file)
{
    FILE *stream = fopen(path, "rb");
    char whole[INVAR_PATH_HINT_SIZE];
    int code = errno;
    invar_status status = INVAR_OK;

    invar_path_absolute_hint(whole, path);
    if (!stream)
        return INVAR_FAIL(INVAR_E_IO, code, "%s: cannot be opened: %s%s", file, strerror(code),
                          code == ENOENT ? whole : "");
    *bytes_out = fread(text, 1, INVAR_RECIPE_MAX_BYTES + 1, stream);
    if (ferror(stream))
        status = INVAR_FAIL(INVAR_E_IO, errno, "%s: cannot be read: %s", file, strerror(errno));
    fclose(stream);
    return status;
}

static invar_status read_file(invar_recipe *recipe, const char *path, invar_recipe_open_fn open)
{
    INVAR_AUTO_FREE char *text = NULL;
    size_t bytes;

    invar_path_show(recipe->file, path);
    INVAR_TRY(INVAR_ALLOC(text, INVAR_RECIPE_MAX_BYTES + 1, recipe->file));
    INVAR_TRY(load_file(text, &bytes, path, recipe->file));
    return invar_recipe_parse_with_includes(recipe, path, text, bytes, open, NULL);
}

invar_status invar_recipe_read(invar_recipe *recipe, const char *path)
{
    return read_file(recipe, path, NULL);
}

invar_status invar_recipe_read_with_includes(invar_recipe *recipe, const char *path)
{
    return read_file(recipe, path, invar_recipe_open_file);
}

/* ---- flags and results ----------------------------------------------------------------------- */

invar_status invar_recipe_set(invar_recipe *recipe, const char *name, const char *value,
                              const char *origin)
{
    char place[ORIGIN_SIZE];
    invar_spelling spelling;
    int key = invar_recipe_find(recipe->schema, name);

    invar_text_quote(place, sizeof place, origin, strlen(origin));
    if (key < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: unknown key '%s'%s", place, INVAR_QUOTED(name),
                          suggest_name(&spelling, recipe->schema, span_of(name), false));
    if (recipe->slots[key].source == INVAR_RECIPE_SOURCE_FLAG)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the key '%s' is already set by %s", place, name,
                          recipe->slots[key].origin);
    INVAR_TRY(assign_value(recipe, key, span_of(value), INVAR_RECIPE_SOURCE_FLAG, place, place));
    recipe->flagged = true;
    return INVAR_OK;
}

invar_status invar_recipe_reset(invar_recipe *recipe)
{
    INVAR_CHECK(!recipe->parsed); // a flag overwrites the value of the file
    for (int i = 0; i < recipe->schema->count; i++) {
        slot *s = &recipe->slots[i];

        if (s->source != INVAR_RECIPE_SOURCE_FLAG)
            continue;
        invar_free(s->value.text);
        *s = (slot){.value = {.text = NULL}};
        INVAR_TRY(assign_default(recipe, i));
    }
    recipe->flagged = false;
    return INVAR_OK;
}

invar_status invar_recipe_check(const invar_recipe *recipe)
{
    for (int i = 0; i < recipe->schema->count; i++) {
        const invar_recipe_key *key = &recipe->schema->keys[i];
        if (!recipe->slots[i].value.text)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: key '%s' in [%s] is missing (%s)",
                              recipe->parsed ? recipe->file : "recipe", key->name, key->section,
                              key->doc);
    }
    return INVAR_OK;
}

static const invar_recipe_value *get_value(const invar_recipe *recipe, int key,
                                           invar_recipe_type type)
{
    INVAR_CHECK(key >= 0 && key < recipe->schema->count);
    INVAR_CHECK(recipe->schema->keys[key].type == type);
    INVAR_CHECK(recipe->slots[key].source != INVAR_RECIPE_SOURCE_NONE);
    return &recipe->slots[key].value;
}

bool invar_recipe_bool(const invar_recipe *recipe, int key)
{
    return get_value(recipe, key, INVAR_RECIPE_TYPE_BOOL)->integer != 0;
}

int64_t invar_recipe_int(const invar_recipe *recipe, int key)
{
    return get_value(recipe, key, INVAR_RECIPE_TYPE_INT)->integer;
}

double invar_recipe_float(const invar_recipe *recipe, int key)
{
    return get_value(recipe, key, INVAR_RECIPE_TYPE_FLOAT)->real;
}

const char *invar_recipe_string(const invar_recipe *recipe, int key)
{
    return get_value(recipe, key, INVAR_RECIPE_TYPE_STRING)->text;
}

int invar_recipe_enum(const invar_recipe *recipe, int key, const invar_choices *choices)
{
    const invar_recipe_value *value = get_value(recipe, key, INVAR_RECIPE_TYPE_ENUM);

    INVAR_CHECK(recipe->schema->keys[key].choices == choices);
    return (int)value->integer;
}

void invar_recipe_entry_get(invar_recipe_entry *out, const invar_recipe *recipe, int key)
{
    INVAR_CHECK(key >= 0 && key < recipe->schema->count);
    out->key = &recipe->schema->keys[key];
    out->source = recipe->slots[key].source;
    out->origin = recipe->slots[key].origin;
    out->text = recipe->slots[key].value.text;
}

bool invar_recipe_entry_identifies(const invar_recipe_entry *entry)
{
    if (entry->key->effect == INVAR_RECIPE_EFFECT_SEMANTIC_IF_SET)
        return strcmp(entry->text, entry->key->default_text) != 0;
    return entry->key->effect == INVAR_RECIPE_EFFECT_SEMANTIC;
}
