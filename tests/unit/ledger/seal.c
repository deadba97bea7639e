/*
 * seal.c - tests of seals, the lines that pin the contents of a run.
 *
 * A seal stays valid while its run grows, and detects what the digests inside a ledger cannot: a
 * removed last step, a removed run, another history. Its SHA-256 is compared with the program
 * sha256sum over bytes that this file writes from the definition. Control: every changed seal line
 * is rejected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/raw_ledger.h"

static const invar_test_ledger spec = {.steps = 6};

/* Creates a ledger with a run of three steps and returns its writer. */
static invar_ledger *new_run(const char *name)
{
    invar_ledger *ledger;

    raw_remove(raw_path(name));
    ledger = raw_writer(raw_path(name));
    assert_ok(invar_test_ledger_begin(ledger, &spec));
    for (int64_t step = 0; step < 3; step++)
        assert_ok(invar_test_ledger_step(ledger, &spec, 0, step));
    return ledger;
}

static invar_status check_seal(const char *path, const char *line)
{
    invar_ledger *ledger = raw_reader(path);
    invar_status status = invar_ledger_seal_check(ledger, line);

    invar_ledger_close(ledger);
    return status;
}

/* ---- the line -------------------------------------------------------------------------------- */

static void test_ledger_seal__says_what_it_pins(void **state)
{
    char line[INVAR_LEDGER_SEAL_SIZE], again[INVAR_LEDGER_SEAL_SIZE], expected[128];
    char content[INVAR_DIGEST_HEX_SIZE], integrity[INVAR_DIGEST_HEX_SIZE];
    const char *path = raw_path("line.db");
    invar_ledger_summary summary;
    invar_ledger *ledger = new_run("line.db");
    invar_digest digest;

    (void)state;
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
    invar_ledger_close(ledger);
    summary = raw_summary(path, NULL);
    digest = raw_content(path, 1);
    invar_digest_format(content, &digest);
    invar_digest_format(integrity, &summary.integrity);
    (void)snprintf(expected, sizeof expected, "invar-seal 1 %s %" PRId64 " %s ", summary.uuid,
                   summary.entries, content);
    ledger = raw_reader(path);
    assert_ok(invar_ledger_seal(line, ledger, 1));
    assert_ok(invar_ledger_seal(again, ledger, 1));
    invar_ledger_close(ledger);
    assert_string_equal(line, again); // a reader stores nothing
    assert_int_equal(raw_int(path, "SELECT count(*) FROM seal"), 0);
    assert_memory_equal(line, expected, strlen(expected));
    assert_memory_equal(line + strlen(expected), integrity, 32);
    assert_int_equal(strlen(line), strlen(expected) + 33 + 64);
    assert_int_equal(strspn(line + strlen(line) - 64, "0123456789abcdef"), 64);
    assert_ok(check_seal(path, line));
}

/* A seal covers the entries at its time and stays valid while the run continues. */
static void test_ledger_seal__stays_true(void **state)
{
    char lines[3][INVAR_LEDGER_SEAL_SIZE];
    const char *path = raw_path("on.db");
    invar_ledger *ledger = new_run("on.db");
    invar_ledger_verify_result verdict;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_ok(invar_ledger_seal(lines[i], ledger, 1));
        for (int k = 0; k <= i; k++)
            assert_ok(invar_ledger_seal_check(ledger, lines[k]));
        if (i < 2)
            assert_ok(invar_test_ledger_step(ledger, &spec, 0, 3 + i));
        else
            assert_ok(invar_ledger_finish(ledger, 0, "done"));
    }
    assert_ok(invar_ledger_seal(lines[2], ledger, 1)); // a finished run can be sealed
    invar_ledger_close(ledger);
    ledger = raw_writer(path); // a writer can seal a run that it has not begun
    assert_ok(invar_ledger_seal(lines[1], ledger, 1));
    assert_ok(invar_test_ledger_resume(ledger, &spec, 5));
    assert_ok(invar_test_ledger_step(ledger, &spec, 1, 5));
    invar_ledger_close(ledger);
    for (int i = 0; i < 3; i++)
        assert_ok(check_seal(path, lines[i]));
    verdict = raw_verify(path);
    assert_int_equal(verdict.problems, 0);
    assert_int_equal(verdict.seals, 5);
    // Verify recomputes stored seals, so a damaged one is found without the line.
    raw_tamper(path, "UPDATE seal SET sha256 = flip(sha256) WHERE entry = (SELECT max(entry) FROM "
                     "seal)");
    assert_true(raw_verify(path).problems > 0);
    assert_int_equal(raw_verify(path).seals, 4);
}

