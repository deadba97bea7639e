/*
 * report.h - writes runs as HTML pages that know the defaults of this program's recipe keys.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LEDGER_REPORT_H
#define INVAR_CLI_LEDGER_REPORT_H

#include "ledger/view/report/report.h"

/*
 * Like invar_report_write, with the defaults of this program's recipe keys. Damaged samples are
 * reported on stderr and counted in *damaged_out.
 */
invar_status invar_report_page(FILE *out, int64_t *damaged_out, const invar_report_run *runs,
                               size_t count) INVAR_MUST_USE;

/*
 * Like invar_report_page, for a page that polls for new data, or writes these data without `page`.
 * Damage is shown on the page only.
 */
invar_status invar_report_live(FILE *out, const invar_report_run *runs, size_t count,
                               bool page) INVAR_MUST_USE;

#endif
