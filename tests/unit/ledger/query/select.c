/*
 * select.c - tests of SQL queries on a ledger: allowed and rejected statements, values, limits.
 *
 * Rejected statements must leave the bytes of the file as they were and add no file. Time and
 * memory limits stop a query and leave the connection usable. Named queries are checked against
 * SQLite's own list of their parameters.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <time.h>

#include "ledger/store/sql.h"
#include "tests/unit/ledger/raw_ledger.h"

static const invar_test_ledger spec = {.steps = 12};

static int make_ledger(void **state)
{
    if (raw_setup(state) != 0)
        return -1;
    assert_ok(invar_test_ledger_write(raw_path("a.db"), &spec));
    return 0;
}

/* ---- running a query ------------------------------------------------------------------------- */

/* Result of a query: numbers of columns and rows, and the first value of the first row. */
typedef struct query_result {
    int heads, rows, columns; /* heads: calls with the column names alone */
    invar_ledger_value first; /* its data is not valid any more */
    char text[64];            /* copy of the first value if it is a text */
    invar_status reply;       /* status that the callback returns for every row */
} query_result;

static invar_status record_row(void *payload, const char *const *columns,
                               const invar_ledger_value *values, int count)
{
    query_result *a = payload;

    assert_non_null(columns[0]);
    a->columns = count;
    if (!values) {
        a->heads++;
        return INVAR_OK;
    }
    if (a->rows++ == 0) {
        a->first = values[0];
        if (values[0].type == INVAR_LEDGER_TYPE_TEXT) {
            assert_int_equal(((const char *)values[0].data)[values[0].bytes], '\0');
            (void)snprintf(a->text, sizeof a->text, "%s", (const char *)values[0].data);
        }
    }
    return a->reply == INVAR_OK ? INVAR_OK : INVAR_FAIL(a->reply, 0, "enough");
}

static invar_status run_query(query_result *out, invar_ledger *ledger, const char *sql,
                              const invar_ledger_argument *arguments, size_t count)
{
    invar_status reply = out->reply;

    *out = (query_result){.reply = reply};
    return invar_ledger_select(ledger, &(invar_ledger_select_request){.sql = sql,
                                                                      .arguments = arguments,
                                                                      .n_arguments = count,
                                                                      .limit_ms = 20000,
                                                                      .row = record_row,
                                                                      .payload = out});
}

static int64_t select_int(invar_ledger *ledger, const char *sql)
{
    query_result a = {.reply = INVAR_OK};

    assert_ok(run_query(&a, ledger, sql, NULL, 0));
    assert_int_equal(a.first.type, INVAR_LEDGER_TYPE_INT);
    return a.first.integer;
}

/* ---- rejected statements --------------------------------------------------------------------- */

static const char *const rejected[] = {
    "INSERT INTO series(name) VALUES('x')",
    "INSERT OR REPLACE INTO series VALUES(1, 'x')",
    "REPLACE INTO series VALUES(1, 'x')",
    "UPDATE metric SET value = 0",
    "DELETE FROM step",
    "DELETE FROM step RETURNING *",
    "WITH x AS (SELECT 1) DELETE FROM step",
    "WITH x AS (SELECT 1) INSERT INTO series SELECT 99, 'x'",
    "CREATE TABLE t(x)",
    "CREATE TEMP TABLE t(x)",
    "CREATE VIEW v AS SELECT 1",
    "CREATE TEMP VIEW v AS SELECT 1",
    "CREATE TRIGGER t AFTER INSERT ON step BEGIN SELECT 1; END",
    "CREATE TEMP TRIGGER t AFTER INSERT ON main.step BEGIN DELETE FROM main.step; END",
    "CREATE INDEX i ON step(root)",
    "CREATE VIRTUAL TABLE v USING fts5(x)",
    "CREATE VIRTUAL TABLE temp.v USING dbstat",
    "DROP TABLE step",
    "DROP TRIGGER step_change",
    "ALTER TABLE step RENAME TO steps",
    "ATTACH 'other.db' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH main",
    "PRAGMA user_version = 2",
    "PRAGMA user_version",
    "PRAGMA query_only = OFF",
    "PRAGMA writable_schema = ON",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA wal_checkpoint",
    "PRAGMA integrity_check",
    "SELECT * FROM pragma_user_version",
    "SELECT * FROM pragma_table_info('step')",
    "SELECT * FROM pragma_database_list",
    "VACUUM",
    "VACUUM INTO 'stolen.db'",
    "REINDEX",
    "ANALYZE",
    "BEGIN",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT s",
    "RELEASE s",
    "EXPLAIN DELETE FROM step",
    "EXPLAIN QUERY PLAN DELETE FROM step",
    "SELECT load_extension('x')",
    "SELECT LOAD_EXTENSION('x', 'y')",
    "SELECT writefile('stolen', 'x')",
    "SELECT readfile('/etc/hostname')",
    "SELECT edit('x')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT fts3_tokenizer('x', zeroblob(8))",
    "SELECT (SELECT Fts3_Tokenizer('porter'))",
    "SELECT 1; DELETE FROM step",
    "SELECT 1; SELECT 2",
    "SELECT 1;;;DELETE FROM step",
    "SELECT 1 -- ;\n; DELETE FROM step",
    "SELECT 1 /* ; */; DELETE FROM step",
    "/* SELECT 1 */ DELETE FROM step",
    "-- SELECT 1\nDELETE FROM step",
    ";DELETE FROM step",
    "",
    "   ",
    ";",
    "-- nothing",
    "/* never closed",
    "SELECT",
    "SELEC 1",
    "SELECT * FROM nothing",
    "SELECT nothing FROM step",
    "SELECT \"nothing\" FROM step", /* an identifier, not a string */
    "SELECT 'never closed",
    "SELECT :x",
    "SELECT ?",
    "SELECT ?1",
    "SELECT @x, $y",
    "SELECT \xff\xfe FROM step",
    "SELECT \x1b[2J",
    ("\xEF\xBB\xBF"
     "DELETE FROM step"), /* DELETE after a byte order mark */
};

