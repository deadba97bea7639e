/*
 * unicode.h - what the tokenizer asks of characters: their kind, and the composed form of a text.
 *
 * The answers are those of Hugging Face's tokenizers library: the kinds of Unicode 16.0 (its
 * regular expressions), numeric as of 17.0 (its language), the composition of Unicode 9.0 (its
 * normalizer). Below is utf8proc; tables hold what differs from Unicode 15.0, the oldest version of
 * utf8proc that will do.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_IO_UNICODE_H
#define INVAR_ENGINE_IO_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_char_kind {
    INVAR_CHAR_KIND_OTHER,
    INVAR_CHAR_KIND_LETTER, /* \p{L} */
    INVAR_CHAR_KIND_NUMBER, /* \p{N} */
    INVAR_CHAR_KIND_SPACE   /* \s */
} invar_char_kind;

/* Names the tables, for digests: two machines with the same name give the same answers. */
const char *invar_unicode_version(void);

/* INVAR_E_UNSUPPORTED when utf8proc's tables are too old. */
invar_status invar_unicode_check(void) INVAR_MUST_USE;

/* Bytes of the character at `text`, 0 when it is not UTF-8. `left` > 0. */
size_t invar_unicode_read(uint32_t *out, const char *text, size_t left);

/* Writes the character, at most 4 bytes; how many. */
size_t invar_unicode_write(char *out, uint32_t point);

invar_char_kind invar_unicode_kind(uint32_t point);

/* True for the characters that the pre-tokenizer Digits splits at. */
bool invar_unicode_is_numeric(uint32_t point);

/*
 * Normalization form C. The caller owns *out (invar_free), which has no NUL; *out is NULL where the
 * text is in that form already by its looks: use the text itself. `text` is valid UTF-8.
 */
invar_status invar_unicode_compose(char **out, size_t *bytes_out, const char *text,
                                   size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
