/*
 * bisect_report.h - the answer of a bisect for people and programs.
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

/* For people: the verdict first, then commit, place, cost. */
invar_status invar_bisect_report_print(FILE *out, const invar_bisect_result *answer,
                                       bool colour) INVAR_MUST_USE;

/* Everything, as one object; NULL: no memory. */
json_t *invar_bisect_report_object(const invar_bisect_result *answer);

/* For programs: that object. */
invar_status invar_bisect_report_json(FILE *out, const invar_bisect_result *answer) INVAR_MUST_USE;

/* One self-contained page: verdict, commit, place, the trials as a picture and as a table. */
invar_status invar_bisect_report_html(FILE *out, const invar_bisect_result *answer) INVAR_MUST_USE;

/* "found", "changes", "suspects", "nondeterministic", "same-ends", ... */
const char *invar_bisect_report_verdict(invar_bisect_verdict verdict);

#ifdef __cplusplus
}
#endif
#endif
