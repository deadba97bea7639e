/*
 * value.c - checks and converts the text of a recipe value.
 *
 * Numbers are checked by grammars of our own before the C library converts them, because it accepts
 * more than a recipe may have (hexadecimal, "nan", leading space) and depends on the locale.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/recipe/value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/text.h"

#include "base/invar_banned.h"

/* ---- text ------------------------------------------------------------------------------------ */

/* Returns a remedy for the message about a bad value that a comment seems to follow; else empty. */
static const char *comment_remedy(const char *text, size_t length)
{
    for (size_t i = 1; i < length; i++)
        if ((text[i] == '#' || text[i] == ';') && (text[i - 1] == ' ' || text[i - 1] == '\t'))
            return "; a comment needs a line of its own";
    return "";
}

static invar_status check_text(const char *text, size_t length, const char *where)
{
    if (length > INVAR_RECIPE_MAX_LINE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the value is longer than %d bytes", where,
                          INVAR_RECIPE_MAX_LINE);
    if (length > 0 && (text[0] == ' ' || text[length - 1] == ' '))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the value begins or ends with a space", where);
    for (size_t i = 0, step; i < length; i += step) {
        step = invar_text_char(text + i, length - i);
        if (step == 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: the value has byte 0x%02x, a control character or not UTF-8%s",
                              where, (unsigned char)text[i], comment_remedy(text, length));
    }
    return INVAR_OK;
}

static invar_status fail_expected(const char *what, const char *text, const char *where)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: expected %s, found '%s'%s", where, what,
                      INVAR_QUOTED(text), comment_remedy(text, strlen(text)));
}

/* ---- the types ------------------------------------------------------------------------------- */

static invar_status parse_bool(invar_recipe_value *value, const char *where)
{
    value->integer = strcmp(value->text, "true") == 0;
    if (!value->integer && strcmp(value->text, "false") != 0)
        return fail_expected("true or false", value->text, where);
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
        return fail_expected("a decimal integer", value->text, where);
    for (; *c && fits; c++) {
        int digit = *c - '0'; // summed below zero, because -INT64_MIN is not an int64_t
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
    snprintf(value->text, INVAR_NUMBER_SIZE, "%" PRId64, number);
    return INVAR_OK;
}

/* True for [+-] digits [. digits] [e [+-] digits], with at least one digit before the exponent. */
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

static invar_status parse_float(invar_recipe_value *value, const invar_recipe_key *key,
                                const char *where)
{
    bool limited = key->float_min != 0 || key->float_max != 0, zero;
    char c;

    if (!is_decimal(value->text))
        return fail_expected("a decimal number", value->text, where);
    c = value->text[strspn(value->text, "+-0.")];
    zero = c == '\0' || c == 'e' || c == 'E'; // another text whose value is 0 is too small

    INVAR_TRY(invar_number_parse(&value->real, value->text));
    INVAR_TRY(invar_number_format(value->text, value->real));
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
    char words[INVAR_CHOICES_TEXT_SIZE], what[INVAR_CHOICES_TEXT_SIZE + 8];

    value->integer = invar_choices_find(key->choices, value->text, strlen(value->text));
    if (value->integer >= 0)
        return INVAR_OK;
    invar_choices_text(words, sizeof words, key->choices, "|", "|");
    snprintf(what, sizeof what, "one of %s", words);
    return fail_expected(what, value->text, where);
}

static invar_status recipe_value_convert(invar_recipe_value *value, const invar_recipe_key *key,
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
    // the canonical form of a number is written in place and may be longer than the text
    INVAR_TRY(INVAR_ALLOC(value.text, length + INVAR_NUMBER_SIZE, where));
    memcpy(value.text, text, length);
    value.text[length] = '\0';
    status = recipe_value_convert(&value, key, where);
    if (status == INVAR_OK)
        *out = value;
    else
        invar_free(value.text);
    return status;
}
