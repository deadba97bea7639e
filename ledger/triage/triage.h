/*
 * triage.h - what is wrong with a run: rules that look at its ledger.
 *
 * A rule is a named query, a file of ledger/queries/triage. It answers with the steps that show a
 * fault, `step` and `evidence`, the first one first; a run that is well has no answer. More lines
 * at the head of the file say what a fault usually means, which command comes next, and what the
 * rule needs: one that has nothing to look at finds nothing, which says nothing of the run. Where
 * the next command depends on the evidence, it is a third column, `next`. A rule
 * with a line `of` is about runs that no process writes.
 *
 * A rule whose evidence has several possible causes lists them in pairs of lines, `cause` and
 * `check`: the cause, and the command that confirms or excludes it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_TRIAGE_TRIAGE_H
#define INVAR_LEDGER_TRIAGE_TRIAGE_H

#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_TRIAGE_RULES 32         /* more than there are */
#define INVAR_TRIAGE_PREFIX "triage-" /* of the names of rules among those of queries */

typedef struct invar_triage_finding {
    invar_ledger_query rule;
    int number;                                /* of the rule, from 0 */
    char explanation[INVAR_LEDGER_QUERY_LINE]; /* what such a fault usually is */
    /* a command; the words RUN, STEP, MODEL (a folder) and RECIPE in it are to be replaced */
    char next_command[INVAR_LEDGER_QUERY_LINE];
    int64_t step;       /* the first that shows it */
    int64_t steps;      /* that show it */
    char evidence[256]; /* of that first one */
} invar_triage_finding;

typedef struct invar_triage_skipped_rule {
    invar_ledger_query rule;
    char why[INVAR_LEDGER_QUERY_LINE]; /* what it needs */
} invar_triage_skipped_rule;

typedef struct invar_triage {
    invar_triage_finding found[INVAR_TRIAGE_RULES]; /* (count) by step */
    int count;
    int rules; /* that were asked */
    /* (n_idle) of them without data to look at */
    invar_triage_skipped_rule idle[INVAR_TRIAGE_RULES];
    int n_idle;
} invar_triage;

/*
 * Reads the next possible cause and its command, in which words are to be replaced as in `next`.
 * `from` is the rule's sql, or the previous result. NULL if there are no more.
 */
const char *invar_triage_cause(char cause_out[INVAR_LEDGER_QUERY_LINE],
                               char check_out[INVAR_LEDGER_QUERY_LINE], const char *from);

/* All rules. `run`: its number in the ledger; `written`: by a process, which may go on. */
invar_status invar_triage_run(invar_triage *out, invar_ledger *ledger, int64_t run,
                              bool written) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
