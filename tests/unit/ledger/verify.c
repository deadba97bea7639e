/*
 * verify.c - tests that invar_ledger_verify finds damage of any cell or row and names the row.
 *
 * Raw SQL flips a bit in every column of every table, removes and adds a row, exchanges two values
 * and inserts rows of another run. Control: the undamaged ledgers, and a copy after an UPDATE that
 * changes nothing, have no findings.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/raw_ledger.h"

/* Adds "other.db", the run of "whole.db" with another seed, to the ledgers of raw_setup_whole. */
static int make_ledgers(void **state)
{
    const invar_test_ledger other = {
        .steps = 12, .crash = 11, .resume = 9, .seed = 1, .faults = {{.kind = INVAR_TEST_DIRTY}}};

    if (raw_setup_whole(state) != 0)
        return -1;
    assert_ok(invar_test_ledger_write(raw_path("other.db"), &other));
    return 0;
}

/*
 * Calls `test` for every table, with an undamaged ledger in which the table has rows. Returns the
 * sum of its results, which count the attempts.
 */
static int for_each_table(int (*test)(sqlite3 *db, const char *table))
{
    sqlite3 *whole = raw_open(raw_path("whole.db")), *shorter = raw_open(raw_path("short.db"));
    raw_names tables = raw_tables(whole);
    int tried = 0;

    for (int i = 0; i < tables.count; i++)
        tried += test(strcmp(tables.at[i], "pruned") == 0 ? shorter : whole, tables.at[i]);
    assert_int_equal(tables.count, 28);
    sqlite3_close(whole);
    sqlite3_close(shorter);
    return tried;
}

/*
 * Damages a copy of the table's ledger with `sql`; verify must find it, and the first finding must
 * contain `named`.
 */
static void assert_found(const char *table, const char *sql, const char *named)
{
    const char *path = raw_path("bad.db");
    invar_ledger_verify_result verdict;

    raw_copy(path, raw_with_rows(table));
    raw_tamper(path, sql);
    verdict = raw_verify(path);
    if (verdict.problems == 0 || !strstr(verdict.first_problem, named))
        fail_msg("%s: %" PRId64 " findings, the first: \"%s\"", sql, verdict.problems,
                 verdict.first_problem);
}

/* Text of the first finding for damage of a table, if it is not the name of the damaged row. */
typedef struct expected_finding {
    const char *table, *column; /* NULL for any */
    const char *named;          /* part of the message */
} expected_finding;

static const char *expected_text(const expected_finding *expected, size_t count, const char *table,
                                 const char *column)
{
    static char row[64];

    for (size_t i = 0; i < count; i++)
        if ((!expected[i].table || strcmp(expected[i].table, table) == 0) &&
            (!expected[i].column || strcmp(expected[i].column, column) == 0))
            return expected[i].named;
    (void)snprintf(row, sizeof row, ": %s (", table);
    return row;
}

static void test_ledger_verify__control(void **state)
{
    invar_ledger_verify_result verdict = raw_verify(raw_path("whole.db"));

    (void)state;
    assert_int_equal(verdict.problems, 0);
    assert_string_equal(verdict.first_problem, "");
    assert_int_equal(verdict.runs, 1);
    assert_int_equal(verdict.entries, raw_int(raw_path("whole.db"), "SELECT count(*) FROM entry"));
    assert_int_equal(verdict.rows, raw_int(raw_path("whole.db"), "SELECT sum(rows) FROM entry"));
    assert_int_equal(verdict.steps, 14);
    assert_int_equal(verdict.seals, 1);
    assert_int_equal(verdict.pruned + verdict.seals_pruned, 0);
    verdict = raw_verify(raw_path("short.db"));
    assert_int_equal(verdict.problems, 0);
    assert_int_equal(verdict.seals, 0);
    assert_int_equal(verdict.seals_pruned, 1);
    assert_int_equal(verdict.pruned, raw_int(raw_path("short.db"), "SELECT sum(rows) FROM pruned"));
    assert_true(verdict.pruned > 100);
    invar_ledger_close(raw_writer(raw_path("empty.db")));
    assert_int_equal(raw_verify(raw_path("empty.db")).problems, 0);
    // Control: a copy with an UPDATE that changes nothing has no finding.
    raw_copy(raw_path("bad.db"), raw_path("whole.db"));
    raw_tamper(raw_path("bad.db"), "UPDATE metric SET value = value");
    raw_assert_clean(raw_path("bad.db"));
}

