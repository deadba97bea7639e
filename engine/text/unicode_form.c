/*
 * unicode_form.c - Unicode normalization forms NFC, NFD, NFKC and NFKD in linear time.
 *
 * utf8proc decomposes single characters and composes a sorted sequence. The sorting of marks in
 * between takes quadratic time there, so it is done here by counting: a text may be untrusted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/text/unicode.h"

#include "base/invar_banned.h"

/*
 * Characters that Unicode 10.0 to 15.0 have added and that a normalizer of a later version would
 * reorder, decompose or compose. They are left alone, as in Unicode 9.0.
 */
static const invar_unicode_range inert[] = {
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

/* Characters that are left alone in the compatibility forms only. */
static const invar_unicode_range compatible_inert[] = {
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xAB69, 0xAB69},
    {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA},
    {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/*
 * Upper bounds: a character of n bytes decomposes into at most 6n code points, and never more than
 * 18.
 */
#define POINTS_PER_BYTE 6
#define POINTS_MAX 18

typedef struct code_points {
    utf8proc_int32_t *at;
    utf8proc_int32_t *scratch; /* capacity equal to that of `at` */
    size_t count;
    invar_unicode_form form;
} code_points;

static bool is_compatibility_form(invar_unicode_form form)
{
    return form == INVAR_UNICODE_NFKC || form == INVAR_UNICODE_NFKD;
}

static int combining_class_of(utf8proc_int32_t point)
{
    return utf8proc_get_property(point)->combining_class;
}

/* Sorts the marks [from, to) by combining class. Marks of the same class keep their order. */
static void sort_marks(code_points *p, size_t from, size_t to)
{
    size_t starts[256] = {0}, sum = from;

    for (size_t i = from; i < to; i++)
        starts[combining_class_of(p->at[i])]++;
    for (size_t c = 0; c < 256; c++) {
        size_t count = starts[c];
        starts[c] = sum;
        sum += count;
    }
    for (size_t i = from; i < to; i++)
        p->scratch[starts[combining_class_of(p->at[i])]++] = p->at[i];
    memcpy(p->at + from, p->scratch + from, (to - from) * sizeof *p->at);
}

/* Puts [from, count) into canonical order. Runs of marks that are sorted already are skipped. */
static void order_marks(code_points *p, size_t from)
{
    for (size_t i = from; i < p->count;) {
        size_t begin = i;
        bool sorted = true;
        int last = 0, class;
        for (; i < p->count && (class = combining_class_of(p->at[i])) > 0; i++) {
            sorted = sorted && last <= class;
            last = class;
        }
        if (!sorted)
            sort_marks(p, begin, i);
        i += i == begin;
    }
}

/* Orders, and composes if the form asks for it, the code points added since `from`. */
static void finish_code_points(code_points *p, size_t from)
{
    utf8proc_ssize_t count;

    order_marks(p, from);
    if (p->form != INVAR_UNICODE_NFC && p->form != INVAR_UNICODE_NFKC)
        return;
    count = utf8proc_normalize_utf32(p->at + from, (utf8proc_ssize_t)(p->count - from),
                                     UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    INVAR_CHECK(count >= 0);
    p->count = from + (size_t)count;
}

/* Returns true if no byte of the text can belong to a character that the form changes. */
static bool is_unchanged_by(invar_unicode_form form, const char *text, size_t bytes)
{
    // below U+0300, NFC changes no character, and the other forms change only accented letters and
    // some symbols
    unsigned char least = form == INVAR_UNICODE_NFC ? 0xCC : 0x80;

    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] >= least)
            return false;
    return true;
}

static bool is_inert(invar_unicode_form form, uint32_t point)
{
    return invar_unicode_within(inert, COUNT(inert), point) ||
           (is_compatibility_form(form) &&
            invar_unicode_within(compatible_inert, COUNT(compatible_inert), point));
}

static void convert_text(code_points *p, const char *text, size_t bytes)
{
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    size_t begin = 0;
    uint32_t point;

    if (is_compatibility_form(p->form))
        options |= UTF8PROC_COMPAT;
    for (size_t i = 0; i < bytes;) {
        int boundary = 0;
        size_t length = invar_text_utf8(&point, text + i, bytes - i);
        INVAR_CHECK(length > 0);
        i += length;
        if (is_inert(p->form, point)) {
            finish_code_points(p, begin);
            p->at[p->count++] = (utf8proc_int32_t)point;
            begin = p->count;
        } else {
            utf8proc_ssize_t added = utf8proc_decompose_char(
                (utf8proc_int32_t)point, p->at + p->count, POINTS_MAX, options, &boundary);
            INVAR_CHECK(added > 0 && added <= POINTS_MAX);
            p->count += (size_t)added;
        }
    }
    finish_code_points(p, begin);
}

/* Writes the code points as UTF-8 and returns their bytes. Only counts them if `out` is NULL. */
static size_t encode_utf8(char *out, const code_points *p)
{
    char spare[4];
    size_t used = 0;

    for (size_t i = 0; i < p->count; i++)
        used += invar_unicode_write(out ? out + used : spare, (uint32_t)p->at[i]);
    return used;
}

invar_status invar_unicode_normalize(char **out, size_t *bytes_out, invar_unicode_form form,
                                     const char *text, size_t bytes)
{
    size_t room = POINTS_PER_BYTE * bytes + POINTS_MAX;
    INVAR_AUTO_FREE utf8proc_int32_t *points = NULL;
    code_points p;

    *out = NULL;
    *bytes_out = 0;
    if (is_unchanged_by(form, text, bytes))
        return INVAR_OK;
    if (bytes > SIZE_MAX / 256)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a text of %zu bytes is too long", bytes);
    INVAR_TRY(INVAR_ALLOC(points, 2 * room, "text"));
    p = (code_points){.form = form, .at = points, .scratch = points + room};
    convert_text(&p, text, bytes);
    INVAR_TRY(INVAR_ALLOC(*out, encode_utf8(NULL, &p), "text"));
    *bytes_out = encode_utf8(*out, &p);
    return INVAR_OK;
}
