/*
 * ledger_row.c - tests of ledger rows: column tables, canonical bytes, append-only tables.
 *
 * The tables of ledger_row.c are compared with SQLite's own description of the schema. Canonical
 * bytes and sums are compared with bytes written here and with the program xxhsum. A plain SQLite
 * connection must not be able to change, replace or delete a row of any table.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/store/ledger_row.h"

#include "ledger/internal.h"
#include "tests/unit/ledger/raw_ledger.h"

/* ---- the tables ------------------------------------------------------------------------------ */

/* Returns true for tables whose rows belong to no entry; verify.c has a rule for each of them. */
static bool belongs_to_no_entry(const char *table)
{
    static const char *const others[] = {"entry", "manifest", "point", "pruned", "series"};
    bool found = false;

    for (size_t i = 0; i < COUNT(others); i++)
        found |= strcmp(table, others[i]) == 0;
    return found;
}

static bool can_be_null(const char *table, const char *column)
{
    static const char *const columns[][2] = {
        {"run", "parent"}, {"run", "fork_step"}, {"event", "step"}, {"event", "data"}};
    bool found = false;

    for (size_t i = 0; i < COUNT(columns); i++)
        found |= strcmp(table, columns[i][0]) == 0 && strcmp(column, columns[i][1]) == 0;
    return found;
}

/* A column, as PRAGMA table_info describes it. */
typedef struct schema_column {
    char name[32], type[16];
    bool required; /* NOT NULL, or part of the primary key */
} schema_column;

static int read_schema_columns(schema_column *out, int capacity, sqlite3 *db, const char *table)
{
    sqlite3_stmt *stmt;
    char text[96];
    int count = 0;

    (void)snprintf(text, sizeof text, "PRAGMA table_info(%s)", table);
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &stmt, NULL), SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        schema_column *c = &out[count++];
        assert_true(count <= capacity);
        (void)snprintf(c->name, sizeof c->name, "%s", sqlite3_column_text(stmt, 1));
        (void)snprintf(c->type, sizeof c->type, "%s", sqlite3_column_text(stmt, 2));
        c->required = sqlite3_column_int(stmt, 3) != 0 || sqlite3_column_int(stmt, 5) != 0;
    }
    sqlite3_finalize(stmt);
    return count;
}

static const char *expected_type(const invar_column *column)
{
    if (column->flags & (INVAR_COLUMN_SERIES | INVAR_COLUMN_MANIFEST))
        return "INTEGER"; // number of the row that has the name
    return column->type == INVAR_LEDGER_TYPE_INT    ? "INTEGER"
           : column->type == INVAR_LEDGER_TYPE_TEXT ? "TEXT"
                                                    : "BLOB";
}

/* Compares the stored columns: run, the logical columns with their readable copies, sum. */
static void compare_columns(sqlite3 *db, const invar_ledger_table_def *spec)
{
    schema_column columns[40];
    int count = read_schema_columns(columns, 40, db, spec->name), at = 0, entries = 0;

    assert_string_equal(columns[at++].name, "run");
    for (int i = 0; spec->column[i].name; i++) {
        const invar_column *column = &spec->column[i];
        assert_true(at < count);
        assert_string_equal(columns[at].name, column->name);
        assert_string_equal(columns[at].type, expected_type(column));
        assert_int_equal(columns[at++].required, !can_be_null(spec->name, column->name));
        entries += strcmp(column->name, "entry") == 0;
        assert_int_equal((column->flags & INVAR_COLUMN_ENTRY) != 0,
                         strcmp(column->name, "entry") == 0);
        assert_int_equal((column->flags & INVAR_COLUMN_HAS_READABLE_COPY) != 0,
                         strstr(column->name, "_bits") != NULL);
        if (column->flags & INVAR_COLUMN_HAS_READABLE_COPY) {
            assert_string_equal(columns[at].type, "REAL");
            assert_false(columns[at].required);
            assert_int_equal(strlen(columns[at].name) + strlen("_bits"), strlen(column->name));
            assert_memory_equal(columns[at].name, column->name, strlen(columns[at].name));
            at++;
        }
    }
    assert_string_equal(columns[at].name, "sum");
    assert_string_equal(columns[at++].type, "INTEGER");
    assert_int_equal(at, count);
    // Rows are found by step or have a column `entry`.
    assert_true(entries == 0 || (entries == 1 && !spec->detail));
    if (entries == 0)
        assert_string_equal(spec->column[0].name, "step");
}

