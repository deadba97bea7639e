/*
 * spelling.h - the known word that a misspelt one most likely means.
 *
 *     invar_spelling_init(&near, "trian", 5);
 *     for (...)
 *         invar_spelling_offer(&near, name);
 *     "no verb 'trian'%s", invar_spelling_hint(&near)     " (did you mean 'train'?)", or ""
 *
 * Two words are near when few letters are wrong, missing, too many or swapped with a neighbour: one
 * and every fourth. A word that begins with the wanted one is near, too. Allocates nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_CONSOLE_SPELLING_H
#define INVAR_BASE_CONSOLE_SPELLING_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_SPELLING_SIZE 96 /* longer words are near to none */

typedef struct invar_spelling {
    char wanted[INVAR_SPELLING_SIZE];
    char found[INVAR_SPELLING_SIZE]; /* the nearest, of equal ones the first; "": none */
    size_t cost;                     /* of that one */
    char hint[INVAR_SPELLING_SIZE + 32];
} invar_spelling;

/* `length` bytes of a word that is not known. */
void invar_spelling_init(invar_spelling *near, const char *wanted, size_t length);

/* A word that is known. */
void invar_spelling_offer(invar_spelling *near, const char *word);

/* The question to put behind a message; "" where no word is near. Borrowed from `near`. */
const char *invar_spelling_hint(invar_spelling *near);

#ifdef __cplusplus
}
#endif
#endif
