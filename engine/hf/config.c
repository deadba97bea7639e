/*
 * config.c - the config.json of a source, as that of a folder with weights of another type.
 *
 * A configuration has more than a model's spec: ids of tokens, names, keys of other programs. The
 * text therefore stays as it is, byte by byte, except for the values of "dtype" and "torch_dtype".
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "engine/hf/hf.h"

#include "base/invar_banned.h"

#define CONFIG "config.json"
#define BLANKS " \t\r\n"
#define DTYPE "\"dtype\""
#define TORCH_DTYPE "\"torch_dtype\""

/* The byte after the string that begins at `at`; the text is known to be JSON. */
static const char *string_end(const char *at)
{
    for (at++; *at != '"'; at++)
        at += *at == '\\';
    return at + 1;
}

/* The byte after the value that begins at `at`. */
static const char *value_end(const char *at)
{
    int depth = 0;

    do {
        if (*at == '"') {
            at = string_end(at);
            continue;
        }
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        at++;
    } while (depth > 0 || !strchr(",}" BLANKS, *at));
    return at;
}

typedef struct output {
    char *text;
    size_t used;
} output;

static void put(output *out, const char *text, size_t bytes)
{
    memcpy(out->text + out->used, text, bytes);
    out->used += bytes;
}

static bool is_type(const char *key, size_t bytes)
{
    return (bytes == strlen(DTYPE) && memcmp(key, DTYPE, bytes) == 0) ||
           (bytes == strlen(TORCH_DTYPE) && memcmp(key, TORCH_DTYPE, bytes) == 0);
}

/* Copies the members of the object that begins at `at`. Returns how many of them say the type. */
static size_t copy_members(output *out, const char *at, const char *type)
{
    size_t said = 0;

    for (at++; *(at += strspn(at, BLANKS ",")) != '}';) {
        const char *key = at, *key_end = string_end(at), *value, *end;
        value = key_end + strspn(key_end, BLANKS ":");
        end = value_end(value);
        if (is_type(key, (size_t)(key_end - key))) {
            said++;
            put(out, key, (size_t)(value - key));
            put(out, type, strlen(type));
        } else {
            put(out, key, (size_t)(end - key));
        }
        at = end + strspn(end, BLANKS ",");
        put(out, end, (size_t)(at - end));
    }
    return said;
}

invar_status invar_hf_config(char **out, size_t *bytes_out, const char *text, size_t bytes,
                             invar_dtype dtype)
{
    const char *type = dtype == INVAR_DTYPE_F32 ? "\"float32\"" : "\"bfloat16\"";
    const size_t begin = strspn(text, BLANKS);
    const char *first, *rest;
    size_t known, said;
    output o = {NULL, 0};
    json_t *object;

    INVAR_TRY(invar_json_parse(&object, CONFIG, text, bytes));
    if (!json_is_object(object) || json_object_size(object) == 0) {
        json_decref(object);
        return INVAR_FAIL(INVAR_E_INVALID, 0, CONFIG ": not a JSON object with members");
    }
    known = (json_object_get(object, "dtype") != NULL) +
            (size_t)(json_object_get(object, "torch_dtype") != NULL);
    json_decref(object);
    // each of the two keys may get a longer value, or one of them is added
    INVAR_TRY(invar_alloc((void **)&o.text, bytes + 64, 1, CONFIG));
    first = text + begin + 1;
    first += strspn(first, BLANKS);
    put(&o, text, (size_t)(first - text));
    said = copy_members(&o, text + begin, type);
    if (said != known) {
        invar_free(o.text);
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          CONFIG ": the key \"dtype\" or \"torch_dtype\" is spelt with escapes; "
                                 "write it in plain letters");
    }
    if (said == 0) {
        o.used = (size_t)(first - text);
        put(&o, TORCH_DTYPE ": ", strlen(TORCH_DTYPE ": "));
        put(&o, type, strlen(type));
        put(&o, ",", 1);
        put(&o, text + begin + 1, (size_t)(first - text) - begin - 1);
        (void)copy_members(&o, text + begin, type);
    }
    rest = strrchr(text, '}');
    put(&o, rest, strlen(rest) + 1);
    *out = o.text;
    *bytes_out = o.used - 1;
    return INVAR_OK;
}
