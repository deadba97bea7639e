/*
 * ledger_flip.c - single bits of a ledger's files are flipped, and the files are cut short.
 *
 * An independent reader in this file, plain SQL on the raw file, dumps every table and index before
 * and after the damage. Whenever the dump changes, or fails, the ledger must refuse to open or
 * verify must report a problem. For comparison, the test also counts how much of that damage
 * SQLite's own integrity check finds. Control: the undamaged files verify.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "ledger/ledger.h"
#include "tests/fault/ledger/ledger_scenario.h"
#include "tests/ledger.h"
#include "tests/no_sync.h"
#include "tests/support.h"

static char folder[] = INVAR_TEST_WORK "/ledger_flip-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[4][512];
    static int next;
    char *out = path[next++ % 4];

    (void)snprintf(out, sizeof path[0], "%s/%s", folder, name);
    return out;
}

/* ---- files ----------------------------------------------------------------------------------- */

typedef struct bytes {
    unsigned char *data;
    size_t count;
} bytes;

static bytes read_file(const char *path)
{
    bytes out = {NULL, 0};
    FILE *file = fopen(path, "r");

    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    out.count = (size_t)ftell(file);
    out.data = malloc(out.count + 1);
    rewind(file);
    assert_int_equal(fread(out.data, 1, out.count, file), out.count);
    fclose(file);
    return out;
}

static void write_file(const char *path, const unsigned char *data, size_t count)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* ---- an independent reader ------------------------------------------------------------------- */

/* Every table in the order of storage, then the columns that only an index holds. */
static const char *const dumps[] = {
    "PRAGMA application_id",
    "PRAGMA user_version",
    "SELECT type, name, tbl_name, sql FROM sqlite_schema",
    "SELECT * FROM entry",
    "SELECT * FROM run",
    "SELECT * FROM identity",
    "SELECT * FROM segment",
    "SELECT * FROM finish",
    "SELECT * FROM fact",
    "SELECT * FROM object",
    "SELECT * FROM step",
    "SELECT * FROM series",
    "SELECT * FROM metric",
    "SELECT * FROM manifest",
    "SELECT * FROM point",
    "SELECT rowid, * FROM digest",
    "SELECT * FROM stat",
    "SELECT * FROM sample",
    "SELECT rowid, * FROM reply",
    "SELECT * FROM evaluation",
    "SELECT * FROM checkpoint",
    "SELECT * FROM seal",
    "SELECT * FROM timing",
    "SELECT * FROM work",
    "SELECT * FROM reward_parts",
    "SELECT * FROM gauge",
    "SELECT * FROM event",
    "SELECT * FROM pruned",
    "SELECT uuid, run FROM run ORDER BY uuid",
    "SELECT run, hash, rowid FROM object ORDER BY run, hash",
    "SELECT name, series FROM series ORDER BY name",
    "SELECT hash, manifest FROM manifest ORDER BY hash",
    "SELECT manifest, name, ord FROM point ORDER BY manifest, name",
    "SELECT run, step, seg, rank, rowid FROM digest ORDER BY run, step, seg, rank",
    "SELECT run, step, seg, plugin, call, rowid FROM reply ORDER BY run, step, seg, plugin, call",
    "SELECT run, step, entry, i FROM event ORDER BY run, step",
};

static void hash_column(invar_hasher *hasher, sqlite3_stmt *stmt, int i)
{
    int type = sqlite3_column_type(stmt, i), length;
    const void *data = sqlite3_column_blob(stmt, i); // the text of a number

    length = sqlite3_column_bytes(stmt, i);
    invar_hasher_update(hasher, &type, sizeof type);
    invar_hasher_update(hasher, &length, sizeof length);
    invar_hasher_update(hasher, data, (size_t)length);
    if (type == SQLITE_FLOAT) {
        double value = sqlite3_column_double(stmt, i);
        invar_hasher_update(hasher, &value, sizeof value);
    }
}

static bool dump_one(invar_hasher *hasher, sqlite3 *db, const char *sql)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &stmt, NULL);

    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(stmt);
        for (int i = 0; rc == SQLITE_ROW && i < sqlite3_column_count(stmt); i++)
            hash_column(hasher, stmt, i);
    }
    sqlite3_finalize(stmt);
    invar_hasher_update(hasher, sql, 8); // separates one dump from the next
    return rc == SQLITE_DONE;
}

static sqlite3 *open_raw(const char *path)
{
    char uri[600];
    sqlite3 *db;

    (void)snprintf(uri, sizeof uri, "file:%s?immutable=1", path);
    assert_int_equal(sqlite3_open_v2(uri, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL),
                     SQLITE_OK);
    return db;
}

/* Writes the digest of all dumps. Returns false if a part of the file cannot be read. */
static bool dump(invar_digest *out, const char *path)
{
    sqlite3 *db = open_raw(path);
    invar_hasher hasher;
    bool readable = true;

    invar_hasher_init(&hasher);
    for (size_t i = 0; i < sizeof dumps / sizeof dumps[0] && readable; i++)
        readable = dump_one(&hasher, db, dumps[i]);
    invar_hasher_final(out, &hasher);
    sqlite3_close(db);
    return readable;
}