/* Asserts that every statement is rejected, keeps the file's bytes and leaves queries working. */
static void assert_all_rejected(invar_ledger *ledger, const char *path)
{
    invar_digest before = raw_hash(path), after;
    query_result a = {.reply = INVAR_OK};

    for (size_t i = 0; i < COUNT(rejected); i++) {
        invar_status status = run_query(&a, ledger, rejected[i], NULL, 0);
        const char *message = invar_error_last()->message;
        if (status != INVAR_E_INVALID)
            fail_msg("\"%s\": %s", rejected[i], invar_status_name(status));
        if (a.rows > 0)
            fail_msg("\"%s\" has rows", rejected[i]);
        assert_null(strpbrk(message, "\n\x1b\xff\xfe"));
        assert_int_equal(select_int(ledger, "SELECT count(*) FROM timeline"), 12);
    }
    after = raw_hash(path);
    raw_assert_digest(&before, &after);
}

static void test_ledger_select__refuses(void **state)
{
    char old_folder[1024];
    invar_ledger *ledger = raw_reader(raw_path("a.db"));

    (void)state;
    assert_non_null(getcwd(old_folder, sizeof old_folder));
    assert_int_equal(chdir(raw_folder), 0); // folder of files that a statement might create
    assert_all_rejected(ledger, raw_path("a.db"));
    invar_ledger_close(ledger);
    assert_int_not_equal(access("other.db", F_OK), 0);
    assert_int_not_equal(access("stolen.db", F_OK), 0);
    assert_int_not_equal(access("stolen", F_OK), 0);
    assert_int_equal(chdir(old_folder), 0);
}

/* Rejects all statements through a writer, too, which then appends a step. */
static void test_ledger_select__refuses_a_writer(void **state)
{
    const char *path = raw_path("writer.db");
    invar_ledger *ledger;

    (void)state;
    raw_copy(path, raw_path("a.db"));
    ledger = raw_writer(path);
    assert_ok(invar_test_ledger_resume(ledger, &spec, 12));
    assert_all_rejected(ledger, path);
    assert_ok(invar_test_ledger_step(ledger, &spec, 1, 12));
    assert_int_equal(select_int(ledger, "SELECT count(*) FROM timeline"), 13);
    invar_ledger_close(ledger);
    raw_assert_clean(path);
}

/* ---- allowed statements ---------------------------------------------------------------------- */

