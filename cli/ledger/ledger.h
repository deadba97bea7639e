/*
 * ledger.h - the verbs `invar ledger ...` and what they share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LEDGER_LEDGER_H
#define INVAR_CLI_LEDGER_LEDGER_H

#include <jansson.h>
#include <stdio.h>

#include "cli/command.h"
#include "cli/ledger/locate.h"
#include "cli/ledger/row_output.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const invar_cli_command invar_verb_ledger_ls;
extern const invar_cli_command invar_verb_ledger_show;
extern const invar_cli_command invar_verb_ledger_query;
extern const invar_cli_command invar_verb_ledger_sql;
extern const invar_cli_command invar_verb_ledger_verify;
extern const invar_cli_command invar_verb_ledger_seal;
extern const invar_cli_command invar_verb_ledger_import;
extern const invar_cli_command invar_verb_ledger_export;
extern const invar_cli_command invar_verb_ledger_backup;
extern const invar_cli_command invar_verb_ledger_report;
extern const invar_cli_command invar_verb_ledger_watch;

/* The options --json and --csv; the format they ask for together. */
invar_option invar_option_json(bool *value);
invar_option invar_option_csv(bool *value);
invar_option invar_option_exact(bool *value);
invar_status invar_row_writer_choose(invar_row_writer_format *out, bool json, bool csv,
                                     bool exact) INVAR_MUST_USE;

/* INVAR_EXIT_OK, or what invar_report_error yields. */
int invar_exit(invar_status status);

/* "next: invar VERB WORD [--ledger LEDGER] REST", words as a shell takes them. NULL: left out. */
void invar_print_next(FILE *out, const char *verb, const char *word, const char *ledger,
                      const char *rest);

/* Of a run that ended: "finished", "failed" or "stopped" (in order, by a signal). */
const char *invar_run_end(const invar_ledger_summary *run);

/* That, "running" (it has a writer) or "killed". */
invar_status invar_run_state(const char **out, const char *path,
                             const invar_ledger_summary *run) INVAR_MUST_USE;

#define INVAR_RUN_RESUME_SIZE 128

/* "; " and where a training run goes on that nobody writes; "" if it is done. */
invar_status invar_run_resume(char out[INVAR_RUN_RESUME_SIZE], invar_ledger *ledger,
                              const invar_ledger_summary *run) INVAR_MUST_USE;

/* How many steps the timeline has. */
int64_t invar_run_steps(const invar_ledger_summary *run);

/* What `ls` and `show` tell programs about a run; NULL: no memory. */
json_t *invar_run_json(const char *path, const invar_ledger_summary *run, const char *state);

/* The run's model as an object with the columns of invar_ledger_model_sql; the caller owns it. */
invar_status invar_run_model(json_t **out, invar_ledger *ledger, int64_t run) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
