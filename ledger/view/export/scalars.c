/*
 * scalars.c - iterates over the scalars of a run: metrics, gauges and evaluation results.
 *
 * One statement reads all scalars, so they belong to one snapshot. Names are checked, because a
 * ledger may be hostile.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/export/scalars.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "ledger/internal.h"
#include "ledger/store/sql.h"

#include "base/invar_banned.h"

/* ---- the run --------------------------------------------------------------------------------- */

invar_status invar_export_find(invar_export_run *out, invar_ledger *ledger, int64_t run)
{
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(&stmt, ledger->sql,
                                          "SELECT r.name, r.uuid, e.ns FROM run r JOIN entry e"
                                          " ON e.run = r.run AND e.n = r.entry WHERE r.run = ?1",
                                          run);

    if (invar_sql_next(&status, stmt)) {
        snprintf(out->name, sizeof out->name, "%s", invar_sql_text(stmt, 0, NULL));
        snprintf(out->uuid, sizeof out->uuid, "%s", invar_sql_text(stmt, 1, NULL));
        out->created_ns = invar_sql_int(stmt, 2);
    } else if (status == INVAR_OK) {
        status = INVAR_FAIL(INVAR_E_NOTFOUND, 0, "the ledger has no run %" PRId64, run);
    }
    return invar_sql_end(stmt, status);
}

/* ---- scalars --------------------------------------------------------------------------------- */

/* SQL: values of a table, of the newest segment that executed the step. */
#define OF_STEPS(table)                                                                            \
    "SELECT s.step, s.seg, e.ns, n.name, x.value_bits FROM step s JOIN " table                     \
    " x USING(run, step, seg) LEFT JOIN series n USING(series)"                                    \
    " JOIN entry e ON e.run = s.run AND e.n = s.entry WHERE s.run = ?1 AND s.step > ?3"            \
    " AND s.step <= ?4 AND s.seg ="                                                                \
    " (SELECT max(t.seg) FROM step t WHERE t.run = s.run AND t.step = s.step)"

#define OF_EVALUATIONS                                                                             \
    "SELECT x.step, x.seg, e.ns, " INVAR_LEDGER_EVALUATION(                                        \
        "x",                                                                                       \
        "n") ", x.value_bits"                                                                      \
             " FROM evaluation x LEFT JOIN series n USING(series)"                                 \
             " JOIN entry e ON e.run = x.run AND e.n = x.entry WHERE x.run = ?1 AND x.step > ?3"   \
             " AND x.step <= ?4 AND x.seg = (SELECT max(y.seg) FROM evaluation y WHERE y.run = "   \
             "x.run"                                                                               \
             " AND y.step = x.step AND y.dataset = x.dataset AND y.series = x.series)"

static const char scalars[] =
    OF_STEPS("metric") " UNION ALL " OF_STEPS("gauge") " AND ?2 UNION ALL " OF_EVALUATIONS
                                                       " ORDER BY 1, 4, 2, 5";

/*
 * Checks a name as the writer does. A forged one with control characters could break programs that
 * read the export.
 */
static invar_status check_name(const char *name, size_t bytes)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];

    if (bytes == 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the export: a value has no name; verify the ledger");
    for (size_t i = 0, step; i < bytes; i += step) {
        step = invar_text_char(name + i, bytes - i);
        if (step > 0)
            continue;
        invar_text_quote(quote, sizeof quote, name, bytes);
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the export: '%s' is no name; verify the ledger",
                          quote);
    }
    return INVAR_OK;
}

static invar_status read_scalar(invar_export_scalar *out, invar_sql_stmt *row)
{
    out->step = invar_sql_int(row, 0);
    out->seg = invar_sql_int(row, 1);
    out->ns = invar_sql_int(row, 2);
    out->name = invar_sql_text(row, 3, &out->name_bytes);
    out->bits = (uint64_t)invar_sql_int(row, 4);
    memcpy(&out->value, &out->bits, sizeof out->value);
    return check_name(out->name, out->name_bytes);
}

invar_status invar_export_scalars(invar_ledger *ledger, int64_t run,
                                  const invar_export_range *range, invar_export_scalar_fn take,
                                  void *payload)
{
    invar_export_scalar scalar;
    invar_sql_stmt *stmt;
    invar_status status =
        INVAR_SQL_QUERY(&stmt, ledger->sql, scalars, run, range->gauges, range->after, range->upto);

    while (invar_sql_next(&status, stmt)) {
        status = read_scalar(&scalar, stmt);
        if (status == INVAR_OK)
            status = take(payload, &scalar);
    }
    return invar_sql_end(stmt, status);
}
