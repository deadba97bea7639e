/*
 * tokenizer_reader.h - the state of reading tokenizer.json; for the files that do.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_TOKENIZER_READER_H
#define INVAR_ENGINE_TEXT_TOKENIZER_TOKENIZER_READER_H

#include "base/json/json.h"
#include "engine/text/byte_chars.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_TOKEN_MAX_BYTES 65536 /* of a name */

typedef struct invar_tokenizer_reader {
    const char *where; /* the file, for messages */
    const json_t *root, *vocab, *merges, *added;
    const json_t *config; /* tokenizer_config.json; NULL: not there */
    invar_hasher flags;   /* of what it changes */
    bool flags_changed;
    bool drops_text; /* an added token takes the white space beside it */
    bool ignore_merges, byte_fallback, fuse_unknown;
    const char *unknown; /* NULL: none */
    int64_t size;        /* ids are below it */
    const char **names;  /* (size) as in the file; NULL: no token */
    size_t name_bytes;   /* of all names together */
    char **normal;       /* (size) names of added tokens as normalized; NULL: the same */
    size_t text_room;    /* of the tokenizer's text */
    invar_text_pipeline pipeline;
    invar_byte_chars map;
    invar_tokenizer *t;
} invar_tokenizer_reader;

/* Finds the parts and switches of the member "model", which must be BPE. */
invar_status invar_tokenizer_read_model(invar_tokenizer_reader *r) INVAR_MUST_USE;

/* Gives the tokenizer, whose ids are checked by then, its merges, symbols and words. */
invar_status invar_tokenizer_fill_model(invar_tokenizer_reader *r) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
