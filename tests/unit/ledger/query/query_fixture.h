/*
 * query_fixture.h - runs named queries on ledgers with a fault and on healthy ones, for tests.
 *
 * A query is tested by a ledger with the fault that it must find, and by a control: its rows for a
 * healthy ledger. assert_all_tested fails if one of the two is missing for a query.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_LEDGER_QUERY_QUERY_FIXTURE_H
#define INVAR_TESTS_UNIT_LEDGER_QUERY_QUERY_FIXTURE_H

#include "ledger/triage/triage.h"
#include "tests/unit/ledger/raw_ledger.h"

#define STEPS 60
#define MAX_QUERIES 96

/* Commit of the runs that tests/ledger/runs.c writes, and the xxhsum -H2 of their diff. */
#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define DIFF "864299ced3cfefa05b8b8a8e5ada9307"

/* ---- running queries ------------------------------------------------------------------------- */

/* Records, by index of the query, that a test with a fault and a control have run. */
static bool fault_tested[MAX_QUERIES], control_tested[MAX_QUERIES];

static inline int query_index(const char *name)
{
    for (int i = 0; i < invar_ledger_query_count(); i++) {
        invar_ledger_query query;

        assert_ok(invar_ledger_query_at(&query, i));
        if (strcmp(query.name, name) == 0)
            return i;
    }
    fail_msg("no query '%s'", name);
    return -1;
}

/*
 * Copies the parameter's value in "key=value key=value" to `out`, or its fallback if there is none.
 */
static inline void argument_text(char out[64], const invar_ledger_query_param *param,
                                 const char *arguments)
{
    const char *at = arguments, *value = NULL;
    size_t length = strlen(param->name);

    while (*at && !value) {
        if (strncmp(at, param->name, length) == 0 && at[length] == '=')
            value = at + length + 1;
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    if (!value && !param->optional)
        fail_msg("no value for :%s in '%s'", param->name, arguments);
    if (!value)
        value = param->fallback;
    (void)snprintf(out, 64, "%.*s", (int)strcspn(value, " "), value);
}

static inline invar_ledger_value argument_value(char type, const char *text)
{
    if (type == 'n')
        return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_REAL, .real = strtod(text, NULL)};
    if (type == 't')
        return (invar_ledger_value){
            .type = INVAR_LEDGER_TYPE_TEXT, .data = text, .bytes = strlen(text)};
    return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_INT, .integer = strtoll(text, NULL, 10)};
}

/*
 * Rows of a query as text: the selected columns separated by '|', one line per row, '-' for NULL.
 */
typedef struct query_rows {
    const char *columns; // columns to select, separated by spaces
    size_t used;
    char text[4096];
} query_rows;

static inline void append_text(query_rows *to, const char *format, const char *text, int bytes)
{
    to->used +=
        (size_t)snprintf(to->text + to->used, sizeof to->text - to->used, format, bytes, text);
    assert_true(to->used < sizeof to->text);
}

static inline void append_value(query_rows *to, const invar_ledger_value *value)
{
    char number[32];

    switch (value->type) {
    case INVAR_LEDGER_TYPE_NULL: append_text(to, "%.*s", "-", 1); break;
    case INVAR_LEDGER_TYPE_INT:
        (void)snprintf(number, sizeof number, "%" PRId64, value->integer);
        append_text(to, "%.*s", number, 31);
        break;
    case INVAR_LEDGER_TYPE_REAL:
        (void)snprintf(number, sizeof number, "%.6g", value->real);
        append_text(to, "%.*s", number, 31);
        break;
    case INVAR_LEDGER_TYPE_TEXT: append_text(to, "%.*s", value->data, (int)value->bytes); break;
    case INVAR_LEDGER_TYPE_BLOB: fail_msg("a BLOB in an answer"); break;
    }
}

static inline invar_status append_row(void *payload, const char *const *columns,
                                      const invar_ledger_value *values, int count)
{
    query_rows *to = payload;
    const char *at = to->columns;

    if (!values)
        return INVAR_OK;
    while (*at) {
        size_t length = strcspn(at, " ");
        int column = 0;

        while (column < count &&
               (strncmp(columns[column], at, length) != 0 || columns[column][length] != '\0'))
            column++;
        if (column == count)
            fail_msg("no column '%s'", at);
        append_value(to, &values[column]);
        at += length;
        at += strspn(at, " ");
        append_text(to, "%.*s", *at ? "|" : "\n", 1);
    }
    return INVAR_OK;
}

