/*
 * recipe_values.c - what a key is set to, by flags and a recipe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "bisect/workspace/workspace.h"

#include "base/invar_banned.h"

/* The part of a line that is not blank. */
static const char *trim(size_t *bytes, const char *from, const char *to)
{
    while (from < to && strchr(" \t\r", *from))
        from++;
    while (from < to && strchr(" \t\r", to[-1]))
        to--;
    *bytes = (size_t)(to - from);
    return from;
}

/* The value of "key = value", if that is what the line says; names of keys are unique. */
static const char *value_in(size_t *bytes, const char *line, const char *end, const char *key)
{
    const char *sign = memchr(line, '=', (size_t)(end - line)), *name;

    if (!sign)
        return NULL;
    name = trim(bytes, line, sign);
    if (*bytes != strlen(key) || memcmp(name, key, *bytes) != 0)
        return NULL;
    return trim(bytes, sign + 1, end);
}

/*
 * The recipe may be one of another version, with keys that this program does not know, so it is
 * looked at line by line and not against a schema.
 */
const char *invar_workspace_value(size_t *bytes_out, const char *const *flags, const char *recipe,
                                  const char *key)
{
    const char *value = NULL;

    for (; flags && *flags && !value; flags++) {
        if (strncmp(*flags, "--", 2) != 0)
            continue;
        value = value_in(bytes_out, *flags + 2, *flags + strlen(*flags), key);
        if (!value && strcmp(*flags + 2, key) == 0 && flags[1]) {
            value = flags[1];
            *bytes_out = strlen(value);
        }
    }
    for (const char *line = recipe; *line && !value;) {
        const char *newline = strchr(line, '\n'), *end = newline ? newline : line + strlen(line);
        if (*line != '#' && *line != ';')
            value = value_in(bytes_out, line, end, key);
        line = newline ? newline + 1 : end;
    }
    if (!value)
        *bytes_out = 0;
    return value;
}
