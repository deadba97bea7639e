/*
 * query_requirements.c - tests that a query reports missing data apart from an empty result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/query/query_fixture.h"

/* Queries about runs, segments or events: an empty result is valid for a run without steps. */
static const char *const run_queries[] = {
    "ab-effect",    "dead-segments", "dirty-runs",    "events",      "first-threshold",
    "last-words",   "ledger-gaps",   "lineage",       "metric-jump", "moved-first",
    "nondet-twins", "run-diff",      "triage-killed", "unsealed"};

static bool is_run_query(const char *name)
{
    for (size_t i = 0; i < COUNT(run_queries); i++)
        if (strcmp(run_queries[i], name) == 0)
            return true;
    return false;
}

/*
 * Returns true if runs 1 and 2 have the data that the query needs; else `why` names what is
 * missing.
 */
static bool has_data(char why[INVAR_LEDGER_QUERY_LINE], const char *path,
                     const invar_ledger_query *query)
{
    static const char *const given = "run=1 a=1 b=2 metric=m limit=1 step=0 prompt=0 sample=0 "
                                     "case=c experiment=e";
    char texts[INVAR_LEDGER_QUERY_PARAMS][64];
    invar_ledger_argument list[INVAR_LEDGER_QUERY_PARAMS];
    invar_ledger *ledger;
    bool data;

    for (int i = 0; i < query->n_params; i++) {
        argument_text(texts[i], &query->params[i], given);
        list[i] = (invar_ledger_argument){query->params[i].name,
                                          argument_value(query->params[i].type, texts[i])};
    }
    why[0] = '\0';
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_query_has_data(&data, why, ledger, query, list));
    invar_ledger_close(ledger);
    return data;
}

static void test_ledger_needs__empty(void **state)
{
    const char *path = raw_path("empty.db");
    const invar_ledger_run run = {
        .name = "run", .kind = "train", .circumstances = {.no_auto_facts = true}};
    char why[INVAR_LEDGER_QUERY_LINE];
    invar_ledger_query query;
    invar_ledger *ledger;

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
        assert_ok(invar_ledger_begin(ledger, &run));
        invar_ledger_close(ledger);
    }
    for (int i = 0; i < invar_ledger_query_count(); i++) {
        assert_ok(invar_ledger_query_at(&query, i));
        if (has_data(why, path, &query) != is_run_query(query.name))
            fail_msg("%s: of a run without a step none is %san answer", query.name,
                     is_run_query(query.name) ? "not " : "");
        if (!is_run_query(query.name) && strlen(why) < 6)
            fail_msg("%s does not say what it needs", query.name);
    }
}

/* Control: runs with steps, samples and points have the data of most queries. */
static void test_ledger_needs__healthy(void **state)
{
    static const char *const without[] = {"bisect-report", "ci-history", "golden-drift"};
    char why[INVAR_LEDGER_QUERY_LINE];
    invar_ledger_query query;

    (void)state;
    for (size_t i = 0; i < COUNT(without); i++) {
        assert_ok(invar_ledger_query_find(&query, without[i]));
        if (has_data(why, healthy, &query))
            fail_msg("%s has something to look at", without[i]);
    }
    for (int i = 0, data = 0; i < invar_ledger_query_count(); i++) {
        assert_ok(invar_ledger_query_at(&query, i));
        data += has_data(why, healthy, &query);
        if (i == invar_ledger_query_count() - 1)
            assert_in_range(data, 35, i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_needs__empty),
        cmocka_unit_test(test_ledger_needs__healthy),
    };

    return cmocka_run_group_tests(tests, setup_ledgers, raw_teardown);
}