/* ---- every cell ------------------------------------------------------------------------------ */

static const expected_finding cell_findings[] = {
    {"run", "run", ": run ("},
    {"step", "run", "it belongs to no entry"},
    {"entry", "run", "it belongs to no entry"},
    {"entry", "n", " is missing"},
    {NULL, "run", ": entry (n "}, // the run's entry lacks the row
    {"pruned", "entry", ": pruned ("},
    {"pruned", NULL, ": entry (n "},
    {"manifest", NULL, "manifest 1"},
    {"point", NULL, "manifest 1: its "},
    {"series", NULL, ": metric ("},
};

/* Flips every column of the row in the middle, or of all rows if the tests run in full. */
static int flip_cells(sqlite3 *db, const char *table)
{
    raw_names columns = raw_columns(db, table);
    char key[200], sql[1000];
    int64_t rows, first, last;

    raw_key(key, sizeof key, db, table);
    (void)snprintf(sql, sizeof sql, "SELECT count(*) FROM %s", table);
    rows = raw_int_of(db, sql);
    assert_true(rows > 0);
    first = invar_test_count(rows / 2, 0);
    last = invar_test_count(rows / 2, rows - 1);
    for (int64_t row = first; row <= last; row++)
        for (int i = 0; i < columns.count; i++) {
            const char *column = columns.at[i];
            (void)snprintf(sql, sizeof sql,
                           "UPDATE %s SET %s = flip(%s) WHERE (%s) IN (SELECT %s FROM %s LIMIT 1 "
                           "OFFSET %" PRId64 ")",
                           table, column, column, key, key, table, row);
            assert_found(table, sql,
                         invar_test_full()
                             ? "" // some rows are found by the entry or point that they belong to
                             : expected_text(cell_findings, COUNT(cell_findings), table, column));
        }
    return columns.count;
}

