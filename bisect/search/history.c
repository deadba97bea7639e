/*
 * history.c - frees a commit history and finds commits in it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/search/history.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

void invar_history_free(invar_history *history)
{
    if (history == NULL)
        return;
    invar_free(history->commits);
    invar_free(history->parents);
    invar_free(history);
}

int32_t invar_history_find(const invar_history *history, const char *id)
{
    for (int32_t i = 0; i < history->count; i++)
        if (strcmp(history->commits[i].id, id) == 0)
            return i;
    return -1;
}
