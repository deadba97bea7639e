/*
 * tokenizer.h - text to token ids and back.
 *
 * BPE as Hugging Face's tokenizers library has it (byte-level, or SentencePiece's with
 * byte_fallback), read from tokenizer.json, or a small built-in alphabet for offline tasks. A
 * pre-tokenizer, normalizer, decoder or model that is not one of the known ones is refused: nothing
 * is approximated. Reading is the only call that allocates much; a tokenizer is constant afterwards
 * and may be used by several threads.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_tokenizer invar_tokenizer;

/*
 * Reads DIR/tokenizer.json; where DIR/tokenizer_config.json is there, its eos_token and the
 * switches of its added_tokens_decoder, which may name no other tokens. Older folders have their
 * eos_token in DIR/special_tokens_map.json.
 */
invar_status invar_tokenizer_read(invar_tokenizer **out, const char *dir) INVAR_MUST_USE;

/*
 * The same from memory: the bytes of tokenizer.json, called `where` in messages, and those of
 * tokenizer_config.json, NULL where there is none.
 */
typedef struct invar_tokenizer_source {
    const char *where;
    const char *json;
    size_t json_bytes;
    const char *config;
    size_t config_bytes;
} invar_tokenizer_source;

invar_status invar_tokenizer_parse(invar_tokenizer **out,
                                   const invar_tokenizer_source *source) INVAR_MUST_USE;

/*
 * Built-in: one token per character of `alphabet` (distinct, printable ASCII), ids from 0 in that
 * order, then the end of text, which has no text, as the last id. Text with other characters is
 * refused.
 */
invar_status invar_tokenizer_alphabet(invar_tokenizer **out, const char *alphabet) INVAR_MUST_USE;
void invar_tokenizer_free(invar_tokenizer *tokenizer);

/* Ids are below this. */
int64_t invar_tokenizer_size(const invar_tokenizer *tokenizer);

/* The end of text; -1 when there is none. */
int32_t invar_tokenizer_eos(const invar_tokenizer *tokenizer);

/* The digest of what the tokenizer was made from, with the Unicode version of its tables. */
void invar_tokenizer_hash(invar_digest *out, const invar_tokenizer *tokenizer);

/*
 * UTF-8 text to ids, special tokens in the text recognised, none added
 * (add_special_tokens=False). The caller owns *out (invar_free).
 */
invar_status invar_tokenizer_encode(int32_t **out, int64_t *count_out,
                                    const invar_tokenizer *tokenizer, const char *text,
                                    size_t bytes) INVAR_MUST_USE;

/* Bytes of memory that encoding the text takes at most, its ids among them. */
uint64_t invar_tokenizer_room(const invar_tokenizer *tokenizer, const char *text, size_t bytes);

/* Tokens that any text of so many bytes has at least; 0 if the tokenizer may drop text. */
int64_t invar_tokenizer_least(const invar_tokenizer *tokenizer, size_t bytes);

/*
 * Ids to text: what tokenizers' decode gives, with U+FFFD for bytes that are no UTF-8. An id that
 * is no token (a model may have more) has no text. NUL at the end, not counted. The caller owns
 * *out (invar_free).
 */
invar_status invar_tokenizer_decode(char **out, size_t *bytes_out, const invar_tokenizer *tokenizer,
                                    const int32_t *ids, int64_t count,
                                    bool skip_special) INVAR_MUST_USE;

/* What one token adds to a text, in bytes that need not be UTF-8; borrowed. "" if nothing. */
const char *invar_tokenizer_bytes(size_t *bytes_out, const invar_tokenizer *tokenizer, int32_t id);

/* True for a special token, which decoding may skip. */
bool invar_tokenizer_special(const invar_tokenizer *tokenizer, int32_t id);

/* Text that grows by characters. */
typedef struct invar_text_buffer {
    char *text; /* NUL-terminated; NULL before the first byte */
    size_t used, capacity;
    char pending[4]; /* the beginning of a character */
    size_t n_pending;
    const invar_tokenizer *joins; /* its decoder's Replace of joined tokens applies; may be NULL */
} invar_text_buffer;

/*
 * Text that grows token by token: what decode gives, without the beginning of a character at its
 * end. Zeroed at first; release.
 */
typedef struct invar_text_stream {
    const char *text; /* NUL-terminated; NULL before the first push */
    size_t bytes;
    size_t settled; /* so many bytes stay, whatever follows; the others may become U+FFFD */
    size_t fresh;   /* the last push changed nothing before this byte */

    /* its own */
    invar_text_buffer joined; /* the text, with what decoders take from its beginning */
    size_t changed;           /* the last push changed nothing of `joined` before this byte */
    bool started;             /* there was a token */
    invar_text_buffer spelt;  /* text of the bytes that `joined` spells, if the decoder asks */
    size_t read;              /* bytes of `joined` that are in `spelt` */
    bool plain;               /* `joined` does not spell bytes */
    size_t run_begin, n_run;  /* bytes that were tokens, after a string */
    bool spoilt;              /* the run is no UTF-8 */
} invar_text_stream;

invar_status invar_text_stream_push(invar_text_stream *stream, const invar_tokenizer *tokenizer,
                                    int32_t id, bool skip_special) INVAR_MUST_USE;

/* No more tokens follow: what is pending becomes U+FFFD, and the text is what decode gives. */
invar_status invar_text_stream_flush(invar_text_stream *stream,
                                     const invar_tokenizer *tokenizer) INVAR_MUST_USE;

/* True if the text has every byte of the tokens so far, and none of it may change. */
bool invar_text_stream_whole(const invar_text_stream *stream);

void invar_text_stream_release(invar_text_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