static void test_ledger_verify__every_cell(void **state)
{
    (void)state;
    assert_true(for_each_table(flip_cells) > 170);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static const expected_finding removed_findings[] = {
    {"run", NULL, " rows belong to no run"},
    {"entry", NULL, "it belongs to no entry"}, // named by the rows of the entry
    {"step", NULL, "it belongs to no entry"},  // named by the rows of the step
    {"manifest", NULL, ": digest ("},
    {"point", NULL, "manifest 1: its 14 points"},
    {"series", NULL, ": metric ("},
    {NULL, NULL, ": entry (n "},
};

static int remove_row(sqlite3 *db, const char *table)
{
    char key[200], sql[1000];

    raw_key(key, sizeof key, db, table);
    (void)snprintf(sql, sizeof sql,
                   "DELETE FROM %s WHERE (%s) IN (SELECT %s FROM %s LIMIT 1 OFFSET (SELECT "
                   "count(*) / 2 FROM %s))",
                   table, key, key, table, table);
    assert_found(table, sql, expected_text(removed_findings, COUNT(removed_findings), table, ""));
    return 1;
}

static const expected_finding added_findings[] = {
    {"entry", NULL, "entry 25 is missing"}, // the added entry has a higher number
    {"manifest", NULL, "manifest "},
    {"point", NULL, "manifest 1: its 16 points"},
    {"series", NULL, "1 names belong to no value"},
};

/* Adds a copy of a row with another key, and other values in all unique columns. */
static int add_row(sqlite3 *db, const char *table)
{
    static const char *const also[][2] = {{"run", "run"},
                                          {"run", "uuid"},
                                          {"series", "name"},
                                          {"manifest", "hash"},
                                          {"point", "name"}};
    raw_names columns = raw_columns(db, table);
    char key[200], values[600] = "", sql[1000];

    raw_key(key, sizeof key, db, table);
    for (int i = 0; i < columns.count; i++) {
        const char *column = columns.at[i], *last = strrchr(key, ' ');
        bool other = strcmp(column, last ? last + 1 : key) == 0;
        size_t used = strlen(values);
        for (size_t k = 0; k < COUNT(also); k++)
            other |= strcmp(table, also[k][0]) == 0 && strcmp(column, also[k][1]) == 0;
        (void)snprintf(values + used, sizeof values - used, other ? "%sflip(%s)" : "%s%s",
                       i ? ", " : "", column);
    }
    (void)snprintf(sql, sizeof sql, "INSERT INTO %s SELECT %s FROM %s LIMIT 1", table, values,
                   table);
    assert_found(table, sql, expected_text(added_findings, COUNT(added_findings), table, ""));
    return 1;
}

static void test_ledger_verify__rows_removed(void **state)
{
    (void)state;
    assert_int_equal(for_each_table(remove_row), 28);
    // The last entry that the seal covers: the seal cannot be computed, which is also a finding.
    assert_found("entry", "DELETE FROM entry WHERE n = 23", "it belongs to no entry");
    assert_found("entry", "DELETE FROM entry WHERE n = 0", "it belongs to no entry");
}

static void test_ledger_verify__rows_added(void **state)
{
    (void)state;
    assert_int_equal(for_each_table(add_row), 28);
}

/*
 * Exchanges a value between two rows, which keeps every sum over the rows: of every fourth column
 * of a table, or of each if the tests run in full.
 */
static int swap_values(sqlite3 *db, const char *table)
{
    raw_names columns = raw_columns(db, table);
    char key[200], sql[1600];
    int tried = 0, exchanged = 0;

    raw_key(key, sizeof key, db, table);
    for (int i = 0; i < columns.count; i++) {
        const char *c = columns.at[i];
        (void)snprintf(sql, sizeof sql, "SELECT count(DISTINCT %s) > 1 FROM %s", c, table);
        if (strstr(key, c) || strcmp(c, "hash") == 0 || strcmp(c, "uuid") == 0 ||
            strcmp(c, "name") == 0 || raw_int_of(db, sql) == 0)
            continue; // the column is unique, or has one value in all rows
        if (exchanged++ % invar_test_count(4, 1) != 0)
            continue;
        (void)snprintf(sql, sizeof sql,
                       "CREATE TEMP TABLE a AS SELECT * FROM main.%s LIMIT 1; "
                       "CREATE TEMP TABLE b AS SELECT t.* FROM main.%s t, temp.a WHERE t.%s IS NOT "
                       "a.%s LIMIT 1; "
                       "UPDATE main.%s SET %s = (SELECT %s FROM b) WHERE (%s) IN (SELECT %s FROM "
                       "a); "
                       "UPDATE main.%s SET %s = (SELECT %s FROM a) WHERE (%s) IN (SELECT %s FROM "
                       "b)",
                       table, table, c, c, table, c, c, key, key, table, c, c, key, key);
        assert_found(table, sql, expected_text(cell_findings, COUNT(cell_findings), table, c));
        tried++;
    }
    return tried;
}

static void test_ledger_verify__values_exchanged(void **state)
{
    (void)state;
    assert_true(for_each_table(swap_values) > invar_test_count(20, 70));
    assert_found("series",
                 "UPDATE series SET name = name || '!' WHERE series <= 2; "
                 "UPDATE series SET name = CASE series WHEN 1 THEN (SELECT rtrim(name, '!') FROM "
                 "series WHERE series = 2) ELSE name END WHERE series = 1; "
                 "UPDATE series SET name = 'rollout/entropy' WHERE series = 2",
                 ": metric (");
}

/* Replaces a row by one of another run with a correct sum, which only the entry contradicts. */
static int replace_by_other_run(sqlite3 *db, const char *table)
{
    raw_names columns = raw_columns(db, table);
    char key[200], list[600] = "", sql[2400];

    raw_key(key, sizeof key, db, table);
    for (int i = 0; i < columns.count; i++) {
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", columns.at[i]);
    }
    if (!strstr(list, ", sum") || strcmp(table, "run") == 0)
        return 0;
    raw_exec(db, "ATTACH '%s' AS other", raw_path("other.db"));
    (void)snprintf(sql, sizeof sql,
                   "SELECT count(*) FROM main.%s t JOIN other.%s o USING(%s) WHERE t.sum <> o.sum",
                   table, table, key);
    if (raw_int_of(db, sql) == 0) {
        raw_exec(db, "DETACH other");
        return 0; // the two runs have the same rows in this table
    }
    raw_exec(db, "DETACH other");
    (void)snprintf(sql, sizeof sql,
                   "ATTACH '%s' AS other; "
                   "CREATE TEMP TABLE o AS SELECT o.* FROM main.%s t JOIN other.%s o USING(%s) "
                   "WHERE t.sum <> o.sum LIMIT 1; "
                   "UPDATE main.%s SET (%s) = (SELECT %s FROM temp.o) WHERE (%s) IN (SELECT %s "
                   "FROM temp.o)",
                   raw_path("other.db"), table, table, key, table, list, list, key, key);
    assert_found(table, sql, ": entry (n ");
    return 1;
}

static void test_ledger_verify__rows_of_another_run(void **state)
{
    (void)state;
    assert_true(for_each_table(replace_by_other_run) >= 9);
}

/* ---- run in the message, and progress -------------------------------------------------------- */

static void test_ledger_verify__names_the_run(void **state)
{
    const char *path = raw_path("runs.db");
    invar_ledger_verify_result verdict;

    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++)
        assert_ok(invar_test_ledger_add(path, &(invar_test_ledger){.steps = 3, .seed = seed}));
    assert_int_equal(raw_verify(path).runs, 3);
    raw_assert_clean(path);
    raw_tamper(path, "UPDATE metric SET value_bits = flip(value_bits) WHERE run = 2 AND step = 1 "
                     "AND series = (SELECT series FROM series WHERE name = 'train/loss')");
    verdict = raw_verify(path);
    assert_non_null(
        strstr(verdict.first_problem, "run 2: metric (step 1, seg 0, series train/loss)"));
    // A name with a terminal escape sequence is printed harmlessly.
    raw_tamper(path, "UPDATE series SET name = char(27) || '[31m' WHERE name = 'train/loss'");
    verdict = raw_verify(path);
    assert_non_null(strstr(verdict.first_problem, "series ?[31m"));
}

