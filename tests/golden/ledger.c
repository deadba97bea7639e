/*
 * ledger.c - ledgers of every schema version, recorded once, must stay readable with equal hashes.
 *
 * tests/golden/ledger-N.db are never recorded again: every later version must read them and compute
 * the same hashes on every machine. ledger-N.txt has the hashes as tests/oracle/ledger_hashes.py, a
 * second implementation, computed them, and the answers of the plain sqlite3 shell. The answers
 * change with the columns of a query, the hashes never. A later schema adds a file of its own (made
 * by ledger_record.sh) to the list below. Negative control: one flipped bit changes the text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/diff/diff.h"
#include "tests/unit/ledger/raw_ledger.h"

static const char *const recorded[] = {"ledger-1", "ledger-2", "ledger-3", "ledger-4", "ledger-5"};
static const int tables_of[] = {23, 24, 25, 26, 28};

/* Text that is appended to. */
typedef struct text_buffer {
    size_t used;
    char text[8192];
} text_buffer;

static void append_text(text_buffer *to, const char *format, ...) INVAR_PRINTF(2, 3);

static void append_text(text_buffer *to, const char *format, ...)
{
    size_t capacity = sizeof to->text - to->used;
    va_list arguments;
    int count;

    va_start(arguments, format);
    count = vsnprintf(to->text + to->used, capacity, format, arguments);
    va_end(arguments);
    assert_true(count >= 0 && (size_t)count < capacity);
    to->used += (size_t)count;
}

/* Returns the path of a copy of a golden ledger, because opening a ledger may write beside it. */
static const char *copy_golden(const char *name)
{
    char from[256], file[64];

    (void)snprintf(from, sizeof from, INVAR_TEST_DATA "/golden/%s.db", name);
    (void)snprintf(file, sizeof file, "%s.db", name);
    raw_copy(raw_path(file), from);
    return raw_path(file);
}

/* ---- the same text again --------------------------------------------------------------------- */

typedef struct ledger_text {
    invar_ledger *ledger;
    text_buffer text_buffer;
} ledger_text;

static void add_hash(text_buffer *to, const char *what, const char *uuid,
                     const invar_digest *digest)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, digest);
    append_text(to, "%s %s %s\n", what, uuid, hex);
}

static invar_status describe_run(void *payload, const invar_ledger_summary *run)
{
    ledger_text *to = payload;
    char line[INVAR_LEDGER_SEAL_SIZE];
    invar_digest content;
    invar_status status;

    INVAR_TRY(invar_ledger_content_hash(&content, to->ledger, run->run));
    add_hash(&to->text_buffer, "identity", run->uuid, &run->identity);
    add_hash(&to->text_buffer, "content", run->uuid, &content);
    add_hash(&to->text_buffer, "integrity", run->uuid, &run->integrity);
    status = invar_ledger_seal(line, to->ledger, run->run);
    if (status == INVAR_E_STATE) { // a shortened run has no seal
        invar_error_clear();
        return INVAR_OK;
    }
    append_text(&to->text_buffer, "%s\n", line);
    return status;
}

/* Appends a row in the format of the sqlite3 shell. */
static invar_status describe_row(void *payload, const char *const *columns,
                                 const invar_ledger_value *values, int count)
{
    text_buffer *to = payload;

    (void)columns;
    for (int i = 0; values && i < count; i++) {
        if (values[i].type == INVAR_LEDGER_TYPE_INT)
            append_text(to, "%" PRId64, values[i].integer);
        else if (values[i].type == INVAR_LEDGER_TYPE_TEXT)
            append_text(to, "%.*s", (int)values[i].bytes, (const char *)values[i].data);
        else
            assert_int_equal(values[i].type, INVAR_LEDGER_TYPE_NULL);
        append_text(to, "%s", i + 1 < count ? "|" : "\n");
    }
    return INVAR_OK;
}

static void describe_query(ledger_text *to, const char *name)
{
    const invar_ledger_argument run = {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = 1}};
    invar_ledger_query query;

    assert_ok(invar_ledger_query_find(&query, name));
    append_text(&to->text_buffer, "query %s\n", name);
    assert_ok(invar_ledger_select(to->ledger, &(invar_ledger_select_request){
                                                  .sql = query.sql,
                                                  .arguments = &run,
                                                  .n_arguments = (size_t)query.n_params,
                                                  .row = describe_row,
                                                  .payload = &to->text_buffer,
                                              }));
}

static void describe_ledger(ledger_text *out, const char *path)
{
    static const char *const queries[] = {"resume-overlap", "restore-points", "dirty-runs"};

    out->text_buffer.used = 0;
    out->ledger = raw_reader(path);
    assert_ok(invar_ledger_runs(out->ledger, describe_run, out));
    for (size_t i = 0; i < COUNT(queries); i++)
        describe_query(out, queries[i]);
    invar_ledger_close(out->ledger);
}

