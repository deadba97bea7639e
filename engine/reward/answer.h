/*
 * answer.h - short text that is rewritten until two answers can be compared.
 *
 * Bounded on purpose: a response may be anything, and an answer longer than a page is none. What
 * does not fit marks the text as too long, and it then equals nothing. No heap, no locale; letters
 * and blanks are those of ASCII.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_REWARD_ANSWER_H
#define INVAR_ENGINE_REWARD_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { INVAR_ANSWER_ROOM = 4096 };

typedef struct invar_answer {
    char text[INVAR_ANSWER_ROOM]; /* NUL-terminated; a NUL inside makes it too long */
    size_t length;
    bool too_long;
} invar_answer;

/* A piece of text; not NUL-terminated. */
typedef struct invar_piece {
    const char *text;
    size_t length;
} invar_piece;

bool invar_is_blank(char c);
bool invar_is_digit(char c);
bool invar_is_letter(char c);
char invar_lower(char c);

/* The place of `what` in the piece at or after `from`; its length when there is none. */
size_t invar_piece_find(invar_piece piece, size_t from, const char *what);

/* Without blanks at its ends. */
invar_piece invar_piece_trim(invar_piece piece);

/* The content of the last \boxed{}, braces balanced. False when there is none. */
bool invar_piece_boxed(invar_piece *out, invar_piece piece);

void invar_answer_set(invar_answer *answer, invar_piece piece);
invar_piece invar_answer_piece(const invar_answer *answer);
bool invar_answer_equal(const invar_answer *a, const invar_answer *b);

/* Replaces [at, at + length) by `by`. */
void invar_answer_splice(invar_answer *answer, size_t at, size_t length, invar_piece by);

/* Every occurrence, from the left, not looking at what it has put there. */
void invar_answer_replace(invar_answer *answer, const char *what, const char *by);

void invar_answer_trim(invar_answer *answer);
void invar_answer_to_lower(invar_answer *answer);

#ifdef __cplusplus
}
#endif
#endif