typedef struct progress_log {
    int64_t calls, done, total;
} progress_log;

static void count(void *payload, int64_t done, int64_t total)
{
    progress_log *t = payload;

    assert_true(done >= t->done);
    *t = (progress_log){t->calls + 1, done, total};
}

static void test_ledger_verify__progress(void **state)
{
    invar_ledger *ledger = raw_reader(raw_path("whole.db"));
    invar_ledger_verify_result verdict;
    progress_log t = {0};

    (void)state;
    assert_ok(invar_ledger_verify(&verdict, ledger, count, &t));
    assert_true(t.calls > 0);
    assert_int_equal(t.done, verdict.rows);
    assert_int_equal(t.done, t.total);
    invar_ledger_close(ledger);
}

/* Verifies a ledger while it is written, through the writer's own object, between its steps. */
static void test_ledger_verify__writer(void **state)
{
    const invar_test_ledger spec = {.steps = 3};
    invar_ledger *ledger = raw_writer(raw_path("writer.db"));
    invar_ledger_verify_result verdict;

    (void)state;
    assert_ok(invar_test_ledger_begin(ledger, &spec));
    for (int64_t step = 0; step < 3; step++) {
        assert_ok(invar_ledger_verify(&verdict, ledger, NULL, NULL));
        assert_int_equal(verdict.problems, 0);
        assert_int_equal(verdict.steps, step);
        assert_ok(invar_test_ledger_step(ledger, &spec, 0, step));
    }
    invar_ledger_close(ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_verify__control),
        cmocka_unit_test(test_ledger_verify__every_cell),
        cmocka_unit_test(test_ledger_verify__rows_removed),
        cmocka_unit_test(test_ledger_verify__rows_added),
        cmocka_unit_test(test_ledger_verify__values_exchanged),
        cmocka_unit_test(test_ledger_verify__rows_of_another_run),
        cmocka_unit_test(test_ledger_verify__names_the_run),
        cmocka_unit_test(test_ledger_verify__progress),
        cmocka_unit_test(test_ledger_verify__writer),
    };

    return cmocka_run_group_tests(tests, make_ledgers, raw_teardown);
}
