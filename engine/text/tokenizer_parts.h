/*
 * tokenizer_parts.h - what a tokenizer is made of; for its own files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_IO_TOKENIZER_PARTS_H
#define INVAR_ENGINE_IO_TOKENIZER_PARTS_H

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/pipeline.h"
#include "engine/text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Words that are one token whatever the merges say: ids by the hash of their bytes. */
typedef struct invar_word_table {
    int32_t *slots; /* (mask + 1), open addressing, -1: empty; NULL: no such words */
    size_t mask;
} invar_word_table;

struct invar_tokenizer {
    /* tokens by id; an id without a token is empty */
    int64_t size;
    char *text;
    size_t *begins;   /* (size + 1), into text */
    uint8_t *special; /* (size) */
    int32_t eos;
    invar_digest hash;

    /* text to ids, in this order; a built-in alphabet has only `letters` */
    invar_added_tokens *raw; /* found in the text itself */
    invar_pipeline pipeline;
    invar_added_tokens *normalized; /* found in the composed text */
    invar_word_table words;
    invar_bpe *bpe;
    int16_t letters[128]; /* ids of the characters, -1: none */
};

/* All empty; the caller owns *out (invar_tokenizer_free). */
invar_status invar_tokenizer_new(invar_tokenizer **out, int64_t size,
                                 size_t text_bytes) INVAR_MUST_USE;

/* The id of a word that is one token; -1 when it is not. */
int32_t invar_word_table_find(const invar_tokenizer *tokenizer, const char *word, size_t bytes);
invar_status invar_word_table_new(invar_word_table *out, size_t count) INVAR_MUST_USE;
void invar_word_table_add(invar_tokenizer *tokenizer, int32_t id);

#ifdef __cplusplus
}
#endif
#endif
