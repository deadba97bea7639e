/*
 * replace.c - replaces all occurrences of a short string in a text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/replace.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

bool invar_literal_set(invar_literal *out, const char *text)
{
    out->bytes = strlen(text);
    if (out->bytes > INVAR_LITERAL_MAX)
        return false;
    memcpy(out->text, text, out->bytes);
    return true;
}

size_t invar_literal_find(const invar_literal *literal, const char *text, size_t bytes, size_t at)
{
    while (bytes - at >= literal->bytes) {
        const char *first = memchr(text + at, literal->text[0], bytes - at - literal->bytes + 1);
        if (!first)
            break;
        at = (size_t)(first - text);
        if (memcmp(first, literal->text, literal->bytes) == 0)
            return at;
        at++;
    }
    return bytes;
}

invar_status invar_replace(char **out, size_t *bytes_out, const invar_literal *from,
                           const invar_literal *to, const char *text, size_t bytes)
{
    size_t count = 0, used = 0, begin = 0, length;

    *out = NULL;
    *bytes_out = 0;
    for (size_t at = 0; (at = invar_literal_find(from, text, bytes, at)) < bytes; at += from->bytes)
        count++;
    if (count == 0)
        return INVAR_OK;
    length = bytes - count * from->bytes + count * to->bytes;
    if (length > INVAR_TEXT_MAX)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a text grows to %zu bytes, more than %zu", length,
                          INVAR_TEXT_MAX);
    INVAR_TRY(INVAR_ALLOC(*out, length, "text"));
    for (size_t at; (at = invar_literal_find(from, text, bytes, begin)) < bytes;
         begin = at + from->bytes) {
        memcpy(*out + used, text + begin, at - begin);
        used += at - begin;
        memcpy(*out + used, to->text, to->bytes);
        used += to->bytes;
    }
    memcpy(*out + used, text + begin, bytes - begin);
    *bytes_out = length;
    return INVAR_OK;
}