static void test_ledger_select__allows(void **state)
{
    static const char *const allowed[] = {
        "SELECT 1",
        "select 1;",
        " SELECT 1 ; ; -- and a remark",
        "/* first */ SELECT 1 /* last */",
        "VALUES(1)",
        "WITH x(n) AS (SELECT 1) SELECT n FROM x",
        "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x LIMIT 9) SELECT n FROM x",
        "SELECT count(*) > 0 FROM metrics",
        "SELECT 1 FROM digests LIMIT 1",
        "SELECT 1 FROM samples JOIN timeline USING(run, step) LIMIT 1",
        "SELECT value FROM json_each('[1, 2]')",
        "SELECT CAST(sqrt(1) AS INTEGER)",
        "SELECT row_number() OVER (ORDER BY step) FROM step",
        "SELECT count(*) > 0 FROM sqlite_schema",
        "EXPLAIN QUERY PLAN SELECT 1 FROM step",
        "SELECT 1 UNION SELECT 1",
        "SELECT 1 WHERE 'DELETE FROM step' <> '; DROP TABLE step'",
    };
    invar_ledger *ledger = raw_reader(raw_path("a.db"));
    query_result a = {.reply = INVAR_OK};

    (void)state;
    for (size_t i = 0; i < COUNT(allowed); i++) {
        assert_ok(run_query(&a, ledger, allowed[i], NULL, 0));
        assert_int_equal(a.heads, 1);
        assert_true(a.rows >= 1);
        assert_int_equal(a.first.type, INVAR_LEDGER_TYPE_INT);
    }
    assert_ok(run_query(&a, ledger, "SELECT step, seg FROM step WHERE false", NULL, 0));
    assert_int_equal(a.heads, 1); // columns are passed even without rows
    assert_int_equal(a.columns, 2);
    assert_int_equal(a.rows, 0);
    invar_ledger_close(ledger);
}

static void test_ledger_select__values(void **state)
{
    static const struct {
        const char *sql;
        invar_ledger_value value;
    } cases[] = {
        {"SELECT NULL", {.type = INVAR_LEDGER_TYPE_NULL}},
        {"SELECT -9223372036854775808", {.type = INVAR_LEDGER_TYPE_INT, .integer = INT64_MIN}},
        {"SELECT 0.1", {.type = INVAR_LEDGER_TYPE_REAL, .real = 0.1}},
        {"SELECT 9e999", {.type = INVAR_LEDGER_TYPE_REAL, .real = 1e308 * 10}},
        {"SELECT ''", {.type = INVAR_LEDGER_TYPE_TEXT}},
        {"SELECT 'a' || char(0) || 'b'", {.type = INVAR_LEDGER_TYPE_TEXT, .bytes = 3}},
        {"SELECT x''", {.type = INVAR_LEDGER_TYPE_BLOB}},
        {"SELECT x'00ff00'", {.type = INVAR_LEDGER_TYPE_BLOB, .bytes = 3}},
        {"SELECT zeroblob(1000)", {.type = INVAR_LEDGER_TYPE_BLOB, .bytes = 1000}},
    };
    invar_ledger *ledger = raw_reader(raw_path("a.db"));
    query_result a = {.reply = INVAR_OK};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_ok(run_query(&a, ledger, cases[i].sql, NULL, 0));
        assert_int_equal(a.first.type, cases[i].value.type);
        assert_int_equal(a.first.integer, cases[i].value.integer);
        assert_memory_equal(&a.first.real, &cases[i].value.real, sizeof(double));
        assert_int_equal(a.first.bytes, cases[i].value.bytes);
    }
    invar_ledger_close(ledger);
}

static void test_ledger_select__arguments(void **state)
{
    static const invar_ledger_argument arguments[] = {
        {"a", {.type = INVAR_LEDGER_TYPE_INT, .integer = 7}},
        {"b", {.type = INVAR_LEDGER_TYPE_TEXT, .data = "'; DROP TABLE step; --", .bytes = 22}},
        {"c", {.type = INVAR_LEDGER_TYPE_NULL}},
        {"d", {.type = INVAR_LEDGER_TYPE_REAL, .real = 0.5}},
        {"e", {.type = INVAR_LEDGER_TYPE_BLOB, .data = "\0\1", .bytes = 2}},
        {"unused", {.type = INVAR_LEDGER_TYPE_INT}},
    };
    invar_ledger *ledger = raw_reader(raw_path("a.db"));
    query_result a = {.reply = INVAR_OK};

    (void)state;
    assert_ok(
        run_query(&a, ledger,
                  "SELECT :a = 7 AND @a = 7 AND $a = 7 AND length(:b) = 22 AND :c IS NULL AND "
                  ":d = 0.5 AND :e = x'0001'",
                  arguments, COUNT(arguments)));
    assert_int_equal(a.first.integer, 1);
    assert_fails(run_query(&a, ledger, "SELECT :a, :other", arguments, COUNT(arguments)),
                 INVAR_E_INVALID, "the parameter :other has no value");
    assert_fails(run_query(&a, ledger, "SELECT ?", arguments, COUNT(arguments)), INVAR_E_INVALID,
                 "has no value");
    invar_ledger_close(ledger);
}

