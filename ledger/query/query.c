/*
 * query.c - named queries, and read-only statements with limits.
 *
 * A named query is a file of queries/ that is embedded in the library. It begins with two lines
 * that describe it:
 *     -- first-threshold: At which step did a metric first exceed a value?
 *     -- params: :run run, :metric text, :x number, :window integer = 20
 * A statement of any origin runs under a guard (sql.h) that allows reads only and limits time and
 * memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/console/spelling.h"
#include "base/embedded.h"
#include "base/text.h"
#include "ledger/internal.h"

#include "base/invar_banned.h"

enum { COLUMNS = 256 };

/* ---- named queries --------------------------------------------------------------------------- */

extern const invar_embedded invar_ledger_query_files[];

/*
 * Copies the text up to the first byte of `ends`, without spaces around it. Returns the length of
 * the text up to there.
 */
static size_t copy_trimmed(char *out, size_t size, const char *text, const char *ends)
{
    size_t length = strcspn(text, ends), used = length;
    const char *from = text;

    while (used > 0 && *from == ' ')
        from++, used--;
    while (used > 0 && from[used - 1] == ' ')
        used--;
    INVAR_CHECK(used < size); // the files are embedded, and a test reads them all
    memcpy(out, from, used);
    out[used] = '\0';
    return length;
}

static void read_param(invar_ledger_query_param *out, const char *text)
{
    char type[INVAR_LEDGER_QUERY_WORD];

    text += copy_trimmed(out->name, sizeof out->name, text + 1, " ") + 1;
    text += copy_trimmed(type, sizeof type, text + 1, "=,\n") + 1;
    INVAR_CHECK(strlen(type) > 0 && strchr("rint", type[0]));
    out->type = type[0];
    out->optional = *text == '=';
    out->fallback[0] = '\0';
    if (out->optional)
        copy_trimmed(out->fallback, sizeof out->fallback, text + 1, ",\n");
}

/* Parses the list of parameters, such as ":run run, :x number = 5". */
static void read_params(invar_ledger_query *out, const char *text)
{
    const char *end = text + strcspn(text, "\n"), *at = text;

    for (out->n_params = 0; (at = memchr(at, ':', (size_t)(end - at))) != NULL; at++) {
        INVAR_CHECK(out->n_params < INVAR_LEDGER_QUERY_PARAMS);
        read_param(&out->params[out->n_params++], at);
    }
}

static void read_query(invar_ledger_query *out, const invar_embedded *file)
{
    const char *text = file->text, *second = strchr(text, '\n');

    INVAR_CHECK(strncmp(text, "-- ", 3) == 0 && second);
    text += 3 + copy_trimmed(out->name, sizeof out->name, text + 3, ":\n");
    copy_trimmed(out->question, sizeof out->question, text + 1, "\n");
    INVAR_CHECK(strncmp(second + 1, "-- params:", 10) == 0);
    read_params(out, second + 11);
    out->sql = file->text;
}

int invar_ledger_query_count(void)
{
    int count = 0;

    while (invar_ledger_query_files[count].name)
        count++;
    return count;
}

invar_status invar_ledger_query_at(invar_ledger_query *out, int index)
{
    if (index < 0 || index >= invar_ledger_query_count())
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "there is no named query %d", index);
    read_query(out, &invar_ledger_query_files[index]);
    return INVAR_OK;
}

invar_status invar_ledger_query_find(invar_ledger_query *out, const char *name)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];
    invar_spelling spelling;

    for (int i = 0; i < invar_ledger_query_count(); i++) {
        INVAR_TRY(invar_ledger_query_at(out, i));
        if (strcmp(out->name, name) == 0)
            return INVAR_OK;
    }
    invar_text_quote(quote, sizeof quote, name, strlen(name));
    invar_spelling_init(&spelling, name, strlen(name));
    for (int i = 0; i < invar_ledger_query_count(); i++) {
        INVAR_TRY(invar_ledger_query_at(out, i));
        invar_spelling_offer(&spelling, out->name);
    }
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "there is no named query \"%s\"%s; invar ledger query lists them", quote,
                      invar_spelling_hint(&spelling));
}

/* ---- read-only statements -------------------------------------------------------------------- */

static invar_status bind_arguments(invar_sql_stmt *stmt, const invar_ledger_select_request *request)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];

    for (int index = 1; index <= invar_sql_params(stmt); index++) {
        const char *name = invar_sql_param_name(stmt, index);
        const invar_ledger_argument *argument = NULL;
        for (size_t i = 0; i < request->n_arguments && !argument; i++)
            if (strcmp(request->arguments[i].name, name + 1) == 0)
                argument = &request->arguments[i];
        if (!argument) {
            invar_text_quote(quote, sizeof quote, name, strlen(name));
            return INVAR_FAIL(INVAR_E_INVALID, 0, "SQL: the parameter %s has no value", quote);
        }
        INVAR_TRY(invar_sql_bind(stmt, index, argument->value));
    }
    return INVAR_OK;
}

static invar_status pass_rows(invar_sql_stmt *stmt, const invar_ledger_select_request *request)
{
    const char *names[COLUMNS];
    invar_ledger_value values[COLUMNS];
    int columns = invar_sql_columns(stmt);
    bool row;

    if (columns > COLUMNS)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "SQL: %d columns; %d are allowed", columns, COLUMNS);
    // the first step may prepare the statement again, which invalidates names read before it
    INVAR_TRY(invar_sql_step(&row, stmt));
    for (int i = 0; i < columns; i++)
        names[i] = invar_sql_column_name(stmt, i);
    INVAR_TRY(request->row(request->payload, names, NULL, columns));
    while (row) {
        for (int i = 0; i < columns; i++)
            values[i] = invar_ledger_value_column(stmt, i);
        INVAR_TRY(invar_sql_row(stmt));
        INVAR_TRY(request->row(request->payload, names, values, columns));
        INVAR_TRY(invar_sql_step(&row, stmt));
    }
    return INVAR_OK;
}

invar_status invar_ledger_select(invar_ledger *ledger, const invar_ledger_select_request *request)
{
    invar_sql_stmt *stmt = NULL;
    invar_status status;

    INVAR_TRY(invar_sql_restrict_to_reads(ledger->sql, request->limit_ms));
    status = invar_sql_prepare(&stmt, ledger->sql, request->sql);
    if (status == INVAR_OK)
        status = bind_arguments(stmt, request);
    if (status == INVAR_OK)
        status = pass_rows(stmt, request);
    if (status == INVAR_E_SQL) // an error in the text of the caller
        status = INVAR_FAIL(INVAR_E_INVALID, invar_error_last()->native, "%s",
                            invar_error_last()->message);
    invar_sql_free(stmt);
    invar_sql_unguard(ledger->sql);
    return status;
}
