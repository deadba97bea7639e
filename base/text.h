/*
 * text.h - checks, quotes and splits text from outside: UTF-8, URLs, shell words, lists.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_TEXT_H
#define INVAR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Decodes the first character of `text`, which has `left` > 0 bytes. Returns the character's number
 * of bytes, 0 if it is not UTF-8.
 */
size_t invar_text_utf8(uint32_t *point_out, const char *text, size_t left);

/*
 * Returns the number of bytes of the first character of `text`, which has `left` > 0 bytes; 0 if it
 * is not UTF-8, a control character, a line separator or a mark that changes the direction of text.
 */
size_t invar_text_char(const char *text, size_t left);

#define INVAR_TEXT_QUOTE_SIZE 48 /* usual size of a quote in a message */

/* Returns the plural ending of a word for `count` things: "" for one, else "s". */
const char *invar_text_plural(int64_t count);

/*
 * Concatenates texts, faster than snprintf. `size` is the capacity of `out`, > 0. Returns false if
 * the result was cut.
 */
bool invar_text_join(char *out, size_t size, const char *const *texts, int count);

/* True if `text` ends with `end`. */
bool invar_text_has_suffix(const char *text, const char *end);

/*
 * True for a pointer of git-lfs, the text that git writes instead of a file that was not fetched.
 */
bool invar_text_is_pointer(const char *text, size_t bytes);
#define INVAR_TEXT_POINTER_SIZE 1024 /* a pointer has fewer bytes, by the rules of git-lfs */
#define INVAR_TEXT_POINTER                                                                         \
    "it is a pointer of git-lfs in the place of the file: run 'git lfs pull' in its folder"

/*
 * Writes an excerpt of any bytes for a message, and returns `out`: one line of printable UTF-8,
 * with '?' for all else, and "..." at its end if it is cut. `size` is the capacity of `out`, >= 4.
 * The macros quote bytes and a text of usual or double size; what they return lives as long as a
 * local variable of the block that they stand in.
 */
const char *invar_text_quote(char *out, size_t size, const char *text, size_t length);
#define INVAR_QUOTED_BYTES(size, text, length) invar_text_quote((char[size]){0}, size, text, length)
#define INVAR_QUOTED(text) INVAR_QUOTED_BYTES(INVAR_TEXT_QUOTE_SIZE, text, strlen(text))
#define INVAR_QUOTED_LONG(text) INVAR_QUOTED_BYTES(INVAR_TEXT_QUOTE_SIZE * 2, text, strlen(text))

#define INVAR_TEXT_ESCAPED_SIZE 5 /* a character of up to four bytes, or \xNN */

/*
 * Escapes one character of any bytes: printable UTF-8 stays, every other byte becomes \xNN. Returns
 * the number of bytes that it has in `text`.
 */
size_t invar_text_escape_char(char out[INVAR_TEXT_ESCAPED_SIZE], const char *text, size_t left);

/*
 * Escapes `bytes` bytes into a string and returns its length. Characters that do not fit are left
 * out; a `size` of 4 * bytes + 1 is always sufficient.
 */
size_t invar_text_escape(char *out, size_t size, const char *text, size_t bytes);

#define INVAR_TEXT_URL_SIZE 8001 /* capacity for URLs of 2000 bytes */

/*
 * Writes a URL for records and messages: values after '?' and '#', which may be secrets, become
 * "..."; a user and a password before '@' stay. A redacted URL stays as it is. The result is cut to
 * `size` > 0 bytes.
 */
void invar_text_redact_url(char *out, size_t size, const char *url);

/*
 * Prints a string as one shell word, in quotes if it needs them. Unprintable bytes are shown as
 * \xNN.
 */
void invar_text_print_shell_word(FILE *out, const char *word);

/*
 * Iterates over the items of a list such as "a, b", without empty ones and without the spaces
 * around them. *cursor is the list at first. *out (*bytes_out) is borrowed and has no NUL. Returns
 * false at the end.
 */
bool invar_text_item(const char **out, size_t *bytes_out, const char **cursor, char separator);

/* Like invar_text_item, for words between blanks; a word in '...' or "..." may contain blanks. */
bool invar_text_word(const char **out, size_t *bytes_out, const char **cursor);

#endif
