/*
 * tokenizer_internal.h - the struct of a tokenizer, for the files of this folder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_TOKENIZER_INTERNAL_H
#define INVAR_ENGINE_TEXT_TOKENIZER_TOKENIZER_INTERNAL_H

#include "engine/text/token_map.h"
#include "engine/text/tokenizer/added_tokens.h"
#include "engine/text/tokenizer/bpe.h"
#include "engine/text/tokenizer/symbols.h"
#include "engine/text/tokenizer/text_pipeline.h"
#include "engine/text/tokenizer/tokenizer.h"

enum {
    INVAR_TOKEN_IS_THERE = 1,
    INVAR_TOKEN_IS_SPECIAL = 2, /* decoding may skip it */
    INVAR_TOKEN_IS_BYTE = 4     /* one byte of a run of byte tokens that is decoded together */
};

struct invar_tokenizer {
    /* Tokens by id; an id without a token has no text. */
    int64_t size;
    char *text;
    size_t *begins; /* (size + 1) offsets into text */
    uint8_t *flags; /* (size) INVAR_TOKEN_IS_* */
    int32_t eos;
    invar_digest hash;
    size_t longest; /* limit of the bytes of normalized text that one token stands for; 0 if there
                       is no limit */
    /*
     * true if a text may stop being decoded as bytes (respell in decoder.h), because some token has
     * a character that stands for no byte, or is a byte of a run: [0] among all tokens, [1] among
     * those that are not special
     */
    bool plain[2];

    /* Steps from text to ids, in this order; a built-in alphabet uses only `letters`. */
    invar_added_tokens *raw; /* added tokens that are found in the original text */
    invar_text_pipeline pipeline;
    invar_added_tokens *normalized; /* added tokens that are found in the normalized text */
    invar_token_map *words;         /* words that are one token regardless of the merges
                                       (ignore_merges); NULL if merges decide */
    invar_symbols symbols;
    invar_bpe *bpe;
    int16_t letters[128]; /* ids of ASCII characters; -1 if a character has none */
};

/*
 * Allocates a tokenizer whose tokens have no text and no flags yet. The caller sets `text` and
 * frees *out with invar_tokenizer_free.
 */
invar_status invar_tokenizer_new(invar_tokenizer **out, int64_t size) INVAR_MUST_USE;

#endif
