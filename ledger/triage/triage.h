/*
 * triage.h - diagnoses a run: runs all triage rules on its ledger and collects their findings.
 *
 * A rule is a named query, a file of ledger/queries/triage. Its rows are the steps that show a
 * fault, the first one first, with the columns `step` and `evidence`, and optionally `next`. A
 * healthy run has no rows. Further lines at the head of the file are:
 *
 *   means         what such a fault usually is
 *   next          the next command; the column `next` replaces it if it depends on the evidence
 *   needs, or     data that the rule needs (query_requirements.c). Without them a rule that found
 *                 nothing counts as skipped
 *   of            if present, with any text: the rule is not run while a process writes the run
 *   cause, check  in pairs: a possible cause, and the command that confirms or excludes it
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_TRIAGE_TRIAGE_H
#define INVAR_LEDGER_TRIAGE_TRIAGE_H

#include "ledger/ledger.h"

#define INVAR_TRIAGE_RULES 32         /* capacity; larger than the number of rules */
#define INVAR_TRIAGE_PREFIX "triage-" /* prefix of a named query that is a rule */

typedef struct invar_triage_finding {
    invar_ledger_query rule;
    int number;                                /* index of the rule in alphabetical order, from 0 */
    char explanation[INVAR_LEDGER_QUERY_LINE]; /* usual meaning of such a fault */
    /* next command, in which the caller replaces RUN, STEP and, if it knows it, MODEL (a folder) */
    char next_command[INVAR_LEDGER_QUERY_LINE];
    int64_t step;       /* first step that shows the fault */
    int64_t steps;      /* number of steps that show the fault */
    char evidence[256]; /* evidence of the first of these steps */
} invar_triage_finding;

/* A rule that found nothing because the ledger lacks the data that it reads. */
typedef struct invar_triage_skipped_rule {
    invar_ledger_query rule;
    char why[INVAR_LEDGER_QUERY_LINE]; /* sentence about the missing data */
} invar_triage_skipped_rule;

typedef struct invar_triage {
    invar_triage_finding found[INVAR_TRIAGE_RULES]; /* (count) findings, ascending by step */
    int count;
    int rules; /* number of rules that were run, including those of `idle` */
    /* (n_idle) rules that were skipped for lack of data */
    invar_triage_skipped_rule idle[INVAR_TRIAGE_RULES];
    int n_idle;
} invar_triage;

/*
 * Reads the next possible cause of a finding and the command that checks it; its words are replaced
 * as in next_command. `from` is the SQL of the rule for the first cause, then the previous result.
 * Returns NULL if there are no more causes.
 */
const char *invar_triage_cause(char cause_out[INVAR_LEDGER_QUERY_LINE],
                               char check_out[INVAR_LEDGER_QUERY_LINE], const char *from);

/*
 * Runs all rules on run number `run` of the ledger with their default parameters. Set `written` if
 * a process is writing the run: rules with a line `of` are then left out. *out has about 100 KiB.
 */
invar_status invar_triage_run(invar_triage *out, invar_ledger *ledger, int64_t run,
                              bool written) INVAR_MUST_USE;

#endif