static bool integrity_check_finds(const char *path)
{
    sqlite3 *db = open_raw(path);
    sqlite3_stmt *stmt = NULL;
    bool ok;

    ok = sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &stmt, NULL) == SQLITE_OK &&
         sqlite3_step(stmt) == SQLITE_ROW &&
         strcmp((const char *)sqlite3_column_text(stmt, 0), "ok") == 0;
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return !ok;
}

/* Returns true if the ledger refuses to open, or verify reports a problem. */
static bool ledger_finds(const char *path)
{
    invar_ledger_verify_result verdict;
    invar_ledger *ledger;
    invar_status status;

    invar_error_clear();
    if (invar_ledger_open(&ledger, path, NULL) != INVAR_OK) {
        assert_true(invar_error_last()->message[0] != '\0');
        return true;
    }
    status = invar_ledger_verify(&verdict, ledger, NULL, NULL);
    invar_ledger_close(ledger);
    if (status != INVAR_OK)
        assert_int_equal(status, INVAR_E_CORRUPT);
    assert_int_equal(verdict.problems > 0, verdict.first_problem[0] != '\0');
    return status != INVAR_OK || verdict.problems > 0;
}

/* ---- results of damage ----------------------------------------------------------------------- */

typedef struct tally {
    int64_t tried, changed, named, checked, unchanged_named;
} tally;

/* Counts one trial. `path` holds a damaged copy of a file whose dump was `before`. */
static void tally_trial(tally *t, const char *path, const invar_digest *before, const char *what)
{
    invar_digest after;
    bool changed = !dump(&after, path) || !invar_digest_equal(&after, before);
    bool named = ledger_finds(path);

    t->tried++;
    t->changed += changed;
    t->named += changed && named;
    t->checked += changed && integrity_check_finds(path);
    t->unchanged_named += !changed && named;
    if (changed && !named)
        print_error("%s changed what a reader sees, and nobody noticed\n", what);
}

static void report_tally(const char *name, const char *damage, const tally *t)
{
    print_message("%s: %d of %d %s changed content, verify named %d, integrity_check %d; "
                  "of %d that changed none verify named %d\n",
                  name, (int)t->changed, (int)t->tried, damage, (int)t->named, (int)t->checked,
                  (int)(t->tried - t->changed), (int)t->unchanged_named);
    assert_int_equal(t->named, t->changed);
}

static void check_undamaged(invar_digest *before, const char *path)
{
    assert_true(dump(before, path));
    assert_false(integrity_check_finds(path));
    assert_false(ledger_finds(path));
}

/* Flips random bits, one per trial, until `wanted` of them have changed what the reader sees. */
static void flip_bits(const char *name, int64_t wanted, uint64_t seed)
{
    bytes file = read_file(path_of(name));
    const char *damaged = path_of("damaged.db");
    char what[80];
    invar_digest before;
    tally t = {0};

    check_undamaged(&before, path_of(name));
    while (t.changed < wanted) {
        uint64_t random = (uint64_t)invar_test_random(seed, 2 * (uint64_t)t.tried) << 32 |
                          invar_test_random(seed, 2 * (uint64_t)t.tried + 1);
        size_t offset = random / 8 % file.count;
        unsigned bit = (unsigned)(random % 8);
        file.data[offset] ^= (unsigned char)(1u << bit);
        write_file(damaged, file.data, file.count);
        (void)snprintf(what, sizeof what, "%s: bit %u of byte %zu", name, bit, offset);
        tally_trial(&t, damaged, &before, what);
        file.data[offset] ^= (unsigned char)(1u << bit);
    }
    report_tally(name, "flips", &t);
    free(file.data);
}

static void cut_file(const char *name, int64_t cuts, uint64_t seed)
{
    bytes file = read_file(path_of(name));
    const char *damaged = path_of("damaged.db");
    char what[80];
    invar_digest before;
    tally t = {0};

    check_undamaged(&before, path_of(name));
    for (int64_t i = 0; i < cuts; i++) {
        size_t length = invar_test_random(seed, (uint64_t)i) % file.count;
        if (i % 2)
            length -= length % 4096; // cut at a page boundary
        write_file(damaged, file.data, length);
        (void)snprintf(what, sizeof what, "%s: its first %zu bytes", name, length);
        tally_trial(&t, damaged, &before, what);
    }
    report_tally(name, "cuts", &t);
    assert_true(t.changed > cuts / 2);
    free(file.data);
}

/* ---- the ledgers ----------------------------------------------------------------------------- */

/*
 * Writes two ledgers. In whole.db every table but `pruned` has rows; short.db is a copy without old
 * detail, whose table `pruned` has rows.
 */