/* A callback that fails ends the query, which returns its status and message. */
static void test_ledger_select__taker_fails(void **state)
{
    invar_ledger *ledger = raw_reader(raw_path("a.db"));
    query_result a = {.reply = INVAR_E_MISMATCH};

    (void)state;
    assert_fails(run_query(&a, ledger, "SELECT step FROM step", NULL, 0), INVAR_E_MISMATCH,
                 "enough");
    assert_int_equal(a.rows, 1);
    assert_int_equal(select_int(ledger, "SELECT count(*) FROM step"), 12);
    invar_ledger_close(ledger);
}

static void test_ledger_select__many_columns(void **state)
{
    invar_ledger *ledger = raw_reader(raw_path("a.db"));
    query_result a = {.reply = INVAR_OK};
    char sql[1200];

    (void)state;
    for (int columns = 255; columns <= 257; columns++) {
        size_t used = (size_t)snprintf(sql, sizeof sql, "SELECT 1");
        for (int i = 1; i < columns; i++)
            used += (size_t)snprintf(sql + used, sizeof sql - used, ", 1");
        if (columns <= 256) {
            assert_ok(run_query(&a, ledger, sql, NULL, 0));
            assert_int_equal(a.columns, columns);
        } else {
            assert_fails(run_query(&a, ledger, sql, NULL, 0), INVAR_E_INVALID, "256 are allowed");
        }
    }
    invar_ledger_close(ledger);
}

/* ---- time and memory ------------------------------------------------------------------------- */

#define ENDLESS "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) "

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void test_ledger_select__time_limit(void **state)
{
    static const char *const endless[] = {
        ENDLESS "SELECT count(*) FROM x",
        ENDLESS "SELECT max(n) FROM x",
        ENDLESS "SELECT n FROM x WHERE n < 0",
        ENDLESS "SELECT sum(length(randomblob(1000000))) FROM x",
        "SELECT count(*) FROM metric a, metric b, metric c, metric d",
        "SELECT 1 FROM metric a, metric b, metric c ORDER BY a.value + b.value + c.value",
    };
    invar_ledger *ledger = raw_reader(raw_path("a.db"));
    query_result a = {.reply = INVAR_OK};

    (void)state;
    for (size_t i = 0; i < COUNT(endless); i++) {
        int64_t start = now_ms(), elapsed;
        invar_ledger_select_request request = {
            .sql = endless[i], .limit_ms = 50, .row = record_row, .payload = &a};
        assert_fails(invar_ledger_select(ledger, &request), INVAR_E_STATE,
                     "the time limit was reached");
        elapsed = now_ms() - start;
        assert_true(elapsed >= 50);
        assert_true(elapsed < 20000); // wide enough for sanitizers and a busy machine
        // The next query has a limit of its own.
        assert_int_equal(select_int(ledger, "SELECT count(*) FROM step"), 12);
    }
    invar_ledger_close(ledger);
}

#define LONG "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x LIMIT 4) "

/* No query exceeds the memory limit; most of these fail because one value is too large. */
static void test_ledger_select__memory(void **state)
{
    static const char *const bombs[] = {
        "SELECT zeroblob(1000000000)",
        "SELECT length(randomblob(1000000000))",
        "SELECT length(printf('%.*c', 70000000, 'x'))",
        "SELECT length(hex(zeroblob(60000000)))",
        "SELECT length(replace(hex(zeroblob(500000)), '0', hex(zeroblob(500))))",
        LONG "SELECT length(group_concat(hex(zeroblob(9000000)))) FROM x",
        LONG "SELECT length(json_group_array(hex(zeroblob(9000000)))) FROM x",
    };
    invar_ledger *ledger = raw_reader(raw_path("a.db"));
    query_result a = {.reply = INVAR_OK};
    char wide[4096] = "SELECT zeroblob(60000000)";

    (void)state;
    (void)sqlite3_memory_highwater(1);
    for (size_t i = 0; i < COUNT(bombs); i++) {
        invar_status status = run_query(&a, ledger, bombs[i], NULL, 0);
        bool answered = status == INVAR_OK && a.first.type == INVAR_LEDGER_TYPE_NULL;
        if (!answered && status != INVAR_E_INVALID && status != INVAR_E_NOMEM)
            fail_msg("%s: %s", bombs[i], invar_status_name(status));
    }
    for (int i = 1; i < 100; i++) { // 6 GB in all; each value alone is allowed
        size_t used = strlen(wide);
        (void)snprintf(wide + used, sizeof wide - used, ", zeroblob(60000000)");
    }
    assert_fails(run_query(&a, ledger, wide, NULL, 0), INVAR_E_NOMEM, "more than 512 MiB");
    assert_true(sqlite3_memory_highwater(0) < INT64_C(600) << 20);
    assert_true(sqlite3_hard_heap_limit64(-1) == 0); // the limit was removed after the query
    assert_int_equal(select_int(ledger, "SELECT count(*) FROM step"), 12);
    invar_ledger_close(ledger);
}

