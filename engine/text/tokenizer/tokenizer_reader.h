/*
 * tokenizer_reader.h - state while tokenizer.json is read, shared by read.c and model.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_TOKENIZER_READER_H
#define INVAR_ENGINE_TEXT_TOKENIZER_TOKENIZER_READER_H

#include "base/json/json.h"
#include "engine/text/byte_chars.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

#define INVAR_TOKEN_MAX_BYTES 65536 /* limit of the name of a token */

typedef struct invar_tokenizer_reader {
    const char *where; /* name of the file in error messages */
    const json_t *root, *vocab, *merges, *added;
    const json_t *config; /* tokenizer_config.json; NULL if it does not exist */
    invar_hasher flags;   /* digest of the switches that tokenizer_config.json changes */
    bool flags_changed;
    bool drops_text; /* an added token takes the white space next to it */
    bool ignore_merges, byte_fallback, fuse_unknown;
    const char *unknown;   /* name of the unknown token; NULL if the model has none */
    int64_t size;          /* number of ids */
    const char **names;    /* (size) names as in the file; NULL for an id without a token */
    size_t name_bytes;     /* bytes of all names together */
    char **normal;         /* (size) normalized names of added tokens; NULL if equal to the name */
    int64_t text_capacity; /* capacity of the tokenizer's text, in bytes */
    invar_text_pipeline pipeline;
    invar_byte_chars map; /* characters that stand for bytes */
    invar_tokenizer *t;   /* tokenizer that is filled; freed after a failure */
} invar_tokenizer_reader;

/* Finds the components and switches of the member "model", which must be BPE. */
invar_status invar_tokenizer_read_model(invar_tokenizer_reader *r) INVAR_MUST_USE;

/* Fills the merges, symbols and words of the tokenizer, after its ids were checked. */
invar_status invar_tokenizer_fill_model(invar_tokenizer_reader *r) INVAR_MUST_USE;

#endif