/* Compares the declared key with the key of the table. */
static void compare_keys(sqlite3 *db, const invar_ledger_table_def *spec)
{
    char key[200], declared[200] = "run";

    raw_key(key, sizeof key, db, spec->name);
    for (int i = 0; spec->column[i].name; i++) {
        size_t used = strlen(declared);
        if (spec->column[i].flags & INVAR_COLUMN_KEY)
            (void)snprintf(declared + used, sizeof declared - used, ", %s", spec->column[i].name);
    }
    // The number of a run is its key in one ledger only; its uuid identifies it everywhere.
    assert_string_equal(declared, strcmp(spec->name, "run") == 0 ? "run, uuid" : key);
}

static void test_ledger_rows__tables_are_those_of_the_schema(void **state)
{
    sqlite3 *db = raw_open(raw_path("whole.db"));
    raw_names tables = raw_tables(db);
    int known = 0;

    (void)state;
    for (int i = 0; i < INVAR_LEDGER_TABLE_COUNT; i++) {
        compare_columns(db, invar_ledger_table_get((invar_ledger_table)i));
        compare_keys(db, invar_ledger_table_get((invar_ledger_table)i));
    }
    for (int i = 0; i < tables.count; i++) {
        bool found = belongs_to_no_entry(tables.at[i]);
        for (int k = 0; k < INVAR_LEDGER_TABLE_COUNT; k++)
            found |= strcmp(tables.at[i], invar_ledger_table_get((invar_ledger_table)k)->name) == 0;
        if (!found)
            fail_msg("the table %s is neither in row.c nor known here", tables.at[i]);
        known++;
    }
    assert_int_equal(known, INVAR_LEDGER_TABLE_COUNT + 5);
    sqlite3_close(db);
}

/* ---- canonical bytes ------------------------------------------------------------------------- */

static int64_t sum_of(const raw_spelling *s)
{
    invar_digest digest = raw_xxhsum(s->data, s->count);
    uint64_t sum = 0;

    for (int i = 0; i < 8; i++)
        sum = sum << 8 | digest.bytes[i];
    return (int64_t)sum;
}

static void append_bytes(void *payload, const void *data, size_t count)
{
    raw_spell_bytes(payload, data, count);
}

/* Canonical bytes of a metric. A change of these bytes invalidates every existing ledger. */
static void test_ledger_rows__bytes_of_a_metric(void **state)
{
    static const unsigned char expected[] = "\x02\x06\0\0\0\0\0\0\0metric"     // name of the table
                                            "\x01\x03\0\0\0\0\0\0\0"           // step 3
                                            "\x01\0\0\0\0\0\0\0\0"             // seg 0
                                            "\x02\x0a\0\0\0\0\0\0\0train/loss" // name of the series
                                            "\x01\0\0\0\0\0\0\xf0\xbf";        // -1.0
    const invar_ledger_row_values row = {invar_ledger_value_int(3), invar_ledger_value_int(0),
                                         invar_ledger_value_text("train/loss"),
                                         invar_ledger_value_bits(-1.0)};
    raw_spelling s = {.count = 0};

    (void)state;
    invar_ledger_row_canonical(INVAR_LEDGER_TABLE_METRIC, row, append_bytes, &s);
    assert_int_equal(s.count, sizeof expected - 1);
    assert_memory_equal(s.data, expected, s.count);
    assert_true(invar_ledger_row_sum(INVAR_LEDGER_TABLE_METRIC, row) == sum_of(&s));
}

static void test_ledger_rows__bytes_of_null_and_blob(void **state)
{
    static const unsigned char expected[] =
        "\x02\x03\0\0\0\0\0\0\0run"             //
        "\x01\0\0\0\0\0\0\0\0"                  // entry 0
        "\x02\x02\0\0\0\0\0\0\0u1"              //
        "\x02\x01\0\0\0\0\0\0\0n"               //
        "\x02\x02\0\0\0\0\0\0\0ci"              //
        "\x03\x03\0\0\0\0\0\0\0\0\xff\x01"      // identity, three bytes in this test
        "\0"                                    // no parent
        "\x01\xfe\xff\xff\xff\xff\xff\xff\xff"; // -2
    const invar_ledger_row_values row = {invar_ledger_value_int(0),
                                         invar_ledger_value_text("u1"),
                                         invar_ledger_value_text("n"),
                                         invar_ledger_value_text("ci"),
                                         invar_ledger_value_blob("\0\xff\x01", 3),
                                         invar_ledger_value_text(NULL),
                                         invar_ledger_value_int(-2)};
    raw_spelling s = {.count = 0};

    (void)state;
    invar_ledger_row_canonical(INVAR_LEDGER_TABLE_RUN, row, append_bytes, &s);
    assert_int_equal(s.count, sizeof expected - 1);
    assert_memory_equal(s.data, expected, s.count);
    assert_true(invar_ledger_row_sum(INVAR_LEDGER_TABLE_RUN, row) == sum_of(&s));
}

