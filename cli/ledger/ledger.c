/*
 * ledger.c - invar ledger: the list of its subcommands, and functions that they share.
 *
 * Shared are options, the description of a run for text and JSON output, and the hint about the
 * next command.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/ledger/ledger.h"

#include <inttypes.h>
#include <string.h>

#include "base/process/argv0.h"
#include "base/text.h"
#include "cli/safe_text.h"

#include "base/invar_banned.h"

static const invar_cli_command *const subs[] = {
    &invar_cmd_ledger_ls,     &invar_cmd_ledger_show,   &invar_cmd_ledger_query,
    &invar_cmd_ledger_sql,    &invar_cmd_ledger_verify, &invar_cmd_ledger_seal,
    &invar_cmd_ledger_import, &invar_cmd_ledger_export, &invar_cmd_ledger_backup,
    &invar_cmd_ledger_report, &invar_cmd_ledger_watch,  NULL,
};

const invar_cli_command invar_cmd_ledger = {
    .name = "ledger",
    .summary = "query, verify and export the record of runs",
    .about =
        "\n"
        "A RUN is one of: a run's folder, which holds ledger.db; a ledger file; FILE:WHICH, where\n"
        "WHICH is the number, the name or the first digits of the uuid of a run in that file; at\n"
        "least 4 digits of the uuid of a run below runs/; or @last, the newest run below runs/.\n"
        "With --ledger FILE, or with the environment variable INVAR_LEDGER, RUN is a WHICH in\n"
        "that file.",
    .arguments = "VERB [ARGUMENT ...] [--option value ...]",
    .subcommands = subs};

invar_option invar_option_ledger(const char **value)
{
    return (invar_option)INVAR_OPTION_LEDGER(value);
}

invar_option invar_option_json(bool *value)
{
    return (invar_option)INVAR_OPTION_JSON(value);
}

invar_option invar_option_exact(bool *value)
{
    return (invar_option)INVAR_OPTION_EXACT(value);
}

invar_status invar_row_writer_choose(invar_row_writer_format *out, bool json, bool csv, bool exact)
{
    *out = json    ? INVAR_ROW_WRITER_FORMAT_JSON
           : csv   ? INVAR_ROW_WRITER_FORMAT_CSV
           : exact ? INVAR_ROW_WRITER_FORMAT_EXACT
                   : INVAR_ROW_WRITER_FORMAT_TABLE;
    return json && csv ? INVAR_FAIL(INVAR_E_INVALID, 0, "--json and --csv do not go together")
                       : INVAR_OK;
}

void invar_print_next(FILE *out, const char *verb, const char *word, const char *ledger,
                      const char *rest)
{
    fprintf(out, "next: %s %s", invar_argv0(), verb);
    if (word) {
        fputc(' ', out);
        invar_text_print_shell_word(out, word);
    }
    if (ledger) {
        fputs(" --ledger ", out);
        invar_text_print_shell_word(out, ledger);
    }
    fprintf(out, "%s%s\n", rest ? " " : "", rest ? rest : "");
}

const char *invar_run_end(const invar_ledger_summary *run)
{
    return run->stopped ? "stopped" : run->exit_code == 0 ? "finished" : "failed";
}

invar_status invar_run_state(const char **out, const char *path, const invar_ledger_summary *run)
{
    char writer[INVAR_LEDGER_WRITER_SIZE] = "";

    if (!run->finished)
        INVAR_TRY(invar_ledger_writer(writer, path));
    *out = run->finished ? invar_run_end(run) : writer[0] != '\0' ? "running" : "killed";
    return INVAR_OK;
}

invar_status invar_run_resume(char out[INVAR_RUN_RESUME_SIZE], invar_ledger *ledger,
                              const invar_ledger_summary *run)
{
    invar_ledger_query points;
    json_t *newest;

    out[0] = '\0';
    if ((run->finished && run->exit_code == 0) || strcmp(run->kind, "train") != 0)
        return INVAR_OK;
    INVAR_TRY(invar_ledger_query_find(&points, "restore-points"));
    INVAR_TRY(invar_run_row(&newest, ledger, run->run, points.sql));
    if (newest)
        (void)snprintf(out, INVAR_RUN_RESUME_SIZE,
                       "; the command that began it resumes after step %" JSON_INTEGER_FORMAT
                       ", its newest checkpoint",
                       json_integer_value(json_object_get(newest, "step")));
    else
        (void)snprintf(out, INVAR_RUN_RESUME_SIZE, "; it has no checkpoint to resume from");
    json_decref(newest);
    return INVAR_OK;
}

int64_t invar_run_steps(const invar_ledger_summary *run)
{
    return run->last_step < 0 ? 0 : run->last_step - run->first_step + 1;
}

json_t *invar_run_json(const char *path, const invar_ledger_summary *run, const char *state)
{
    char created[INVAR_SAFE_TEXT_TIME_SIZE], updated[INVAR_SAFE_TEXT_TIME_SIZE];

    invar_safe_text_time(created, run->created_ns);
    invar_safe_text_time(updated, run->updated_ns);
    return INVAR_RESULT("{" INVAR_RUN_MEMBERS("") "}", path, run->run, run->uuid, run->name,
                        run->kind, &run->identity, created, run->created_ns, updated,
                        run->updated_ns, run->entries, run->segments, run->first_step,
                        run->last_step, invar_run_steps(run), &run->chain, &run->integrity, state,
                        run->finished ? json_integer(run->exit_code) : json_null(),
                        run->parent[0] ? run->parent : NULL, run->fork_step);
}

static invar_status take_first(void *payload, const char *const *columns,
                               const invar_ledger_value *values, int count)
{
    json_t **row = payload;

    return values && !*row ? invar_json_row(row, columns, values, count) : INVAR_OK;
}

invar_status invar_run_row(json_t **out, invar_ledger *ledger, int64_t run, const char *sql)
{
    const invar_ledger_argument argument = {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run}};
    invar_status status;

    *out = NULL;
    status = invar_ledger_select(ledger, &(invar_ledger_select_request){.sql = sql,
                                                                        .arguments = &argument,
                                                                        .n_arguments = 1,
                                                                        .row = take_first,
                                                                        .payload = out});
    if (status != INVAR_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}
