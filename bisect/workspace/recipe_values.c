/*
 * recipe_values.c - finds and replaces values of keys in flags and in recipe text.
 *
 * A recipe or a record of the cache may belong to another version of the program, with unknown
 * keys, so it is searched line by line and not parsed with a schema.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/number.h"
#include "bisect/workspace/workspace_internal.h"

#include "base/invar_banned.h"

#define RECORD_BYTES 65536

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

bool invar_workspace_value_copy(char *out, size_t size, const char *const *flags,
                                const char *recipe, const char *key)
{
    size_t bytes;
    const char *value = invar_workspace_value(&bytes, flags, recipe, key);

    if (!value || bytes >= size)
        return false;
    memcpy(out, value, bytes);
    out[bytes] = '\0';
    return true;
}

bool invar_workspace_record_number(double *out, const char *record, const char *key)
{
    char text[INVAR_NUMBER_SIZE];

    return invar_workspace_value_copy(text, sizeof text, NULL, record, key) &&
           invar_number_parse(out, text) == INVAR_OK;
}

invar_status invar_workspace_record_read(char **out, const char *folder, const char *name,
                                         size_t lines)
{
    char path[INVAR_PATH_SIZE];
    size_t bytes;
    invar_status status;

    INVAR_TRY(invar_path_join(path, sizeof path, folder, name));
    status = invar_file_read(out, &bytes, path, RECORD_BYTES);
    if (status == INVAR_E_NOMEM)
        return status;
    if (status != INVAR_OK)
        invar_error_clear();
    for (const char *at = *out; at && (at = strchr(at, '\n')); at++)
        lines--;
    if (lines == 0)
        return INVAR_OK;
    invar_free(*out);
    *out = NULL;
    return INVAR_OK;
}

/* ---- flags ----------------------------------------------------------------------------------- */

size_t invar_workspace_count_words(const char *const *words)
{
    size_t count = 0;

    while (words && words[count])
        count++;
    return count;
}

/*
 * Returns how many words at `flags` set a key that `extra` sets: 0, 1 (--key=value) or 2 (--key
 * value).
 */
static size_t count_overridden_words(const char *const *flags, const char *const *extra)
{
    size_t key = strcspn(flags[0], "=");

    for (; *extra; extra += strchr(*extra, '=') ? 1 : 2)
        if (strcspn(*extra, "=") == key && strncmp(*extra, flags[0], key) == 0)
            return flags[0][key] || !flags[1] ? 1 : 2;
    return 0;
}

invar_status invar_workspace_flags_replace(const char ***out, const char *const *flags,
                                           const char *const *extra)
{
    size_t count = invar_workspace_count_words(flags), n_extra = invar_workspace_count_words(extra);
    const char **word;

    INVAR_TRY(INVAR_ALLOC(*out, count + n_extra + 1, "the flags of a run"));
    word = *out;
    while (flags && *flags) {
        size_t overridden = count_overridden_words(flags, extra);
        if (overridden == 0)
            *word++ = *flags++;
        flags += overridden;
    }
    memcpy(word, extra, (n_extra + 1) * sizeof *word);
    return INVAR_OK;
}
