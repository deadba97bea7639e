/*
 * config.c - rewrites the data type in a config.json, and keeps every other byte.
 *
 * A configuration has more than a model's spec: token ids, names, keys of other programs. The text
 * therefore stays unchanged, except for the values of "dtype" and "torch_dtype".
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "base/json/text.h"
#include "engine/files/hf/hf.h"

#include "base/invar_banned.h"

#define CONFIG "config.json"
#define BLANKS " \t\r\n"
#define DTYPE "\"dtype\""
#define TORCH_DTYPE "\"torch_dtype\""

/* Returns the byte after the string that begins at `at`; the text is valid JSON. */
static const char *string_end(const char *at)
{
    for (at++; *at != '"'; at++)
        at += *at == '\\';
    return at + 1;
}

/* Returns the byte after the value that begins at `at`. */
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

static bool is_type(const char *key, size_t bytes)
{
    return (bytes == strlen(DTYPE) && memcmp(key, DTYPE, bytes) == 0) ||
           (bytes == strlen(TORCH_DTYPE) && memcmp(key, TORCH_DTYPE, bytes) == 0);
}

/* Copies the members of the object that begins at `at`. Returns the number of type members. */
static size_t copy_members(invar_json_text *out, const char *at, const char *type)
{
    size_t said = 0;

    for (at++; *(at += strspn(at, BLANKS ",")) != '}';) {
        const char *key = at, *key_end = string_end(at), *value, *end;
        value = key_end + strspn(key_end, BLANKS ":");
        end = value_end(value);
        if (is_type(key, (size_t)(key_end - key))) {
            said++;
            invar_json_text_append(out, key, (size_t)(value - key));
            invar_json_text_append(out, type, strlen(type));
        } else {
            invar_json_text_append(out, key, (size_t)(end - key));
        }
        at = end + strspn(end, BLANKS ",");
        invar_json_text_append(out, end, (size_t)(at - end));
    }
    return said;
}

/* Copies the text from the brace of its object on. Returns the number of type members. */
static size_t copy_object(invar_json_text *out, const char *at, const char *type, bool add)
{
    const char *rest = strrchr(at, '}');
    const size_t blanks = 1 + strspn(at + 1, BLANKS);
    size_t said;

    invar_json_text_append(out, at, blanks);
    if (add) {
        invar_json_text_append(out, TORCH_DTYPE ": ", strlen(TORCH_DTYPE ": "));
        invar_json_text_append(out, type, strlen(type));
        invar_json_text_append(out, ",", 1);
        invar_json_text_append(out, at + 1, blanks - 1);
    }
    said = copy_members(out, at, type);
    invar_json_text_append(out, rest, strlen(rest) + 1);
    return said;
}

invar_status invar_hf_config(char **out, size_t *bytes_out, const char *text, size_t bytes,
                             invar_dtype dtype)
{
    const char *type = dtype == INVAR_DTYPE_F32 ? "\"float32\"" : "\"bfloat16\"";
    const size_t begin = strspn(text, BLANKS);
    invar_json_text made = {0};
    size_t known;
    json_t *object;

    INVAR_TRY(invar_json_parse(&object, CONFIG, text, bytes));
    if (!json_is_object(object) || json_object_size(object) == 0) {
        json_decref(object);
        return INVAR_FAIL(INVAR_E_INVALID, 0, CONFIG ": not a JSON object with members");
    }
    known = (json_object_get(object, "dtype") != NULL) +
            (size_t)(json_object_get(object, "torch_dtype") != NULL);
    json_decref(object);
    invar_json_text_append(&made, text, begin);
    if (copy_object(&made, text + begin, type, known == 0) != known)
        made.status = INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                                 CONFIG ": the key \"dtype\" or \"torch_dtype\" is spelt with "
                                        "escapes; write it in plain letters");
    if (made.status != INVAR_OK) {
        const invar_status status = made.status;
        invar_json_text_release(&made);
        return status;
    }
    *out = made.data;
    *bytes_out = made.bytes - 1;
    return INVAR_OK;
}
