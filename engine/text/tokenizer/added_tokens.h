/*
 * added_tokens.h - finds added tokens in a text before it is split into words.
 *
 * The leftmost match wins, and the longest at one position. A token may also take the white space
 * on its left or right, and may be required to be a single word, with no word character next to it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_ADDED_TOKENS_H
#define INVAR_ENGINE_TEXT_TOKENIZER_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct invar_added_tokens invar_added_tokens;

invar_status invar_added_tokens_new(invar_added_tokens **out) INVAR_MUST_USE;
void invar_added_tokens_free(invar_added_tokens *added);

typedef struct invar_added_token {
    const char *content; /* UTF-8, not empty, at most INVAR_ADDED_TOKEN_MAX bytes */
    size_t bytes;
    int32_t id;
    bool lstrip, rstrip, single_word;
} invar_added_token;

#define INVAR_ADDED_TOKEN_MAX 1024

/* Returns INVAR_E_INVALID if the table has a token with this content. */
invar_status invar_added_tokens_add(invar_added_tokens *added,
                                    const invar_added_token *token) INVAR_MUST_USE;

typedef struct invar_added_match {
    int32_t id;
    size_t begin, end;  /* includes the white space that the token takes */
    size_t search_from; /* position at which the search continues */
} invar_added_match;

/*
 * Finds the first match from `from` on. White space before `floor` belongs to the previous match.
 */
bool invar_added_tokens_find(invar_added_match *out, const invar_added_tokens *added,
                             const char *text, size_t bytes, size_t from, size_t floor);

#endif