static void test_ledger_seal__other_lines(void **state)
{
    char line[INVAR_LEDGER_SEAL_SIZE], other[INVAR_LEDGER_SEAL_SIZE + 8];
    const char *path = raw_path("other.db");
    invar_ledger *ledger = new_run("other.db");
    size_t length;

    (void)state;
    assert_ok(invar_ledger_seal(line, ledger, 1));
    length = strlen(line);
    for (size_t i = 0; i < length; i++) {
        static const char replaced[] = "0123456789abcdefg F\n";
        for (size_t k = 0; k < sizeof replaced - 1; k += (size_t)invar_test_count(5, 1)) {
            invar_status status;
            (void)snprintf(other, sizeof other, "%s", line);
            other[i] = replaced[(k + i) % (sizeof replaced - 1)];
            if (other[i] == line[i])
                continue;
            status = invar_ledger_seal_check(ledger, other);
            if (status != INVAR_E_MISMATCH && status != INVAR_E_INVALID)
                fail_msg("\"%s\": %s", other, invar_status_name(status));
        }
        (void)snprintf(other, sizeof other, "%.*s", (int)i, line); // truncated line
        assert_int_not_equal(invar_ledger_seal_check(ledger, other), INVAR_OK);
    }
    (void)snprintf(other, sizeof other, "%s0", line);
    assert_fails(invar_ledger_seal_check(ledger, other), INVAR_E_MISMATCH, "is not what the seal");
    (void)snprintf(other, sizeof other, " %s", line);
    assert_fails(invar_ledger_seal_check(ledger, other), INVAR_E_INVALID, "not a seal");
    (void)snprintf(other, sizeof other, "%s\r\n", line); // line end of a file or a git note
    assert_ok(invar_ledger_seal_check(ledger, other));
    assert_fails(invar_ledger_seal_check(ledger, "\x1b[2J"), INVAR_E_INVALID, "\"?[2J\"");
    (void)snprintf(other, sizeof other, "%s", line);
    other[13] = other[13] == 'a' ? 'b' : 'a'; // changes the uuid
    assert_fails(invar_ledger_seal_check(ledger, other), INVAR_E_MISMATCH, "is not in it");
    invar_ledger_close(ledger);
    assert_ok(check_seal(path, line));
}

/* ---- changes that verify alone cannot find --------------------------------------------------- */

/* A run without its last step is valid by itself; only the seal shows that the end is missing. */
static void test_ledger_seal__cut_tail(void **state)
{
    static const char last_step[] =
        "DELETE FROM metric WHERE step = 2; DELETE FROM gauge WHERE step = 2; "
        "DELETE FROM digest WHERE step = 2; DELETE FROM stat WHERE step = 2; "
        "DELETE FROM sample WHERE step = 2; DELETE FROM reply WHERE step = 2; "
        "DELETE FROM timing WHERE step = 2; DELETE FROM event WHERE step = 2; "
        "DELETE FROM work WHERE step = 2; "
        "DELETE FROM reward_part WHERE step = 2; DELETE FROM led_sample WHERE step = 2; "
        "DELETE FROM op_time WHERE step = 2; "
        "DELETE FROM kept_sample WHERE step = 2; "
        "DELETE FROM step WHERE step = 2; "
        "DELETE FROM entry WHERE n = (SELECT max(n) FROM entry)";
    char line[INVAR_LEDGER_SEAL_SIZE];
    const char *path = raw_path("tail.db");
    invar_ledger *ledger = new_run("tail.db");

    (void)state;
    invar_ledger_close(ledger);
    ledger = raw_reader(path);
    assert_ok(invar_ledger_seal(line, ledger, 1));
    invar_ledger_close(ledger);
    assert_ok(check_seal(path, line));
    raw_tamper(path, last_step);
    assert_int_equal(raw_summary(path, NULL).last_step, 1);
    raw_assert_clean(path);
    assert_fails(check_seal(path, line), INVAR_E_MISMATCH, "its end is missing");
}

