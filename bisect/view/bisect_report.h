/*
 * bisect_report.h - prints the result of a bisect as text, JSON and HTML.
 *
 * All forms share the sentences of bisect_report_text.c. Every sentence is one printable line, in
 * which texts from repositories and ledgers are escaped.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_VIEW_BISECT_REPORT_H
#define INVAR_BISECT_VIEW_BISECT_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "bisect/bisect.h"

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

/* ---- sentences, shared by the text, HTML and JSON forms -------------------------------------- */

enum {
    INVAR_BISECT_REPORT_SHORT = 12,      /* shown digits of a commit id */
    INVAR_BISECT_REPORT_LINE = 2048,     /* size of a line */
    INVAR_BISECT_REPORT_TIME = 32,       /* size of a date or a duration */
    INVAR_BISECT_REPORT_VALUE_DIGITS = 8 /* shown digits of a value */
};

/* Writes any text as one printable line of UTF-8, truncated to `size`, and returns `out`. */
const char *invar_bisect_report_safe(char *out, size_t size, const char *text);

/* Prints any text like invar_bisect_report_safe. */
void invar_bisect_report_print_safe(FILE *out, const char *text);

/* Formats the verdict as one line, for example "found: 0123456789ab SUBJECT". */
void invar_bisect_report_headline(char out[INVAR_BISECT_REPORT_LINE],
                                  const invar_bisect_result *result);

/* Formats what the verdict means and what to do about it; empty if there is no advice. */
void invar_bisect_report_advice(char out[INVAR_BISECT_REPORT_LINE],
                                const invar_bisect_result *result);

/*
 * Formats "step 7, point layer.0.q (forward, layer 0), op linear.fwd"; empty if the divergence is
 * unknown.
 */
void invar_bisect_report_divergence(char out[INVAR_BISECT_REPORT_LINE],
                                    const invar_divergence *divergence);

/* Formats "8 points differ, 31 equal at that step; every op's output was recorded". */
void invar_bisect_report_points(char out[INVAR_BISECT_REPORT_LINE],
                                const invar_divergence *divergence);

/*
 * Return whether the culprit was confirmed, and what a third value means; empty if not applicable.
 */
const char *invar_bisect_report_confirmed(const invar_bisect_result *result);
const char *invar_bisect_report_third(const invar_bisect_result *result);

/*
 * Formats remarks about a change, such as "a merge whose value none of its parents has"; may be
 * empty.
 */
void invar_bisect_report_remark(char out[INVAR_BISECT_REPORT_LINE],
                                const invar_bisect_change *change);

/* Formats the cost: "12 trials, 9 of the search; ...". */
void invar_bisect_report_cost(char out[INVAR_BISECT_REPORT_LINE],
                              const invar_bisect_result *result);

/* Formats Unix seconds as "2026-01-31T12:34:56Z". */
void invar_bisect_report_time(char out[INVAR_BISECT_REPORT_TIME], int64_t seconds);

enum { INVAR_BISECT_REPORT_COMMAND = 2 * INVAR_PATH_SIZE + 512 };

/*
 * Formats the next useful command with this index, starting at 0. Returns false if there are no
 * more.
 */
bool invar_bisect_report_next(char out[INVAR_BISECT_REPORT_COMMAND],
                              const invar_bisect_result *result, int index);

#endif
