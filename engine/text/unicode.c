/*
 * unicode.c - what the tokenizer asks of characters: their kind, and the composed form of a text.
 *
 * Composition runs in linear time for any text: utf8proc decomposes single characters and composes
 * a sorted sequence; the sorting between, which is quadratic there, is done here by counting.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

typedef struct range {
    uint32_t first, last;
} range;

/* Letters and numbers of Unicode 15.1 and 16.0. */
static const range new_letters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D},
};

static const range new_numbers[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x16130, 0x16139},
    {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA},
};

/* Numbers of Unicode 17.0. */
static const range newest_numbers[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};

/* Characters of Unicode 10.0 to 15.0 that a later normalizer would move, split or join. */
static const range inert[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static bool within(const range *table, size_t count, uint32_t point)
{
    for (size_t low = 0, high = count; low < high;) {
        size_t middle = (low + high) / 2;
        if (point < table[middle].first)
            high = middle;
        else if (point > table[middle].last)
            low = middle + 1;
        else
            return true;
    }
    return false;
}

const char *invar_unicode_version(void)
{
    return utf8proc_unicode_version();
}

invar_status invar_unicode_check(void)
{
    const char *version = utf8proc_unicode_version();

    if (strtol(version, NULL, 10) < 15)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "utf8proc has Unicode %.16s; tokenizers need 15.0.0 or later: install "
                          "utf8proc 2.8 or later",
                          version);
    return INVAR_OK;
}

/* ---- characters ------------------------------------------------------------------------------ */

size_t invar_unicode_read(uint32_t *out, const char *text, size_t left)
{
    // smallest code point by length: below it the encoding is overlong
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *c = (const unsigned char *)text;
    uint32_t point;
    size_t length;

    if (c[0] < 0x80) {
        *out = c[0];
        return 1;
    }
    length = c[0] >= 0xF0 ? 4 : c[0] >= 0xE0 ? 3 : 2;
    if (c[0] < 0xC0 || c[0] >= 0xF8 || length > left)
        return 0;
    point = c[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((c[i] & 0xC0) != 0x80)
            return 0;
        point = point << 6 | (c[i] & 0x3F);
    }
    if (point < smallest[length] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF))
        return 0;
    *out = point;
    return length;
}

size_t invar_unicode_write(char *out, uint32_t point)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)point, (utf8proc_uint8_t *)out);
}

static bool is_space(uint32_t point)
{
    switch (point) {
    case 0x20:
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000: return true;
    default: return (point >= 0x9 && point <= 0xD) || (point >= 0x2000 && point <= 0x200A);
    }
}

invar_char_kind invar_unicode_kind(uint32_t point)
{
    if (is_space(point))
        return INVAR_CHAR_KIND_SPACE;
    switch (utf8proc_category((utf8proc_int32_t)point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return INVAR_CHAR_KIND_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return INVAR_CHAR_KIND_NUMBER;
    default: break;
    }
    if (within(new_letters, COUNT(new_letters), point))
        return INVAR_CHAR_KIND_LETTER;
    if (within(new_numbers, COUNT(new_numbers), point))
        return INVAR_CHAR_KIND_NUMBER;
    return INVAR_CHAR_KIND_OTHER;
}

bool invar_unicode_is_numeric(uint32_t point)
{
    return invar_unicode_kind(point) == INVAR_CHAR_KIND_NUMBER ||
           within(newest_numbers, COUNT(newest_numbers), point);
}

/* ---- composition ----------------------------------------------------------------------------- */

/* Code points. One of n bytes decomposes into at most 2n, whatever the character; never over 4. */
typedef struct points {
    utf8proc_int32_t *at;
    utf8proc_int32_t *scratch; /* as long */
    size_t count;
} points;

static int class_of(utf8proc_int32_t point)
{
    return utf8proc_get_property(point)->combining_class;
}

/* Sorts the marks [from, to) by class; those of one class keep their order. */
static void order_run(points *p, size_t from, size_t to)
{
    size_t starts[256] = {0}, sum = from;

    for (size_t i = from; i < to; i++)
        starts[class_of(p->at[i])]++;
    for (size_t c = 0; c < 256; c++) {
        size_t count = starts[c];
        starts[c] = sum;
        sum += count;
    }
    for (size_t i = from; i < to; i++)
        p->scratch[starts[class_of(p->at[i])]++] = p->at[i];
    memcpy(p->at + from, p->scratch + from, (to - from) * sizeof *p->at);
}

/* Canonical order of [from, count): runs of marks, most of them in order already. */
static void order(points *p, size_t from)
{
    for (size_t i = from; i < p->count;) {
        size_t begin = i;
        bool sorted = true;
        int last = 0, class;
        for (; i < p->count && (class = class_of(p->at[i])) > 0; i++) {
            sorted = sorted && last <= class;
            last = class;
        }
        if (!sorted)
            order_run(p, begin, i);
        i += i == begin;
    }
}

/* Orders and composes what was added since `from`. */
static void finish(points *p, size_t from)
{
    utf8proc_ssize_t count;

    order(p, from);
    count = utf8proc_normalize_utf32(p->at + from, (utf8proc_ssize_t)(p->count - from),
                                     UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    INVAR_CHECK(count >= 0);
    p->count = from + (size_t)count;
}

/* No character below U+0300 changes alone or with another of them. */
static bool composed_by_looks(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] >= 0xCC)
            return false;
    return true;
}

static void compose(points *p, const char *text, size_t bytes)
{
    size_t begin = 0;
    uint32_t point;

    for (size_t i = 0; i < bytes;) {
        int boundary = 0;
        size_t length = invar_unicode_read(&point, text + i, bytes - i);
        INVAR_CHECK(length > 0);
        i += length;
        if (within(inert, COUNT(inert), point)) {
            finish(p, begin);
            p->at[p->count++] = (utf8proc_int32_t)point;
            begin = p->count;
        } else {
            utf8proc_ssize_t added =
                utf8proc_decompose_char((utf8proc_int32_t)point, p->at + p->count, 4,
                                        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
            INVAR_CHECK(added > 0 && added <= 4);
            p->count += (size_t)added;
        }
    }
    finish(p, begin);
}

/* The code points as UTF-8; counts them where `out` is NULL. */
static size_t encode(char *out, const points *p)
{
    char spare[4];
    size_t used = 0;

    for (size_t i = 0; i < p->count; i++)
        used += invar_unicode_write(out ? out + used : spare, (uint32_t)p->at[i]);
    return used;
}

invar_status invar_unicode_compose(char **out, size_t *bytes_out, const char *text, size_t bytes)
{
    size_t room = 2 * bytes + 4;
    points p = {NULL, NULL, 0};
    invar_status status;

    *out = NULL;
    *bytes_out = 0;
    if (composed_by_looks(text, bytes))
        return INVAR_OK;
    if (bytes > SIZE_MAX / 64)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a text of %zu bytes is too long", bytes);
    INVAR_TRY(invar_alloc((void **)&p.at, 2 * room, sizeof *p.at, "text"));
    p.scratch = p.at + room;
    compose(&p, text, bytes);
    status = invar_alloc((void **)out, encode(NULL, &p), 1, "text");
    if (status == INVAR_OK)
        *bytes_out = encode(*out, &p);
    invar_free(p.at);
    return status;
}
