/*
 * ab.h - the answer of an A/B experiment for people and programs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_VIEW_AB_H
#define INVAR_BISECT_VIEW_AB_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "bisect/ab/ab.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_AB_LINE 2048

/* "identical", "different", "nondeterministic", "untestable", "stopped" */
const char *invar_ab_verdict_name(invar_ab_verdict verdict);

/* "commit", "folder", "file" */
const char *invar_ab_kind_name(invar_ab_kind kind);

/* The verdict in one line, "identical: 3 seeds, 40 steps each". */
void invar_ab_headline(char out[INVAR_AB_LINE], const invar_ab_result *answer);

/* For people: the verdict first, then what differs, the effects and the cost. */
invar_status invar_ab_print(FILE *out, const invar_ab_result *answer, bool colour) INVAR_MUST_USE;

/* Everything, as one object; NULL: no memory. */
json_t *invar_ab_object(const invar_ab_result *answer);

/* For programs: that object. */
invar_status invar_ab_json(FILE *out, const invar_ab_result *answer) INVAR_MUST_USE;

#define INVAR_AB_CURVES 20 /* seeds whose curves are on the page, at most */

/* One self-contained page: verdict, place, effects, both sides' curves, facts. */
invar_status invar_ab_html(FILE *out, const invar_ab_result *answer) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