/* ---- content and chain of a stored step ------------------------------------------------------ */

static const invar_digest twelve = {{0x12}};

static void write_one_step(const char *path)
{
    const invar_ledger_metric metrics[] = {{"b", 2.0}, {"a", 1.0}};
    const invar_ledger_plugin_reply reply = {"p", 4, twelve, "", 0};
    invar_ledger *ledger = raw_writer(path);

    assert_ok(invar_ledger_begin(
        ledger,
        &(invar_ledger_run){.name = "n", .kind = "ci", .circumstances = {.no_auto_facts = true}}));
    assert_ok(invar_ledger_define(ledger, NULL, 0));
    assert_ok(invar_ledger_append(ledger, &(invar_ledger_step){.step = 0,
                                                               .weights_version = 9,
                                                               .batch = twelve,
                                                               .metrics = metrics,
                                                               .n_metrics = 2,
                                                               .replies = &reply,
                                                               .n_replies = 1}));
    invar_ledger_close(ledger);
}

/*
 * The content of a step covers its columns, metrics by name, samples and replies, but no segment.
 */
static void test_ledger_rows__content_of_a_step(void **state)
{
    const char *path = raw_path("step.db");
    invar_digest zero = {{0}}, root = raw_xxhsum("", 0), link[2] = {zero, root}, stored_content;
    invar_digest chain = raw_xxhsum(link, sizeof link), expected;
    const uint64_t one = UINT64_C(0x3FF0000000000000), two = UINT64_C(0x4000000000000000);
    raw_spelling s = {.count = 0};

    (void)state;
    write_one_step(path);
    raw_spell_text(&s, "step");
    raw_spell_number(&s, 1, 0);
    raw_spell_number(&s, 1, 9);
    raw_spell_blob(&s, &twelve, 16);
    raw_spell_blob(&s, &zero, 16);
    raw_spell_blob(&s, &root, 16);
    raw_spell_blob(&s, &chain, 16);
    for (int i = 0; i < 2; i++) {
        raw_spell_text(&s, "metric");
        raw_spell_number(&s, 1, 0);
        raw_spell_text(&s, i == 0 ? "a" : "b");
        raw_spell_number(&s, 1, i == 0 ? one : two);
    }
    raw_spell_text(&s, "reply");
    raw_spell_number(&s, 1, 0);
    raw_spell_text(&s, "p");
    raw_spell_number(&s, 1, 4);
    raw_spell_blob(&s, &twelve, 16);
    raw_spell_blob(&s, "", 0);
    expected = raw_xxhsum(s.data, s.count);
    (void)raw_blob(&stored_content, 16, path, "SELECT content FROM step");
    raw_assert_digest(&stored_content, &expected);
}

/* The chain of an entry covers the previous chain, then n, kind, ns, rows and total. */
static void test_ledger_rows__chain_of_entries(void **state)
{
    const char *path = raw_path("entries.db");
    invar_digest chain = {{0}}, stored_chain;
    raw_spelling s;

    (void)state;
    write_one_step(path);
    for (int n = 0; n < 2; n++) {
        static const char *const columns[] = {"ns", "rows", "total"};
        char text[96];
        s.count = 0;
        raw_spell_bytes(&s, &chain, 16);
        raw_spell_number(&s, 1, (uint64_t)n);
        raw_spell_text(&s, n == 0 ? "begin" : "step");
        for (int i = 0; i < 3; i++) {
            (void)snprintf(text, sizeof text, "SELECT %s FROM entry WHERE n = %d", columns[i], n);
            raw_spell_number(&s, 1, (uint64_t)raw_int(path, text));
        }
        chain = raw_xxhsum(s.data, s.count);
        (void)snprintf(text, sizeof text, "SELECT chain FROM entry WHERE n = %d", n);
        (void)raw_blob(&stored_chain, 16, path, text);
        raw_assert_digest(&stored_chain, &chain);
    }
    // `rows` counts the step, two metrics, a reply and the digests; `total` adds their sums modulo
    // 2^64.
    assert_int_equal(raw_int(path, "SELECT rows FROM entry WHERE n = 1"), 5);
    assert_true((uint64_t)raw_int(path, "SELECT total FROM entry WHERE n = 1") ==
                (uint64_t)raw_int(path, "SELECT sum FROM step") +
                    (uint64_t)raw_int(path, "SELECT sum FROM metric LIMIT 1") +
                    (uint64_t)raw_int(path, "SELECT sum FROM metric LIMIT 1 OFFSET 1") +
                    (uint64_t)raw_int(path, "SELECT sum FROM reply") +
                    (uint64_t)raw_int(path, "SELECT sum FROM digest"));
}

