/*
 * internal.h - shared by the files of the report: JSON values, iteration over rows, parts of the
 * data.
 *
 * Private to ledger/view/report/, except that pages with curves use it, too. Functions that return
 * a json_t return NULL for lack of memory; functions that add a value to a container own the value
 * and return INVAR_E_NOMEM if it is NULL.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_REPORT_INTERNAL_H
#define INVAR_LEDGER_VIEW_REPORT_INTERNAL_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "ledger/store/sql.h"
#include "ledger/view/report/report.h"

/* ---- values ---------------------------------------------------------------------------------- */

/*
 * Return text as JSON. Bytes that are not UTF-8 become U+FFFD. The first masks secrets and cuts the
 * text after INVAR_REPORT_TEXT_BYTES; the second cuts it after `most` bytes.
 */
json_t *invar_report_text(const char *text, size_t bytes);
json_t *invar_report_text_within(const char *text, size_t bytes, size_t most);

/* Returns a column of the current row: text, integer or null. */
json_t *invar_report_column(invar_sql_stmt *row, int column);

#define INVAR_REPORT_BITS_DIGITS 16

/* Writes the IEEE pattern of a double as 16 hexadecimal digits. */
void invar_report_bits(char out[INVAR_REPORT_BITS_DIGITS + 1], uint64_t bits);

/* ---- containers ------------------------------------------------------------------------------ */

invar_status invar_report_set(json_t *object, const char *key, json_t *value) INVAR_MUST_USE;

/*
 * Sets a member that is a container, and *out = `fresh` (borrowed), so that the caller can fill it.
 */
invar_status invar_report_member(json_t **out, json_t *object, const char *key,
                                 json_t *fresh) INVAR_MUST_USE;

invar_status invar_report_append(json_t *array, json_t *value) INVAR_MUST_USE;

/* ---- rows ------------------------------------------------------------------------------------ */

typedef invar_status (*invar_report_row_fn)(void *payload, invar_sql_stmt *row);

/* Calls `take` for each row of a statement, with ?1 = run. Stops at the first failure. */
invar_status invar_report_each(const invar_report_run *run, const char *text,
                               invar_report_row_fn take, void *payload) INVAR_MUST_USE;

/* ---- parts of the data ----------------------------------------------------------------------- */

/* Appends the data about one run. Each series has at most `limit` points. */
invar_status invar_report_add_run(json_t *runs, const invar_report_run *run,
                                  int64_t limit) INVAR_MUST_USE;

/*
 * Appends metrics, gauges, evaluations and timings of all steps. `first` and `last` are the range
 * of steps that is divided into stretches, so that a series has at most about `limit` points
 * (series.c).
 */
invar_status invar_report_add_series(json_t *series, const invar_report_run *run, int64_t first,
                                     int64_t last, int64_t limit) INVAR_MUST_USE;

/*
 * Adds the kept samples of a run to its object. `runs` is the number of runs that share the limits
 * of the page; 0 adds only the counts of the samples.
 */
invar_status invar_report_add_samples(json_t *run, const invar_report_run *from,
                                      size_t runs) INVAR_MUST_USE;

/*
 * Adds the members that are read from `data` (bytes), a kept sample, with at most `tokens` tokens.
 * If the sample is damaged, *why_out is the reason and the object is unchanged; otherwise *why_out
 * is NULL. *expanded_out is an upper bound of the expanded bytes.
 */
invar_status invar_report_add_kept(json_t *object, const char **why_out, size_t *expanded_out,
                                   const void *data, size_t bytes, size_t tokens) INVAR_MUST_USE;

/* Removes from the data of a page what must not leave the machine (redact.c). */
invar_status invar_report_redact(json_t *data) INVAR_MUST_USE;

/* *out = the number of series names in the run's ledger. */
invar_status invar_report_series_count(int64_t *out, const invar_report_run *run) INVAR_MUST_USE;

/* Adds the facts of the index-th of `count` runs to an object with one member per scope. */
invar_status invar_report_add_facts(json_t *facts, const invar_report_run *run, size_t index,
                                    size_t count) INVAR_MUST_USE;

/* Appends the comparison of the index-th run with the first. */
invar_status invar_report_add_pair(json_t *pairs, const invar_report_run *runs,
                                   size_t index) INVAR_MUST_USE;

#endif
