/*
 * page.h - one self-contained HTML file from embedded templates and JSON.
 *
 * The first file is the page; in it {{FILE}} stands for the text of another file, {{sha256:FILE}}
 * for its hash as a Content-Security-Policy names it, {{live:TEXT}} for TEXT on a page that asks
 * its server for news and for nothing elsewhere, and {{data}} for the JSON. The browser then runs
 * those scripts and no other, whatever the data says; and the data, which may hold any text out of
 * a ledger, cannot end the element that it stands in.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_PAGE_H
#define INVAR_LEDGER_VIEW_PAGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/embedded.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a page of ours begins with: INVAR_PAGE_MARK("report"). */
#define INVAR_PAGE_MARK(name) "<!DOCTYPE html>\n<!-- " name ".html - the page of `invar "

/* `files` ends with one without a name. Does not close `out`. */
invar_status invar_page_write(FILE *out, const invar_embedded *files, const json_t *data,
                              bool live) INVAR_MUST_USE;

/* The JSON alone, as it stands in a page. */
invar_status invar_page_write_data(FILE *out, const json_t *data) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
