/*
 * page.h - writes one self-contained HTML file from embedded templates and JSON data.
 *
 * The first file is the page. In it {{FILE}} stands for the text of another file, {{sha256:FILE}}
 * for its hash in the form of a Content-Security-Policy, {{live:TEXT}} for TEXT if the page is live
 * and for nothing otherwise, and {{data}} for the JSON. The policy makes the browser run these
 * scripts and no others, whatever the data contain. The data may hold any text of a ledger and
 * cannot end the element that contains them.
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

/* The first bytes of a page, by which an output file is recognized: INVAR_PAGE_MARK("report"). */
#define INVAR_PAGE_MARK(name) "<!DOCTYPE html>\n<!-- " name ".html - the page of `invar "

/*
 * Writes a page. `files` ends with an element without a name. `live` pages ask their server for new
 * data. Does not close `out`.
 */
invar_status invar_page_write(FILE *out, const invar_embedded *files, const json_t *data,
                              bool live) INVAR_MUST_USE;

/* Writes the JSON as a page contains it, without the page. */
invar_status invar_page_write_data(FILE *out, const json_t *data) INVAR_MUST_USE;

#endif
