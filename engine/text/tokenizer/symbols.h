/*
 * symbols.h - converts a word to its first symbols, one per character, before BPE merges them.
 *
 * A byte-level word has one character per byte. A character that is not in the vocabulary becomes,
 * as in the tokenizers library, its bytes as tokens of byte_fallback if the vocabulary has all of
 * these, else the unknown token, else nothing.
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

/* Values of invar_symbols.unknown other than an id */
#define INVAR_UNKNOWN_DROPPED (-1) /* unknown characters have no token */
#define INVAR_UNKNOWN_MISSING                                                                      \
    (-2) /* the model names an unknown token that is not in the
                                      vocabulary */

typedef struct invar_symbols {
    bool byte_level;                   /* words are bytes, not text */
    invar_byte_chars spelt;            /* character of each byte, for byte-level words */
    invar_token_map *chars;            /* ids of the characters of the vocabulary from
                                          INVAR_BYTE_CHARS_END on */
    int32_t low[INVAR_BYTE_CHARS_END]; /* ids of the characters below; -1 if not in the
                                          vocabulary */
    int32_t fallback[256];             /* ids of "<0x00>" to "<0xFF>"; -1 if not in the vocabulary,
                                          or without byte_fallback */
    int32_t unknown;                   /* id of the unknown token, or INVAR_UNKNOWN_* */
    bool fuse_unknown;                 /* consecutive unknown characters become one token */
} invar_symbols;

/* Limit of the ids of one byte of a word. */
#define INVAR_SYMBOLS_PER_BYTE 2

/* Writes the symbols of a word, at most INVAR_SYMBOLS_PER_BYTE * bytes ids. */
invar_status invar_symbols_word(int32_t *ids, size_t *count_out, const invar_symbols *symbols,
                                const char *word, size_t bytes) INVAR_MUST_USE;

#endif