/* ---- append-only tables ---------------------------------------------------------------------- */

/* Executes SQL on a plain connection, whose triggers and constraints must reject it. */
static void assert_rejected(const char *path, const char *sql)
{
    sqlite3 *db;
    int rc;

    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    if (rc != SQLITE_CONSTRAINT || !strstr(sqlite3_errmsg(db), "ledger: "))
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    sqlite3_close(db);
}

static void assert_changes_rejected(const char *table, const raw_names *columns)
{
    static const char *const changes[] = {
        "DELETE FROM %s",
        "INSERT INTO %s SELECT * FROM %s LIMIT 1",
        "INSERT OR REPLACE INTO %s SELECT * FROM %s LIMIT 1",
        "REPLACE INTO %s SELECT * FROM %s LIMIT 1 OFFSET (SELECT count(*) - 1 FROM %s)",
        "INSERT OR IGNORE INTO %s SELECT * FROM %s LIMIT 1",
        "INSERT INTO %s SELECT * FROM %s WHERE true LIMIT 1 ON CONFLICT DO NOTHING",
    };
    static const char *const updates[] = {"UPDATE %s SET %s = %s",
                                          "UPDATE OR REPLACE %s SET %s = %s",
                                          "UPDATE OR IGNORE %s SET %s = %s"};
    char sql[400];

    for (size_t i = 0; i < COUNT(changes); i++) {
        (void)snprintf(sql, sizeof sql, changes[i], table, table, table);
        assert_rejected(raw_with_rows(table), sql);
    }
    for (int k = 0; k < columns->count; k++)
        for (size_t i = 0; i < COUNT(updates); i++) {
            (void)snprintf(sql, sizeof sql, updates[i], table, columns->at[k], columns->at[k]);
            assert_rejected(raw_with_rows(table), sql);
        }
}

/* Asserts that a new row cannot replace an old one through the hidden rowid. */
static void assert_rowid_rejected(sqlite3 *db, const char *table, const raw_names *columns)
{
    char names[600] = "", values[600] = "", sql[1600];

    for (int k = 0; k < columns->count; k++) {
        size_t n = strlen(names), v = strlen(values);
        bool hash = strcmp(columns->at[k], "hash") == 0;
        (void)snprintf(names + n, sizeof names - n, ", %s", columns->at[k]);
        (void)snprintf(values + v, sizeof values - v, hash ? ", zeroblob(16)" : ", %s%s",
                       columns->at[k], strcmp(columns->at[k], "step") == 0 ? " + 1000" : "");
    }
    (void)snprintf(sql, sizeof sql, "SELECT count(*) FROM pragma_table_list('%s') WHERE wr = 0",
                   table);
    if (raw_int_of(db, sql) == 0)
        return; // a WITHOUT ROWID table
    (void)snprintf(sql, sizeof sql,
                   "INSERT OR REPLACE INTO %s(rowid%s) SELECT rowid%s FROM %s LIMIT 1", table,
                   names, values, table);
    assert_rejected(raw_with_rows(table), sql);
}

static void test_ledger_rows__append_only(void **state)
{
    invar_digest before[] = {raw_dump(raw_path("whole.db")), raw_dump(raw_path("short.db"))};
    invar_digest after[2];
    sqlite3 *db = raw_open(raw_path("whole.db"));
    raw_names tables = raw_tables(db);

    (void)state;
    for (int i = 0; i < tables.count; i++) {
        raw_names columns = raw_columns(db, tables.at[i]);
        char sql[96];
        (void)snprintf(sql, sizeof sql, "SELECT count(*) FROM %s", tables.at[i]);
        // An empty table would reject nothing.
        assert_true(raw_int(raw_with_rows(tables.at[i]), sql) > 0);
        assert_changes_rejected(tables.at[i], &columns);
        assert_rowid_rejected(db, tables.at[i], &columns);
    }
    sqlite3_close(db);
    after[0] = raw_dump(raw_path("whole.db"));
    after[1] = raw_dump(raw_path("short.db"));
    raw_assert_digest(&before[0], &after[0]);
    raw_assert_digest(&before[1], &after[1]);
    raw_assert_clean(raw_path("whole.db"));
    raw_assert_clean(raw_path("short.db"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_rows__tables_are_those_of_the_schema),
        cmocka_unit_test(test_ledger_rows__bytes_of_a_metric),
        cmocka_unit_test(test_ledger_rows__bytes_of_null_and_blob),
        cmocka_unit_test(test_ledger_rows__content_of_a_step),
        cmocka_unit_test(test_ledger_rows__chain_of_entries),
        cmocka_unit_test(test_ledger_rows__append_only),
    };

    return cmocka_run_group_tests(tests, raw_setup_whole, raw_teardown);
}
