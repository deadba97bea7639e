/*
 * number.h - doubles as decimal text and back, whatever the locale.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_NUMBER_H
#define INVAR_BASE_NUMBER_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_NUMBER_SIZE 32 /* the longest has 24 characters */

/* As few digits as read back to the same bits: "0.1", "1e-06", "-0"; also "nan", "inf", "-inf". */
invar_status invar_number_format(char out[INVAR_NUMBER_SIZE], double value) INVAR_MUST_USE;

/* Like invar_number_format, but a whole number below 2^53 has all its digits: "10", not "1e+01". */
invar_status invar_number_format_plain(char out[INVAR_NUMBER_SIZE], double value) INVAR_MUST_USE;

/*
 * Rounds to `digits` significant digits for people. From 1e-4 to 1e9 the text is a plain decimal,
 * and whole numbers below 1e9 keep all their digits: "12346", "0.25", "1e-06", "1.2e+10".
 */
void invar_number_round(char out[INVAR_NUMBER_SIZE], double value, int digits);

/* The same for a float, also where the text is read as a double and rounded: "0.1", not more. */
invar_status invar_number_format_f32(char out[INVAR_NUMBER_SIZE], float value) INVAR_MUST_USE;

/* What strtod makes of the text, the decimal point being '.'. */
invar_status invar_number_parse(double *out, const char *text) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
