/*
 * bisect_report.h - prints the result of a bisect as text, JSON and HTML.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_VIEW_BISECT_REPORT_H
#define INVAR_BISECT_VIEW_BISECT_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "bisect/bisect.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Prints the result as text: the verdict first, then commit, divergence and cost. */
invar_status invar_bisect_report_print(FILE *out, const invar_bisect_result *result,
                                       bool color) INVAR_MUST_USE;

/* members of the JSON, for invar_result_schema */
extern const char invar_bisect_report_members[];

/* Returns the complete result as a JSON object that the caller owns, or NULL without memory. */
json_t *invar_bisect_report_object(const invar_bisect_result *result);

/* Writes invar_bisect_report_object as JSON text. */
invar_status invar_bisect_report_json(FILE *out, const invar_bisect_result *result) INVAR_MUST_USE;

/*
 * Writes a self-contained HTML page: verdict, commit, divergence, the trials as a picture and as a
 * table.
 */
invar_status invar_bisect_report_html(FILE *out, const invar_bisect_result *result) INVAR_MUST_USE;

/* Returns "found", "changes", "suspects", "nondeterministic", "same-ends" and so on. */
const char *invar_bisect_report_verdict(invar_bisect_verdict verdict);

#ifdef __cplusplus
}
#endif
#endif
