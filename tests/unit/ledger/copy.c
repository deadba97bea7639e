/*
 * copy.c - tests of copies of ledgers: import, backup, and backup without old detail.
 *
 * A copied run must have the content, chains and seal of its source, although names and manifests
 * get other row numbers. Runs with another history, damaged sources and existing files must be
 * rejected and leave the target as it was; dumps of all tables through plain SQLite show this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/raw_ledger.h"

/* ---- ledgers and comparisons ----------------------------------------------------------------- */

/* Returns the path of a ledger with one run; writes it if it does not exist. */
static const char *ledger_with_run(const char *name, const invar_test_ledger *spec)
{
    if (access(raw_path(name), F_OK) != 0)
        assert_ok(invar_test_ledger_write(raw_path(name), spec));
    return raw_path(name);
}

/* Writes the seal of a run, which covers all its rows but no row numbers of names. */
static void seal_of(char line[INVAR_LEDGER_SEAL_SIZE], const char *path, const char *uuid)
{
    invar_ledger *ledger = raw_reader(path);
    invar_ledger_summary summary;

    assert_ok(invar_ledger_find(&summary, ledger, uuid));
    assert_ok(invar_ledger_seal(line, ledger, summary.run));
    invar_ledger_close(ledger);
}

static invar_status import_into(int64_t *runs_out, const char *to, const char *from)
{
    invar_ledger *target = raw_writer(to), *source = raw_reader(from);
    invar_status status = invar_ledger_import(runs_out, target, source);

    invar_ledger_close(source);
    invar_ledger_close(target);
    return status;
}

static void assert_imports(const char *to, const char *from, int64_t expected)
{
    int64_t runs;

    assert_ok(import_into(&runs, to, from));
    assert_int_equal(runs, expected);
    raw_assert_clean(to);
}

/* Asserts that `to` holds the single run of `from` with the same content, entries and seal. */
static void assert_same_run(const char *to, const char *from)
{
    invar_ledger_summary a = raw_summary(from, NULL), b = raw_summary(to, a.uuid);
    char x[INVAR_LEDGER_SEAL_SIZE], y[INVAR_LEDGER_SEAL_SIZE];
    invar_digest content[2] = {raw_content(from, a.run), raw_content(to, b.run)};

    raw_assert_digest(&content[0], &content[1]);
    raw_assert_digest(&a.integrity, &b.integrity);
    raw_assert_digest(&a.chain, &b.chain);
    assert_int_equal(a.entries, b.entries);
    assert_int_equal(a.created_ns, b.created_ns);
    assert_int_equal(a.finished, b.finished);
    seal_of(x, from, a.uuid);
    seal_of(y, to, a.uuid);
    assert_string_equal(x, y);
}

/* ---- import ---------------------------------------------------------------------------------- */

static const invar_test_ledger base = {
    .steps = 12, .crash = 11, .resume = 9, .faults = {{.kind = INVAR_TEST_DIRTY}}};

static void test_ledger_copy__import(void **state)
{
    const char *a = ledger_with_run("a.db", &base), *to = raw_path("import.db");
    const char *b =
        ledger_with_run("b.db", &(invar_test_ledger){.steps = 12, .seed = 1, .finer = true});
    invar_digest before, after;
    int64_t runs;

    (void)state;
    assert_imports(to, a, 1);
    assert_same_run(to, a);
    assert_imports(to, b, 1);
    assert_same_run(to, a);
    assert_same_run(to, b);
    before = raw_dump(to);
    assert_imports(to, a, 0);
    assert_imports(to, b, 0);
    assert_imports(to, to, 0); // import of a ledger into itself
    after = raw_dump(to);
    raw_assert_digest(&before, &after);
    assert_imports(raw_path("both.db"), to, 2); // two runs in one import
    assert_same_run(raw_path("both.db"), a);
    assert_same_run(raw_path("both.db"), b);
    assert_int_equal(raw_verify(raw_path("both.db")).runs, 2);
    assert_imports(to, raw_path("both.db"), 0);
    invar_ledger_close(raw_writer(raw_path("none.db")));
    assert_ok(import_into(&runs, to, raw_path("none.db"))); // a source without runs
    assert_int_equal(runs, 0);
}

/*
 * Import gives names and manifests other row numbers; the values must still belong to their names.
 */
