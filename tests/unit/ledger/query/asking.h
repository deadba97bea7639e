/*
 * asking.h - queries of ledgers with faults, and of healthy ones, for tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_LEDGER_QUERY_ASKING_H
#define INVAR_TESTS_UNIT_LEDGER_QUERY_ASKING_H

#include "ledger/triage/triage.h"
#include "tests/unit/ledger/raw_ledger.h"

#define STEPS 60
#define MOST_QUERIES 96
#define COMMIT "0123456789abcdef0123456789abcdef01234567" // of tests/ledger/runs.c
#define DIFF "864299ced3cfefa05b8b8a8e5ada9307"           // xxhsum -H2 of its diff

/* ---- asking ---------------------------------------------------------------------------------- */

/* What has been asked of each query, by its index: of a faulty run, of a healthy one. */
static bool asked[MOST_QUERIES], controlled[MOST_QUERIES];

static inline int index_of(const char *name)
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

/* The value of this key in "key=value key=value"; or the fallback. */
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

/* The answer as text: the columns that were asked for, one line a row, "-" for NULL. */
typedef struct answer {
    const char *columns; // separated by spaces
    size_t used;
    char text[4096];
} answer;

static inline void add(answer *to, const char *format, const char *text, int bytes)
{
    to->used +=
        (size_t)snprintf(to->text + to->used, sizeof to->text - to->used, format, bytes, text);
    assert_true(to->used < sizeof to->text);
}

static inline void add_value(answer *to, const invar_ledger_value *value)
{
    char number[32];

    switch (value->type) {
    case INVAR_LEDGER_TYPE_NULL: add(to, "%.*s", "-", 1); break;
    case INVAR_LEDGER_TYPE_INT:
        (void)snprintf(number, sizeof number, "%" PRId64, value->integer);
        add(to, "%.*s", number, 31);
        break;
    case INVAR_LEDGER_TYPE_REAL:
        (void)snprintf(number, sizeof number, "%.6g", value->real);
        add(to, "%.*s", number, 31);
        break;
    case INVAR_LEDGER_TYPE_TEXT: add(to, "%.*s", value->data, (int)value->bytes); break;
    case INVAR_LEDGER_TYPE_BLOB: fail_msg("a BLOB in an answer"); break;
    }
}

static inline invar_status take_row(void *payload, const char *const *columns,
                                    const invar_ledger_value *values, int count)
{
    answer *to = payload;
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
        add_value(to, &values[column]);
        at += length;
        at += strspn(at, " ");
        add(to, "%.*s", *at ? "|" : "\n", 1);
    }
    return INVAR_OK;
}

static inline void ask(answer *out, const char *path, const char *name, const char *arguments)
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
                                               .row = take_row,
                                               .payload = out}));
    invar_ledger_close(ledger);
}

static inline void expect(const char *path, const char *name, const char *arguments,
                          const char *columns, const char *rows)
{
    answer got = {.columns = columns};

    ask(&got, path, name, arguments);
    if (strcmp(got.text, rows) != 0)
        fail_msg("%s %s of %s:\n%sexpected:\n%s", name, arguments, path, got.text, rows);
}

/* The query finds this in a faulty ledger. */
static inline void finds(const char *path, const char *name, const char *arguments,
                         const char *columns, const char *rows)
{
    asked[index_of(name)] = true;
    expect(path, name, arguments, columns, rows);
}

/* The control: this is what it says of a healthy one. */
static inline void control(const char *path, const char *name, const char *arguments,
                           const char *columns, const char *rows)
{
    controlled[index_of(name)] = true;
    expect(path, name, arguments, columns, rows);
}

/* ---- ledgers --------------------------------------------------------------------------------- */

/* Runs 1 and 2 are the same; run 3 is the same once more, interrupted and resumed. */
static char healthy[512];

/* Run 1 is healthy, run 2 has other bits from the point layer.1.mlp.out of step 37 on. */
static char diverged[512];

/* A ledger with one run that has one fault. */
static inline const char *with_fault(const char *name, invar_test_fault fault)
{
    const char *path = raw_path(name);

    assert_ok(
        invar_test_ledger_write(path, &(invar_test_ledger){.steps = STEPS, .faults = {fault}}));
    return path;
}

/* A ledger with a healthy run, 1, and a faulty one, 2. */
static inline const char *beside_healthy(const char *name, const invar_test_ledger *second)
{
    const char *path = raw_path(name);

    assert_ok(invar_test_ledger_write(path, &(invar_test_ledger){.steps = STEPS}));
    assert_ok(invar_test_ledger_add(path, second));
    return path;
}

static inline int set_up(void **state)
{
    const invar_test_fault fault = {INVAR_TEST_DIVERGES, .step = 37, .point = "layer.1.mlp.out"};

    if (raw_setup(state) != 0)
        return -1;
    (void)snprintf(healthy, sizeof healthy, "%s", raw_path("healthy.db"));
    assert_ok(invar_test_ledger_write(healthy, &(invar_test_ledger){.steps = STEPS}));
    assert_ok(invar_test_ledger_add(healthy, &(invar_test_ledger){.steps = STEPS}));
    assert_ok(invar_test_ledger_add(
        healthy, &(invar_test_ledger){.steps = STEPS, .crash = 45, .resume = 35}));
    (void)snprintf(
        diverged, sizeof diverged, "%s",
        beside_healthy("diverged.db", &(invar_test_ledger){.steps = STEPS, .faults = {fault}}));
    return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* Whether a query compares two runs, :a and :b. */
static inline bool compares(const invar_ledger_query *query)
{
    for (int i = 0; i < query->n_params; i++)
        if (strcmp(query->params[i].name, "a") == 0)
            return true;
    return false;
}

/*
 * Runs last: of the queries that compare two runs, or of all others, each has been asked. Rules of
 * triage have their own test.
 */
static inline void each_was_asked(bool comparing)
{
    assert_in_range(invar_ledger_query_count(), 25, MOST_QUERIES);
    for (int i = 0; i < invar_ledger_query_count(); i++) {
        invar_ledger_query query;

        assert_ok(invar_ledger_query_at(&query, i));
        if (compares(&query) == comparing && (!asked[i] || !controlled[i]) &&
            strncmp(query.name, INVAR_TRIAGE_PREFIX, strlen(INVAR_TRIAGE_PREFIX)) != 0)
            fail_msg("%s has no test with a fault, or no control", query.name);
        assert_true(query.question[0] && query.question[strlen(query.question) - 1] == '?');
    }
}

#endif
