/*
 * ledger_use.c - all reading commands on a ledger, for targets that damage one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/fuzz/ledger/ledger_use.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ledger/view/diff/diff.h"
#include "ledger/view/export/export.h"
#include "ledger/view/report/report.h"
#include "tests/fuzz/scratch.h"

enum { TIMEOUT_S = 60, QUERY_MS = 100 };

const invar_test_ledger fuzz_spec = {
    .steps = 10, .crash = 6, .resume = 5, .faults = {{.kind = INVAR_TEST_DIRTY}}};

static void check_status(invar_status status)
{
    if (status != INVAR_OK)
        fuzz_check_failure(status);
}

static invar_status count_run(void *payload, const invar_ledger_summary *summary)
{
    (void)summary;
    ++*(int64_t *)payload;
    return INVAR_OK;
}

static invar_status read_row(void *payload, const char *const *columns,
                             const invar_ledger_value *values, int count)
{
    int64_t *bytes = payload;

    for (int i = 0; i < count; i++)
        *bytes += (int64_t)strlen(columns[i]) + (values ? (int64_t)values[i].bytes : 0);
    return INVAR_OK;
}

/* Runs a named query with 1 for all its parameters. */
static void run_query(invar_ledger *ledger, int index)
{
    invar_ledger_argument arguments[INVAR_LEDGER_QUERY_PARAMS];
    invar_ledger_query query;
    int64_t bytes = 0;

    INVAR_CHECK(invar_ledger_query_at(&query, index % invar_ledger_query_count()) == INVAR_OK);
    for (int i = 0; i < query.n_params; i++)
        arguments[i] = (invar_ledger_argument){query.params[i].name,
                                               {.type = INVAR_LEDGER_TYPE_INT, .integer = 1}};
    check_status(invar_ledger_select(
        ledger, &(invar_ledger_select_request){.sql = query.sql,
                                               .arguments = arguments,
                                               .n_arguments = (size_t)query.n_params,
                                               .limit_ms = QUERY_MS,
                                               .row = read_row,
                                               .payload = &bytes}));
}

static void compare_runs(FILE *sink, invar_ledger *a, invar_ledger *b)
{
    invar_diff *diff;
    invar_status status = invar_diff_runs(&diff, a, 1, b, 1);

    check_status(status);
    if (status != INVAR_OK)
        return;
    check_status(invar_diff_print(sink, diff, true));
    check_status(invar_diff_json(sink, diff));
    check_status(invar_diff_html(sink, diff));
    invar_diff_free(diff);
}

bool fuzz_use(invar_ledger *ledger, invar_ledger *other, int query)
{
    const invar_report_run both[] = {{ledger, 1, NULL}, {other, 1, NULL}};
    char line[INVAR_LEDGER_SEAL_SIZE];
    invar_ledger_verify_result verdict;
    invar_status status;
    int64_t runs = 0;
    FILE *sink = fopen("/dev/null", "w");

    INVAR_CHECK(sink);
    alarm(TIMEOUT_S);
    check_status(invar_ledger_runs(ledger, count_run, &runs));
    check_status(invar_ledger_seal(line, ledger, 1));
    run_query(ledger, query);
    compare_runs(sink, ledger, ledger);
    compare_runs(sink, ledger, other);
    check_status(invar_export_csv(sink, ledger, 1));
    check_status(invar_export_jsonl(sink, ledger, 1));
    check_status(invar_report_write(sink, both, 2, &(invar_report_options){0}));
    status = invar_ledger_verify(&verdict, ledger, NULL, NULL);
    check_status(status);
    alarm(0);
    fclose(sink);
    return status == INVAR_OK && verdict.problems == 0 && runs == 1;
}

void fuzz_write_on(const char *path)
{
    invar_ledger *ledger;
    invar_status status = invar_ledger_open(&ledger, path, &(invar_ledger_options){.write = true});

    check_status(status);
    if (status != INVAR_OK)
        return;
    alarm(TIMEOUT_S);
    status = invar_test_ledger_resume(ledger, &fuzz_spec, fuzz_spec.steps);
    if (status == INVAR_OK)
        status = invar_test_ledger_step(ledger, &fuzz_spec, 2, fuzz_spec.steps);
    check_status(status);
    alarm(0);
    invar_ledger_close(ledger);
}
