/*
 * bounds.c - what is known of an encoding before it is made: its memory, and its fewest tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

#include "base/invar_banned.h"

/* Beyond these, nothing useful is known; products of them and of a text's bytes fit 64 bits. */
#define MOST_GROWTH ((uint64_t)1 << 16)
#define MOST_SHRINK ((uint64_t)1 << 20)

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * Memory for each byte of a normalized text, if all of it is one word: an id (4), a symbol (12),
 * up to two merges that are possible (24), and copies of the text before and after a step. One
 * word of 4 MiB of spaces takes 30 with Qwen3's tokenizer, one of "the" 26. Text of many words
 * takes 6.
 */
#define WORD_BYTES 44
#define LEAST_BYTES 16384 /* what a short text takes */

static uint64_t ceil_ratio(size_t a, size_t b)
{
    return a > b ? (a + b - 1) / b : 1;
}

/* How many times as many bytes the step makes of a text at most. Forms: Unicode's UAX #15. */
static uint64_t step_growth(const invar_normal_step *step, bool ascii)
{
    bool compatible = step->form == INVAR_UNICODE_NFKC || step->form == INVAR_UNICODE_NFKD;

    if (step->kind == INVAR_NORMAL_REPLACE)
        return ceil_ratio(step->to.bytes, step->from.bytes);
    if (ascii)
        return 1;
    if (step->kind == INVAR_NORMAL_FORM)
        return compatible ? 11 : 3;
    return step->kind == INVAR_NORMAL_LOWERCASE ? 2 : 1;
}

static bool is_ascii(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] >= 0x80)
            return false;
    return true;
}

uint64_t invar_tokenizer_room(const invar_tokenizer *tokenizer, const char *text, size_t bytes)
{
    const invar_text_pipeline *p = &tokenizer->pipeline;
    bool ascii = is_ascii(text, bytes);
    uint64_t growth = 1;

    for (size_t i = 0; i < p->normalizer.n_steps && growth < MOST_GROWTH; i++) {
        const invar_normal_step *step = &p->normalizer.steps[i];

        growth *= step_growth(step, ascii);
        ascii = ascii && is_ascii(step->to.text, step->to.bytes);
    }
    for (size_t i = 0; i < p->n_steps && growth < MOST_GROWTH; i++)
        if (p->steps[i].kind == INVAR_PRE_STEP_METASPACE)
            growth *= p->steps[i].literal.bytes; // for every space
    return WORD_BYTES * growth * bytes + LEAST_BYTES;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/*
 * How many bytes of a text at most become one byte by the step; 0: any number. A character of a
 * composed form stands for at most 4 characters, each of up to 4 bytes.
 */
static uint64_t step_shrink(const invar_normal_step *step)
{
    switch (step->kind) {
    case INVAR_NORMAL_FORM: return 16;
    case INVAR_NORMAL_LOWERCASE: return 4;
    case INVAR_NORMAL_PREPEND: return 1;
    case INVAR_NORMAL_REPLACE:
        return step->to.bytes ? ceil_ratio(step->from.bytes, step->to.bytes) : 0;
    case INVAR_NORMAL_STRIP:
    case INVAR_NORMAL_STRIP_ACCENTS: break;
    }
    return 0;
}

int64_t invar_tokenizer_least(const invar_tokenizer *tokenizer, size_t bytes)
{
    const invar_text_pipeline *p = &tokenizer->pipeline;
    uint64_t shrink = 1;

    for (size_t i = 0; i < p->normalizer.n_steps && shrink <= MOST_SHRINK; i++)
        shrink *= step_shrink(&p->normalizer.steps[i]);
    for (size_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].kind == INVAR_PRE_STEP_SPLIT &&
            p->steps[i].splitter.behavior == INVAR_BEHAVIOR_REMOVED)
            return 0;
    if (shrink == 0 || shrink > MOST_SHRINK || tokenizer->longest == 0)
        return 0;
    return (int64_t)(bytes / (shrink * tokenizer->longest));
}
