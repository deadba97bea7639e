/*
 * tokenizer.h - text to token ids and back.
 *
 * BPE as in Hugging Face's tokenizers library (byte-level, or SentencePiece's with byte_fallback),
 * read from tokenizer.json, or a small built-in alphabet for offline tasks. A pre-tokenizer,
 * normalizer, decoder or model that is not known is rejected; nothing is approximated. Only reading
 * allocates much memory. Afterwards a tokenizer is constant, and threads may share it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_TOKENIZER_H
#define INVAR_ENGINE_TEXT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"

typedef struct invar_tokenizer invar_tokenizer;

/*
 * Reads DIR/tokenizer.json and, from DIR/tokenizer_config.json if it exists, the eos_token and the
 * switches in added_tokens_decoder, which may not name other tokens. Older folders have their
 * eos_token in DIR/special_tokens_map.json. The caller frees *out with invar_tokenizer_free.
 */
invar_status invar_tokenizer_read(invar_tokenizer **out, const char *dir) INVAR_MUST_USE;

/*
 * Files of a tokenizer in memory: the bytes of tokenizer.json, with the name `where` in error
 * messages, and those of tokenizer_config.json; `config` is NULL if it does not exist.
 */
typedef struct invar_tokenizer_source {
    const char *where;
    const char *json;
    size_t json_bytes;
    const char *config;
    size_t config_bytes;
} invar_tokenizer_source;

/* Like invar_tokenizer_read, from memory. */
invar_status invar_tokenizer_parse(invar_tokenizer **out,
                                   const invar_tokenizer_source *source) INVAR_MUST_USE;

/*
 * Creates the built-in tokenizer: one token per character of `alphabet` (distinct, printable
 * ASCII), with ids from 0 in that order. The last id is the end of text, which has no text.
 * Encoding rejects other characters.
 */
invar_status invar_tokenizer_alphabet(invar_tokenizer **out, const char *alphabet) INVAR_MUST_USE;
void invar_tokenizer_free(invar_tokenizer *tokenizer);

/* Returns the number of ids: each id is below it. */
int64_t invar_tokenizer_size(const invar_tokenizer *tokenizer);

/* Returns the id of the end of text, or -1. */
int32_t invar_tokenizer_eos(const invar_tokenizer *tokenizer);

/*
 * Writes the digest of everything that the ids depend on to *out: tokenizer.json, the end of text
 * and the switches that tokenizer_config.json changes, and the Unicode version; or the built-in
 * alphabet.
 */
void invar_tokenizer_hash(invar_digest *out, const invar_tokenizer *tokenizer);

/*
 * Encodes UTF-8 text. Special tokens in the text are recognized, none are added
 * (add_special_tokens=False). The caller frees *out with invar_free.
 */
invar_status invar_tokenizer_encode(int32_t **out, int64_t *count_out,
                                    const invar_tokenizer *tokenizer, const char *text,
                                    size_t bytes) INVAR_MUST_USE;

/*
 * Returns an upper bound of the memory that encoding the text takes, including the ids, in bytes.
 */
uint64_t invar_tokenizer_max_bytes(const invar_tokenizer *tokenizer, const char *text,
                                   size_t bytes);

/*
 * Returns a lower bound of the number of tokens of any text of `bytes` bytes; 0 if the tokenizer
 * may drop text.
 */
int64_t invar_tokenizer_min_tokens(const invar_tokenizer *tokenizer, size_t bytes);

/*
 * Decodes ids as the tokenizers library does, with U+FFFD for bytes that are not UTF-8. An id
 * without a token has no text (a model may have more ids than the tokenizer). The text is
 * terminated by a NUL that *bytes_out does not count. The caller frees *out with invar_free.
 */
invar_status invar_tokenizer_decode(char **out, size_t *bytes_out, const invar_tokenizer *tokenizer,
                                    const int32_t *ids, int64_t count,
                                    bool skip_special) INVAR_MUST_USE;

/*
 * Returns the bytes of one token, not necessarily UTF-8, or "". Borrowed. Steps of the decoder on
 * joined tokens are not applied: metaspace, for example, is not a space yet.
 */
const char *invar_tokenizer_bytes(size_t *bytes_out, const invar_tokenizer *tokenizer, int32_t id);

/* Returns whether a token is special, so that decoding may skip it. */
bool invar_tokenizer_special(const invar_tokenizer *tokenizer, int32_t id);

/* Text that grows by complete characters. Private to invar_text_stream. */
typedef struct invar_text_buffer {
    char *text; /* NUL-terminated; NULL before the first byte */
    size_t used, capacity;
    char pending[4]; /* beginning of an incomplete character */
    size_t n_pending;
    const invar_tokenizer *joins; /* its decoder may replace a character of the joined tokens; NULL
                                     if it must not */
} invar_text_buffer;

/*
 * Incremental decoder: the text of the tokens so far, without an incomplete character at the end.
 * Zero-initialize before use. Release with invar_text_stream_release.
 */
typedef struct invar_text_stream {
    const char *text; /* NUL-terminated; NULL before the first push */
    size_t bytes;
    size_t stable_bytes;    /* leading bytes that no later token can change */
    size_t unchanged_bytes; /* leading bytes that the last push has not changed */

    /* Fields from here on are private to text_stream.c. */
    invar_text_buffer joined;  /* the text, before the decoder strips its beginning */
    size_t changed;            /* leading bytes of `joined` that the last push has kept */
    bool started;              /* a token was pushed */
    invar_text_buffer decoded; /* bytes that the characters of `joined` stand for, if the decoder
                                 respells */
    size_t read;               /* bytes of `joined` that are in `decoded` */
    bool plain;                /* `joined` has a character that stands for no byte */
    size_t run_begin, n_run;   /* offset in `joined` and number of bytes of the current run of byte
                                 tokens; n_run is 0 outside of a run */
    bool is_invalid;           /* the run is not UTF-8 */
} invar_text_stream;

/* Appends the text of a token. `skip_special` must be the same for all tokens of a stream. */
invar_status invar_text_stream_push(invar_text_stream *stream, const invar_tokenizer *tokenizer,
                                    int32_t id, bool skip_special) INVAR_MUST_USE;

/*
 * Ends the text: an incomplete character becomes U+FFFD, and the text equals that of
 * invar_tokenizer_decode.
 */
invar_status invar_text_stream_flush(invar_text_stream *stream,
                                     const invar_tokenizer *tokenizer) INVAR_MUST_USE;

/* Returns whether the text has every byte of the tokens so far, and no byte can change. */
bool invar_text_stream_is_complete(const invar_text_stream *stream);

void invar_text_stream_release(invar_text_stream *stream);

#endif
