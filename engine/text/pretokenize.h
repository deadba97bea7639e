/*
 * pretokenize.h - text to words: the regular expressions of known tokenizers, by hand.
 *
 * A word never crosses into the next; the merges of BPE happen inside words only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_IO_PRETOKENIZE_H
#define INVAR_ENGINE_IO_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_pattern {
    INVAR_PATTERN_WHOLE,  /* no splitting: the text is one word */
    INVAR_PATTERN_GPT2,   /* what ByteLevel has built in */
    INVAR_PATTERN_LLAMA3, /* numbers in groups of up to three digits */
    INVAR_PATTERN_QWEN2   /* numbers digit by digit; also Qwen 2.5 and 3 */
} invar_pattern;

/* The pattern with that regular expression; false when it is not one of the known. */
bool invar_pattern_find(invar_pattern *out, const char *regex);

/* Bytes of the first word of `text`, which is valid UTF-8 and not empty. Linear in the result. */
size_t invar_pattern_word(invar_pattern pattern, const char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