static void test_ledger_copy__import_gives_other_numbers(void **state)
{
    static const char metrics[] =
        "SELECT group_concat(step || n.name || value_bits) FROM (SELECT * "
        "FROM metric JOIN series n USING(series) WHERE run = %d ORDER BY "
        "step, seg, n.name) AS n";
    const char *a = ledger_with_run("a.db", &base), *to = raw_path("numbers.db");
    invar_ledger *ledger = raw_writer(to);
    const invar_ledger_metric other[] = {{"z", 1}, {"train/loss", 2}, {"y", 3}};
    static char texts[2][1 << 17];
    char sql[400];

    (void)state;
    assert_ok(invar_ledger_begin(
        ledger, &(invar_ledger_run){
                    .name = "first", .kind = "ci", .circumstances = {.no_auto_facts = true}}));
    assert_ok(invar_ledger_define(ledger, NULL, 0));
    assert_ok(invar_ledger_append(
        ledger, &(invar_ledger_step){.step = 0, .metrics = other, .n_metrics = COUNT(other)}));
    invar_ledger_close(ledger);
    assert_imports(to, a, 1);
    assert_same_run(to, a);
    assert_int_not_equal(raw_int(to, "SELECT series FROM series WHERE name = 'train/grad_norm'"),
                         raw_int(a, "SELECT series FROM series WHERE name = 'train/grad_norm'"));
    assert_int_not_equal(raw_int(to, "SELECT max(manifest) FROM digest"),
                         raw_int(a, "SELECT max(manifest) FROM digest"));
    for (int i = 0; i < 2; i++) {
        (void)snprintf(sql, sizeof sql, metrics, i + 1);
        assert_true(raw_blob(texts[i], sizeof texts[i] - 1, i ? to : a, sql) > 1000);
    }
    assert_string_equal(texts[0], texts[1]);
}

/* Importing a run again adds the steps that it has gained since. */
static void test_ledger_copy__import_extends(void **state)
{
    const invar_test_ledger spec = {.steps = 20};
    const char *from = raw_path("growing.db"), *to = raw_path("extended.db");
    invar_ledger *source = raw_writer(from), *target = raw_writer(to);
    int64_t runs, step = 0;

    (void)state;
    assert_ok(invar_test_ledger_begin(source, &spec));
    for (int i = 0; i < 4; i++) { // the source is the writer, which appends in between
        for (; step < 4 * i; step++)
            assert_ok(invar_test_ledger_step(source, &spec, 0, step));
        assert_ok(invar_ledger_import(&runs, target, source));
        assert_int_equal(runs, 1);
        assert_ok(invar_ledger_import(&runs, target, source));
        assert_int_equal(runs, 0);
    }
    assert_ok(invar_ledger_finish(source, 0, "done"));
    invar_ledger_close(source);
    invar_ledger_close(target);
    raw_copy(raw_path("older.db"), to);
    assert_imports(to, from, 1);
    assert_same_run(to, from);
    assert_imports(to, raw_path("older.db"), 0); // the target has all of its steps
    assert_same_run(to, from);
}

/* Runs that diverged after a common beginning are not merged, whichever is longer. */
static void test_ledger_copy__import_of_another_history(void **state)
{
    static const int more[] = {1, 2, 3};
    const invar_test_ledger spec = {.steps = 3}, other = {.steps = 3, .seed = 9};
    const char *start = raw_path("start.db"), *ours = raw_path("ours.db");
    const char *theirs = raw_path("theirs.db");
    invar_digest before, after;
    invar_ledger *ledger = raw_writer(start);
    int64_t runs;

    (void)state;
    assert_ok(invar_test_ledger_begin(ledger, &spec));
    for (int64_t step = 0; step < 3; step++)
        assert_ok(invar_test_ledger_step(ledger, &spec, 0, step));
    invar_ledger_close(ledger);
    raw_copy(ours, start);
    ledger = raw_writer(ours);
    assert_ok(invar_test_ledger_resume(ledger, &spec, 3));
    assert_ok(invar_test_ledger_step(ledger, &spec, 1, 3));
    invar_ledger_close(ledger);
    before = raw_dump(ours);
    for (size_t i = 0; i < COUNT(more); i++) {
        raw_copy(theirs, start);
        ledger = raw_writer(theirs);
        assert_ok(invar_test_ledger_resume(ledger, &other, 3));
        for (int k = 1; k < more[i]; k++)
            assert_ok(invar_test_ledger_step(ledger, &other, 1, 2 + k));
        invar_ledger_close(ledger);
        assert_fails(import_into(&runs, ours, theirs), INVAR_E_MISMATCH, "another history");
        assert_int_equal(runs, 0);
        after = raw_dump(ours);
        raw_assert_digest(&before, &after);
    }
    assert_imports(ours, start, 0); // control: the common beginning is imported both ways
    assert_imports(start, ours, 1);
}

