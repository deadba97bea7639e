/*
 * number.c - converts doubles to decimal text and back, independently of the locale.
 *
 * The C library uses the locale of the thread, so it is switched to the C locale during a
 * conversion, except in invar_number_round.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/number.h"

#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/invar_banned.h"

typedef struct plain_locale {
    locale_t plain, before;
} plain_locale;

static invar_status enter_c_locale(plain_locale *out)
{
    out->plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!out->plain)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for a locale");
    out->before = uselocale(out->plain); // changes this thread only
    return INVAR_OK;
}

static void plain_locale_exit(const plain_locale *locale)
{
    uselocale(locale->before);
    freelocale(locale->plain);
}

/* Prints with `digits` significant digits; true if the text reads back to the same value. */
static bool print_digits(char out[INVAR_NUMBER_SIZE], double value, int digits)
{
    snprintf(out, INVAR_NUMBER_SIZE, "%.*g", digits, value);
    return strtod(out, NULL) == value;
}

invar_status invar_number_format(char out[INVAR_NUMBER_SIZE], double value)
{
    plain_locale locale;
    int digits;

    INVAR_TRY(enter_c_locale(&locale));
    if (isnan(value)) {
        snprintf(out, INVAR_NUMBER_SIZE, "nan"); // the sign of a NaN is not printed
    } else {
        // if 15 digits do not suffice, as for most numbers, fewer need not be tried
        digits = print_digits(out, value, 15) ? 1 : 16;
        while (digits <= 17 && !print_digits(out, value, digits))
            digits++;
    }
    plain_locale_exit(&locale);
    return INVAR_OK;
}

invar_status invar_number_format_plain(char out[INVAR_NUMBER_SIZE], double value)
{
    if (!(fabs(value) < 0x1p53) || value != trunc(value))
        return invar_number_format(out, value);
    snprintf(out, INVAR_NUMBER_SIZE, "%.0f", value);
    return INVAR_OK;
}

void invar_number_round(char out[INVAR_NUMBER_SIZE], double value, int digits)
{
    double size = fabs(value), least = 1.0; // smallest number with `digits` digits before the point

    for (int i = 1; i < digits; i++)
        least *= 10.0;
    if (size < 1e9 && (size >= least || value == trunc(value)))
        snprintf(out, INVAR_NUMBER_SIZE, "%.0f", value);
    else
        snprintf(out, INVAR_NUMBER_SIZE, "%.*g", digits, isnan(value) ? (double)NAN : value);
}

/* Like print_digits, for a float that must also read back through a double, which rounds twice. */
static bool print_digits_f32(char out[INVAR_NUMBER_SIZE], float value, int digits)
{
    snprintf(out, INVAR_NUMBER_SIZE, "%.*g", digits, (double)value);
    return strtof(out, NULL) == value && (float)strtod(out, NULL) == value;
}

invar_status invar_number_format_f32(char out[INVAR_NUMBER_SIZE], float value)
{
    plain_locale locale;
    int digits;

    if (!isfinite(value))
        return invar_number_format(out, (double)value);
    INVAR_TRY(enter_c_locale(&locale));
    digits = print_digits_f32(out, value, 6) ? 1 : 7;
    while (!print_digits_f32(out, value, digits))
        digits++; // 9 digits always suffice
    plain_locale_exit(&locale);
    return INVAR_OK;
}

invar_status invar_number_parse(double *out, const char *text)
{
    plain_locale locale;

    INVAR_TRY(enter_c_locale(&locale));
    *out = strtod(text, NULL);
    plain_locale_exit(&locale);
    return INVAR_OK;
}
