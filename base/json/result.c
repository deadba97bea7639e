/*
 * result.c - JSON of results: one text per kind of object writes it and describes it.
 *
 * The texts are constants of the program, so faults in them are faults of the program. Writing
 * reads only the names and the types of the outermost members, because members that are objects or
 * lists are given as JSON; the schema is read recursively.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/json/result.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define WORD_SIZE 128
#define WORD_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-|/"

/* Passes blanks and then `c`. Returns false if another character follows. */
static bool pass(const char **at, char c)
{
    *at += strspn(*at, " ");
    if (**at != c)
        return false;
    ++*at;
    return true;
}

static bool take_word(char word[WORD_SIZE], const char **at)
{
    size_t bytes;

    *at += strspn(*at, " ");
    bytes = strspn(*at, WORD_CHARS);
    INVAR_CHECK(bytes < WORD_SIZE);
    memcpy(word, *at, bytes);
    word[bytes] = '\0';
    *at += bytes;
    return bytes > 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

invar_result_value invar_result_of_int(int64_t value)
{
    return (invar_result_value){.kind = INVAR_RESULT_INT, .integer = value};
}

invar_result_value invar_result_of_size(size_t value)
{
    return invar_result_of_int((int64_t)value);
}

invar_result_value invar_result_of_real(double value)
{
    return (invar_result_value){.kind = INVAR_RESULT_REAL, .real = value};
}

invar_result_value invar_result_of_text(const char *value)
{
    return (invar_result_value){.kind = INVAR_RESULT_TEXT, .text = value};
}

invar_result_value invar_result_of_digest(const invar_digest *value)
{
    return (invar_result_value){.kind = INVAR_RESULT_DIGEST, .digest = value};
}

invar_result_value invar_result_of_json(json_t *value)
{
    return (invar_result_value){.kind = INVAR_RESULT_JSON, .json = value};
}

invar_result_value invar_result_of_end(const invar_result_value *value)
{
    return *value;
}

json_t *invar_result_text(const char *text, size_t bytes)
{
    json_t *out = json_stringn(text, bytes);
    char *safe;

    if (out || INVAR_ALLOC(safe, 4 * bytes + 1, "JSON") != INVAR_OK)
        return out;
    invar_text_escape(safe, 4 * bytes + 1, text, bytes);
    out = json_string(safe);
    invar_free(safe);
    return out;
}

json_t *invar_result_line(const char *text)
{
    char line[INVAR_PATH_SIZE + 4];

    invar_text_quote(line, sizeof line, text, strlen(text));
    return json_string(line);
}

static json_t *digest_json(const invar_digest *digest)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, digest);
    return json_string(hex);
}

/* Returns a value of a simple type, which is null where the type and the value allow it. */
static json_t *value_json(const invar_result_value *value, const char *type, bool nullable)
{
    bool line = strcmp(type, "line") == 0;

    switch (value->kind) {
    case INVAR_RESULT_INT:
        if (strcmp(type, "bool") == 0)
            return json_boolean(value->integer);
        INVAR_CHECK(strcmp(type, "int") == 0);
        return nullable && value->integer < 0 ? json_null() : json_integer(value->integer);
    case INVAR_RESULT_REAL:
        INVAR_CHECK(strcmp(type, "real") == 0);
        return nullable && !isfinite(value->real) ? json_null() : json_real(value->real);
    case INVAR_RESULT_TEXT:
        if (nullable && (!value->text || (line && !value->text[0])))
            return json_null();
        return line ? invar_result_line(value->text)
                    : invar_result_text(value->text, strlen(value->text));
    case INVAR_RESULT_DIGEST:
        return nullable && !value->digest ? json_null() : digest_json(value->digest);
    case INVAR_RESULT_JSON: return value->json;
    case INVAR_RESULT_END: break;
    }
    INVAR_CHECK(!"a member has no value");
    return NULL;
}

/* Passes the rest of a type and its meaning, up to the end of the member. */
static void pass_type(const char **at)
{
    for (int depth = 0; depth > 0 || !strchr(",}", **at); ++*at) {
        INVAR_CHECK(**at);
        depth += strchr("{[", **at) != NULL;
        depth -= strchr("}]", **at) != NULL;
        if (**at == '(')
            *at += strcspn(*at, ")");
    }
}

json_t *invar_result_pack(const char *members, const invar_result_value *values)
{
    json_t *out = json_object();
    char name[WORD_SIZE], type[WORD_SIZE];
    const char *at = members;
    bool failed = !out;

    INVAR_CHECK(pass(&at, '{'));
    for (; take_word(name, &at); (void)pass(&at, ',')) {
        bool optional = pass(&at, '~');
        bool simple = take_word(type, &at);
        json_t *value =
            value_json(values++, simple ? type : "", optional || (simple && *at == '?'));

        if (optional && json_is_null(value))
            json_decref(value);
        else if (json_object_set_new(out, name, value) != 0)
            failed = true;
        pass_type(&at);
    }
    INVAR_CHECK(*at == '}' && values->kind == INVAR_RESULT_END);
    if (!failed)
        return out;
    json_decref(out);
    return NULL;
}