static void test_ledger_seal__run_removed(void **state)
{
    char line[INVAR_LEDGER_SEAL_SIZE];
    const char *path = raw_path("gone.db");
    sqlite3 *db;
    raw_names tables;
    invar_ledger *ledger;

    (void)state;
    for (uint64_t seed = 0; seed < 2; seed++)
        assert_ok(invar_test_ledger_add(path, &(invar_test_ledger){.steps = 3, .seed = seed}));
    ledger = raw_reader(path);
    assert_ok(invar_ledger_seal(line, ledger, 2));
    invar_ledger_close(ledger);
    db = raw_open(path);
    tables = raw_tables(db);
    for (int i = 0; i < tables.count; i++)
        if (strcmp(tables.at[i], "series") != 0 && strcmp(tables.at[i], "manifest") != 0 &&
            strcmp(tables.at[i], "point") != 0)
            raw_exec(db, "DELETE FROM %s WHERE run = 2", tables.at[i]);
    sqlite3_close(db);
    raw_assert_clean(path);
    assert_fails(check_seal(path, line), INVAR_E_MISMATCH, "is not in it");
}

/* Two valid runs of equal length with a common beginning: each seal accepts only its own run. */
static void test_ledger_seal__other_history(void **state)
{
    const invar_test_ledger other = {.steps = 6, .seed = 1};
    char lines[2][INVAR_LEDGER_SEAL_SIZE];
    const char *paths[] = {raw_path("mine.db"), raw_path("theirs.db")};
    invar_ledger *ledger = new_run("mine.db");

    (void)state;
    invar_ledger_close(ledger);
    raw_copy(paths[1], paths[0]);
    for (int i = 0; i < 2; i++) {
        ledger = raw_writer(paths[i]);
        assert_ok(invar_test_ledger_resume(ledger, &spec, 3));
        assert_ok(invar_test_ledger_step(ledger, i ? &other : &spec, 1, 3));
        invar_ledger_close(ledger);
        ledger = raw_reader(paths[i]);
        assert_ok(invar_ledger_seal(lines[i], ledger, 1));
        invar_ledger_close(ledger);
        raw_assert_clean(paths[i]);
    }
    assert_memory_equal(lines[0], lines[1], 13 + 32 + 2); // equal up to uuid and number of entries
    for (int i = 0; i < 2; i++) {
        assert_ok(check_seal(paths[i], lines[i]));
        assert_fails(check_seal(paths[i], lines[1 - i]), INVAR_E_MISMATCH,
                     "is not what the seal says");
    }
}

/* ---- SHA-256 from the definition, by the program sha256sum ----------------------------------- */

static void spell_column(raw_spelling *s, const char *path, const char *text)
{
    char blob[64];

    raw_spell_blob(s, blob, raw_blob(blob, sizeof blob, path, text));
}

static void spell_entries(raw_spelling *s, const char *path)
{
    for (int n = 0; n < 2; n++) {
        static const char *const numbers[] = {"ns", "rows", "total"};
        char text[96];
        raw_spell_number(s, 1, (uint64_t)n);
        raw_spell_text(s, n ? "step" : "begin");
        for (int i = 0; i < 3; i++) {
            (void)snprintf(text, sizeof text, "SELECT %s FROM entry WHERE n = %d", numbers[i], n);
            raw_spell_number(s, 1, (uint64_t)raw_int(path, text));
        }
        (void)snprintf(text, sizeof text, "SELECT chain FROM entry WHERE n = %d", n);
        spell_column(s, path, text);
    }
}