/* If there is no memory for a value, it reads as empty and the statement fails. */
static void test_ledger_select__value_without_memory(void **state)
{
    invar_sql_stmt *stmt;
    invar_sql *sql;
    size_t bytes;
    bool row;

    (void)state;
    assert_ok(invar_sql_open(&sql, "", INVAR_SQL_MODE_CREATE));
    // The text of a row is converted when it is read, and too long for memory that SQLite has.
    assert_ok(invar_sql_exec(sql, "PRAGMA encoding = 'UTF-16le'"));
    assert_ok(invar_sql_prepare(&stmt, sql,
                                "SELECT hex(zeroblob(5000)) UNION ALL SELECT 'a text' ORDER BY 1"));
    assert_ok(invar_sql_step(&row, stmt));
    assert_ok(invar_sql_row(stmt));
    (void)sqlite3_hard_heap_limit64(1);
    const char *text = invar_sql_text(stmt, 0, &bytes);
    (void)sqlite3_hard_heap_limit64(0);
    assert_string_equal(text, "");
    assert_int_equal(bytes, 0);
    assert_fails(invar_sql_row(stmt), INVAR_E_NOMEM, "no memory");
    assert_fails(invar_sql_step(&row, stmt), INVAR_E_NOMEM, "no memory");
    assert_false(row);
    invar_sql_reset(stmt);
    assert_ok(invar_sql_step(&row, stmt));
    assert_int_equal(strlen(invar_sql_text(stmt, 0, &bytes)), 10000);
    assert_int_equal(bytes, 10000);
    assert_ok(invar_sql_step(&row, stmt));
    invar_sql_free(stmt);
    invar_sql_close(sql);
}

static invar_status limit_heap(invar_ledger_value *out, void *payload,
                               const invar_ledger_value *arguments)
{
    (void)payload;
    (void)arguments;
    *out = (invar_ledger_value){.type = INVAR_LEDGER_TYPE_NULL};
    (void)sqlite3_hard_heap_limit64(1);
    return INVAR_OK;
}

static invar_status count_call(invar_ledger_value *out, void *payload,
                               const invar_ledger_value *arguments)
{
    *out = (invar_ledger_value){.type = INVAR_LEDGER_TYPE_NULL};
    assert_non_null(arguments[0].data);
    ++*(int *)payload;
    return INVAR_OK;
}

static void free_nothing(void *payload)
{
    (void)payload;
}

/* An SQL function is not called if there is no memory for one of its arguments. */
static void test_ledger_select__argument_without_memory(void **state)
{
    invar_sql_stmt *stmt;
    invar_sql *sql;
    int calls = 0;
    bool row;

    (void)state;
    assert_ok(invar_sql_open(&sql, "", INVAR_SQL_MODE_CREATE));
    // Each call converts the text, which is too long for memory that SQLite has.
    assert_ok(invar_sql_exec(sql, "PRAGMA encoding = 'UTF-16le'"));
    assert_ok(invar_sql_define(sql, "starve", 0, limit_heap, NULL, free_nothing));
    assert_ok(invar_sql_define(sql, "count_call", 2, count_call, &calls, free_nothing));
    assert_ok(invar_sql_prepare(&stmt, sql, "SELECT count_call(hex(zeroblob(5000)), NULL)"));
    assert_ok(invar_sql_step(&row, stmt));
    assert_int_equal(calls, 1);
    invar_sql_free(stmt);
    assert_ok(invar_sql_prepare(&stmt, sql, "SELECT count_call(hex(zeroblob(5000)), starve())"));
    invar_status status = invar_sql_step(&row, stmt);
    (void)sqlite3_hard_heap_limit64(0);
    assert_fails(status, INVAR_E_NOMEM, "no memory");
    assert_int_equal(calls, 1);
    invar_sql_free(stmt);
    invar_sql_close(sql);
}

/* ---- named queries --------------------------------------------------------------------------- */

