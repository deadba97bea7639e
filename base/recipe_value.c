/*
 * recipe_value.c - the text of one recipe value, checked and converted.
 *
 * Numbers are read by grammars of our own before the C library sees them, because it accepts more
 * than a recipe may hold (hexadecimal, "nan", leading space) and, for floats, obeys the locale.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/recipe_value.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define NUMBER_SIZE 32 /* the longest canonical number has 24 characters */

/* ---- text ------------------------------------------------------------------------------------ */

size_t invar_recipe_char(const char *text, size_t left)
{
    // smallest code point by length: below it the encoding is overlong
    static const uint32_t smallest[5] = {0, 0, 0xA0, 0x800, 0x10000}; // U+0080..9F are controls
    const unsigned char *c = (const unsigned char *)text;
    uint32_t point;
    size_t length;

    if (c[0] < 0x80)
        return c[0] >= 0x20 && c[0] != 0x7F;
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
    return length;
}

void invar_recipe_quote(char *out, size_t size, const char *text, size_t length)
{
    size_t room = size - sizeof "...", used = 0, i = 0;

    while (i < length) {
        size_t step = invar_recipe_char(text + i, length - i);
        size_t bytes = step ? step : 1;
        if (used + bytes > room) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        memcpy(out + used, step ? text + i : "?", bytes);
        used += bytes;
        i += bytes;
    }
    out[used] = '\0';
}

static invar_status check_text(const char *text, size_t length, const char *where)
{
    if (length > INVAR_RECIPE_MAX_LINE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the value is longer than %d bytes", where,
                          INVAR_RECIPE_MAX_LINE);
    if (length > 0 && (text[0] == ' ' || text[length - 1] == ' '))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the value begins or ends with a space", where);
    for (size_t i = 0, step; i < length; i += step) {
        step = invar_recipe_char(text + i, length - i);
        if (step == 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: the value has byte 0x%02x, a control character or not UTF-8",
                              where, (unsigned char)text[i]);
    }
    return INVAR_OK;
}

static invar_status expected(const char *what, const char *text, const char *where)
{
    char quote[INVAR_RECIPE_QUOTE_SIZE];

    invar_recipe_quote(quote, sizeof quote, text, strlen(text));
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: expected %s, found '%s'", where, what, quote);
}

/* ---- the types ------------------------------------------------------------------------------- */

static invar_status parse_bool(invar_recipe_value *value, const char *where)
{
    value->integer = strcmp(value->text, "true") == 0;
    if (!value->integer && strcmp(value->text, "false") != 0)
        return expected("true or false", value->text, where);
    return INVAR_OK;
}

static size_t count_digits(const char *c)
{
    return strspn(c, "0123456789");
}

static invar_status parse_int(invar_recipe_value *value, const invar_recipe_key *key,
                              const char *where)
{
    const char *c = value->text;
    bool negative = *c == '-', limited = key->int_min != 0 || key->int_max != 0;
    int64_t number = 0, low = limited ? key->int_min : INT64_MIN;
    int64_t high = limited ? key->int_max : INT64_MAX;
    bool fits = true;

    c += *c == '-' || *c == '+';
    if (count_digits(c) == 0 || c[count_digits(c)] != '\0')
        return expected("a decimal integer", value->text, where);
    for (; *c && fits; c++) {
        int digit = *c - '0'; // summed up below zero: INT64_MIN has no positive counterpart
        fits = number >= (INT64_MIN + digit) / 10;
        number = fits ? number * 10 - digit : 0;
    }
    if (!negative) {
        fits = fits && number >= -INT64_MAX;
        number = fits ? -number : 0;
    }
    if (!fits || number < low || number > high)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: expected an integer from %" PRId64 " to %" PRId64 ", found '%.24s'",
                          where, low, high, value->text);
    value->integer = number;
    snprintf(value->text, NUMBER_SIZE, "%" PRId64, number);
    return INVAR_OK;
}