/* Writes the rows in canonical order: run, segment, step and digests. */
static void spell_rows(raw_spelling *s, const char *path)
{
    static const char *const hashes[] = {"batch", "rng", "root", "chain", "content"};
    char text[96], uuid[33] = "";

    (void)raw_blob(uuid, 32, path, "SELECT uuid FROM run");
    raw_spell_text(s, "run");
    raw_spell_number(s, 1, 0);
    raw_spell_text(s, uuid);
    raw_spell_text(s, "n");
    raw_spell_text(s, "ci");
    spell_column(s, path, "SELECT identity FROM run");
    raw_spell_bytes(s, "\0\0", 2); // no parent and no fork step
    raw_spell_text(s, "segment");
    raw_spell_number(s, 1, 0);
    raw_spell_number(s, 1, 0);
    raw_spell_number(s, 1, UINT64_MAX); // after_step is -1
    spell_column(s, path, "SELECT zeroblob(16)");
    raw_spell_text(s, "step");
    raw_spell_number(s, 1, 0);
    raw_spell_number(s, 1, 0);
    raw_spell_number(s, 1, 1); // number of the entry
    raw_spell_number(s, 1, 5); // weights version
    for (size_t i = 0; i < COUNT(hashes); i++) {
        (void)snprintf(text, sizeof text, "SELECT %s FROM step", hashes[i]);
        spell_column(s, path, text);
    }
    raw_spell_text(s, "digest");
    raw_spell_number(s, 1, 0);
    raw_spell_number(s, 1, 0);
    raw_spell_number(s, 1, 0);
    spell_column(s, path, "SELECT hash FROM manifest");
    spell_column(s, path, "SELECT data FROM digest");
}

static void spell_point(raw_spelling *s)
{
    raw_spell_number(s, 1, 0);
    raw_spell_text(s, "embed.out");
    raw_spell_text(s, "forward");
    raw_spell_bytes(s, "", 1); // no layer
    raw_spell_text(s, "embed");
    raw_spell_text(s, "act");
    raw_spell_number(s, 1, 0);
    raw_spell_text(s, "bf16");
    raw_spell_text(s, "[4,8]");
    raw_spell_number(s, 1, 2);
    raw_spell_number(s, 1, 1);
    raw_spell_text(s, "[]");
}

static void test_ledger_seal__is_what_sha256sum_says(void **state)
{
    static const int64_t shape[] = {4, 8};
    static const invar_digest digest = {{7}};
    const invar_ledger_point point = {"embed.out", "forward", -1, "embed", "act", 0, "bf16",
                                      shape,       2,         2,  true,    NULL,  0};
    const char *path = raw_path("sha.db");
    char line[INVAR_LEDGER_SEAL_SIZE], command[1024], sum[65] = "";
    raw_spelling s = {.count = 0};
    invar_ledger *ledger = raw_writer(path);
    FILE *stream;

    (void)state;
    assert_ok(invar_ledger_begin(
        ledger,
        &(invar_ledger_run){.name = "n", .kind = "ci", .circumstances = {.no_auto_facts = true}}));
    assert_ok(invar_ledger_define(ledger, &point, 1));
    assert_ok(invar_ledger_append(ledger,
                                  &(invar_ledger_step){.weights_version = 5, .digests = &digest}));
    invar_ledger_close(ledger);
    ledger = raw_reader(path);
    assert_ok(invar_ledger_seal(line, ledger, 1));
    invar_ledger_close(ledger);
    spell_entries(&s, path);
    spell_rows(&s, path);
    spell_point(&s);
    raw_write(raw_path("sealed"), s.data, s.count);
    (void)snprintf(command, sizeof command, "sha256sum < '%s'", raw_path("sealed"));
    stream = popen(command, "r");
    assert_non_null(stream);
    assert_int_equal(fread(sum, 1, 64, stream), 64);
    (void)pclose(stream);
    assert_string_equal(line + strlen(line) - 64, sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_seal__says_what_it_pins),
        cmocka_unit_test(test_ledger_seal__stays_true),
        cmocka_unit_test(test_ledger_seal__other_lines),
        cmocka_unit_test(test_ledger_seal__cut_tail),
        cmocka_unit_test(test_ledger_seal__run_removed),
        cmocka_unit_test(test_ledger_seal__other_history),
        cmocka_unit_test(test_ledger_seal__is_what_sha256sum_says),
    };

    return cmocka_run_group_tests(tests, raw_setup, raw_teardown);
}
