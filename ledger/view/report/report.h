/*
 * report.h - runs as one HTML page: curves, where they part, samples, facts, slow steps, events.
 *
 * The page is one file that loads nothing: templates/ and the data are inside. It says nothing
 * about the time or the machine that it was made on, so equal runs in equal ledgers give equal
 * bytes. Its size is bounded: long series are thinned to their extremes, long lists are cut, and
 * the page says so.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_REPORT_REPORT_H
#define INVAR_LEDGER_VIEW_REPORT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_REPORT_POINTS 2000     /* of a series, at most */
#define INVAR_REPORT_BUDGET 600000   /* points of all series; many series share it */
#define INVAR_REPORT_EVENTS 500      /* of a run: errors first, then warnings, then the newest */
#define INVAR_REPORT_SLOW_STEPS 20   /* of a run */
#define INVAR_REPORT_NAMES 200       /* points and metrics that differ between two runs */
#define INVAR_REPORT_TEXT_BYTES 2000 /* of a fact or a message */
#define INVAR_REPORT_SAMPLE_BYTES 4000000 /* of all samples, roughly */
#define INVAR_REPORT_EXPANDED_BYTES                                                                \
    (64 << 20) /* of all kept samples, expanded, that are read for a page; no sample begins after */

typedef struct invar_report_run {
    invar_ledger *ledger; /* several runs may share one */
    int64_t run;          /* its number there */
    const char *label;    /* NULL: its name */
} invar_report_run;

typedef struct invar_report_options {
    const invar_ledger_pair *defaults; /* (n_defaults) of recipes: other values are shown first */
    size_t n_defaults;
    bool no_samples; /* without the samples that were kept */
    bool redact;     /* for others: without them, commands, folders, host, author, messages */
    bool live;       /* the page asks its server for news: state and data, beside it */
    /* A line for each kept sample that is damaged, which the page names and leaves out; or NULL. */
    void (*damaged)(void *payload, const char *line);
    void *payload;
} invar_report_options;

/* Every run is compared with the first. Each ledger is read as of one moment. */
invar_status invar_report_write(FILE *out, const invar_report_run *runs, size_t count,
                                const invar_report_options *options) INVAR_MUST_USE;

/*
 * A text with what looks like a secret masked: *out is a copy that the caller frees with
 * invar_free, or NULL if nothing was masked.
 */
invar_status invar_report_mask(char **out, size_t *bytes_out, const char *text,
                               size_t bytes) INVAR_MUST_USE;

/* The data of such a page alone, as JSON. */
invar_status invar_report_write_data(FILE *out, const invar_report_run *runs, size_t count,
                                     const invar_report_options *options) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
