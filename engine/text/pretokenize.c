/*
 * pretokenize.c - splits text into words with the regular expressions of known tokenizers.
 *
 * Each expression is a list of alternatives, which are tried in order at the end of the last word;
 * the functions below are these alternatives, named in their comments. Together the alternatives of
 * an expression match every character, so no text is left between words, except for the patterns
 * that pretokenize.h lists as leaving text.
 *
 * A change must keep the words of Hugging Face's tokenizers library, for every text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/pretokenize.h"

#include <stdint.h>
#include <string.h>

#include "base/text.h"
#include "engine/text/unicode.h"

#include "base/invar_banned.h"

#define TAIL "|\\s+(?!\\S)|\\s+"
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define PREFIX "[^\\r\\n\\p{L}\\p{N}]?"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(tail) PREFIX UPPER "*" LOWER "+" tail "|" PREFIX UPPER "+" LOWER "*" tail
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" TAIL

static const struct {
    invar_pattern pattern;
    const char *regex;
} known_patterns[] = {
    {INVAR_PATTERN_GPT2, CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+" TAIL},
    {INVAR_PATTERN_LLAMA3, "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                           "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" TAIL},
    {INVAR_PATTERN_QWEN2, "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                          "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" TAIL},
    {INVAR_PATTERN_O200K, CASED("(?i:" CONTRACTIONS ")?") "|\\p{N}{1,3}" REST},
    {INVAR_PATTERN_TEKKEN, CASED("") "|\\p{N}" REST},
    {INVAR_PATTERN_NUMBERS, "\\p{N}{1,3}"},
    {INVAR_PATTERN_HAN, "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F"
                        "\xE3\x82\xA0-\xE3\x83\xBF]+"},
    {INVAR_PATTERN_DEEPSEEK, "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
                             "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                             "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+" TAIL},
};

bool invar_pattern_find(invar_pattern *out, const char *regex)
{
    for (size_t i = 0; i < sizeof known_patterns / sizeof known_patterns[0]; i++)
        if (strcmp(regex, known_patterns[i].regex) == 0) {
            *out = known_patterns[i].pattern;
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

/* ---- characters ------------------------------------------------------------------------------ */

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
        c.length = invar_text_utf8(&c.point, v->text + at, v->bytes - at);
        INVAR_CHECK(c.length > 0);
        c.kind = invar_unicode_kind(c.point);
    }
    return c;
}

static bool has_kind(character c, invar_char_kind kind)
{
    return c.length > 0 && c.kind == kind;
}

static bool is_newline(character c)
{
    return c.length > 0 && (c.point == '\r' || c.point == '\n');
}

/* Returns the end of at most `most` characters of one kind from `at` on. */
static size_t skip_kind(const text_view *v, size_t at, invar_char_kind kind, size_t most)
{
    character c;

    for (size_t n = 0; n < most && has_kind(c = read_at(v, at), kind); n++)
        at += c.length;
    return at;
}

/* ---- alternatives: return the end of the match, 0 if they do not match ----------------------- */

/* Lower case of an ASCII letter. If case is ignored, U+017F matches an s. */
static uint32_t fold_case(uint32_t point, bool ignore_case)
{
    if (!ignore_case)
        return point;
    return point >= 'A' && point <= 'Z' ? point + 32 : point == 0x17F ? 's' : point;
}

static size_t match_contraction(const text_view *v, bool ignore_case)
{
    static const char pairs[][2] = {{'r', 'e'}, {'v', 'e'}, {'l', 'l'}};
    character first, second;
    uint32_t a, b;

    if (v->text[0] != '\'')
        return 0;
    first = read_at(v, 1);
    a = first.length ? fold_case(first.point, ignore_case) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 1 + first.length;
    second = read_at(v, 1 + first.length);
    b = second.length ? fold_case(second.point, ignore_case) : 0;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (a == (uint32_t)pairs[i][0] && b == (uint32_t)pairs[i][1])
            return 1 + first.length + second.length;
    return 0;
}

/* Matches " ?" and characters of one kind. */
static size_t match_spaced_run(const text_view *v, invar_char_kind kind)
{
    size_t begin = v->text[0] == ' ' ? 1 : 0;
    size_t end = skip_kind(v, begin, kind, SIZE_MAX);

    return end > begin ? end : 0;
}

/* Matches the optional prefix "[^\r\n\p{L}\p{N}]?". */
static size_t match_prefix(const text_view *v)
{
    character c = read_at(v, 0);

    return is_newline(c) || c.kind == INVAR_CHAR_KIND_LETTER || c.kind == INVAR_CHAR_KIND_NUMBER
               ? 0
               : c.length;
}

