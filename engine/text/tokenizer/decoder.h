/*
 * decoder.h - how tokens become text: what each has by itself, and what happens to the whole.
 *
 * Either all tokens are bytes, which make UTF-8 together (ByteLevel); or they are strings, of which
 * some may be single bytes ("<0x0A>", ByteFallback), whose runs make UTF-8. After Fuse, ByteLevel
 * decodes the joined strings, all of them or none.
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

#ifdef __cplusplus
extern "C" {
#endif

/* What happens to a token by itself, in this order. */
typedef struct invar_token_step {
    enum {
        INVAR_TOKEN_REPLACE, /* every `from` by `to` */
        INVAR_TOKEN_STRIP    /* `from`, a character, at most `count` times at the beginning */
    } kind;
    invar_literal from, to;
    size_t count;
} invar_token_step;

#define INVAR_TOKEN_STEPS_MAX 8
#define INVAR_STRIP_MAX 8

typedef struct invar_text_decoder {
    bool byte_level;
    bool byte_fallback;
    bool spaced;             /* there is no decoder: a space between tokens */
    bool drop_first;         /* the first token loses what `metaspace` stands for */
    invar_literal metaspace; /* a character that becomes a space; empty: none */
    invar_token_step steps[INVAR_TOKEN_STEPS_MAX];
    size_t n_steps;
    invar_literal strip; /* a character that the whole text loses at its beginning, */
    size_t n_strip;      /* at most so often */
    invar_literal from;  /* a character of the joined tokens that `to` replaces; empty: none */
    invar_literal to;
    bool respell; /* the joined tokens spell bytes if each of their characters stands for one */
} invar_text_decoder;

/* `json` is the member "decoder". What would change text and is not known is refused. */
invar_status invar_text_decoder_read(invar_text_decoder *out, const json_t *json,
                                     const char *where) INVAR_MUST_USE;

/*
 * The text of the token `name`; *byte_out: it is one byte of a run. The caller owns *out
 * (invar_free).
 */
invar_status invar_text_decoder_token(char **out, size_t *bytes_out, bool *byte_out,
                                      const invar_text_decoder *decoder,
                                      const invar_byte_chars *map, const char *name) INVAR_MUST_USE;

/* Bytes that the whole text, of which these are the beginning, loses. */
size_t invar_text_decoder_stripped(const invar_text_decoder *decoder, const char *text,
                                   size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
