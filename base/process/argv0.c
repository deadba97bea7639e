/*
 * argv0.c - the word by which the user called this program, for commands in messages.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/process/argv0.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"

#include "base/invar_banned.h"

static char name[INVAR_PATH_SIZE] = "invar";

void invar_argv0_set(const char *word)
{
    static const char usual[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@:=,";
    size_t length = word ? strlen(word) : 0;
    bool bare = length > 0 && word[strspn(word, usual)] == '\0';

    if (length == 0 || length + sizeof "''" > sizeof name || strchr(word, '\''))
        return;
    for (size_t i = 0, bytes; i < length; i += bytes)
        if ((bytes = invar_text_char(word + i, length - i)) == 0)
            return;
    (void)snprintf(name, sizeof name, bare ? "%s" : "'%s'", word);
}

const char *invar_argv0(void)
{
    return name;
}
