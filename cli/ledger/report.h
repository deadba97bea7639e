/*
 * report.h - runs as one HTML page, which knows the defaults of recipes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LEDGER_REPORT_H
#define INVAR_CLI_LEDGER_REPORT_H

#include "ledger/view/report/report.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * invar_report_write, with the defaults of this program's keys. Kept samples that are damaged are
 * told on standard error, and counted.
 */
invar_status invar_report_page(FILE *out, int64_t *damaged_out, const invar_report_run *runs,
                               size_t count) INVAR_MUST_USE;

/* The same for a page that asks for news; it alone tells of damage. */
invar_status invar_report_live_page(FILE *out, const invar_report_run *runs,
                                    size_t count) INVAR_MUST_USE;

/* The data of such a page. */
invar_status invar_report_data(FILE *out, const invar_report_run *runs,
                               size_t count) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
