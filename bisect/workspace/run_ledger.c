/*
 * run_ledger.c - opens the ledger of one run and reads rows of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/workspace/workspace.h"

#include "base/invar_banned.h"

invar_status invar_workspace_ledger_open(invar_ledger **out, invar_ledger_summary *run,
                                         const char *path)
{
    *out = NULL;
    INVAR_TRY(invar_ledger_open(out, path, NULL));
    return invar_ledger_find(run, *out, NULL);
}

typedef struct row_reader {
    invar_status (*take)(void *payload, const invar_ledger_value *values);
    void *payload;
} row_reader;

static invar_status read_row(void *payload, const char *const *columns,
                             const invar_ledger_value *values, int count)
{
    const row_reader *reader = payload;

    (void)columns, (void)count;
    return values ? reader->take(reader->payload, values) : INVAR_OK;
}

invar_status
invar_workspace_ledger_select(invar_ledger *ledger, const char *sql,
                              const invar_ledger_argument *arguments, size_t n_arguments,
                              invar_status (*take)(void *payload, const invar_ledger_value *values),
                              void *payload)
{
    row_reader reader = {take, payload};

    return invar_ledger_select(ledger, &(invar_ledger_select_request){.sql = sql,
                                                                      .arguments = arguments,
                                                                      .n_arguments = n_arguments,
                                                                      .row = read_row,
                                                                      .payload = &reader});
}
