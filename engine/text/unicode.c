/*
 * unicode.c - character properties that tokenizers use.
 *
 * The base is utf8proc. The tokenizers library, whose results must be reproduced, uses older tables
 * for some properties and newer ones for others, so the tables below list the characters whose
 * properties differ from Unicode 15.0.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/invar_banned.h"

typedef invar_unicode_range range;

/* Letters and numbers that Unicode 15.1 and 16.0 have added. */
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

/* Numbers that Unicode 17.0 has added. */
static const range newest_numbers[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};

/*
 * Capitals and lower case letters among new_letters; marks, punctuation and symbols of the same
 * versions.
 */
static const range new_upper[] = {
    {0x1C89, 0x1C89}, {0xA7CB, 0xA7CC}, {0xA7DA, 0xA7DA}, {0xA7DC, 0xA7DC}, {0x10D50, 0x10D65}};
static const range new_small[] = {
    {0x1C8A, 0x1C8A}, {0xA7CD, 0xA7CD}, {0xA7DB, 0xA7DB}, {0x10D70, 0x10D85}};
static const range newer_marks[] = {{0x897, 0x897},     {0x10D69, 0x10D6D}, {0x10EFC, 0x10EFC},
                                    {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5},
                                    {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2},
                                    {0x113E1, 0x113E2}, {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F},
                                    {0x1E5EE, 0x1E5EF}};
static const range new_signs[] = {
    {0x1B4E, 0x1B4F},   {0x1B7F, 0x1B7F},   {0x2427, 0x2429},   {0x2FFC, 0x2FFF},
    {0x31E4, 0x31E5},   {0x31EF, 0x31EF},   {0x10D6E, 0x10D6E}, {0x10D8E, 0x10D8F},
    {0x113D4, 0x113D5}, {0x113D7, 0x113D8}, {0x11BE1, 0x11BE1}, {0x16D6D, 0x16D6F},
    {0x1CC00, 0x1CCEF}, {0x1CD00, 0x1CEB3}, {0x1E5FF, 0x1E5FF}, {0x1F8B2, 0x1F8BB},
    {0x1F8C0, 0x1F8C1}, {0x1FA89, 0x1FA89}, {0x1FA8F, 0x1FA8F}, {0x1FABE, 0x1FABE},
    {0x1FAC6, 0x1FAC6}, {0x1FADC, 0x1FADC}, {0x1FADF, 0x1FADF}, {0x1FAE9, 0x1FAE9},
    {0x1FBCB, 0x1FBEF}};

/* Word characters that are not letters, marks, digits or joiners in Unicode 15.0. */
static const range new_words[] = {
    {0x897, 0x897},     {0x1C89, 0x1C8A},   {0x24B6, 0x24E9},   {0xA7CB, 0xA7CD},
    {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D40, 0x10D65}, {0x10D69, 0x10D6D},
    {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFC}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113C0},
    {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D3},
    {0x113E1, 0x113E2}, {0x116D0, 0x116E3}, {0x11BC0, 0x11BE0}, {0x11BF0, 0x11BF9},
    {0x11F5A, 0x11F5A}, {0x13460, 0x143FA}, {0x16100, 0x16139}, {0x16D40, 0x16D6C},
    {0x16D70, 0x16D79}, {0x18CFF, 0x18CFF}, {0x1CCF0, 0x1CCF9}, {0x1E5D0, 0x1E5FA},
    {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}, {0x2EBF0, 0x2EE5D}};

/* Marks that Unicode 10.0 to 15.0 have added. */
static const range new_marks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},
    {0xCF3, 0xCF3},     {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},
    {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},   {0x180F, 0x180F},
    {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0xA8FF, 0xA8FF},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11073, 0x11074},
    {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9}, {0x111CE, 0x111CF},
    {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x1182C, 0x1183A},
    {0x11930, 0x11935}, {0x11937, 0x11938}, {0x1193B, 0x1193E}, {0x11940, 0x11940},
    {0x11942, 0x11943}, {0x119D1, 0x119D7}, {0x119DA, 0x119E0}, {0x119E4, 0x119E4},
    {0x11A01, 0x11A0A}, {0x11A33, 0x11A39}, {0x11A3B, 0x11A3E}, {0x11A47, 0x11A47},
    {0x11A51, 0x11A5B}, {0x11A8A, 0x11A99}, {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A},
    {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45}, {0x11D47, 0x11D47}, {0x11D8A, 0x11D8E},
    {0x11D90, 0x11D91}, {0x11D93, 0x11D97}, {0x11EF3, 0x11EF6}, {0x11F00, 0x11F01},
    {0x11F03, 0x11F03}, {0x11F34, 0x11F3A}, {0x11F3E, 0x11F42}, {0x13440, 0x13440},
    {0x13447, 0x13455}, {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE4, 0x16FE4},
    {0x16FF0, 0x16FF1}, {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}};

