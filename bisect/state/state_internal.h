/*
 * state_internal.h - escaped words and parts of a bisect state file. Private to bisect/state.
 *
 * An escaped word contains no blank and no newline and is never empty: \\ \n \s (a blank) and \e
 * (an empty word) represent these.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_STATE_STATE_INTERNAL_H
#define INVAR_BISECT_STATE_STATE_INTERNAL_H

#include "bisect/state/state.h"

#define INVAR_BISECT_STATE_MAGIC "# invar bisect 1\n"
#define INVAR_BISECT_STATE_FILE "state"

/* ---- words ----------------------------------------------------------------------------------- */

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

/*
 * Unescapes a word in place. Returns false for an escape sequence that the writer never produces.
 */
bool invar_word_buffer_unescape(char *word);

/*
 * Parses a complete text as an integer from `low` to `high`. Returns false if it is anything else.
 */
bool invar_word_buffer_int(int64_t *out, const char *text, int64_t low, int64_t high);

/* ---- the file -------------------------------------------------------------------------------- */

/* Writes the first part of the file. `recipe` is the text of the recipe, or NULL. */
invar_status invar_bisect_state_put_case(invar_word_buffer *out, const invar_bisect_case *what,
                                         const char *recipe) INVAR_MUST_USE;

/* Parses the first part, which is state->text, and cuts it into strings. */
invar_status invar_bisect_state_take_case(invar_bisect_state *state) INVAR_MUST_USE;

/* Fails with INVAR_E_CORRUPT and names the line. */
invar_status invar_bisect_state_damaged(const invar_bisect_state *state,
                                        int64_t line) INVAR_MUST_USE;

/* Returns true for an object id in lowercase hexadecimal. */
bool invar_bisect_state_is_oid(const char *text);
/* Copies a text. Returns false if it does not fit. */
bool invar_bisect_state_copy(char *out, size_t size, const char *text);

size_t invar_bisect_state_count_lines(const char *text);

/*
 * Opens and creates state->path for appending and locks it. Returns INVAR_E_BUSY if another process
 * holds the lock.
 */
invar_status invar_bisect_state_lock(invar_bisect_state *state) INVAR_MUST_USE;

#endif