/* [+-] digits [. digits] [e [+-] digits], with a digit before the exponent. */
static bool is_decimal(const char *c)
{
    size_t whole, fraction = 0;

    c += *c == '-' || *c == '+';
    c += whole = count_digits(c);
    if (*c == '.') {
        c++;
        c += fraction = count_digits(c);
    }
    if (whole + fraction == 0)
        return false;
    if (*c == 'e' || *c == 'E') {
        c++;
        c += *c == '-' || *c == '+';
        if (count_digits(c) == 0)
            return false;
        c += count_digits(c);
    }
    return *c == '\0';
}

/* Reads, and prints with as few digits as read back to the same bits. */
static void convert_float(invar_recipe_value *value)
{
    char shortest[NUMBER_SIZE];
    int digits = 0;

    value->real = strtod(value->text, NULL);
    do {
        digits++;
        snprintf(shortest, sizeof shortest, "%.*g", digits, value->real);
    } while (digits < 17 && strtod(shortest, NULL) != value->real);
    memcpy(value->text, shortest, strlen(shortest) + 1);
}

static invar_status parse_float(invar_recipe_value *value, const invar_recipe_key *key,
                                const char *where)
{
    bool limited = key->float_min != 0 || key->float_max != 0, zero;
    locale_t plain, before;
    char c;

    if (!is_decimal(value->text))
        return expected("a decimal number", value->text, where);
    c = value->text[strspn(value->text, "+-0.")];
    zero = c == '\0' || c == 'e' || c == 'E'; // any other text that yields 0 is too small

    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "%s: no memory for a locale", where);
    before = uselocale(plain); // of this thread only
    convert_float(value);
    uselocale(before);
    freelocale(plain);

    if (!isfinite(value->real) || (value->real == 0 && !zero))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the number is too %s for a double", where,
                          value->real == 0 ? "small" : "large");
    if (limited && (value->real < key->float_min || value->real > key->float_max))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: expected a number from %g to %g, found %s",
                          where, key->float_min, key->float_max, value->text);
    return INVAR_OK;
}

static invar_status parse_enum(invar_recipe_value *value, const invar_recipe_key *key,
                               const char *where)
{
    const char *choice = key->choices;
    size_t length = strlen(value->text);
    char what[128];

    for (value->integer = 0;; value->integer++) {
        size_t end = strcspn(choice, "|");
        if (end == length && length > 0 && memcmp(choice, value->text, length) == 0)
            return INVAR_OK;
        if (choice[end] == '\0')
            break;
        choice += end + 1;
    }
    snprintf(what, sizeof what, "one of %s", key->choices);
    return expected(what, value->text, where);
}

static invar_status convert(invar_recipe_value *value, const invar_recipe_key *key,
                            const char *where)
{
    switch (key->type) {
    case INVAR_RECIPE_TYPE_BOOL: return parse_bool(value, where);
    case INVAR_RECIPE_TYPE_INT: return parse_int(value, key, where);
    case INVAR_RECIPE_TYPE_FLOAT: return parse_float(value, key, where);
    case INVAR_RECIPE_TYPE_STRING: return INVAR_OK;
    case INVAR_RECIPE_TYPE_ENUM: return parse_enum(value, key, where);
    }
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the schema gives no type", where);
}

invar_status invar_recipe_value_parse(invar_recipe_value *out, const invar_recipe_key *key,
                                      const char *text, size_t length, const char *where)
{
    invar_recipe_value value = {NULL, 0, 0.0};
    invar_status status;

    INVAR_TRY(check_text(text, length, where));
    // a number is replaced by its canonical form in place, which may be longer
    INVAR_TRY(invar_alloc((void **)&value.text, length + NUMBER_SIZE, 1, where));
    memcpy(value.text, text, length);
    value.text[length] = '\0';
    status = convert(&value, key, where);
    if (status != INVAR_OK) {
        invar_free(value.text);
        return status;
    }
    *out = value;
    return INVAR_OK;
}
