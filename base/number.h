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

/* The same for a float, also where the text is read as a double and rounded: "0.1", not more. */
invar_status invar_number_format_f32(char out[INVAR_NUMBER_SIZE], float value) INVAR_MUST_USE;

/* What strtod makes of the text, the decimal point being '.'. */
invar_status invar_number_parse(double *out, const char *text) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