static void check_params(const invar_ledger_query *query)
{
    sqlite3 *db = raw_open(raw_path("a.db"));
    sqlite3_stmt *stmt;
    char name[INVAR_LEDGER_QUERY_WORD + 1];

    if (sqlite3_prepare_v2(db, query->sql, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", query->name, sqlite3_errmsg(db));
    assert_int_equal(sqlite3_bind_parameter_count(stmt), query->n_params);
    for (int i = 0; i < query->n_params; i++) {
        const invar_ledger_query_param *p = &query->params[i];
        (void)snprintf(name, sizeof name, ":%s", p->name);
        if (sqlite3_bind_parameter_index(stmt, name) == 0)
            fail_msg("%s does not use its parameter %s", query->name, name);
        assert_non_null(strchr("rint", p->type));
        assert_int_equal(p->optional, p->fallback[0] != '\0');
        if (p->type == 'i' || p->type == 'n') {
            char *end = p->fallback[0] ? NULL : (char *)p->fallback;
            if (!end)
                (void)strtod(p->fallback, &end);
            assert_int_equal(*end, '\0');
        }
    }
    sqlite3_finalize(stmt);
    sqlite3_close(db);
}

/* Returns a value of the parameter's type. */
static invar_ledger_value example_value(const invar_ledger_query_param *p)
{
    const char *text = p->optional ? p->fallback : "train/loss";

    switch (p->type) {
    case 'n': return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_REAL, .real = 0.5};
    case 't':
        return (invar_ledger_value){
            .type = INVAR_LEDGER_TYPE_TEXT, .data = text, .bytes = strlen(text)};
    default: return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_INT, .integer = 1};
    }
}

static void test_ledger_select__named_queries(void **state)
{
    invar_ledger *ledger = raw_reader(raw_path("a.db"));
    invar_ledger_query query, found;
    char previous[INVAR_LEDGER_QUERY_WORD] = "";

    (void)state;
    assert_true(invar_ledger_query_count() > 20);
    for (int i = 0; i < invar_ledger_query_count(); i++) {
        invar_ledger_argument arguments[INVAR_LEDGER_QUERY_PARAMS];
        query_result a = {.reply = INVAR_OK};
        assert_ok(invar_ledger_query_at(&query, i));
        assert_true(strcmp(previous, query.name) < 0); // sorted and unique
        (void)snprintf(previous, sizeof previous, "%s", query.name);
        assert_int_equal(query.question[strlen(query.question) - 1], '?');
        assert_ok(invar_ledger_query_find(&found, query.name));
        assert_ptr_equal(found.sql, query.sql);
        check_params(&query);
        for (int k = 0; k < query.n_params; k++)
            arguments[k] =
                (invar_ledger_argument){query.params[k].name, example_value(&query.params[k])};
        invar_assert_status(run_query(&a, ledger, query.sql, arguments, (size_t)query.n_params),
                            INVAR_OK, query.name, __FILE__, __LINE__);
        assert_int_equal(a.heads, 1);
    }
    invar_ledger_close(ledger);
    assert_fails(invar_ledger_query_find(&found, "no-such-query"), INVAR_E_NOTFOUND,
                 "there is no named query \"no-such-query\"");
    assert_fails(invar_ledger_query_find(&found, "\x1b\n"), INVAR_E_NOTFOUND, "\"??\"");
    assert_fails(invar_ledger_query_find(&found, ""), INVAR_E_NOTFOUND, "\"\"");
    assert_fails(invar_ledger_query_at(&found, -1), INVAR_E_NOTFOUND, "-1");
    assert_fails(invar_ledger_query_at(&found, invar_ledger_query_count()), INVAR_E_NOTFOUND, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_select__refuses),
        cmocka_unit_test(test_ledger_select__refuses_a_writer),
        cmocka_unit_test(test_ledger_select__allows),
        cmocka_unit_test(test_ledger_select__values),
        cmocka_unit_test(test_ledger_select__arguments),
        cmocka_unit_test(test_ledger_select__taker_fails),
        cmocka_unit_test(test_ledger_select__many_columns),
        cmocka_unit_test(test_ledger_select__time_limit),
        cmocka_unit_test(test_ledger_select__memory),
        cmocka_unit_test(test_ledger_select__value_without_memory),
        cmocka_unit_test(test_ledger_select__argument_without_memory),
        cmocka_unit_test(test_ledger_select__named_queries),
    };

    return cmocka_run_group_tests(tests, make_ledger, raw_teardown);
}
