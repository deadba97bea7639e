/*
 * pretokenize.h - text to words: the patterns of known tokenizers, by hand.
 *
 * A word never crosses into the next; the merges of BPE happen inside words only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_PRETOKENIZE_H
#define INVAR_ENGINE_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/text/replace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_pattern {
    INVAR_PATTERN_GPT2,   /* what ByteLevel has built in */
    INVAR_PATTERN_LLAMA3, /* numbers in groups of up to three digits */
    INVAR_PATTERN_QWEN2,  /* numbers digit by digit; also Qwen 2.5 and 3 */
    INVAR_PATTERN_O200K,  /* words also end where capitals begin; GPT-4o, gpt-oss */
    INVAR_PATTERN_TEKKEN, /* the same, numbers digit by digit, no contractions; Mistral Nemo */
    /* these leave text between their matches */
    INVAR_PATTERN_NUMBERS,     /* one to three digits; this and the next two: DeepSeek-V3 */
    INVAR_PATTERN_HAN,         /* characters of Chinese and Japanese */
    INVAR_PATTERN_DEEPSEEK,    /* words, punctuation, white space */
    INVAR_PATTERN_DIGIT,       /* one numeric character */
    INVAR_PATTERN_PUNCTUATION, /* one character of punctuation */
    INVAR_PATTERN_LITERAL      /* a string */
} invar_pattern;

/* The pattern with that regular expression; false when it is not one of the known. */
bool invar_pattern_find(invar_pattern *out, const char *regex);

/* What becomes of the matches of a pattern, and of the text between them. */
typedef enum invar_behavior {
    INVAR_BEHAVIOR_REMOVED,              /* the text between */
    INVAR_BEHAVIOR_ISOLATED,             /* each is a piece */
    INVAR_BEHAVIOR_CONTIGUOUS,           /* matches that touch are one piece */
    INVAR_BEHAVIOR_MERGED_WITH_PREVIOUS, /* a match ends the text before it */
    INVAR_BEHAVIOR_MERGED_WITH_NEXT      /* a match begins the text after it */
} invar_behavior;

/* The behavior that the library's files call so; false when there is none. */
bool invar_behavior_find(invar_behavior *out, const char *name);

typedef struct invar_splitter {
    invar_pattern pattern;
    invar_literal literal; /* not empty where it is the pattern */
    bool invert;           /* what matches and what does not are exchanged */
    invar_behavior behavior;
} invar_splitter;

/*
 * The next piece of `text` from *at on is [*begin, *end); *at moves behind it. False when there is
 * none. The text is valid UTF-8. Linear in what is passed.
 */
bool invar_split_next(size_t *begin, size_t *end, size_t *at, const invar_splitter *splitter,
                      const char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
