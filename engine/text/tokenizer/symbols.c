/*
 * symbols.c - converts a word to its first symbols, one per character, before BPE merges them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/tokenizer/symbols.h"

#include "base/text.h"
#include "engine/text/unicode.h"

#include "base/invar_banned.h"

typedef struct symbol_writer {
    const invar_symbols *symbols;
    int32_t *ids;
    size_t count;
    bool unknown; /* an unknown token is pending; it is written when the next symbol cannot be fused
                     with it */
} symbol_writer;

static void flush_unknown(symbol_writer *w)
{
    if (w->unknown)
        w->ids[w->count++] = w->symbols->unknown;
    w->unknown = false;
}

/* Writes the bytes of a character as tokens. Returns false if a byte has none. */
static bool add_fallback_bytes(symbol_writer *w, const char *name, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (w->symbols->fallback[(unsigned char)name[i]] < 0)
            return false;
    // a pending unknown token is written after these, as in the tokenizers library
    for (size_t i = 0; i < length; i++)
        w->ids[w->count++] = w->symbols->fallback[(unsigned char)name[i]];
    return true;
}

static invar_status add_unknown(symbol_writer *w)
{
    if (w->symbols->unknown == INVAR_UNKNOWN_MISSING)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the text has a character that is not in the tokenizer's vocabulary, and "
                          "neither is the unknown token");
    if (w->symbols->unknown == INVAR_UNKNOWN_DROPPED)
        return INVAR_OK;
    if (!w->symbols->fuse_unknown)
        flush_unknown(w);
    w->unknown = true;
    return INVAR_OK;
}

static invar_status add_char(symbol_writer *w, uint32_t point)
{
    int32_t id = point < INVAR_BYTE_CHARS_END ? w->symbols->low[point] : -1;
    char name[4];
    size_t length;

    if (id < 0) {
        length = invar_unicode_write(name, point);
        if (point >= INVAR_BYTE_CHARS_END)
            id = invar_token_map_find(w->symbols->chars, name, length);
        if (id < 0)
            return add_fallback_bytes(w, name, length) ? INVAR_OK : add_unknown(w);
    }
    flush_unknown(w);
    w->ids[w->count++] = id;
    return INVAR_OK;
}

invar_status invar_symbols_word(int32_t *ids, size_t *count_out, const invar_symbols *symbols,
                                const char *word, size_t bytes)
{
    symbol_writer w = {.symbols = symbols, .ids = ids};
    uint32_t point;

    *count_out = 0;
    for (size_t at = 0; at < bytes;) {
        if (symbols->byte_level)
            point = symbols->spelt.chars[(unsigned char)word[at++]];
        else
            at += invar_text_utf8(&point, word + at, bytes - at);
        INVAR_TRY(add_char(&w, point));
    }
    flush_unknown(&w);
    *count_out = w.count;
    return INVAR_OK;
}
