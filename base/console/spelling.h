/*
 * spelling.h - suggests the known word that a misspelled one most likely means.
 *
 *     invar_spelling_init(&near, "trian", 5);
 *     for (...)
 *         invar_spelling_offer(&near, name);
 *     "no verb 'trian'%s", invar_spelling_hint(&near)     " (did you mean 'train'?)", or ""
 *
 * A known word is a candidate if at most 1 + length / 4 letters are wrong, missing, superfluous or
 * swapped with their neighbor, or if it begins with the misspelled word. Allocates nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_CONSOLE_SPELLING_H
#define INVAR_BASE_CONSOLE_SPELLING_H

#include <stddef.h>

#define INVAR_SPELLING_SIZE 96 /* bytes of a word, with the NUL; longer words get no suggestion */

/* A search for the nearest known word. */
typedef struct invar_spelling {
    char misspelled[INVAR_SPELLING_SIZE]; /* empty if the word is too long */
    /* nearest known word so far, the first of equal ones; empty without a candidate */
    char found[INVAR_SPELLING_SIZE];
    size_t cost; /* distance of `found` */
    char hint[INVAR_SPELLING_SIZE + 32];
} invar_spelling;

/* Begins a search for the misspelled word `misspelled` (length bytes). */
void invar_spelling_init(invar_spelling *spelling, const char *misspelled, size_t length);

/* Adds a known word to the search. */
void invar_spelling_offer(invar_spelling *spelling, const char *word);

/* Returns the hint to append to a message; empty if no word is near. Borrowed from `spelling`. */
const char *invar_spelling_hint(invar_spelling *spelling);

#endif
