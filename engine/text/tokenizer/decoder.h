/*
 * decoder.h - the decoder of tokenizer.json: how token names become text.
 *
 * Either all tokens are bytes that form UTF-8 together (ByteLevel), or they are strings, some of
 * which are single bytes ("<0x0A>", ByteFallback) whose runs form UTF-8. ByteLevel after Fuse
 * decodes the joined strings if each of their characters stands for a byte.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_DECODER_H
#define INVAR_ENGINE_TEXT_TOKENIZER_DECODER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json/json.h"
#include "base/status.h"
#include "engine/text/byte_chars.h"
#include "engine/text/replace.h"

/* A step on a single token. Steps are applied in order. */
typedef struct invar_token_step {
    enum {
        INVAR_TOKEN_REPLACE, /* replaces every `from` by `to` */
        INVAR_TOKEN_STRIP    /* removes the character `from`, at most `count` times, from the
                                beginning */
    } kind;
    invar_literal from, to;
    size_t count;
} invar_token_step;

#define INVAR_TOKEN_STEPS_MAX 8
#define INVAR_STRIP_MAX 8

typedef struct invar_text_decoder {
    bool byte_level;
    bool byte_fallback;
    bool spaced;             /* the file has no decoder: tokens are joined with spaces */
    bool drop_first;         /* the first token loses its metaspace characters */
    invar_literal metaspace; /* character that becomes a space; empty if the decoder has none */
    invar_token_step steps[INVAR_TOKEN_STEPS_MAX];
    size_t n_steps;
    invar_literal strip; /* character that is removed from the beginning of the text */
    size_t n_strip;      /* how often `strip` is removed at most */
    invar_literal from;  /* character of the joined tokens that `to` replaces; empty if the decoder
                            has none */
    invar_literal to;
    bool respell; /* decode the joined tokens as bytes if each of their characters stands for one */
} invar_text_decoder;

/* Reads the member "decoder". Returns INVAR_E_UNSUPPORTED if it is not known. */
invar_status invar_text_decoder_read(invar_text_decoder *out, const json_t *json,
                                     const char *where) INVAR_MUST_USE;

/*
 * Computes the text of the token `name`. *byte_out is set if the token is one byte of a run. The
 * caller frees *out with invar_free.
 */
invar_status invar_text_decoder_token(char **out, size_t *bytes_out, bool *byte_out,
                                      const invar_text_decoder *decoder,
                                      const invar_byte_chars *map, const char *name) INVAR_MUST_USE;

/* Returns how many bytes the decoder strips from a text with this beginning. */
size_t invar_text_decoder_stripped(const invar_text_decoder *decoder, const char *text,
                                   size_t bytes);

#endif
