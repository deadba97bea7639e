/*
 * bisect_report_text.h - how an answer says things, whatever the form it takes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_VIEW_BISECT_REPORT_TEXT_H
#define INVAR_BISECT_VIEW_BISECT_REPORT_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "bisect/bisect.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    INVAR_BISECT_REPORT_SHORT = 12,      /* digits of a commit that people see */
    INVAR_BISECT_REPORT_LINE = 2048,     /* room for a line */
    INVAR_BISECT_REPORT_TIME = 32,       /* room for a date or a span */
    INVAR_BISECT_REPORT_VALUE_DIGITS = 8 /* of a value that people see */
};

/* Any text as one printable line of UTF-8, cut where the room ends; yields `out`. */
const char *invar_bisect_report_safe(char *out, size_t size, const char *text);

/* The verdict in one line, "found: 0123456789ab SUBJECT". */
void invar_bisect_report_headline(char out[INVAR_BISECT_REPORT_LINE],
                                  const invar_bisect_result *answer);

/* What the verdict means and what to do about it; "": the rest of the answer says it. */
void invar_bisect_report_advice(char out[INVAR_BISECT_REPORT_LINE],
                                const invar_bisect_result *answer);

/* "step 7, point layer.0.q (forward, layer 0), op linear.fwd"; "": not known. */
void invar_bisect_report_place(char out[INVAR_BISECT_REPORT_LINE], const invar_divergence *place);

/* "8 points differ, 31 equal at that step; every point was recorded" */
void invar_bisect_report_points(char out[INVAR_BISECT_REPORT_LINE], const invar_divergence *place);

/* "confirmed: ..." of a commit that was found, and what a third value means; "": not said. */
const char *invar_bisect_report_confirmed(const invar_bisect_result *answer);
const char *invar_bisect_report_third(const invar_bisect_result *answer);

/* "merge that no parent explains", "or one of 3 before it ...": remarks about a change; "": none */
void invar_bisect_report_remark(char out[INVAR_BISECT_REPORT_LINE],
                                const invar_bisect_change *change);

/* "12 trials, 9 of the search; ..." */
void invar_bisect_report_cost(char out[INVAR_BISECT_REPORT_LINE],
                              const invar_bisect_result *answer);

/* Unix seconds as "2026-01-31T12:34:56Z"; a span of seconds as "0.42 s", "3 min 5 s", "2 h 7 min".
 */
void invar_bisect_report_time(char out[INVAR_BISECT_REPORT_TIME], int64_t seconds);
void invar_bisect_report_span(char out[INVAR_BISECT_REPORT_TIME], double seconds);

enum { INVAR_BISECT_REPORT_COMMANDS = 3, INVAR_BISECT_REPORT_COMMAND = 2 * INVAR_PATH_SIZE + 512 };

/* Useful commands to follow, one a call from 0 on; false: no more. */
bool invar_bisect_report_next(char out[INVAR_BISECT_REPORT_COMMAND],
                              const invar_bisect_result *answer, int index);

#ifdef __cplusplus
}
#endif
#endif
