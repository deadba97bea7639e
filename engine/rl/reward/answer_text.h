/*
 * answer_text.h - short text that is rewritten until two answers can be compared.
 *
 * Bounded on purpose: a response may be anything, and an answer longer than a page is none. What
 * does not fit marks the text as too long, and it then equals nothing. No heap, no locale; letters
 * and blanks are those of ASCII.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_REWARD_ANSWER_TEXT_H
#define INVAR_ENGINE_RL_REWARD_ANSWER_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { INVAR_ANSWER_TEXT_ROOM = 4096 };

typedef struct invar_answer_text {
    char text[INVAR_ANSWER_TEXT_ROOM]; /* NUL-terminated; a NUL inside makes it too long */
    size_t length;
    bool too_long;
} invar_answer_text;

/* A piece of text; not NUL-terminated. */
typedef struct invar_str_view {
    const char *text;
    size_t length;
} invar_str_view;

bool invar_is_blank(char c);
bool invar_is_digit(char c);
bool invar_is_letter(char c);
char invar_lower(char c);

/* The place of `what` in the piece at or after `from`; its length when there is none. */
size_t invar_str_view_find(invar_str_view piece, size_t from, const char *what);

/* Without blanks at its ends. */
invar_str_view invar_str_view_trim(invar_str_view piece);

/* The content of the last \boxed{}, braces balanced. False when there is none. */
bool invar_str_view_boxed(invar_str_view *out, invar_str_view piece);

void invar_answer_text_set(invar_answer_text *answer, invar_str_view piece);
invar_str_view invar_answer_text_piece(const invar_answer_text *answer);
bool invar_answer_text_equal(const invar_answer_text *a, const invar_answer_text *b);

/* Replaces [at, at + length) by `by`. */
void invar_answer_text_splice(invar_answer_text *answer, size_t at, size_t length,
                              invar_str_view by);

/* Every occurrence, from the left, not looking at what it has put there. */
void invar_answer_text_replace(invar_answer_text *answer, const char *what, const char *by);

void invar_answer_text_trim(invar_answer_text *answer);
void invar_answer_text_to_lower(invar_answer_text *answer);

#ifdef __cplusplus
}
#endif
#endif
