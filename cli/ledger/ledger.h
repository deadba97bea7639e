/*
 * ledger.h - subcommands of `invar ledger`, and functions that they share.
 *
 * Shared are options, the description of a run as text and as JSON, and the hint about the next
 * command. Each command keeps what its options set in a static variable of its file.
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

extern const invar_cli_command invar_cmd_ledger_ls;
extern const invar_cli_command invar_cmd_ledger_show;
extern const invar_cli_command invar_cmd_ledger_query;
extern const invar_cli_command invar_cmd_ledger_sql;
extern const invar_cli_command invar_cmd_ledger_verify;
extern const invar_cli_command invar_cmd_ledger_seal;
extern const invar_cli_command invar_cmd_ledger_import;
extern const invar_cli_command invar_cmd_ledger_export;
extern const invar_cli_command invar_cmd_ledger_backup;
extern const invar_cli_command invar_cmd_ledger_report;
extern const invar_cli_command invar_cmd_ledger_watch;

/* Initializers of the options --ledger, --json, --csv and --exact. */
#define INVAR_OPTION_LEDGER(variable)                                                              \
    {                                                                                              \
        .name = "ledger", .type = INVAR_OPTION_TEXT, .value = (variable), .metavar = "FILE",       \
        .help = "ledger file that contains RUN; RUN is then a number, a name or a uuid"            \
    }
#define INVAR_OPTION_JSON(variable)                                                                \
    {                                                                                              \
        .name = "json", .value = (variable), .help = "print the result as JSON"                    \
    }
#define INVAR_OPTION_CSV(variable)                                                                 \
    {                                                                                              \
        .name = "csv", .value = (variable), .help = "print the result as CSV"                      \
    }
#define INVAR_OPTION_EXACT(variable)                                                               \
    {                                                                                              \
        .name = "exact", .value = (variable), .help = "show all digits of numbers instead of 4"    \
    }

/* Return the same options, for lists that are filled while the program runs. */
invar_option invar_option_ledger(const char **value);
invar_option invar_option_json(bool *value);
invar_option invar_option_exact(bool *value);

/* *out = the format that the last three options select together. */
invar_status invar_row_writer_choose(invar_row_writer_format *out, bool json, bool csv,
                                     bool exact) INVAR_MUST_USE;

/*
 * Prints "next: invar VERB WORD [--ledger LEDGER] REST" with words quoted for a shell. `word`,
 * `ledger` and `rest` may be NULL.
 */
void invar_print_next(FILE *out, const char *verb, const char *word, const char *ledger,
                      const char *rest);

/*
 * Returns how a run with `finished` ended: "finished", "failed" or "stopped" (by a signal, in
 * order).
 */
const char *invar_run_end(const invar_ledger_summary *run);

/* *out is the result of invar_run_end, or "running" if the ledger has a writer, or "killed". */
invar_status invar_run_state(const char **out, const char *path,
                             const invar_ledger_summary *run) INVAR_MUST_USE;

#define INVAR_RUN_RESUME_SIZE 128

/* Formats "; " and where a training run without a writer resumes; empty if the run is complete. */
invar_status invar_run_resume(char out[INVAR_RUN_RESUME_SIZE], invar_ledger *ledger,
                              const invar_ledger_summary *run) INVAR_MUST_USE;

/* Returns the number of steps in the timeline. */
int64_t invar_run_steps(const invar_ledger_summary *run);

/*
 * Members of the JSON of a run. `n` is "" or "?", if they are null for a ledger that cannot be
 * read.
 */
#define INVAR_RUN_MEMBERS(n)                                                                       \
    "ledger text, run int" n ", uuid text" n ", name text" n ", kind text" n ", identity hex32" n  \
    ", created text" n ", created_ns int" n ", updated text" n ", updated_ns int" n                \
    ", entries int" n ", segments int" n ", first_step int" n ", last_step int" n ", steps int" n  \
    ", chain hex32" n ", integrity hex32" n ", state text, exit_code int?, parent text?,"          \
    " fork_step int" n
#define INVAR_RUN_MODEL                                                                            \
    "{family text? (null: not recorded), layers int?, hidden_size int?, parameters int?,"          \
    " weights text? (hash of the initial weights)}"

/* Returns the JSON object of a run for `ls` and `show`, or NULL without memory. */
json_t *invar_run_json(const char *path, const invar_ledger_summary *run, const char *state);

/*
 * Runs a query with the parameter :run, such as invar_ledger_model_sql. *out = its first row as an
 * object with the columns as members, or NULL if there is no row. The caller owns *out.
 */
invar_status invar_run_row(json_t **out, invar_ledger *ledger, int64_t run,
                           const char *sql) INVAR_MUST_USE;

#endif
