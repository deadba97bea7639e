/*
 * bounds.c - bounds of an encoding before it is made: memory at most, tokens at least.
 *
 * The HTTP server uses the bounds to reserve memory and to reject a prompt that is certainly too
 * long before it is encoded. Both are safe for untrusted text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

#include "base/invar_banned.h"

/* Bounds beyond these are useless; their products with the bytes of a text fit 64 bits. */
#define MAX_GROWTH ((uint64_t)1 << 16)
#define MAX_SHRINK ((uint64_t)1 << 20)

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * Memory per byte of a normalized text that is one word: an id (4), a symbol (12), up to two
 * possible merges (24), and copies of the text before and after a step. One word of 4 MiB of spaces
 * takes 30 with the tokenizer of Qwen3, one of "the" 26; text of many words takes 6.
 */
#define WORD_BYTES 44
#define MIN_BYTES 16384 /* memory for a short text */

static uint64_t ceil_ratio(size_t a, size_t b)
{
    return a > b ? (a + b - 1) / b : 1;
}

/*
 * Returns the largest factor by which the step lengthens a text. For the normalization forms see
 * UAX #15 of Unicode.
 */
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

uint64_t invar_tokenizer_max_bytes(const invar_tokenizer *tokenizer, const char *text, size_t bytes)
{
    const invar_text_pipeline *p = &tokenizer->pipeline;
    bool ascii = is_ascii(text, bytes);
    uint64_t growth = 1;

    for (size_t i = 0; i < p->normalizer.n_steps && growth < MAX_GROWTH; i++) {
        const invar_normal_step *step = &p->normalizer.steps[i];

        growth *= step_growth(step, ascii);
        ascii = ascii && is_ascii(step->to.text, step->to.bytes);
    }
    for (size_t i = 0; i < p->n_steps && growth < MAX_GROWTH; i++)
        if (p->steps[i].kind == INVAR_PRE_STEP_METASPACE)
            growth *= p->steps[i].literal.bytes; // every character may be a space
    return WORD_BYTES * growth * bytes + MIN_BYTES;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/*
 * Returns how many bytes of a text become one byte at most; 0 if there is no limit. A character of
 * a composed form stands for at most 4 characters of up to 4 bytes each.
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

int64_t invar_tokenizer_min_tokens(const invar_tokenizer *tokenizer, size_t bytes)
{
    const invar_text_pipeline *p = &tokenizer->pipeline;
    uint64_t shrink = 1;

    for (size_t i = 0; i < p->normalizer.n_steps && shrink <= MAX_SHRINK; i++)
        shrink *= step_shrink(&p->normalizer.steps[i]);
    for (size_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].kind == INVAR_PRE_STEP_SPLIT &&
            p->steps[i].splitter.behavior == INVAR_BEHAVIOR_REMOVED)
            return 0;
    if (shrink == 0 || shrink > MAX_SHRINK || tokenizer->longest == 0)
        return 0;
    return (int64_t)(bytes / (shrink * tokenizer->longest));
}