/* Punctuation that Unicode 8.0 to 15.0 have added. */
static const range new_punctuation[] = {
    {0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},
    {0xC84, 0xC84},     {0x1B7D, 0x1B7E},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},
    {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x1144B, 0x1144F},
    {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C}, {0x116B9, 0x116B9},
    {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46},
    {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11C41, 0x11C45},
    {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F}, {0x11FFF, 0x11FFF},
    {0x12FF1, 0x12FF2}, {0x16E97, 0x16E9A}, {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F}};

/* Capitals that Unicode 16.0 and 17.0 have added, with the distance to their lower case letters. */
static const struct {
    uint32_t first, last;
    int32_t distance;
} new_capitals[] = {
    {0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
    {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
    {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
    {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
    {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 0x1B},
};

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

bool invar_unicode_within(const range *table, size_t count, uint32_t point)
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
    if (invar_unicode_within(new_letters, COUNT(new_letters), point))
        return INVAR_CHAR_KIND_LETTER;
    if (invar_unicode_within(new_numbers, COUNT(new_numbers), point))
        return INVAR_CHAR_KIND_NUMBER;
    return INVAR_CHAR_KIND_OTHER;
}

/* Returns the class of a character that the tables of utf8proc may not have yet. */
static invar_char_class new_class(uint32_t point)
{
    if (invar_unicode_within(new_upper, COUNT(new_upper), point))
        return INVAR_CHAR_CLASS_CAPITAL;
    if (invar_unicode_within(new_small, COUNT(new_small), point))
        return INVAR_CHAR_CLASS_SMALL;
    if (invar_unicode_within(new_letters, COUNT(new_letters), point))
        return INVAR_CHAR_CLASS_CASELESS;
    if (invar_unicode_within(newer_marks, COUNT(newer_marks), point))
        return INVAR_CHAR_CLASS_MARK;
    return invar_unicode_within(new_signs, COUNT(new_signs), point) ? INVAR_CHAR_CLASS_SIGN
                                                                    : INVAR_CHAR_CLASS_NONE;
}

invar_char_class invar_unicode_class(uint32_t point)
{
    switch (utf8proc_category((utf8proc_int32_t)point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return INVAR_CHAR_CLASS_CAPITAL;
    case UTF8PROC_CATEGORY_LL: return INVAR_CHAR_CLASS_SMALL;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return INVAR_CHAR_CLASS_CASELESS;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return INVAR_CHAR_CLASS_MARK;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO: return INVAR_CHAR_CLASS_SIGN;
    default: return new_class(point);
    }
}

bool invar_unicode_is_numeric(uint32_t point)
{
    return invar_unicode_kind(point) == INVAR_CHAR_KIND_NUMBER ||
           invar_unicode_within(newest_numbers, COUNT(newest_numbers), point);
}

bool invar_unicode_is_punctuation(uint32_t point)
{
    switch (utf8proc_category((utf8proc_int32_t)point)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return !invar_unicode_within(new_punctuation, COUNT(new_punctuation), point);
    default: break;
    }
    // symbols of ASCII count as punctuation, and so do two characters that changed after Unicode
    // 7.0
    return (point < 0x80 && point && strchr("$+<=>^`|~", (int)point)) || point == 0x166D ||
           point == 0x111C9;
}

static bool is_mark(uint32_t point)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)point);

    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
           category == UTF8PROC_CATEGORY_ME;
}

bool invar_unicode_is_accent(uint32_t point)
{
    // two characters were marks in Unicode 9.0 only
    return (is_mark(point) && !invar_unicode_within(new_marks, COUNT(new_marks), point)) ||
           point == 0x1CF2 || point == 0x1CF3;
}

bool invar_unicode_is_word(uint32_t point)
{
    switch (utf8proc_category((utf8proc_int32_t)point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
    }
    return is_mark(point) || point == 0x200C || point == 0x200D ||
           invar_unicode_within(new_words, COUNT(new_words), point);
}

size_t invar_unicode_lower(uint32_t out[2], uint32_t point)
{
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)point);
    out[1] = 0x307; // the dot of U+0130, the one letter that becomes two
    if (point == 0x130)
        return 2;
    for (size_t i = 0; i < COUNT(new_capitals); i++)
        if (point >= new_capitals[i].first && point <= new_capitals[i].last)
            out[0] = (uint32_t)((int32_t)point + new_capitals[i].distance);
    return 1;
}
