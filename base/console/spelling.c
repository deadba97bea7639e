/*
 * spelling.c - suggests the known word that a misspelled one most likely means.
 *
 * The distance is the optimal string alignment distance: insertions, deletions, replacements and
 * swaps of neighbors cost 1 each.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/console/spelling.h"

#include <stdio.h>
#include <string.h>

#include "base/invar_banned.h"

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns the distance of two words that are shorter than INVAR_SPELLING_SIZE. */
static size_t alignment_distance(const char *a, const char *b)
{
    size_t rows[3][INVAR_SPELLING_SIZE], width = strlen(b);
    size_t *before = rows[0], *last = rows[1], *row = rows[2];

    for (size_t k = 0; k <= width; k++)
        last[k] = k;
    for (size_t i = 1; a[i - 1]; i++) {
        row[0] = i;
        for (size_t k = 1; k <= width; k++) {
            row[k] = min_size(last[k] + 1, row[k - 1] + 1);
            row[k] = min_size(row[k], last[k - 1] + (a[i - 1] != b[k - 1]));
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                row[k] = min_size(row[k], before[k - 2] + 1);
        }
        size_t *free_row = before;
        before = last;
        last = row;
        row = free_row;
    }
    return last[width];
}

void invar_spelling_init(invar_spelling *spelling, const char *misspelled, size_t length)
{
    *spelling = (invar_spelling){.cost = 0};
    if (length < sizeof spelling->misspelled)
        memcpy(spelling->misspelled, misspelled, length);
}

void invar_spelling_offer(invar_spelling *spelling, const char *word)
{
    size_t length = strlen(spelling->misspelled), cost;

    if (length == 0 || strlen(word) >= INVAR_SPELLING_SIZE)
        return;
    if (length >= 2 && strncmp(word, spelling->misspelled, length) == 0)
        cost = 1; // like one letter, so that the first of several such words wins
    else
        cost = alignment_distance(spelling->misspelled, word);
    if (cost >= length || cost > 1 + length / 4 || (spelling->found[0] && cost >= spelling->cost))
        return;
    spelling->cost = cost;
    (void)snprintf(spelling->found, sizeof spelling->found, "%s", word);
}

const char *invar_spelling_hint(invar_spelling *spelling)
{
    spelling->hint[0] = '\0';
    if (spelling->found[0])
        (void)snprintf(spelling->hint, sizeof spelling->hint, " (did you mean '%s'?)",
                       spelling->found);
    return spelling->hint;
}