static void test_ledger_copy__import_of_damage(void **state)
{
    const char *from = raw_path("damaged.db"), *to = raw_path("untouched.db");
    const char *a = ledger_with_run("a.db", &base);
    invar_digest before, after;
    int64_t runs = 7;

    (void)state;
    assert_ok(invar_test_ledger_write(to, &(invar_test_ledger){.steps = 2, .seed = 3}));
    assert_imports(from, a, 1);
    assert_ok(invar_test_ledger_add(from, &(invar_test_ledger){.steps = 2, .seed = 4}));
    // Damages the second run.
    raw_tamper(from, "UPDATE timing SET duration_ns = flip(duration_ns) WHERE run = 2 AND step = 1 "
                     "AND phase = 'rollout'");
    before = raw_dump(to);
    assert_fails(import_into(&runs, to, from), INVAR_E_CORRUPT,
                 "it is damaged and not copied: run 2: timing (step 1, seg 0, phase rollout)");
    assert_int_equal(runs, 0);
    after = raw_dump(to);
    raw_assert_digest(&before, &after);
}

static void test_ledger_copy__import_beside_a_run(void **state)
{
    const invar_test_ledger spec = {.steps = 4, .seed = 5};
    const char *a = ledger_with_run("a.db", &base), *to = raw_path("beside.db"),
               *continued = raw_path("ahead.db");
    invar_ledger *target = raw_writer(to), *source = raw_reader(a), *other;
    int64_t runs;

    (void)state;
    assert_fails(invar_ledger_import(&runs, source, target), INVAR_E_STATE, "for reading only");
    assert_ok(invar_test_ledger_begin(target, &spec));
    assert_ok(invar_test_ledger_step(target, &spec, 0, 0));
    assert_ok(invar_ledger_import(&runs, target, source));
    assert_ok(invar_test_ledger_step(target, &spec, 0, 1)); // the target's own run continues
    invar_ledger_close(source);
    // A run that the target is writing cannot be extended by an import.
    source = raw_reader(to);
    assert_ok(invar_ledger_backup(source, continued, NULL));
    invar_ledger_close(source);
    other = raw_writer(continued);
    source = raw_reader(continued);
    assert_ok(invar_ledger_find(&(invar_ledger_summary){0}, source, "1"));
    assert_ok(invar_ledger_resume(other, "1", -1, NULL,
                                  &(invar_ledger_provenance){.no_auto_facts = true}));
    assert_fails(invar_ledger_import(&runs, target, source), INVAR_E_STATE, "is being written");
    assert_ok(invar_test_ledger_step(target, &spec, 0, 2));
    invar_ledger_close(other);
    invar_ledger_close(source);
    invar_ledger_close(target);
    raw_assert_clean(to);
    assert_same_run(to, a);
}

/* ---- backup ---------------------------------------------------------------------------------- */

static void test_ledger_copy__backup_of_a_live_ledger(void **state)
{
    static const char *const beside[] = {"-wal", "-shm", "-lock", "-journal", ".partial"};
    const invar_test_ledger spec = {.steps = 6};
    invar_ledger *ledger = raw_writer(raw_path("live.db")), *reader;
    const char *names[] = {"copy0.db", "copy1.db", "copy2.db"};
    invar_digest before, after;
    char path[1024];

    (void)state;
    assert_ok(invar_test_ledger_begin(ledger, &spec));
    for (int i = 0; i < 3; i++) {
        assert_ok(invar_test_ledger_step(ledger, &spec, 0, i));
        before = raw_dump(raw_path("live.db"));
        reader = raw_reader(raw_path("live.db"));
        assert_ok(invar_ledger_backup(i == 1 ? ledger : reader, raw_path(names[i]),
                                      i == 2 ? &(invar_ledger_retention){-1, 0} : NULL));
        invar_ledger_close(reader);
        for (size_t k = 0; k < COUNT(beside); k++) {
            (void)snprintf(path, sizeof path, "%s%s", raw_path(names[i]), beside[k]);
            assert_int_not_equal(access(path, F_OK), 0);
        }
        after = raw_dump(raw_path(names[i]));
        raw_assert_digest(&before, &after);
        raw_assert_clean(raw_path(names[i]));
    }
    invar_ledger_close(ledger);
    ledger = raw_writer(raw_path("copy1.db")); // a copy can be resumed
    assert_ok(invar_test_ledger_resume(ledger, &spec, 2));
    assert_ok(invar_test_ledger_step(ledger, &spec, 1, 2));
    invar_ledger_close(ledger);
    raw_assert_clean(raw_path("copy1.db"));
}