static void expect_text(const char *path, const char *name)
{
    static ledger_text actual;
    char text[256];
    raw_bytes file;

    (void)snprintf(text, sizeof text, INVAR_TEST_DATA "/golden/%s.txt", name);
    file = raw_read(text);
    file.data[file.count] = '\0';
    describe_ledger(&actual, path);
    assert_string_equal(actual.text_buffer.text, (const char *)file.data);
    free(file.data);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_ledger_golden__says_what_it_said(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(recorded); i++) {
        const char *path = copy_golden(recorded[i]);
        raw_assert_clean(path);
        expect_text(path, recorded[i]);
        invar_ledger_close(raw_writer(path)); // upgrades it to the current version
        raw_assert_clean(path);
        expect_text(path, recorded[i]);
    }
}

static void test_ledger_golden__has_rows_in_every_table(void **state)
{
    char text[96];

    (void)state;
    for (size_t k = 0; k < COUNT(recorded); k++) {
        sqlite3 *db = raw_open(copy_golden(recorded[k]));
        raw_names tables = raw_tables(db);
        for (int i = 0; i < tables.count; i++) {
            (void)snprintf(text, sizeof text, "SELECT count(*) FROM %s", tables.at[i]);
            assert_true(raw_int_of(db, text) > 0);
        }
        assert_int_equal(tables.count, tables_of[k]);
        assert_true(raw_int_of(db, "SELECT count(*) FROM metric WHERE value_bits = 0x7FF8 << 48") >
                    0);
        assert_true(raw_int_of(db, "SELECT count(*) FROM sample WHERE diff_bits = 1 << 63") > 0);
        sqlite3_close(db);
    }
}

/*
 * Returns the counts of rows in tables and views that later versions added. The query runs twice,
 * because the first must not spoil the second.
 */
static const char *count_later_rows(text_buffer *to, const char *path)
{
    static const char text[] =
        "SELECT count(*), (SELECT count(*) FROM ranks), (SELECT count(*) FROM reward_part),"
        " (SELECT count(*) FROM reward_parts), (SELECT count(*) FROM led_samples),"
        " (SELECT count(*) FROM op_times), (SELECT count(*) FROM kept_samples),"
        " (SELECT count(*) FROM step) FROM work";
    invar_ledger *ledger = raw_reader(path);

    to->used = 0;
    for (int i = 0; i < 2; i++)
        assert_ok(invar_ledger_select(
            ledger,
            &(invar_ledger_select_request){.sql = text, .row = describe_row, .payload = to}));
    invar_ledger_close(ledger);
    return to->text;
}

/*
 * Tables that a later version added are empty for a reader of an older file, and reading does not
 * change the file.
 */
static void test_ledger_golden__lacks_what_came_later(void **state)
{
    const char *path = copy_golden("ledger-1");
    raw_bytes before = raw_read(path), after;
    static text_buffer to;

    (void)state;
    assert_string_equal(count_later_rows(&to, path), "0|0|0|0|0|0|0|13\n0|0|0|0|0|0|0|13\n");
    after = raw_read(path);
    assert_int_equal(before.count, after.count);
    assert_memory_equal(before.data, after.data, before.count);
    free(before.data);
    free(after.data);
    // Control: newer files have such rows.
    assert_string_equal(count_later_rows(&to, copy_golden("ledger-2")),
                        "144|33|0|0|0|0|0|13\n144|33|0|0|0|0|0|13\n");
    assert_string_equal(count_later_rows(&to, copy_golden("ledger-3")),
                        "144|33|192|176|0|0|0|13\n144|33|192|176|0|0|0|13\n");
    assert_string_equal(count_later_rows(&to, copy_golden("ledger-4")),
                        "144|33|192|176|44|0|0|13\n144|33|192|176|44|0|0|13\n");
    assert_string_equal(count_later_rows(&to, copy_golden("ledger-5")),
                        "144|33|192|176|44|10|22|13\n144|33|192|176|44|10|22|13\n");
}

/* A run that began under an old version continues under this one, while an older reader sees it. */
static void test_ledger_golden__goes_on(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(recorded); i++) {
        const char *path = copy_golden(recorded[i]);
        const int64_t shape[] = {4};
        const invar_ledger_point point = {"loss", "forward", -1, "loss", "act", 0, "f32",
                                          shape,  1,         1,  0,      NULL,  0};
        const invar_digest digest = {{7}};
        char line[INVAR_LEDGER_SEAL_SIZE];
        invar_ledger *reader = raw_reader(path); // opened before the upgrade
        invar_ledger *ledger = raw_writer(path);
        invar_ledger_summary run, seen;
        assert_ok(invar_ledger_find(&run, ledger, "whole"));
        assert_ok(invar_ledger_seal(line, ledger, run.run));
        assert_ok(invar_ledger_resume(ledger, run.uuid, run.last_step, &run.chain,
                                      &(invar_ledger_provenance){.no_auto_facts = true}));
        assert_ok(invar_ledger_define(ledger, &point, 1));
        assert_ok(invar_ledger_append(
            ledger, &(invar_ledger_step){.step = run.last_step + 1, .digests = &digest}));
        assert_ok(invar_ledger_finish(ledger, 0, "done"));
        assert_ok(invar_ledger_seal_check(ledger, line));
        assert_ok(invar_ledger_find(&seen, reader, "whole"));
        assert_int_equal(seen.last_step, run.last_step + 1);
        invar_ledger_close(reader);
        invar_ledger_close(ledger);
        raw_assert_clean(path);
        assert_int_equal(raw_verify(path).seals, 2);
    }
}

