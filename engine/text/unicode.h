/*
 * unicode.h - character properties that tokenizers use, and the Unicode normalization forms.
 *
 * The results must equal those of Hugging Face's tokenizers library, whose components use tables of
 * different Unicode versions: kinds, classes and word characters are those of 16.0; numerics and
 * lower case letters of 17.0; normalization forms and accents of 9.0; punctuation of 7.0. The base
 * is utf8proc with Unicode 15.0 or later, with tables of the characters whose properties differ
 * from 15.0.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_UNICODE_H
#define INVAR_ENGINE_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum invar_char_kind {
    INVAR_CHAR_KIND_OTHER,
    INVAR_CHAR_KIND_LETTER, /* \p{L} */
    INVAR_CHAR_KIND_NUMBER, /* \p{N} */
    INVAR_CHAR_KIND_SPACE   /* \s */
} invar_char_kind;

/* Properties that patterns use in addition to the kind. */
typedef enum invar_char_class {
    INVAR_CHAR_CLASS_NONE,     /* a space, a number, a control character, or unassigned */
    INVAR_CHAR_CLASS_CAPITAL,  /* \p{Lu} and \p{Lt} */
    INVAR_CHAR_CLASS_SMALL,    /* \p{Ll} */
    INVAR_CHAR_CLASS_CASELESS, /* \p{Lm} and \p{Lo} */
    INVAR_CHAR_CLASS_MARK,     /* \p{M} */
    INVAR_CHAR_CLASS_SIGN      /* \p{P} and \p{S} */
} invar_char_class;

/*
 * Returns the Unicode version of utf8proc, for digests: machines with the same version give the
 * same results.
 */
const char *invar_unicode_version(void);

/* Returns INVAR_E_UNSUPPORTED if the tables of utf8proc are too old. */
invar_status invar_unicode_check(void) INVAR_MUST_USE;

/* Writes a character as UTF-8, at most 4 bytes. Returns their number. */
size_t invar_unicode_write(char *out, uint32_t point);

invar_char_kind invar_unicode_kind(uint32_t point);
invar_char_class invar_unicode_class(uint32_t point);

bool invar_unicode_is_numeric(uint32_t point);     /* characters at which the pre-tokenizer Digits
                                                      splits */
bool invar_unicode_is_punctuation(uint32_t point); /* characters at which the pre-tokenizer
                                                      Punctuation splits */
bool invar_unicode_is_accent(uint32_t point);      /* characters that the normalizer StripAccents
                                                      removes */
bool invar_unicode_is_word(uint32_t point);        /* \w, for added tokens that must be single
                                                      words */

/*
 * Writes the lower case of a capital, or any other character unchanged. Returns the number of
 * characters.
 */
size_t invar_unicode_lower(uint32_t out[2], uint32_t point);

/* An entry of a table of characters, which is sorted. */
typedef struct invar_unicode_range {
    uint32_t first, last;
} invar_unicode_range;

/* Returns whether the table has the character. */
bool invar_unicode_within(const invar_unicode_range *table, size_t count, uint32_t point);

typedef enum invar_unicode_form {
    INVAR_UNICODE_NFC,
    INVAR_UNICODE_NFD,
    INVAR_UNICODE_NFKC,
    INVAR_UNICODE_NFKD
} invar_unicode_form;

/*
 * Normalizes a valid UTF-8 text. *out is NULL if a quick check shows that the text has the form
 * already: use the text itself. Otherwise the caller frees *out with invar_free; it is not
 * terminated.
 */
invar_status invar_unicode_normalize(char **out, size_t *bytes_out, invar_unicode_form form,
                                     const char *text, size_t bytes) INVAR_MUST_USE;

#endif