static void test_ledger_copy__backup_overwrites_nothing(void **state)
{
    static const invar_ledger_retention all = {-1, 0}, last = {2, 0};
    const invar_ledger_retention *keeps[] = {NULL, &all, &last};
    invar_ledger *ledger = raw_reader(ledger_with_run("a.db", &base));
    const char *existing = raw_path("taken"), *log = raw_path("orphan.db-wal");
    raw_bytes bytes;

    (void)state;
    raw_write(existing, "mine", 4);
    raw_write(log, "mine", 4);
    for (size_t i = 0; i < COUNT(keeps); i++) {
        assert_fails(invar_ledger_backup(ledger, existing, keeps[i]), INVAR_E_INVALID,
                     "there is a file of that name already");
        assert_fails(invar_ledger_backup(ledger, raw_folder, keeps[i]), INVAR_E_INVALID, "already");
        assert_fails(invar_ledger_backup(ledger, raw_path("no/where.db"), keeps[i]), INVAR_E_IO,
                     "");
        // SQLite would apply a log that remains of another file to the copy.
        assert_fails(invar_ledger_backup(ledger, raw_path("orphan.db"), keeps[i]), INVAR_E_INVALID,
                     "already");
        assert_int_not_equal(access(raw_path("taken.partial"), F_OK), 0);
    }
    bytes = raw_read(existing);
    assert_int_equal(bytes.count, 4);
    assert_memory_equal(bytes.data, "mine", 4);
    free(bytes.data);
    invar_ledger_close(ledger);
}

/* ---- copies without old detail --------------------------------------------------------------- */

static const char *const details[] = {"digest",     "stat",    "sample",     "reply",
                                      "timing",     "gauge",   "work",       "reward_part",
                                      "led_sample", "op_time", "kept_sample"};

static void backup_last(const char *to, const char *from, int64_t last, int64_t every)
{
    invar_ledger *ledger = raw_reader(from);

    raw_remove(to);
    assert_ok(invar_ledger_backup(ledger, to, &(invar_ledger_retention){last, every}));
    invar_ledger_close(ledger);
}

/*
 * Counts the rows of `table` in `from` that satisfy `where` and are not in `in` with the same sum.
 */
static int64_t count_missing(const char *table, const char *in, const char *from, const char *where)
{
    sqlite3 *db = raw_open(from);
    char sql[400];
    int64_t out;

    raw_exec(db, "ATTACH '%s' AS shorter", in);
    (void)snprintf(sql, sizeof sql,
                   "SELECT count(*) FROM (SELECT step, seg, sum FROM main.%s WHERE %s EXCEPT "
                   "SELECT step, seg, sum FROM shorter.%s)",
                   table, where, table);
    out = raw_int_of(db, sql);
    sqlite3_close(db);
    return out;
}

static void test_ledger_copy__shortened(void **state)
{
    static const struct {
        int64_t last, every;
        const char *kept;
    } cases[] = {
        {0, 0, "0"},
        {1, 0, "step = 11"},
        {3, 0, "step >= 9"},
        {0, 5, "step % 5 = 0"},
        {2, 4, "(step >= 10 OR step % 4 = 0)"},
        {12, 0, "1"},
        {500, 0, "1"},
    };
    const char *from = ledger_with_run("a.db", &base), *to = raw_path("short.db");
    invar_digest content = raw_content(from, 1), now;
    char rest[96], line[INVAR_LEDGER_SEAL_SIZE], other[INVAR_LEDGER_SEAL_SIZE], sql[200];
    invar_ledger *ledger;

    (void)state;
    seal_of(line, from, NULL);
    for (size_t i = 0; i < COUNT(cases); i++) {
        bool whole = strcmp(cases[i].kept, "1") == 0;
        invar_ledger_verify_result verdict;
        int64_t gone = 0;
        backup_last(to, from, cases[i].last, cases[i].every);
        raw_assert_clean(to);
        verdict = raw_verify(to);
        (void)snprintf(rest, sizeof rest, "NOT (%s)", cases[i].kept);
        for (size_t k = 0; k < COUNT(details); k++) {
            assert_int_equal(count_missing(details[k], to, from, cases[i].kept), 0);
            (void)snprintf(sql, sizeof sql, "SELECT count(*) FROM %s WHERE %s", details[k], rest);
            gone += raw_int(from, sql);
            assert_int_equal(raw_int(to, sql), 0);
        }
        assert_int_equal(verdict.pruned, gone);
        assert_int_equal(gone == 0, whole);
        assert_int_equal(count_missing("metric", to, from, "1"), 0);
        assert_int_equal(count_missing("step", to, from, "1"), 0);
        now = raw_content(to, 1);
        raw_assert_digest(&content, &now);
        ledger = raw_reader(to);
        if (whole) {
            assert_ok(invar_ledger_seal_check(ledger, line));
        } else {
            assert_fails(invar_ledger_seal_check(ledger, line), INVAR_E_STATE,
                         "rows were left out of this copy");
            assert_fails(invar_ledger_seal(other, ledger, 1), INVAR_E_STATE, "use the original");
        }
        invar_ledger_close(ledger);
    }
}

