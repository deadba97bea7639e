/*
 * tokenizer_internal.h - what a tokenizer is made of; for its own files.
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

#ifdef __cplusplus
extern "C" {
#endif

enum {
    INVAR_TOKEN_IS_THERE = 1,
    INVAR_TOKEN_IS_SPECIAL = 2, /* decoding may skip it */
    INVAR_TOKEN_IS_BYTE = 4     /* of a run of bytes, which together are text */
};

struct invar_tokenizer {
    /* tokens by id; an id without a token is empty */
    int64_t size;
    char *text;
    size_t *begins; /* (size + 1), into text */
    uint8_t *flags; /* (size), INVAR_TOKEN_IS_ */
    int32_t eos;
    invar_digest hash;
    size_t longest; /* bytes of normalized text that a token stands for at most; 0: any number */
    bool plain[2];  /* a token exists that may end the spelling of bytes; [1]: one not special */

    /* text to ids, in this order; a built-in alphabet has only `letters` */
    invar_added_tokens *raw; /* found in the text itself */
    invar_text_pipeline pipeline;
    invar_added_tokens *normalized; /* found in the normalized text */
    invar_token_map *words; /* one token each, whatever the merges say; NULL: no such words */
    invar_symbols symbols;
    invar_bpe *bpe;
    int16_t letters[128]; /* ids of the characters, -1: none */
};

/* Tokens without text and flags; the caller owns *out (invar_tokenizer_free), and gives it text. */
invar_status invar_tokenizer_new(invar_tokenizer **out, int64_t size) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
