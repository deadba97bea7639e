/*
 * pretokenize.c - text to words: the regular expressions of known tokenizers, by hand.
 *
 * Each expression is a list of alternatives, tried in order at the place where the last word ended;
 * the functions below are those alternatives. Together they match every character, so nothing is
 * left between words.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/pretokenize.h"

#include <stdint.h>
#include <string.h>

#include "engine/text/unicode.h"

#include "base/invar_banned.h"

#define TAIL "|\\s+(?!\\S)|\\s+"
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"

static const struct {
    invar_pattern pattern;
    const char *regex;
} known[] = {
    {INVAR_PATTERN_GPT2, CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+" TAIL},
    {INVAR_PATTERN_LLAMA3, "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                           "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" TAIL},
    {INVAR_PATTERN_QWEN2, "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                          "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" TAIL},
};

bool invar_pattern_find(invar_pattern *out, const char *regex)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(regex, known[i].regex) == 0) {
            *out = known[i].pattern;
            return true;
        }
    return false;
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct text_view {
    const char *text;
    size_t bytes;
} text_view;

typedef struct character {
    uint32_t point;
    size_t length; /* 0 at the end of the text */
    invar_char_kind kind;
} character;

static character read_at(const text_view *v, size_t at)
{
    character c = {0, 0, INVAR_CHAR_KIND_OTHER};

    if (at < v->bytes) {
        c.length = invar_unicode_read(&c.point, v->text + at, v->bytes - at);
        INVAR_CHECK(c.length > 0);
        c.kind = invar_unicode_kind(c.point);
    }
    return c;
}

static bool is(character c, invar_char_kind kind)
{
    return c.length > 0 && c.kind == kind;
}

static bool is_newline(character c)
{
    return c.length > 0 && (c.point == '\r' || c.point == '\n');
}

/* The end of at most `most` characters of one kind from `at` on. */
static size_t run(const text_view *v, size_t at, invar_char_kind kind, size_t most)
{
    character c;

    for (size_t n = 0; n < most && is(c = read_at(v, at), kind); n++)
        at += c.length;
    return at;
}

/* ---- alternatives: the end of the word, 0 when there is no match ----------------------------- */

/* Lower case of an ASCII letter; U+017F is an s to an expression that ignores case. */
static uint32_t fold(uint32_t point, bool ignore_case)
{
    if (!ignore_case)
        return point;
    return point >= 'A' && point <= 'Z' ? point + 32 : point == 0x17F ? 's' : point;
}

static size_t contraction(const text_view *v, bool ignore_case)
{
    static const char pairs[][2] = {{'r', 'e'}, {'v', 'e'}, {'l', 'l'}};
    character first, second;
    uint32_t a, b;

    if (v->text[0] != '\'')
        return 0;
    first = read_at(v, 1);
    a = first.length ? fold(first.point, ignore_case) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 1 + first.length;
    second = read_at(v, 1 + first.length);
    b = second.length ? fold(second.point, ignore_case) : 0;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (a == (uint32_t)pairs[i][0] && b == (uint32_t)pairs[i][1])
            return 1 + first.length + second.length;
    return 0;
}

/* " ?" and characters of one kind. */
static size_t spaced_run(const text_view *v, invar_char_kind kind)
{
    size_t begin = v->text[0] == ' ' ? 1 : 0;
    size_t end = run(v, begin, kind, SIZE_MAX);

    return end > begin ? end : 0;
}

/* "[^\r\n\p{L}\p{N}]?\p{L}+" */
static size_t letters(const text_view *v)
{
    character c = read_at(v, 0);
    size_t begin = 0, end;

    if (!is_newline(c) && c.kind != INVAR_CHAR_KIND_LETTER && c.kind != INVAR_CHAR_KIND_NUMBER)
        begin = c.length;
    end = run(v, begin, INVAR_CHAR_KIND_LETTER, SIZE_MAX);
    return end > begin ? end : 0;
}

/* " ?[^\s\p{L}\p{N}]+[\r\n]*" */
static size_t others(const text_view *v)
{
    size_t end = spaced_run(v, INVAR_CHAR_KIND_OTHER);

    while (end && is_newline(read_at(v, end)))
        end++;
    return end;
}

/* "\s*[\r\n]+": to the last newline of the white space. */
static size_t newlines(const text_view *v)
{
    size_t at = 0, end = 0;
    character c;

    while (is(c = read_at(v, at), INVAR_CHAR_KIND_SPACE)) {
        at += c.length;
        if (is_newline(c))
            end = at;
    }
    return end;
}

/* "\s+(?!\S)|\s+": white space leaves its last character to the word that follows. */
static size_t spaces(const text_view *v)
{
    size_t at = 0, last = 0;
    character c;

    while (is(c = read_at(v, at), INVAR_CHAR_KIND_SPACE)) {
        last = at;
        at += c.length;
    }
    return c.length && last ? last : at;
}

/* ---- expressions ----------------------------------------------------------------------------- */

static size_t gpt2_word(const text_view *v)
{
    size_t end = contraction(v, false);

    if (!end)
        end = spaced_run(v, INVAR_CHAR_KIND_LETTER);
    if (!end)
        end = spaced_run(v, INVAR_CHAR_KIND_NUMBER);
    if (!end)
        end = spaced_run(v, INVAR_CHAR_KIND_OTHER);
    return end ? end : spaces(v);
}

static size_t llama3_word(const text_view *v, size_t digits)
{
    size_t end = contraction(v, true);

    if (!end)
        end = letters(v);
    if (!end)
        end = run(v, 0, INVAR_CHAR_KIND_NUMBER, digits);
    if (!end)
        end = others(v);
    if (!end)
        end = newlines(v);
    return end ? end : spaces(v);
}

size_t invar_pattern_word(invar_pattern pattern, const char *text, size_t bytes)
{
    text_view v = {text, bytes};

    switch (pattern) {
    case INVAR_PATTERN_GPT2: return gpt2_word(&v);
    case INVAR_PATTERN_LLAMA3: return llama3_word(&v, 3);
    case INVAR_PATTERN_QWEN2: return llama3_word(&v, 1);
    case INVAR_PATTERN_WHOLE: break;
    }
    return bytes;
}
