/*
 * replace.h - one string for another, everywhere in a text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_REPLACE_H
#define INVAR_ENGINE_TEXT_REPLACE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_LITERAL_MAX 64

/* A short string; no NUL at its end. */
typedef struct invar_literal {
    char text[INVAR_LITERAL_MAX];
    size_t bytes;
} invar_literal;

/* False when the text is too long. */
bool invar_literal_set(invar_literal *out, const char *text);

/* Where the literal, which is not empty, is first found from `at` on; `bytes` when it is not. */
size_t invar_literal_find(const invar_literal *literal, const char *text, size_t bytes, size_t at);

/* Some bytes become several ids' worth of memory; a text this long is a mistake. */
#define INVAR_TEXT_MAX ((size_t)1 << 28)

/*
 * The text with `to` for every `from`, which is not empty, from left to right. The caller owns *out
 * (invar_free); it is NULL where `from` does not occur: use the text itself. INVAR_E_INVALID when
 * the result is longer than INVAR_TEXT_MAX.
 */
invar_status invar_replace(char **out, size_t *bytes_out, const invar_literal *from,
                           const invar_literal *to, const char *text, size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
