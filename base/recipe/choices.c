/*
 * choices.c - enums and the words of their values, from one list.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/recipe/choices.h"

#include <stdio.h>
#include <string.h>

#include "base/invar_banned.h"

int invar_choices_find(const invar_choices *choices, const char *word, size_t length)
{
    for (int i = 0; i < choices->count; i++) {
        const char *own = choices->words[i];
        if (own && strlen(own) == length && memcmp(own, word, length) == 0)
            return i;
    }
    return -1;
}

const char *invar_choices_word(const invar_choices *choices, int value)
{
    return value >= 0 && value < choices->count ? choices->words[value] : NULL;
}

void invar_choices_text(char *out, size_t size, const invar_choices *choices, const char *between,
                        const char *last)
{
    int left = 0;
    size_t used = 0;

    out[0] = '\0';
    for (int i = 0; i < choices->count; i++)
        left += choices->words[i] != NULL;
    for (int i = 0; i < choices->count && used < size; i++) {
        const char *word = choices->words[i];
        if (!word)
            continue;
        left--;
        used += (size_t)snprintf(out + used, size - used, "%s%s", word,
                                 left > 1   ? between
                                 : left > 0 ? last
                                            : "");
    }
}