json_t *invar_result_list(const void *items, size_t count, size_t size,
                          json_t *(*element)(const void *item))
{
    json_t *list = json_array();

    for (size_t i = 0; list && i < count; i++)
        if (json_array_append_new(list, element((const char *)items + i * size)) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

invar_status invar_json_write(FILE *out, json_t *value)
{
    if (!value)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for a JSON value");
    json_dumpf(value, out, JSON_INDENT(2) | INVAR_JSON_FLAGS);
    fputc('\n', out);
    json_decref(value);
    return INVAR_OK;
}

/* ---- schema ---------------------------------------------------------------------------------- */

static json_t *type_schema(const char **at);

static json_t *object_schema(const char **at)
{
    json_t *members = json_object(), *required = json_array(), *out;
    char name[WORD_SIZE];

    for (; take_word(name, at); (void)pass(at, ',')) {
        if (!pass(at, '~'))
            (void)json_array_append_new(required, json_string(name));
        (void)json_object_set_new(members, name, type_schema(at));
    }
    out =
        json_pack("{s:s, s:o, s:o}", "type", "object", "required", required, "properties", members);
    if (pass(at, '*'))
        (void)json_object_set_new(out, "additionalProperties", type_schema(at));
    INVAR_CHECK(pass(at, '}'));
    return out;
}

/* Returns the words of a list, each replaced by the name of its JSON type if it has one. */
static json_t *words_schema(char *words, const char *separator)
{
    static const char *const names[][2] = {{"int", "integer"},
                                           {"real", "number"},
                                           {"bool", "boolean"},
                                           {"text", "string"},
                                           {"line", "string"}};
    json_t *list = json_array();
    char *rest = words;

    for (char *word; (word = strtok_r(rest, separator, &rest)) != NULL;) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            word = strcmp(word, names[i][0]) == 0 ? (char *)names[i][1] : word;
        (void)json_array_append_new(list, json_string(word));
    }
    return list;
}

static json_t *word_schema(char *word)
{
    const char *digits = strstr(word, "hex");
    json_t *types, *out;

    if (digits)
        return json_pack(
            "{s:s, s:o}", "type", "string", "pattern",
            json_sprintf("^%.*s[0-9a-f]{%s}$", (int)(digits - word), word, digits + strlen("hex")));
    if (strchr(word, '|'))
        return json_pack("{s:o}", "enum", words_schema(word, "|"));
    types = words_schema(word, "/");
    out = json_pack("{s:O}", "type", json_array_size(types) > 1 ? types : json_array_get(types, 0));
    json_decref(types);
    return out;
}

static void allow_null(json_t *schema)
{
    json_t *words = json_object_get(schema, "enum"), *type = json_object_get(schema, "type");

    if (words)
        (void)json_array_append_new(words, json_null());
    else if (json_is_array(type))
        (void)json_array_append_new(type, json_string("null"));
    else
        (void)json_object_set_new(schema, "type", json_pack("[O, s]", type, "null"));
}

static json_t *alternatives_schema(const char **at)
{
    json_t *first = type_schema(at), *list;

    if (!pass(at, ';'))
        return first;
    list = json_pack("[o]", first);
    do
        (void)json_array_append_new(list, type_schema(at));
    while (pass(at, ';'));
    return json_pack("{s:o}", "anyOf", list);
}

/* The depth is bounded by the text, which is a constant. */
static json_t *type_schema(const char **at) // NOLINT(misc-no-recursion)
{
    char word[WORD_SIZE];
    json_t *out;

    if (pass(at, '{')) {
        out = object_schema(at);
    } else if (pass(at, '[')) {
        out = json_pack("{s:s, s:o}", "type", "array", "items", alternatives_schema(at));
        INVAR_CHECK(pass(at, ']'));
    } else {
        INVAR_CHECK(take_word(word, at));
        out = word_schema(word);
    }
    if (pass(at, '?'))
        allow_null(out);
    if (pass(at, '(')) {
        size_t bytes = strcspn(*at, ")");
        (void)json_object_set_new(out, "description", json_stringn(*at, bytes));
        *at += bytes + 1;
    }
    return out;
}

json_t *invar_result_schema(const char *result)
{
    json_t *out = alternatives_schema(&result);

    INVAR_CHECK(*result == '\0');
    return out;
}