/* Matches a prefix and letters, "[^\r\n\p{L}\p{N}]?\p{L}+". */
static size_t match_letters(const text_view *v)
{
    size_t begin = match_prefix(v), end;

    end = skip_kind(v, begin, INVAR_CHAR_KIND_LETTER, SIZE_MAX);
    return end > begin ? end : 0;
}

/* Matches "[\r\n]*", or "[\r\n/]*" if `slash` is set, after a match that ends at `end`. */
static size_t match_newlines_after(const text_view *v, size_t end, bool slash)
{
    while (end && end < v->bytes && (is_newline(read_at(v, end)) || (slash && v->text[end] == '/')))
        end++;
    return end;
}

/* Matches " ?[^\s\p{L}\p{N}]+" and the newlines after it. */
static size_t match_others(const text_view *v, bool slash)
{
    return match_newlines_after(v, match_spaced_run(v, INVAR_CHAR_KIND_OTHER), slash);
}

/* Matches "\s*[\r\n]+": up to the last newline of the white space. */
static size_t match_newlines(const text_view *v)
{
    size_t at = 0, end = 0;
    character c;

    while (has_kind(c = read_at(v, at), INVAR_CHAR_KIND_SPACE)) {
        at += c.length;
        if (is_newline(c))
            end = at;
    }
    return end;
}

/* Matches "\s+(?!\S)|\s+": white space leaves its last character to the word after it. */
static size_t match_spaces(const text_view *v)
{
    size_t at = 0, last = 0;
    character c;

    while (has_kind(c = read_at(v, at), INVAR_CHAR_KIND_SPACE)) {
        last = at;
        at += c.length;
    }
    return c.length && last ? last : at;
}

/* ---- expressions ----------------------------------------------------------------------------- */

static size_t gpt2_word(const text_view *v)
{
    size_t end = match_contraction(v, false);

    if (!end)
        end = match_spaced_run(v, INVAR_CHAR_KIND_LETTER);
    if (!end)
        end = match_spaced_run(v, INVAR_CHAR_KIND_NUMBER);
    if (!end)
        end = match_spaced_run(v, INVAR_CHAR_KIND_OTHER);
    return end ? end : match_spaces(v);
}

static size_t llama3_word(const text_view *v, size_t digits)
{
    size_t end = match_contraction(v, true);

    if (!end)
        end = match_letters(v);
    if (!end)
        end = skip_kind(v, 0, INVAR_CHAR_KIND_NUMBER, digits);
    if (!end)
        end = match_others(v, false);
    if (!end)
        end = match_newlines(v);
    return end ? end : match_spaces(v);
}

static bool is_upper(invar_char_class class)
{
    return class == INVAR_CHAR_CLASS_CAPITAL || class == INVAR_CHAR_CLASS_CASELESS ||
           class == INVAR_CHAR_CLASS_MARK;
}

static bool is_lower(invar_char_class class)
{
    return class == INVAR_CHAR_CLASS_SMALL || class == INVAR_CHAR_CLASS_CASELESS ||
           class == INVAR_CHAR_CLASS_MARK;
}

/* Returns the end of the characters of some classes from `at` on. */
static size_t skip_classes(const text_view *v, size_t at, bool (*is_one)(invar_char_class))
{
    character c;

    while ((c = read_at(v, at)).length > 0 && is_one(invar_unicode_class(c.point)))
        at += c.length;
    return at;
}

/*
 * Matches UPPER*LOWER+ from `begin` on. If no lower case letter follows, the first part backtracks:
 * the word ends after the last character that belongs to both classes.
 */
static size_t lower_word(const text_view *v, size_t begin)
{
    size_t upper = begin, both = 0, end;
    character c;

    for (; (c = read_at(v, upper)).length > 0 && is_upper(invar_unicode_class(c.point));
         upper += c.length)
        if (is_lower(invar_unicode_class(c.point)))
            both = upper + c.length;
    end = skip_classes(v, upper, is_lower);
    return end > upper ? end : both;
}

/* Matches UPPER+LOWER* after lower_word has failed, so there are capitals only. */
static size_t upper_word(const text_view *v, size_t begin)
{
    size_t end = skip_classes(v, begin, is_upper);

    return end > begin ? end : 0;
}

/* Tries each alternative with the prefix character first, then without. */
static size_t cased_word(const text_view *v)
{
    size_t begin = match_prefix(v), end = lower_word(v, begin);

    if (!end && begin)
        end = lower_word(v, 0);
    if (!end)
        end = upper_word(v, begin);
    return end;
}