static inline void run_query(query_rows *out, const char *path, const char *name,
                             const char *arguments)
{
    char texts[INVAR_LEDGER_QUERY_PARAMS][64];
    invar_ledger_argument list[INVAR_LEDGER_QUERY_PARAMS];
    invar_ledger_query query;
    invar_ledger *ledger;

    assert_ok(invar_ledger_query_find(&query, name));
    for (int i = 0; i < query.n_params; i++) {
        argument_text(texts[i], &query.params[i], arguments);
        list[i] = (invar_ledger_argument){query.params[i].name,
                                          argument_value(query.params[i].type, texts[i])};
    }
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_select(
        ledger, &(invar_ledger_select_request){.sql = query.sql,
                                               .arguments = list,
                                               .n_arguments = (size_t)query.n_params,
                                               .limit_ms = 60000,
                                               .row = append_row,
                                               .payload = out}));
    invar_ledger_close(ledger);
}

static inline void expect_rows(const char *path, const char *name, const char *arguments,
                               const char *columns, const char *rows)
{
    query_rows got = {.columns = columns};

    run_query(&got, path, name, arguments);
    if (strcmp(got.text, rows) != 0)
        fail_msg("%s %s of %s:\n%sexpected:\n%s", name, arguments, path, got.text, rows);
}

/* Asserts the rows of a query for a ledger with the fault that it finds. */
static inline void expect_fault(const char *path, const char *name, const char *arguments,
                                const char *columns, const char *rows)
{
    fault_tested[query_index(name)] = true;
    expect_rows(path, name, arguments, columns, rows);
}

/* Control: asserts the rows of a query for a ledger without the fault. */
static inline void expect_control(const char *path, const char *name, const char *arguments,
                                  const char *columns, const char *rows)
{
    control_tested[query_index(name)] = true;
    expect_rows(path, name, arguments, columns, rows);
}

/* ---- ledgers --------------------------------------------------------------------------------- */

/* Path of a ledger whose runs have the same content: 1 and 2 without, 3 with an interruption. */
static char healthy[512];

/* Path of a ledger whose run 2 differs from run 1 from point layer.1.mlp.out of step 37 on. */
static char diverged[512];

/* Writes a ledger whose single run has one fault, and returns its path. */
static inline const char *ledger_with_fault(const char *name, invar_test_fault fault)
{
    const char *path = raw_path(name);

    assert_ok(
        invar_test_ledger_write(path, &(invar_test_ledger){.steps = STEPS, .faults = {fault}}));
    return path;
}

/* Writes a ledger with a healthy run, 1, and the given run, 2. Returns its path. */
static inline const char *ledger_with_two_runs(const char *name, const invar_test_ledger *second)
{
    const char *path = raw_path(name);

    assert_ok(invar_test_ledger_write(path, &(invar_test_ledger){.steps = STEPS}));
    assert_ok(invar_test_ledger_add(path, second));
    return path;
}

static inline int setup_ledgers(void **state)
{
    const invar_test_fault fault = {INVAR_TEST_DIVERGES, .step = 37, .point = "layer.1.mlp.out"};

    if (raw_setup(state) != 0)
        return -1;
    (void)snprintf(healthy, sizeof healthy, "%s", raw_path("healthy.db"));
    assert_ok(invar_test_ledger_write(healthy, &(invar_test_ledger){.steps = STEPS}));
    assert_ok(invar_test_ledger_add(healthy, &(invar_test_ledger){.steps = STEPS}));
    assert_ok(invar_test_ledger_add(
        healthy, &(invar_test_ledger){.steps = STEPS, .crash = 45, .resume = 35}));
    (void)snprintf(diverged, sizeof diverged, "%s",
                   ledger_with_two_runs("diverged.db",
                                        &(invar_test_ledger){.steps = STEPS, .faults = {fault}}));
    return 0;
}

/* ---- completeness ---------------------------------------------------------------------------- */

/* Returns true if the query compares two runs, :a and :b. */
static inline bool compares_runs(const invar_ledger_query *query)
{
    for (int i = 0; i < query->n_params; i++)
        if (strcmp(query->params[i].name, "a") == 0)
            return true;
    return false;
}

/*
 * Asserts that all queries that compare two runs, or all others, had a test with a fault and a
 * control. Call it in the last test. Triage rules have their own test and are skipped.
 */
static inline void assert_all_tested(bool comparing)
{
    assert_in_range(invar_ledger_query_count(), 25, MAX_QUERIES);
    for (int i = 0; i < invar_ledger_query_count(); i++) {
        invar_ledger_query query;

        assert_ok(invar_ledger_query_at(&query, i));
        if (compares_runs(&query) == comparing && (!fault_tested[i] || !control_tested[i]) &&
            strncmp(query.name, INVAR_TRIAGE_PREFIX, strlen(INVAR_TRIAGE_PREFIX)) != 0)
            fail_msg("%s has no test with a fault, or no control", query.name);
        assert_true(query.question[0] && query.question[strlen(query.question) - 1] == '?');
    }
}

#endif
