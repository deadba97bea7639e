/*
 * replace.h - replaces all occurrences of a short string in a text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_REPLACE_H
#define INVAR_ENGINE_TEXT_REPLACE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#define INVAR_LITERAL_MAX 64

/* A string of at most INVAR_LITERAL_MAX bytes, not terminated. */
typedef struct invar_literal {
    char text[INVAR_LITERAL_MAX];
    size_t bytes;
} invar_literal;

/* Returns false if the text is too long. */
bool invar_literal_set(invar_literal *out, const char *text);

/*
 * Returns the offset of the first occurrence of a non-empty literal from `at` on, `bytes` if it
 * does not occur.
 */
size_t invar_literal_find(const invar_literal *literal, const char *text, size_t bytes, size_t at);

/*
 * Limit of a text in bytes. Encoding takes memory for several ids per byte, so a longer text is
 * rejected as a mistake.
 */
#define INVAR_TEXT_MAX ((size_t)1 << 28)

/*
 * Replaces every `from`, which is not empty, by `to`, from left to right. *out is NULL if `from`
 * does not occur: use the text itself. The caller frees *out with invar_free. Returns
 * INVAR_E_INVALID if the result is longer than INVAR_TEXT_MAX.
 */
invar_status invar_replace(char **out, size_t *bytes_out, const invar_literal *from,
                           const invar_literal *to, const char *text, size_t bytes) INVAR_MUST_USE;

#endif
