/*
 * query_requirements.c - checks whether the ledger has the rows that a named query reads.
 *
 * A result without rows is an answer only if there was something to examine. After the line of
 * parameters, the head of a query's file has such conditions as pairs of lines:
 *     -- needs: SELECT count(*) FROM op_times WHERE run = :run
 *     -- or: the run has no profiled step: profile-step-start and profile-step-end choose some
 * A line that begins with "--   " continues the previous line.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "ledger/internal.h"

#include "base/invar_banned.h"

#define CONTINUED "\n--   "

const char *invar_ledger_query_line(char out[INVAR_LEDGER_QUERY_LINE], const char *from,
                                    const char *mark)
{
    char begin[32];
    const char *at;
    size_t used = 0;

    (void)snprintf(begin, sizeof begin, "\n-- %s: ", mark);
    at = strstr(from, begin);
    if (!at)
        return NULL;
    for (at += strlen(begin);; at += strlen(CONTINUED) - 1) { // keeps one space of the mark
        size_t bytes = strcspn(at, "\n");

        // the files are embedded, and a test reads them all
        INVAR_CHECK(used + bytes < INVAR_LEDGER_QUERY_LINE);
        memcpy(out + used, at, bytes);
        used += bytes;
        at += bytes;
        if (strncmp(at, CONTINUED, strlen(CONTINUED)) != 0)
            break;
    }
    out[used] = '\0';
    return at;
}

static invar_status take_truth(void *payload, const char *const *columns,
                               const invar_ledger_value *values, int count)
{
    (void)columns, (void)count;
    if (values)
        *(bool *)payload = values[0].integer != 0;
    return INVAR_OK;
}

invar_status invar_ledger_query_has_data(bool *out, char why_out[INVAR_LEDGER_QUERY_LINE],
                                         invar_ledger *ledger, const invar_ledger_query *query,
                                         const invar_ledger_argument *arguments)
{
    char sql[INVAR_LEDGER_QUERY_LINE];

    *out = true;
    for (const char *at = query->sql; *out && (at = invar_ledger_query_line(sql, at, "needs"));) {
        at = invar_ledger_query_line(why_out, at, "or");
        INVAR_CHECK(at);
        INVAR_TRY(invar_ledger_select(
            ledger, &(invar_ledger_select_request){.sql = sql,
                                                   .arguments = arguments,
                                                   .n_arguments = (size_t)query->n_params,
                                                   .row = take_truth,
                                                   .payload = out}));
    }
    return INVAR_OK;
}
