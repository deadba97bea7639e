/*
 * flatten.c - converts a recipe and the files that it includes to one text, for any keys.
 *
 * Collects sections and keys in the order of their first occurrence, with the last value of each
 * key, and counts the bytes of the text, so that it is written to one block.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/recipe/flatten.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/recipe/lines.h"

#include "base/invar_banned.h"

#define MAX_SECTIONS 64

typedef invar_recipe_span span;

typedef struct section {
    char name[INVAR_RECIPE_MAX_NAME + 1];
    int file, line; /* location of its last occurrence */
} section;

typedef struct key {
    int section; /* index of the section */
    char name[INVAR_RECIPE_MAX_NAME + 1];
    char *value; /* (length) last value; owned */
    size_t length;
    int file, line; /* location of the last value */
} key;

typedef struct flat {
    int current, n_sections, n_keys; /* index of the current section, and counts */
    size_t bytes;                    /* size of the flat text */
    section sections[MAX_SECTIONS];
    key keys[INVAR_RECIPE_MAX_KEYS];
} flat;

/* ---- collecting ------------------------------------------------------------------------------ */

static void copy_name(char out[INVAR_RECIPE_MAX_NAME + 1], span name)
{
    memcpy(out, name.start, name.length);
    out[name.length] = '\0';
}

static invar_status fail_duplicate(const invar_recipe_location *at, const char *what,
                                   const char *name, int line)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: %s '%s' is already in line %d", at->file,
                      at->line, what, name, line);
}

static invar_status fail_too_many(const invar_recipe_location *at, int count, const char *what)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: the recipe has more than %d %s", at->file,
                      at->line, count, what);
}

static invar_status add_section(void *payload, const invar_recipe_location *at, span name)
{
    flat *f = payload;
    section *s;
    int i = 0;

    while (i < f->n_sections && !invar_recipe_span_is(name, f->sections[i].name))
        i++;
    if (i == MAX_SECTIONS)
        return fail_too_many(at, MAX_SECTIONS, "sections");
    s = &f->sections[i];
    if (i < f->n_sections && s->file == at->number)
        return fail_duplicate(at, "section", s->name, s->line);
    if (i == f->n_sections) {
        copy_name(s->name, name);
        f->bytes += name.length + 3;
        f->n_sections++;
    }
    s->file = at->number;
    s->line = at->line;
    f->current = i;
    return INVAR_OK;
}

static invar_status set_value(flat *f, key *k, span value)
{
    char *copy_text;

    INVAR_TRY(INVAR_ALLOC(copy_text, value.length + 1, "recipe"));
    memcpy(copy_text, value.start, value.length);
    invar_free(k->value);
    f->bytes += value.length - k->length;
    k->value = copy_text;
    k->length = value.length;
    return INVAR_OK;
}

static invar_status add_key(void *payload, const invar_recipe_location *at, span name, span value)
{
    flat *f = payload;
    key *k;
    int i = 0;

    if (!invar_recipe_is_text(value))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s:%d: %.*s: the value has a control character or is not UTF-8",
                          at->file, at->line, (int)name.length, name.start);
    if (name.length + 3 + value.length > INVAR_RECIPE_MAX_LINE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: %.*s: the line is longer than %d bytes",
                          at->file, at->line, (int)name.length, name.start, INVAR_RECIPE_MAX_LINE);
    while (i < f->n_keys &&
           (f->keys[i].section != f->current || !invar_recipe_span_is(name, f->keys[i].name)))
        i++;
    if (i == INVAR_RECIPE_MAX_KEYS)
        return fail_too_many(at, INVAR_RECIPE_MAX_KEYS, "keys");
    k = &f->keys[i];
    if (i < f->n_keys && k->file == at->number)
        return fail_duplicate(at, "key", k->name, k->line);
    if (i == f->n_keys) {
        memset(k, 0, sizeof *k);
        copy_name(k->name, name);
        k->section = f->current;
        f->bytes += name.length + 4;
        f->n_keys++;
    }
    k->file = at->number;
    k->line = at->line;
    INVAR_TRY(set_value(f, k, value));
    if (f->bytes > INVAR_RECIPE_MAX_BYTES)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s:%d: with what it includes the recipe is larger than %d bytes",
                          at->file, at->line, INVAR_RECIPE_MAX_BYTES);
    return INVAR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static char *append_bytes(char *to, const char *text, size_t bytes)
{
    memcpy(to, text, bytes);
    return to + bytes;
}

