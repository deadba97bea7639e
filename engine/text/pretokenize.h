/*
 * pretokenize.h - splits text into words with the regular expressions of known tokenizers.
 *
 * The expressions are matched by hand-written code. BPE merges tokens within words only, so the
 * words must be exactly those of Hugging Face's tokenizers library.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_PRETOKENIZE_H
#define INVAR_ENGINE_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/text/replace.h"

typedef enum invar_pattern {
    INVAR_PATTERN_GPT2,   /* built into ByteLevel */
    INVAR_PATTERN_LLAMA3, /* numbers in groups of up to three digits */
    INVAR_PATTERN_QWEN2,  /* numbers digit by digit; also Qwen 2.5 and 3 */
    INVAR_PATTERN_O200K,  /* words also end before capitals; GPT-4o, gpt-oss */
    INVAR_PATTERN_TEKKEN, /* like O200K, but numbers digit by digit and no contractions; Mistral
                             Nemo */
    /* The following patterns leave text between their matches. */
    INVAR_PATTERN_NUMBERS,     /* one to three digits; DeepSeek-V3 uses this pattern and the next
                                  two */
    INVAR_PATTERN_HAN,         /* characters of Chinese and Japanese */
    INVAR_PATTERN_DEEPSEEK,    /* words, punctuation, white space */
    INVAR_PATTERN_DIGIT,       /* one numeric character */
    INVAR_PATTERN_PUNCTUATION, /* one character of punctuation */
    INVAR_PATTERN_LITERAL      /* the string `literal` of the splitter */
} invar_pattern;

/* Finds the pattern of a regular expression. Returns false if it is not a known one. */
bool invar_pattern_find(invar_pattern *out, const char *regex);

/*
 * Treatment of the matches of a pattern and of the text between them, as in the tokenizers library.
 */
typedef enum invar_behavior {
    INVAR_BEHAVIOR_REMOVED,              /* pieces are the texts between the matches */
    INVAR_BEHAVIOR_ISOLATED,             /* each match and each text between is a piece */
    INVAR_BEHAVIOR_CONTIGUOUS,           /* adjacent matches are one piece */
    INVAR_BEHAVIOR_MERGED_WITH_PREVIOUS, /* a match ends the piece of the text before it */
    INVAR_BEHAVIOR_MERGED_WITH_NEXT      /* a match begins the piece of the text after it */
} invar_behavior;

/* Finds a behavior by its name in tokenizer.json. Returns false if the name is not known. */
bool invar_behavior_find(invar_behavior *out, const char *name);

typedef struct invar_splitter {
    invar_pattern pattern;
    invar_literal literal; /* not empty if the pattern is INVAR_PATTERN_LITERAL */
    bool invert;           /* matches and the text between them change roles */
    invar_behavior behavior;
} invar_splitter;

/*
 * Finds the next piece [*begin, *end) of `text` from *at on and moves *at after it. Returns false
 * at the end. `text` is valid UTF-8. Time is linear in the length of the piece.
 */
bool invar_split_next(size_t *begin, size_t *end, size_t *at, const invar_splitter *splitter,
                      const char *text, size_t bytes);

#endif
