/*
 * text.h - texts: is one from outside printable UTF-8, how to show it in a message, and parts.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_TEXT_H
#define INVAR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads one character: bytes of it at `text`, 0 when it is not UTF-8. `left` > 0. */
size_t invar_text_utf8(uint32_t *point_out, const char *text, size_t left);

/* Bytes of the character at `text`, 0 when it is a control character or not UTF-8. `left` > 0. */
size_t invar_text_char(const char *text, size_t left);

#define INVAR_TEXT_QUOTE_SIZE 48 /* usual room */

/* The ending of a word for so many: "" for one, else "s". */
const char *invar_text_plural(int64_t count);

/*
 * Texts one behind the other, where snprintf would take too long; `size` is the room, > 0. False:
 * there was not enough, and `out` has what there was room for.
 */
bool invar_text_join(char *out, size_t size, const char *const *texts, int count);

/* True when `text` has `end` as its last characters, as a file's name has its ending. */
bool invar_text_has_suffix(const char *text, const char *end);

/* True for the text that git leaves in the place of a file where git-lfs has not fetched it. */
bool invar_text_is_pointer(const char *text, size_t bytes);
#define INVAR_TEXT_POINTER_SIZE 1024 /* at most, as git-lfs says */
#define INVAR_TEXT_POINTER                                                                         \
    "it is a pointer of git-lfs in the place of the file: run 'git lfs pull' in its folder"

/* A harmless excerpt of any bytes, for messages: one line of UTF-8. `size` is the room, >= 4. */
void invar_text_quote(char *out, size_t size, const char *text, size_t length);

#define INVAR_TEXT_URL_SIZE 8001 /* room for URLs of 2000 bytes */

/*
 * A URL as records and messages may have it: values behind '?' and '#' may be secrets, and stand
 * there as "...". What was shown is shown as it is; what has no room is cut. `size` is > 0.
 */
void invar_text_redact_url(char *out, size_t size, const char *url);

/*
 * A string as a shell reads one word: in quotes where it needs them. What is not printable is shown
 * as \xNN.
 */
void invar_text_print_shell_word(FILE *out, const char *word);

/*
 * The items of a list, "a, b", one after another, without the spaces around them and without empty
 * ones; false at the end. *out is not terminated.
 */
bool invar_text_item(const char **out, size_t *bytes_out, const char **cursor, char separator);

/* Words between blanks in the same way; one within '...' or "..." may have blanks itself. */
bool invar_text_word(const char **out, size_t *bytes_out, const char **cursor);

#ifdef __cplusplus
}
#endif
#endif