static char *append_key(char *to, const key *k)
{
    to = append_bytes(to, k->name, strlen(k->name));
    to = append_bytes(to, " = ", 3);
    to = append_bytes(to, k->value, k->length);
    return append_bytes(to, "\n", 1);
}

static invar_status write_text(char **out, size_t *bytes_out, const flat *f)
{
    char *to;

    INVAR_TRY(INVAR_ALLOC(*out, f->bytes + 1, "recipe"));
    to = *out;
    for (int s = 0; s < f->n_sections; s++) {
        to = append_bytes(to, "[", 1);
        to = append_bytes(to, f->sections[s].name, strlen(f->sections[s].name));
        to = append_bytes(to, "]\n", 2);
        for (int i = 0; i < f->n_keys; i++)
            if (f->keys[i].section == s)
                to = append_key(to, &f->keys[i]);
    }
    *to = '\0';
    INVAR_CHECK((size_t)(to - *out) == f->bytes);
    *bytes_out = f->bytes;
    return INVAR_OK;
}

/* ---- public functions ------------------------------------------------------------------------ */

/* True if the text has an include, which must precede the first section. */
static bool has_include(const char *text, size_t bytes)
{
    static const char word[] = "include";
    const char *end = text + bytes;

    while (text < end && *text != '[') {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((newline ? newline : end) - text), at = sizeof word - 1;

        if (length > at && memcmp(text, word, at) == 0) {
            while (at < length && text[at] == ' ')
                at++;
            if (at < length && text[at] == '=')
                return true;
        }
        text = newline ? newline + 1 : end;
    }
    return false;
}

static invar_status copy_text(char **out, size_t *bytes_out, const char *text, size_t bytes)
{
    INVAR_TRY(INVAR_ALLOC(*out, bytes + 1, "recipe"));
    *append_bytes(*out, text, bytes) = '\0';
    *bytes_out = bytes;
    return INVAR_OK;
}

invar_status invar_recipe_flatten_text(char **out, size_t *bytes_out, const char *path,
                                       const char *text, size_t bytes, invar_recipe_open_fn open,
                                       void *files)
{
    invar_status status;
    flat *f;

    *out = NULL;
    *bytes_out = 0;
    if (!has_include(text, bytes))
        return copy_text(out, bytes_out, text, bytes);
    INVAR_TRY(INVAR_ALLOC(f, 1, "recipe"));
    f->current = f->n_sections = f->n_keys = 0;
    f->bytes = 0;
    status = invar_recipe_read_lines(
        &(invar_recipe_line_callbacks){
            .section = add_section, .key = add_key, .payload = f, .open = open, .files = files},
        path, text, bytes);
    if (status == INVAR_OK)
        status = write_text(out, bytes_out, f);
    for (int i = 0; i < f->n_keys; i++)
        invar_free(f->keys[i].value);
    invar_free(f);
    return status;
}

invar_status invar_recipe_flatten(char **out, size_t *bytes_out, const char *path)
{
    INVAR_AUTO_FREE char *text = NULL;
    size_t bytes;

    *out = NULL;
    INVAR_TRY(invar_file_read(&text, &bytes, path, INVAR_RECIPE_MAX_BYTES));
    return invar_recipe_flatten_text(out, bytes_out, path, text, bytes, invar_recipe_open_file,
                                     NULL);
}