static size_t o200k_word(const text_view *v, size_t digits, bool contractions)
{
    size_t end = cased_word(v);

    if (end && end < v->bytes && contractions)
        end += match_contraction(&(text_view){v->text + end, v->bytes - end}, true);
    if (!end)
        end = skip_kind(v, 0, INVAR_CHAR_KIND_NUMBER, digits);
    if (!end)
        end = match_others(v, true);
    if (!end)
        end = match_newlines(v);
    return end ? end : match_spaces(v);
}

/* ---- the expressions of DeepSeek-V3 ---------------------------------------------------------- */

static bool is_ascii_letter(character c)
{
    return c.length == 1 &&
           ((c.point >= 'a' && c.point <= 'z') || (c.point >= 'A' && c.point <= 'Z'));
}

static bool is_letter_or_mark(invar_char_class class)
{
    return is_upper(class) || is_lower(class);
}

static bool is_sign(invar_char_class class)
{
    return class == INVAR_CHAR_CLASS_SIGN;
}

/* Matches ASCII punctuation followed by ASCII letters. */
static size_t ascii_word(const text_view *v)
{
    character c = read_at(v, 0);
    size_t end = 1;

    if (c.length != 1 || !is_sign(invar_unicode_class(c.point)))
        return 0;
    while (is_ascii_letter(read_at(v, end)))
        end++;
    return end > 1 ? end : 0;
}

/* Matches letters and marks, "[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+". */
static size_t marked_letters(const text_view *v)
{
    character c = read_at(v, 0);
    bool before = !is_newline(c) && c.kind != INVAR_CHAR_KIND_LETTER &&
                  !is_sign(invar_unicode_class(c.point));
    size_t begin = before ? c.length : 0;
    size_t end = skip_classes(v, begin, is_letter_or_mark);

    if (end == begin)
        end = skip_classes(v, begin = 0, is_letter_or_mark);
    return end > begin ? end : 0;
}

/* Matches punctuation and symbols, " ?[\p{P}\p{S}]+[\r\n]*". */
static size_t match_signs(const text_view *v)
{
    size_t begin = v->text[0] == ' ' ? 1 : 0;
    size_t end = skip_classes(v, begin, is_sign);

    return end > begin ? match_newlines_after(v, end, false) : 0;
}

static size_t deepseek_word(const text_view *v)
{
    size_t end = ascii_word(v);

    if (!end)
        end = marked_letters(v);
    if (!end)
        end = match_signs(v);
    if (!end)
        end = match_newlines(v);
    return end ? end : match_spaces(v);
}

static size_t match_numbers(const text_view *v)
{
    return skip_kind(v, 0, INVAR_CHAR_KIND_NUMBER, 3);
}

static size_t match_han(const text_view *v)
{
    static const invar_unicode_range table[] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}};
    size_t end = 0;
    character c;

    while ((c = read_at(v, end)).length > 0 && invar_unicode_within(table, 2, c.point))
        end += c.length;
    return end;
}

/* ---- patterns that leave text between their matches ------------------------------------------ */

/* Returns the end of a match at the beginning of the text, or of the text before the next match. */
static size_t match_range(bool *match_out, const text_view *v, size_t (*match)(const text_view *v))
{
    size_t end = match(v);

    *match_out = end > 0;
    while (!*match_out && end < v->bytes) {
        end += read_at(v, end).length;
        if (end < v->bytes && match(&(text_view){v->text + end, v->bytes - end}) > 0)
            break;
    }
    return end;
}

/* Returns the end of one character of a kind, or of the text before the next such character. */
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

/* Returns the end of the range that begins at `at`: a match, or the text before one. */
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
    case INVAR_PATTERN_O200K: length = o200k_word(&v, 3, true); break;
    case INVAR_PATTERN_TEKKEN: length = o200k_word(&v, 1, false); break;
    case INVAR_PATTERN_NUMBERS: length = match_range(match_out, &v, match_numbers); break;
    case INVAR_PATTERN_HAN: length = match_range(match_out, &v, match_han); break;
    case INVAR_PATTERN_DEEPSEEK: length = match_range(match_out, &v, deepseek_word); break;
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

/*
 * Returns whether the next range belongs to the current piece. `first`: the piece has one range so
 * far.
 */
static bool joins_piece(invar_behavior behavior, bool first, bool match, bool next)
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
        if (!joins_piece(splitter->behavior, first, match, next))
            break;
        *end = beyond;
        match = next;
    }
    *at = *end;
    return true;
}
