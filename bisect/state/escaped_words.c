/*
 * escaped_words.c - writes and parses the escaped words of a bisect state file.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/state/state_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

invar_status invar_word_buffer_put_bytes(invar_word_buffer *b, const char *data, size_t bytes)
{
    return invar_alloc_append(&b->data, &b->used, &b->capacity, data, bytes,
                              "the state of a bisect");
}

invar_status invar_word_buffer_put(invar_word_buffer *b, const char *text)
{
    return invar_word_buffer_put_bytes(b, text, strlen(text));
}

invar_status invar_word_buffer_put_word(invar_word_buffer *b, const char *word)
{
    if (!*word)
        return invar_word_buffer_put(b, "\\e");
    for (; *word; word++) {
        if (*word == ' ')
            INVAR_TRY(invar_word_buffer_put(b, "\\s"));
        else if (*word == '\n')
            INVAR_TRY(invar_word_buffer_put(b, "\\n"));
        else if (*word == '\\')
            INVAR_TRY(invar_word_buffer_put(b, "\\\\"));
        else
            INVAR_TRY(invar_word_buffer_put_bytes(b, word, 1));
    }
    return INVAR_OK;
}

bool invar_word_buffer_unescape(char *word)
{
    char *to = word;

    if (strcmp(word, "\\e") == 0) {
        *word = '\0';
        return true;
    }
    for (; *word; word++) {
        if (*word != '\\') {
            *to++ = *word;
            continue;
        }
        word++;
        if (*word != 's' && *word != 'n' && *word != '\\')
            return false;
        *to++ = *word == 's' ? ' ' : *word == 'n' ? '\n' : '\\';
    }
    *to = '\0';
    return true;
}

bool invar_word_buffer_int(int64_t *out, const char *text, int64_t low, int64_t high)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < low || value > high)
        return false;
    *out = value;
    return true;
}
