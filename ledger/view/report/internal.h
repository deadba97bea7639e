/*
 * internal.h - what the files of the report share; pages with curves use it, too.
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

#ifdef __cplusplus
extern "C" {
#endif

/* ---- values: NULL when there is no memory ---------------------------------------------------- */

/*
 * Any bytes: what is not UTF-8 becomes U+FFFD; cut after INVAR_REPORT_TEXT_BYTES. In
 * invar_report_text what looks like a secret is masked.
 */
json_t *invar_report_text(const char *text, size_t bytes);
json_t *invar_report_text_within(const char *text, size_t bytes, size_t most);

/* Text or an integer of the current row; null where it has none. */
json_t *invar_report_column(invar_sql_stmt *row, int column);

json_t *invar_report_digest(const invar_digest *digest);

/* The pattern of a double: 16 hexadecimal digits. */
#define INVAR_REPORT_BITS_DIGITS 16
void invar_report_bits(char out[INVAR_REPORT_BITS_DIGITS + 1], uint64_t bits);

/* ---- containers: take `value` over, which may be NULL: INVAR_E_NOMEM ------------------------- */

invar_status invar_report_set(json_t *object, const char *key, json_t *value) INVAR_MUST_USE;
/* The same for a container that the caller goes on to fill. */
invar_status invar_report_member(json_t **out, json_t *object, const char *key,
                                 json_t *fresh) INVAR_MUST_USE;

invar_status invar_report_append(json_t *array, json_t *value) INVAR_MUST_USE;

/* ---- rows ------------------------------------------------------------------------------------ */

typedef invar_status (*invar_report_row_fn)(void *payload, invar_sql_stmt *row);

/* Calls `take` for each row of a statement; ?1 in it is the run. */
invar_status invar_report_each(const invar_report_run *run, const char *text,
                               invar_report_row_fn take, void *payload) INVAR_MUST_USE;

/* ---- parts of the data ----------------------------------------------------------------------- */

/* All that the page says about one run alone; of each series at most `limit` points. */
invar_status invar_report_add_run(json_t *runs, const invar_report_run *run,
                                  int64_t limit) INVAR_MUST_USE;

/* Metrics, gauges, evaluations and timings of the steps from `first` to `last`. */
invar_status invar_report_add_series(json_t *series, const invar_report_run *run, int64_t first,
                                     int64_t last, int64_t limit) INVAR_MUST_USE;

/* Samples that the run has kept, into its object. So many runs share what a page has; 0: none, only
   how many there are. */
invar_status invar_report_add_samples(json_t *run, const invar_report_run *from,
                                      size_t runs) INVAR_MUST_USE;

/*
 * The members that come from `data`, the bytes that a ledger has kept of a sample, with at most so
 * many tokens. *why_out: NULL, or why they are no sample; then the object is as it was.
 * *expanded_out: how many bytes were made of them, at most.
 */
invar_status invar_report_add_kept(json_t *object, const char **why_out, size_t *expanded_out,
                                   const void *data, size_t bytes, size_t tokens) INVAR_MUST_USE;

/* Leaves out of the data what is not for others. */
invar_status invar_report_redact(json_t *data) INVAR_MUST_USE;

/* How many names of series its ledger has. */
invar_status invar_report_series_count(int64_t *out, const invar_report_run *run) INVAR_MUST_USE;

/* The facts of the index-th of `count` runs, into an object of scopes. */
invar_status invar_report_add_facts(json_t *facts, const invar_report_run *run, size_t index,
                                    size_t count) INVAR_MUST_USE;

/* How the index-th run compares with the first. */
invar_status invar_report_add_pair(json_t *pairs, const invar_report_run *runs,
                                   size_t index) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
