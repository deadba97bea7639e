/*
 * escaped_words.h - lines of words: text that grows, and words that hold anything.
 *
 * A word on a line has no blank, no newline and is never empty: \\ \n \s (a blank) and \e (an
 * empty word) stand for what it cannot hold.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_STATE_ESCAPED_WORDS_H
#define INVAR_BISECT_STATE_ESCAPED_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; the text ends with a NUL that is not counted. invar_free(data) at the end. */
typedef struct invar_word_buffer {
    char *data;
    size_t used, capacity;
} invar_word_buffer;

invar_status invar_word_buffer_put_bytes(invar_word_buffer *words, const char *data,
                                         size_t bytes) INVAR_MUST_USE;
invar_status invar_word_buffer_put(invar_word_buffer *words, const char *text) INVAR_MUST_USE;

/* Any text as one word; a number. */
invar_status invar_word_buffer_put_word(invar_word_buffer *words, const char *text) INVAR_MUST_USE;
invar_status invar_word_buffer_put_int(invar_word_buffer *words, int64_t value) INVAR_MUST_USE;

/* A word in place, as it was; false: nobody escapes like this. */
bool invar_word_buffer_unescape(char *word);

/* A whole number between two others, and nothing after it. */
bool invar_word_buffer_int(int64_t *out, const char *text, int64_t low, int64_t high);

#ifdef __cplusplus
}
#endif
#endif