static void test_ledger_golden__compares(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(recorded); i++) {
        invar_ledger *ledger = raw_reader(copy_golden(recorded[i]));
        invar_diff *same, *other;
        assert_ok(invar_diff_runs(&same, ledger, 1, ledger, 1));
        assert_int_equal(same->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
        assert_int_equal(same->steps.compared, 10);
        // Control: a run with another seed.
        assert_ok(invar_diff_runs(&other, ledger, 1, ledger, 2));
        assert_int_equal(other->verdict, INVAR_DIFF_VERDICT_DIFFERENT);
        assert_int_equal(other->step, 0);
        invar_diff_free(same);
        invar_diff_free(other);
        invar_ledger_close(ledger);
    }
}

/* Asserts that run 1 has as many rows in each table of two ledgers, of which only one is sealed. */
static void assert_same_rows(const char *path, const char *golden)
{
    sqlite3 *a = raw_open(path), *b = raw_open(golden);
    raw_names tables = raw_list(b, "SELECT t.name FROM sqlite_schema t, pragma_table_info(t.name) c"
                                   " WHERE t.type = 'table' AND c.name = 'run' ORDER BY t.name");
    char text[96];

    assert_true(tables.count > 20);
    for (int i = 0; i < tables.count; i++) {
        if (strcmp(tables.at[i], "seal") == 0 || strcmp(tables.at[i], "entry") == 0)
            continue;
        (void)snprintf(text, sizeof text, "SELECT count(*) FROM %s WHERE run = 1", tables.at[i]);
        if (raw_int_of(a, text) != raw_int_of(b, text))
            fail_msg("%s: %d rows, not %d", tables.at[i], (int)raw_int_of(a, text),
                     (int)raw_int_of(b, text));
    }
    sqlite3_close(a);
    sqlite3_close(b);
}

/*
 * The run of the golden ledgers, written by this build, on this machine, has their content since
 * ledger-3, and as many rows in each table as in the newest one. If tests/ledger changes to write
 * other runs, this case must be removed; the golden files stay.
 */
static void test_ledger_golden__is_written_alike(void **state)
{
    const invar_test_ledger spec = {
        .steps = 10,
        .crash = 3,
        .resume = 2,
        .finer = true,
        .faults = {{.kind = INVAR_TEST_DIRTY},
                   {INVAR_TEST_NAN, 8, .point = "layer.1.mlp.out"},
                   {INVAR_TEST_LOGP_MISMATCH, 1, .other = 2, .value = -0.0}}};
    const char *path = raw_path("again.db");
    invar_digest before, after;

    (void)state;
    assert_int_equal(COUNT(recorded), INVAR_LEDGER_VERSION); // the newest is what is written
    assert_ok(invar_test_ledger_write(path, &spec));
    after = raw_content(path, 1);
    for (size_t i = 2; i < COUNT(recorded); i++) {
        before = raw_content(copy_golden(recorded[i]), 1);
        raw_assert_digest(&after, &before);
    }
    assert_same_rows(path, copy_golden(recorded[COUNT(recorded) - 1]));
    // Control: the older ones lack parts of rewards, which are content.
    before = raw_content(copy_golden(recorded[1]), 1);
    assert_false(invar_digest_equal(&after, &before));
}

/* Negative control: one flipped bit is found by verify and changes the text. */
static void test_ledger_golden__other_bits_show(void **state)
{
    const char *path = copy_golden(recorded[0]);
    static ledger_text before, after;

    (void)state;
    describe_ledger(&before, path);
    raw_tamper(path, "UPDATE step SET content = flip(content) WHERE step = 9 AND run = 1");
    assert_true(raw_verify(path).problems > 0);
    describe_ledger(&after, path);
    assert_string_not_equal(before.text_buffer.text, after.text_buffer.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_golden__says_what_it_said),
        cmocka_unit_test(test_ledger_golden__has_rows_in_every_table),
        cmocka_unit_test(test_ledger_golden__lacks_what_came_later),
        cmocka_unit_test(test_ledger_golden__goes_on),
        cmocka_unit_test(test_ledger_golden__compares),
        cmocka_unit_test(test_ledger_golden__is_written_alike),
        cmocka_unit_test(test_ledger_golden__other_bits_show),
    };

    return cmocka_run_group_tests(tests, raw_setup, raw_teardown);
}
