/*
 * pretokenize.c - text to words: the patterns of known tokenizers, by hand.
 *
 * Each regular expression is a list of alternatives, tried in order at the place where the last
 * word ended; the functions below are those alternatives. Together they match every character, so
 * nothing is left between words.
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

bool invar_behavior_find(invar_behavior *out, const char *name)
{
    static const char *const names[] = {
        [INVAR_BEHAVIOR_REMOVED] = "Removed",
        [INVAR_BEHAVIOR_ISOLATED] = "Isolated",
        [INVAR_BEHAVIOR_CONTIGUOUS] = "Contiguous",
        [INVAR_BEHAVIOR_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [INVAR_BEHAVIOR_MERGED_WITH_NEXT] = "MergedWithNext",
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (invar_behavior)i;
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

/* ---- patterns that leave text between their matches ------------------------------------------ */

/* One character of a kind, or the text up to the next. */
static size_t kind_range(bool *match_out, const text_view *v, bool (*is_kind)(uint32_t point))
{
    character c = read_at(v, 0);
    size_t end = c.length;

    *match_out = is_kind(c.point);
    while (!*match_out && (c = read_at(v, end)).length > 0 && !is_kind(c.point))
        end += c.length;
    return end;
}

static size_t literal_range(bool *match_out, const text_view *v, const invar_literal *literal)
{
    size_t found = invar_literal_find(literal, v->text, v->bytes, 0);

    *match_out = found == 0;
    return *match_out ? literal->bytes : found;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* The end of what begins at `at`, a match or the text before one. */
static size_t range_end(bool *match_out, const invar_splitter *splitter, const text_view *text,
                        size_t at)
{
    text_view v = {text->text + at, text->bytes - at};
    size_t length = 0;

    *match_out = true;
    switch (splitter->pattern) {
    case INVAR_PATTERN_GPT2: length = gpt2_word(&v); break;
    case INVAR_PATTERN_LLAMA3: length = llama3_word(&v, 3); break;
    case INVAR_PATTERN_QWEN2: length = llama3_word(&v, 1); break;
    case INVAR_PATTERN_DIGIT: length = kind_range(match_out, &v, invar_unicode_is_numeric); break;
    case INVAR_PATTERN_PUNCTUATION:
        length = kind_range(match_out, &v, invar_unicode_is_punctuation);
        break;
    case INVAR_PATTERN_LITERAL: length = literal_range(match_out, &v, &splitter->literal); break;
    }
    *match_out = *match_out != splitter->invert;
    return at + length;
}

static bool joins_any(invar_behavior behavior)
{
    return behavior != INVAR_BEHAVIOR_REMOVED && behavior != INVAR_BEHAVIOR_ISOLATED;
}

/* True when the range that follows belongs to the piece; `first`: the piece has one range yet. */
static bool joins(invar_behavior behavior, bool first, bool match, bool next)
{
    switch (behavior) {
    case INVAR_BEHAVIOR_CONTIGUOUS: return match == next;
    case INVAR_BEHAVIOR_MERGED_WITH_PREVIOUS: return first && !match && next;
    case INVAR_BEHAVIOR_MERGED_WITH_NEXT: return first && match && !next;
    case INVAR_BEHAVIOR_REMOVED:
    case INVAR_BEHAVIOR_ISOLATED: break;
    }
    return false;
}

bool invar_split_next(size_t *begin, size_t *end, size_t *at, const invar_splitter *splitter,
                      const char *text, size_t bytes)
{
    const text_view v = {text, bytes};
    bool match, next;
    size_t beyond;

    *end = *at;
    do {
        if (*end == bytes)
            return false;
        *begin = *end;
        *end = range_end(&match, splitter, &v, *begin);
    } while (match && splitter->behavior == INVAR_BEHAVIOR_REMOVED);
    for (bool first = true; joins_any(splitter->behavior) && *end < bytes; first = false) {
        beyond = range_end(&next, splitter, &v, *end);
        if (!joins(splitter->behavior, first, match, next))
            break;
        *end = beyond;
        match = next;
    }
    *at = *end;
    return true;
}