static int make_ledgers(void **state)
{
    const invar_ledger_retention keep = {.last_steps = 3, .every_n_steps = 0};
    char seal[INVAR_LEDGER_SEAL_SIZE];
    invar_ledger *ledger;

    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_ok(invar_test_ledger_write(
        path_of("whole.db"),
        &(invar_test_ledger){
            .steps = 16, .crash = 13, .resume = 10, .faults = {{.kind = INVAR_TEST_DIRTY}}}));
    assert_ok(
        invar_ledger_open(&ledger, path_of("whole.db"), &(invar_ledger_options){.write = true}));
    assert_ok(invar_ledger_seal(seal, ledger, 1));
    invar_ledger_close(ledger);
    assert_ok(invar_ledger_open(&ledger, path_of("whole.db"), NULL));
    assert_ok(invar_ledger_backup(ledger, path_of("short.db"), &keep));
    invar_ledger_close(ledger);
    return 0;
}

static void test_ledger_flip__every_changed_bit_is_named(void **state)
{
    (void)state;
    flip_bits("whole.db", invar_test_count(16, 4000), 1);
}

static void test_ledger_flip__in_a_shortened_copy_too(void **state)
{
    (void)state;
    flip_bits("short.db", invar_test_count(6, 500), 2);
}

static void test_ledger_flip__every_cut_is_named(void **state)
{
    (void)state;
    cut_file("whole.db", invar_test_count(10, 500), 3);
}

/* ---- the write-ahead log --------------------------------------------------------------------- */

/*
 * Copies the files of a ledger whose writer has not closed it: the database, and its write-ahead
 * log with all steps.
 */
static void make_open_ledger(bytes *file, bytes *log)
{
    const invar_ledger_options create = {.create = true};
    scenario s;

    scenario_init(&s, path_of("live.db"));
    assert_ok(invar_ledger_open(&s.ledger, s.path, &create));
    assert_ok(scenario_begin(s.ledger));
    assert_ok(scenario_define(s.ledger));
    while (s.steps < SCENARIO_STEPS)
        assert_ok(scenario_append_next(&s));
    *file = read_file(s.path);
    *log = read_file(path_of("live.db-wal"));
    scenario_close(&s);
}

/*
 * Opens a ledger with a damaged log. SQLite uses the valid prefix of a log, so the run may have
 * lost its last steps only, and must resume. Returns the number of steps left plus the one
 * appended.
 */
static int64_t check_prefix(const char *path)
{
    invar_ledger_verify_result verdict;
    invar_ledger_summary summary;
    invar_ledger *ledger;
    invar_digest expected;
    int64_t last = -1;

    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.write = true}));
    assert_ok(invar_ledger_verify(&verdict, ledger, NULL, NULL));
    if (verdict.problems != 0)
        fail_msg("%s", verdict.first_problem);
    if (invar_ledger_find(&summary, ledger, NULL) == INVAR_OK) {
        last = summary.last_step;
        expected = scenario_chain(last);
        assert_memory_equal(&summary.chain, &expected, sizeof expected);
        assert_ok(scenario_resume(ledger, last));
    } else {
        assert_ok(scenario_begin(ledger));
    }
    assert_ok(scenario_define(ledger));
    assert_ok(scenario_append(ledger, last + 1));
    invar_ledger_close(ledger);
    return last + 1;
}

static void damage_log(int64_t trials, bool cut, uint64_t seed)
{
    int64_t max_steps = 0, min_steps = SCENARIO_STEPS;
    bytes file, log;
    scenario s;

    make_open_ledger(&file, &log);
    for (int64_t i = 0; i <= trials; i++) {
        size_t offset = invar_test_random(seed, (uint64_t)i) % log.count, length = log.count;
        unsigned char mask = (unsigned char)(1u << invar_test_random(seed + 1, (uint64_t)i) % 8);
        int64_t steps;
        if (cut)
            length = i == 0 ? length : i == 1 ? 0 : offset;
        else
            log.data[offset] ^= mask;
        scenario_init(&s, path_of("damaged.db")); // removes the files of the previous trial
        write_file(s.path, file.data, file.count);
        write_file(path_of("damaged.db-wal"), log.data, length);
        steps = check_prefix(s.path);
        max_steps = steps > max_steps ? steps : max_steps;
        min_steps = steps < min_steps ? steps : min_steps;
        if (!cut)
            log.data[offset] ^= mask;
    }
    print_message("log %s: from %d to %d steps of %d are left, always the first\n",
                  cut ? "cut" : "with a flip", (int)min_steps, (int)max_steps, SCENARIO_STEPS);
    assert_true(min_steps < max_steps);
    free(file.data);
    free(log.data);
}

static void test_ledger_flip__a_damaged_log_leaves_the_first_steps(void **state)
{
    (void)state;
    damage_log(invar_test_count(10, 500), true, 4);
    damage_log(invar_test_count(10, 500), false, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_flip__every_changed_bit_is_named),
        cmocka_unit_test(test_ledger_flip__in_a_shortened_copy_too),
        cmocka_unit_test(test_ledger_flip__every_cut_is_named),
        cmocka_unit_test(test_ledger_flip__a_damaged_log_leaves_the_first_steps),
    };

    return cmocka_run_group_tests(tests, make_ledgers, NULL);
}