/* Copies in two stages record the same omitted rows as a direct copy. */
static void test_ledger_copy__shortened_again(void **state)
{
    const char *from = ledger_with_run("a.db", &base), *once = raw_path("once.db");
    const char *twice = raw_path("twice.db"), *direct = raw_path("direct.db");
    invar_digest a, b;

    (void)state;
    backup_last(once, from, 6, 0);
    backup_last(twice, once, 2, 0);
    backup_last(direct, from, 2, 0);
    raw_assert_clean(twice);
    a = raw_dump(twice);
    b = raw_dump(direct);
    raw_assert_digest(&a, &b);
    assert_imports(raw_path("import-short.db"), twice, 1);
    assert_int_equal(raw_verify(raw_path("import-short.db")).pruned, raw_verify(direct).pruned);
    a = raw_content(raw_path("import-short.db"), 1);
    b = raw_content(from, 1);
    raw_assert_digest(&a, &b);
    assert_imports(raw_path("import-short.db"), from, 0); // the run exists already
    assert_imports(raw_path("import-short.db"), once, 0);
}

/* A shortened copy can be resumed, and a complete copy can be extended from it. */
static void test_ledger_copy__shortened_goes_on(void **state)
{
    const invar_test_ledger spec = {.steps = 12};
    const char *from = ledger_with_run("a.db", &base), *to = raw_path("goes-on.db");
    const char *whole = raw_path("whole.db");
    invar_ledger *ledger;
    int64_t before;

    (void)state;
    assert_imports(whole, from, 1);
    backup_last(to, from, 3, 0);
    ledger = raw_writer(to);
    assert_ok(invar_test_ledger_resume(ledger, &spec, 12));
    for (int64_t step = 12; step < 18; step++)
        assert_ok(invar_test_ledger_step(ledger, &spec, 2, step));
    invar_ledger_close(ledger);
    raw_assert_clean(to);
    before = raw_verify(to).pruned;
    backup_last(raw_path("goes-on2.db"), to, 2, 0);
    raw_assert_clean(raw_path("goes-on2.db"));
    assert_true(raw_verify(raw_path("goes-on2.db")).pruned > before);
    assert_imports(whole, raw_path("goes-on2.db"), 1);
    assert_int_equal(raw_summary(whole, NULL).last_step, 17);
    assert_int_equal(raw_int(whole, "SELECT count(*) FROM digest WHERE step < 12"), 3 * 14);
    assert_int_equal(raw_int(whole, "SELECT count(*) FROM digest WHERE step >= 12"), 3 * 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_copy__import),
        cmocka_unit_test(test_ledger_copy__import_gives_other_numbers),
        cmocka_unit_test(test_ledger_copy__import_extends),
        cmocka_unit_test(test_ledger_copy__import_of_another_history),
        cmocka_unit_test(test_ledger_copy__import_of_damage),
        cmocka_unit_test(test_ledger_copy__import_beside_a_run),
        cmocka_unit_test(test_ledger_copy__backup_of_a_live_ledger),
        cmocka_unit_test(test_ledger_copy__backup_overwrites_nothing),
        cmocka_unit_test(test_ledger_copy__shortened),
        cmocka_unit_test(test_ledger_copy__shortened_again),
        cmocka_unit_test(test_ledger_copy__shortened_goes_on),
    };

    return cmocka_run_group_tests(tests, raw_setup, raw_teardown);
}
