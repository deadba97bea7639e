/*
 * ab.h - prints the result of an A/B experiment as text, JSON and HTML.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_VIEW_AB_H
#define INVAR_BISECT_VIEW_AB_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "bisect/ab/ab.h"

#define INVAR_AB_LINE 2048

/* Returns "identical", "different", "nondeterministic", "untestable" or "stopped". */
const char *invar_ab_verdict_name(invar_ab_verdict verdict);

/* Returns "commit", "folder" or "file". */
const char *invar_ab_kind_name(invar_ab_kind kind);

/* Formats the verdict as one line, for example "identical: 3 seeds, 40 steps each". */
void invar_ab_headline(char out[INVAR_AB_LINE], const invar_ab_result *result);

/* Prints the result as text: the verdict first, then differences, effects and cost. */
invar_status invar_ab_print(FILE *out, const invar_ab_result *result, bool color) INVAR_MUST_USE;

extern const char invar_ab_members[]; /* members of the JSON, for invar_result_schema */

/* Returns the complete result as a JSON object that the caller owns, or NULL without memory. */
json_t *invar_ab_object(const invar_ab_result *result);

#define INVAR_AB_CURVES 20 /* largest number of seeds whose curves are on the page */

/* Writes a self-contained HTML page: verdict, divergence, effects, curves of both sides, facts. */
invar_status invar_ab_html(FILE *out, const invar_ab_result *result) INVAR_MUST_USE;

#endif
