/*
 * unicode.h - what the tokenizer asks of characters, and the normalization forms of a text.
 *
 * The answers are those of Hugging Face's tokenizers library, whose parts have tables of different
 * ages: kinds and classes are of Unicode 16.0, as word characters are; numbers and small letters
 * of 17.0; forms and accents of 9.0; punctuation of 7.0. Below is utf8proc; tables hold what
 * differs from Unicode 15.0, the oldest version of utf8proc that will do.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_UNICODE_H
#define INVAR_ENGINE_TEXT_UNICODE_H

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

/* What patterns ask beyond the kind. */
typedef enum invar_char_class {
    INVAR_CHAR_CLASS_NONE,     /* a space, a number, a control character, or unassigned */
    INVAR_CHAR_CLASS_CAPITAL,  /* \p{Lu} and \p{Lt} */
    INVAR_CHAR_CLASS_SMALL,    /* \p{Ll} */
    INVAR_CHAR_CLASS_CASELESS, /* \p{Lm} and \p{Lo} */
    INVAR_CHAR_CLASS_MARK,     /* \p{M} */
    INVAR_CHAR_CLASS_SIGN      /* \p{P} and \p{S} */
} invar_char_class;

/* Names the tables, for digests: two machines with the same name give the same answers. */
const char *invar_unicode_version(void);

/* INVAR_E_UNSUPPORTED when utf8proc's tables are too old. */
invar_status invar_unicode_check(void) INVAR_MUST_USE;

/* Writes the character, at most 4 bytes; how many. */
size_t invar_unicode_write(char *out, uint32_t point);

invar_char_kind invar_unicode_kind(uint32_t point);
invar_char_class invar_unicode_class(uint32_t point);

bool invar_unicode_is_numeric(uint32_t point);     /* what the pre-tokenizer Digits splits at */
bool invar_unicode_is_punctuation(uint32_t point); /* what Punctuation splits at */
bool invar_unicode_is_accent(uint32_t point);      /* what the normalizer StripAccents removes */
bool invar_unicode_is_word(uint32_t point);        /* \w of added tokens that are single words */

/* The small letter of a capital, itself of any other character; how many they are. */
size_t invar_unicode_lower(uint32_t out[2], uint32_t point);

/* A table of characters, in order. */
typedef struct invar_unicode_range {
    uint32_t first, last;
} invar_unicode_range;

bool invar_unicode_within(const invar_unicode_range *table, size_t count, uint32_t point);

typedef enum invar_unicode_form {
    INVAR_UNICODE_NFC,
    INVAR_UNICODE_NFD,
    INVAR_UNICODE_NFKC,
    INVAR_UNICODE_NFKD
} invar_unicode_form;

/*
 * The text in that form. The caller owns *out (invar_free), which has no NUL; *out is NULL where
 * the text is in that form already by its looks: use the text itself. `text` is valid UTF-8.
 */
invar_status invar_unicode_normalize(char **out, size_t *bytes_out, invar_unicode_form form,
                                     const char *text, size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
