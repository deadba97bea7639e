/*
 * recipe_values.c - finds the value of a recipe key in flags and recipe text, without a schema.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "bisect/workspace/workspace.h"

#include "base/invar_banned.h"

/* Returns the non-blank part of a line. */
static const char *trim_blanks(size_t *bytes, const char *from, const char *to)
{
    while (from < to && strchr(" \t\r", *from))
        from++;
    while (from < to && strchr(" \t\r", to[-1]))
        to--;
    *bytes = (size_t)(to - from);
    return from;
}

/*
 * Returns the value if the line is "key = value" for this key; NULL otherwise. Key names are unique
 * in all sections.
 */
static const char *find_value_in_line(size_t *bytes, const char *line, const char *end,
                                      const char *key)
{
    const char *sign = memchr(line, '=', (size_t)(end - line)), *name;

    if (!sign)
        return NULL;
    name = trim_blanks(bytes, line, sign);
    if (*bytes != strlen(key) || memcmp(name, key, *bytes) != 0)
        return NULL;
    return trim_blanks(bytes, sign + 1, end);
}

/*
 * The recipe may belong to another version of the program, with unknown keys, so it is searched
 * line by line and not parsed with a schema.
 */
const char *invar_workspace_value(size_t *bytes_out, const char *const *flags, const char *recipe,
                                  const char *key)
{
    const char *value = NULL;

    for (; flags && *flags && !value; flags++) {
        if (strncmp(*flags, "--", 2) != 0)
            continue;
        value = find_value_in_line(bytes_out, *flags + 2, *flags + strlen(*flags), key);
        if (!value && strcmp(*flags + 2, key) == 0 && flags[1]) {
            value = flags[1];
            *bytes_out = strlen(value);
        }
    }
    for (const char *line = recipe; *line && !value;) {
        const char *newline = strchr(line, '\n'), *end = newline ? newline : line + strlen(line);
        if (*line != '#' && *line != ';')
            value = find_value_in_line(bytes_out, line, end, key);
        line = newline ? newline + 1 : end;
    }
    if (!value)
        *bytes_out = 0;
    return value;
}
