/*
 * report.h - writes runs as one HTML page: curves, comparison, samples, facts, slow steps, events.
 *
 * The page is one file that loads nothing: templates/ and the data are embedded. It contains
 * neither the time nor the machine of its making, so equal runs in equal ledgers give equal bytes.
 * Its size is bounded: long series are thinned to their extremes, long lists are cut, and the page
 * mentions both.
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

/* Limits of a page. */
#define INVAR_REPORT_POINTS 2000     /* points of a series */
#define INVAR_REPORT_BUDGET 600000   /* points of all series together */
#define INVAR_REPORT_EVENTS 500      /* events of a run: errors, then warnings, then the newest */
#define INVAR_REPORT_SLOW_STEPS 20   /* slow steps of a run */
#define INVAR_REPORT_NAMES 200       /* points and metrics that differ between two runs */
#define INVAR_REPORT_TEXT_BYTES 2000 /* bytes of a fact or a message */
#define INVAR_REPORT_SAMPLE_BYTES 4000000 /* bytes of all samples on the page, roughly */
#define INVAR_REPORT_EXPANDED_BYTES                                                                \
    (64 << 20) /* expanded bytes of kept samples after which no further sample is read */

/* A run to show. */
typedef struct invar_report_run {
    invar_ledger *ledger; /* borrowed; several runs may be of the same ledger */
    int64_t run;          /* number of the run in the ledger */
    const char *label;    /* name on the page; NULL for the name of the run */
} invar_report_run;

typedef struct invar_report_options {
    const invar_ledger_pair *defaults; /* (n_defaults) default values of recipe keys; facts with
                                          other values are shown first */
    size_t n_defaults;
    bool no_samples; /* leave out kept samples */
    bool redact;     /* leave out what must not leave the machine: kept samples, commands, folders,
                        host, author, messages */
    bool live;       /* the page polls its server for new data */
    bool data_only;  /* write the data of the page alone, as JSON */
    /* Callback for each damaged kept sample, which the page leaves out; may be NULL. */
    void (*damaged)(void *payload, const char *line);
    void *payload;
} invar_report_options;

/*
 * Writes a page about `count` runs, at least one, and compares each with the first. Each ledger is
 * read in one snapshot. Does not close `out`.
 */
invar_status invar_report_write(FILE *out, const invar_report_run *runs, size_t count,
                                const invar_report_options *options) INVAR_MUST_USE;

/*
 * Masks everything in a text that has the form of a secret. *out is the masked copy, which the
 * caller frees with invar_free, or NULL if the text has no secret.
 */
invar_status invar_report_mask(char **out, size_t *bytes_out, const char *text,
                               size_t bytes) INVAR_MUST_USE;

#endif
