/*
 * number.h - converts doubles to decimal text and back, independently of the locale, except for
 * invar_number_round.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_NUMBER_H
#define INVAR_BASE_NUMBER_H

#include "base/status.h"

#define INVAR_NUMBER_SIZE 32 /* bytes of a number as text; the longest has 24 characters */

/* Writes the shortest text that reads back to the same bits: "0.1", "1e-06", "-0", "nan". */
invar_status invar_number_format(char out[INVAR_NUMBER_SIZE], double value) INVAR_MUST_USE;

/* Like invar_number_format, but a whole number below 2^53 has all its digits: "10", not "1e+01". */
invar_status invar_number_format_plain(char out[INVAR_NUMBER_SIZE], double value) INVAR_MUST_USE;

/*
 * Rounds to `digits` significant digits for people, with the decimal point of the thread's locale.
 * From 1e-4 to 1e9 the text is a plain decimal, and whole numbers below 1e9 keep all their digits:
 * "12346", "0.25", "1e-06", "1.2e+10".
 */
void invar_number_round(char out[INVAR_NUMBER_SIZE], double value, int digits);

/*
 * Like invar_number_format, for a float: "0.1". A reader that converts the text to a double and
 * then rounds gets the same float.
 */
invar_status invar_number_format_f32(char out[INVAR_NUMBER_SIZE], float value) INVAR_MUST_USE;

/* Converts the text like strtod in the C locale, in which the decimal point is '.'. */
invar_status invar_number_parse(double *out, const char *text) INVAR_MUST_USE;

#endif
