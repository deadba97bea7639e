/*
 * verify.c - tests of verify: every cell of every table changed, every kind of row removed, added
 * or exchanged, behind the ledger's back; each is found and named.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/raw_ledger.h"

/* Beside raw_ledger.h's two, "other.db" is the whole one with another seed. */
static int make_ledgers(void **state)
{
    const invar_test_ledger other = {
        .steps = 12, .crash = 11, .resume = 9, .seed = 1, .faults = {{.kind = INVAR_TEST_DIRTY}}};

    if (raw_setup_whole(state) != 0)
        return -1;
    assert_ok(invar_test_ledger_write(raw_path("other.db"), &other));
    return 0;
}

/* Calls `test` for every table of `db`, a ledger as it should be. Yields how much was tried. */
static int each_table(int (*test)(sqlite3 *db, const char *table))
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

/* Runs `sql` on a copy of the table's ledger; verify must find it and the first must be `named`. */
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

/* How a table's damage shows: by the row itself, unless there is something to say about it. */
typedef struct sign {
    const char *table, *column; /* NULL: any */
    const char *named;
} sign;

static const char *sign_of(const sign *signs, size_t count, const char *table, const char *column)
{
    static char row[64];

    for (size_t i = 0; i < count; i++)
        if ((!signs[i].table || strcmp(signs[i].table, table) == 0) &&
            (!signs[i].column || strcmp(signs[i].column, column) == 0))
            return signs[i].named;
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
    // a copy and a change that is none: what the other tests do is not what is found
    raw_copy(raw_path("bad.db"), raw_path("whole.db"));
    raw_tamper(raw_path("bad.db"), "UPDATE metric SET value = value");
    raw_assert_clean(raw_path("bad.db"));
}

/* ---- every cell ------------------------------------------------------------------------------ */

static const sign cell_signs[] = {
    {"run", "run", ": run ("},
    {"step", "run", "it belongs to no entry"},
    {"entry", "run", "it belongs to no entry"},
    {"entry", "n", " is missing"},
    {NULL, "run", ": entry (n "}, // the row is not there
    {"pruned", "entry", ": pruned ("},
    {"pruned", NULL, ": entry (n "},
    {"manifest", NULL, "manifest 1"},
    {"point", NULL, "manifest 1: its "},
    {"series", NULL, ": metric ("},
};

/* One row in the middle; all of them in a full run. */
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
                             ? "" // single rows may show otherwise: by what they belong to
                             : sign_of(cell_signs, COUNT(cell_signs), table, column));
        }
    return columns.count;
}

static void test_ledger_verify__every_cell(void **state)
{
    (void)state;
    assert_true(each_table(flip_cells) > 170);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static const sign removed_signs[] = {
    {"run", NULL, " rows belong to no run"},
    {"entry", NULL, "it belongs to no entry"}, // the last ones
    {"step", NULL, "it belongs to no entry"},  // what the step had
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
    assert_found(table, sql, sign_of(removed_signs, COUNT(removed_signs), table, ""));
    return 1;
}

static const sign added_signs[] = {
    {"entry", NULL, "entry 25 is missing"}, // which the new one should have been
    {"manifest", NULL, "manifest "},
    {"point", NULL, "manifest 1: its 16 points"},
    {"series", NULL, "1 names belong to no value"},
};

/* A row like one that is there, with another key. */
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
    assert_found(table, sql, sign_of(added_signs, COUNT(added_signs), table, ""));
    return 1;
}

static void test_ledger_verify__rows_removed(void **state)
{
    (void)state;
    assert_int_equal(each_table(remove_row), 28);
    // the last one that the seal covers: it cannot be computed, which is a finding, too
    assert_found("entry", "DELETE FROM entry WHERE n = 23", "it belongs to no entry");
    assert_found("entry", "DELETE FROM entry WHERE n = 0", "it belongs to no entry");
}

static void test_ledger_verify__rows_added(void **state)
{
    (void)state;
    assert_int_equal(each_table(add_row), 28);
}

/* Two rows exchange a value: every sum of values stays what it was. */
static int swap_values(sqlite3 *db, const char *table)
{
    raw_names columns = raw_columns(db, table);
    char key[200], sql[1600];
    int tried = 0;

    raw_key(key, sizeof key, db, table);
    for (int i = 0; i < columns.count; i++) {
        const char *c = columns.at[i];
        (void)snprintf(sql, sizeof sql, "SELECT count(DISTINCT %s) > 1 FROM %s", c, table);
        if (strstr(key, c) || strcmp(c, "hash") == 0 || strcmp(c, "uuid") == 0 ||
            strcmp(c, "name") == 0 || raw_int_of(db, sql) == 0)
            continue; // it is unique, or the same everywhere
        (void)snprintf(sql, sizeof sql,
                       "CREATE TEMP TABLE a AS SELECT * FROM main.%s LIMIT 1; "
                       "CREATE TEMP TABLE b AS SELECT t.* FROM main.%s t, temp.a WHERE t.%s IS NOT "
                       "a.%s LIMIT 1; "
                       "UPDATE main.%s SET %s = (SELECT %s FROM b) WHERE (%s) IN (SELECT %s FROM "
                       "a); "
                       "UPDATE main.%s SET %s = (SELECT %s FROM a) WHERE (%s) IN (SELECT %s FROM "
                       "b)",
                       table, table, c, c, table, c, c, key, key, table, c, c, key, key);
        assert_found(table, sql, sign_of(cell_signs, COUNT(cell_signs), table, c));
        tried++;
    }
    return tried;
}

static void test_ledger_verify__values_exchanged(void **state)
{
    (void)state;
    assert_true(each_table(swap_values) > 70);
    assert_found("series",
                 "UPDATE series SET name = name || '!' WHERE series <= 2; "
                 "UPDATE series SET name = CASE series WHEN 1 THEN (SELECT rtrim(name, '!') FROM "
                 "series WHERE series = 2) ELSE name END WHERE series = 1; "
                 "UPDATE series SET name = 'rollout/entropy' WHERE series = 2",
                 ": metric (");
}

/* A row of another run: whole, with a sum that is right; only the entry knows better. */
static int take_from_other(sqlite3 *db, const char *table)
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
        return 0; // the runs differ in nothing there
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
    assert_true(each_table(take_from_other) >= 9);
}

/* ---- which run, and how far ------------------------------------------------------------------ */

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
    // a name that a terminal would obey
    raw_tamper(path, "UPDATE series SET name = char(27) || '[31m' WHERE name = 'train/loss'");
    verdict = raw_verify(path);
    assert_non_null(strstr(verdict.first_problem, "series ?[31m"));
}

typedef struct track {
    int64_t calls, done, total;
} track;

static void count(void *payload, int64_t done, int64_t total)
{
    track *t = payload;

    assert_true(done >= t->done);
    *t = (track){t->calls + 1, done, total};
}

static void test_ledger_verify__progress(void **state)
{
    invar_ledger *ledger = raw_reader(raw_path("whole.db"));
    invar_ledger_verify_result verdict;
    track t = {0};

    (void)state;
    assert_ok(invar_ledger_verify(&verdict, ledger, count, &t));
    assert_true(t.calls > 0);
    assert_int_equal(t.done, verdict.rows);
    assert_int_equal(t.done, t.total);
    invar_ledger_close(ledger);
}

/* While it is written, by the writer's own object, and the writer goes on. */
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
