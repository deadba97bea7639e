/*
 * answer_text.h - fixed-size text buffer for normalizing answers before they are compared.
 *
 * A response may be anything, and an answer longer than a page is not an answer. Text that does not
 * fit is marked as too long and then equals nothing. There is no heap and no locale; letters and
 * blanks are those of ASCII.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_REWARD_ANSWER_TEXT_H
#define INVAR_ENGINE_RL_REWARD_ANSWER_TEXT_H

#include <stdbool.h>
#include <stddef.h>

enum { INVAR_ANSWER_TEXT_CAPACITY = 4096 };

typedef struct invar_answer_text {
    /* NUL-terminated; input with a NUL inside is marked as too long */
    char text[INVAR_ANSWER_TEXT_CAPACITY];
    size_t length;
    bool too_long;
} invar_answer_text;

/* View of a text; not NUL-terminated. */
typedef struct invar_str_view {
    const char *text;
    size_t length;
} invar_str_view;

bool invar_is_blank(char c);
bool invar_is_digit(char c);
bool invar_is_letter(char c);
bool invar_is_word(char c); /* part of a word: letter, digit, underscore, not ASCII */
char invar_lower(char c);

/* Returns a view of a NUL-terminated text. */
invar_str_view invar_str_view_of(const char *text);

/* Returns the position of the first `what` at or after `from`; view.length if it does not occur. */
size_t invar_str_view_find(invar_str_view view, size_t from, const char *what);

/* Returns true if `what` occurs at this position, in any case. */
bool invar_str_view_matches(invar_str_view view, size_t at, invar_str_view what);

/* Returns the bytes of the UTF-8 character at `at`, at most up to the end of the view. */
size_t invar_str_view_character(invar_str_view view, size_t at);

/* Returns the view without blanks at its ends. */
invar_str_view invar_str_view_trim(invar_str_view view);

/*
 * Finds the content of the last \boxed, with balanced braces. Returns false if there is no \boxed,
 * or if the last one has no such braces; *out is undefined then.
 */
bool invar_str_view_boxed(invar_str_view *out, invar_str_view view);

/* Replaces the text and clears too_long. */
void invar_answer_text_set(invar_answer_text *answer, invar_str_view view);
/* Returns a view of the text, valid until the next change. */
invar_str_view invar_answer_text_view(const invar_answer_text *answer);
/* Returns true if the texts are equal and neither is too long. */
bool invar_answer_text_equal(const invar_answer_text *a, const invar_answer_text *b);

/* Replaces the bytes [at, at + length) by `by`, or marks the text as too long. */
void invar_answer_text_splice(invar_answer_text *answer, size_t at, size_t length,
                              invar_str_view by);

/* Insert a text, or remove bytes. */
void invar_answer_text_insert(invar_answer_text *answer, size_t at, const char *text);
void invar_answer_text_erase(invar_answer_text *answer, size_t at, size_t length);

/* Replaces every occurrence of `what` from left to right; inserted text is not searched again. */
void invar_answer_text_replace(invar_answer_text *answer, const char *what, const char *by);

void invar_answer_text_trim(invar_answer_text *answer);
void invar_answer_text_to_lower(invar_answer_text *answer);

#endif
