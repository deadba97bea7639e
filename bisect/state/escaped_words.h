/*
 * escaped_words.h - escaped words on the lines of a bisect state file.
 *
 * An escaped word contains no blank and no newline and is never empty: \\ \n \s (a blank) and \e
 * (an empty word) represent these.
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

/*
 * Growable text. Zero-initialize before use; free `data` with invar_free. A NUL follows the text
 * and is not counted in `used`.
 */
typedef struct invar_word_buffer {
    char *data;
    size_t used, capacity;
} invar_word_buffer;

invar_status invar_word_buffer_put_bytes(invar_word_buffer *words, const char *data,
                                         size_t bytes) INVAR_MUST_USE;
invar_status invar_word_buffer_put(invar_word_buffer *words, const char *text) INVAR_MUST_USE;

/* Appends any text as one escaped word. */
invar_status invar_word_buffer_put_word(invar_word_buffer *words, const char *text) INVAR_MUST_USE;
invar_status invar_word_buffer_put_int(invar_word_buffer *words, int64_t value) INVAR_MUST_USE;

/*
 * Unescapes a word in place. Returns false for an escape sequence that the writer never produces.
 */
bool invar_word_buffer_unescape(char *word);

/*
 * Parses a complete text as an integer from `low` to `high`. Returns false if it is anything else.
 */
bool invar_word_buffer_int(int64_t *out, const char *text, int64_t low, int64_t high);

#ifdef __cplusplus
}
#endif
#endif
