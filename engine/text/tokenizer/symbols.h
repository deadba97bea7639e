/*
 * symbols.h - a word to its first symbols, one for each character, before any are merged.
 *
 * A byte-level word has one character for each byte. The vocabulary may lack some characters. As in
 * the tokenizers library such a one becomes the tokens of byte_fallback where its bytes have them
 * all, else the unknown token, else nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_SYMBOLS_H
#define INVAR_ENGINE_TEXT_TOKENIZER_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/text/byte_chars.h"
#include "engine/text/token_map.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Unknown is the id of the unknown token, or: */
#define INVAR_UNKNOWN_DROPPED (-1) /* what is unknown has no token */
#define INVAR_UNKNOWN_MISSING (-2) /* the model names a token that is not in the vocabulary */

typedef struct invar_symbols {
    bool byte_level;                   /* words are bytes; else they are text */
    invar_byte_chars spelt;            /* byte-level: the character of each byte */
    invar_token_map *chars;            /* the characters of the vocabulary */
    int32_t low[INVAR_BYTE_CHARS_END]; /* ids of those below; -1: not in the vocabulary */
    int32_t fallback[256]; /* ids of "<0x00>" and on; -1: not there, or no byte_fallback */
    int32_t unknown;
    bool fuse_unknown; /* unknown ones that follow each other are one */
} invar_symbols;

/* The most ids that a byte of a word becomes. */
#define INVAR_SYMBOLS_PER_BYTE 2

/* Writes at most INVAR_SYMBOLS_PER_BYTE * bytes ids. */
invar_status invar_symbols_word(int32_t *ids, size_t *count_out, const invar_symbols *symbols,
                                const char *word, size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
