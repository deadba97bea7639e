/*
 * open.c - tests of opening a ledger: invalid files, permissions, network file systems.
 *
 * A rejected file must keep its bytes. Permissions are tested by children of another user, which
 * needs root; otherwise these tests are skipped. This file replaces statfs(2), so that a folder can
 * appear to be on a network. Control: maintenance by the sqlite3 shell keeps a ledger valid.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // syscall

#include <errno.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "ledger/store/ledger_file.h"
#include "tests/unit/ledger/raw_ledger.h"

enum { NOBODY = 65534 };

static const invar_test_ledger three_steps = {.steps = 3};

static int make_base(void **state)
{
    if (raw_setup(state) != 0)
        return -1;
    assert_ok(invar_test_ledger_write(raw_path("base.db"), &three_steps));
    return 0;
}

/* ---- files that are not ledgers -------------------------------------------------------------- */

static void assert_rejected(const char *path, const invar_ledger_options *options,
                            invar_status status, const char *text)
{
    invar_digest before = raw_hash(path), after;
    invar_ledger *ledger = NULL;

    assert_fails(invar_ledger_open(&ledger, path, options), status, text);
    // The second call must not differ.
    assert_fails(invar_ledger_open(&ledger, path, options), status, text);
    assert_null(ledger);
    after = raw_hash(path);
    raw_assert_digest(&before, &after);
}

/* Asserts that a reader, a writer and a writer that may create the file all reject it. */
static void assert_no_ledger(const char *path, invar_status status, const char *text)
{
    assert_rejected(path, NULL, status, text);
    assert_rejected(path, &raw_write_options, status, text);
    assert_rejected(path, &raw_create_options, status, text);
}

static void test_ledger_open__nothing_there(void **state)
{
    const char *path = raw_path("missing.db");
    invar_ledger *ledger = NULL;

    (void)state;
    assert_fails(invar_ledger_open(&ledger, path, NULL), INVAR_E_NOTFOUND, "there is no such file");
    assert_fails(invar_ledger_open(&ledger, path, &raw_write_options), INVAR_E_NOTFOUND,
                 "there is no such file");
    assert_int_not_equal(access(path, F_OK), 0);
    assert_fails(invar_ledger_open(&ledger, raw_path("no/such/folder.db"), &raw_create_options),
                 INVAR_E_IO, "No such file or directory");
    assert_fails(invar_ledger_open(&ledger, "", NULL), INVAR_E_INVALID, "the path is empty");
    assert_null(ledger);
}

static void test_ledger_open__no_file(void **state)
{
    static const struct {
        const char *path, *text;
    } cases[] = {{raw_folder, "it is a folder"}, {"/dev/null", "it is a device"}};
    invar_ledger *ledger = NULL;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_fails(invar_ledger_open(&ledger, cases[i].path, NULL), INVAR_E_INVALID,
                     cases[i].text);
        assert_fails(invar_ledger_open(&ledger, cases[i].path, &raw_create_options),
                     INVAR_E_INVALID, cases[i].text);
    }
}

static void test_ledger_open__path_too_long(void **state)
{
    static const size_t lengths[] = {200, 255, 256, 4000, 4096, 5000, 20000};
    const invar_ledger_options *options[] = {NULL, &raw_create_options};
    char writer[INVAR_LEDGER_WRITER_SIZE], *path = malloc(32768);
    size_t folder = strlen(raw_folder);
    invar_ledger *ledger = NULL;

    (void)state;
    for (size_t i = 0; i < COUNT(lengths); i++) {
        (void)snprintf(path, 32768, "%s/%0*d", raw_folder, (int)lengths[i], 0);
        assert_int_equal(strlen(path), folder + 1 + lengths[i]);
        for (size_t k = i == 0; k < 2; k++) { // a name of 200 bytes can be created
            invar_status status = invar_ledger_open(&ledger, path, options[k]);
            if (lengths[i] <= 200) {
                invar_assert_status(status, INVAR_OK, path, __FILE__, __LINE__);
                invar_ledger_close(ledger);
                ledger = NULL;
            } else if (!(lengths[i] <= 255 && k == 0 && status == INVAR_E_NOTFOUND)) {
                assert_true(status == INVAR_E_IO || status == INVAR_E_INVALID);
                invar_assert_message("too long", __FILE__, __LINE__);
            }
        }
    }
    assert_fails(invar_ledger_writer(writer, path), INVAR_E_INVALID, "too long");
    free(path);
}

static void test_ledger_open__files_of_others(void **state)
{
    static const struct {
        const char *name, *bytes, *text;
        size_t count;
    } cases[] = {
        {"text", "# notes\nNothing to see here, but rather a lot of it.\n", "it is no ledger", 52},
        {"byte", "S", "a file of one byte", 1},
        {"zeros", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "it is no ledger", 16},
    };
    const char *path;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        path = raw_path(cases[i].name);
        raw_write(path, cases[i].bytes, cases[i].count);
        assert_no_ledger(path, INVAR_E_CORRUPT, cases[i].text);
    }
    path = raw_path("foreign.db");
    raw_tamper(path, "CREATE TABLE t(x); INSERT INTO t VALUES(1)");
    assert_no_ledger(path, INVAR_E_CORRUPT, "an SQLite file of another program");

    // An empty file, as a writer leaves it that was killed at once: only create may use it.
    path = raw_path("empty.db");
    raw_write(path, "", 0);
    assert_rejected(path, NULL, INVAR_E_CORRUPT, "an empty file, not a ledger");
    assert_rejected(path, &raw_write_options, INVAR_E_CORRUPT, "not a ledger");
    assert_ok(invar_test_ledger_write(path, &three_steps));
    raw_assert_clean(path);
}

static void test_ledger_open__truncated_file(void **state)
{
    raw_bytes base = raw_read(raw_path("base.db"));
    const size_t lengths[] = {99, 100, 512, 4095, 4096, 8192, base.count / 2};
    invar_ledger_verify_result verdict;
    const char *path = raw_path("truncated.db");
    invar_ledger *ledger;

    (void)state;
    for (size_t i = 0; i < COUNT(lengths); i++) {
        raw_remove(path);
        raw_write(path, base.data, lengths[i]);
        assert_rejected(path, NULL, INVAR_E_CORRUPT, path);
        assert_rejected(path, &raw_write_options, INVAR_E_CORRUPT, path);
    }
    // Only the last page is missing: the schema is readable, so verify must find it.
    raw_remove(path);
    raw_write(path, base.data, base.count - 4096);
    if (invar_ledger_open(&ledger, path, NULL) == INVAR_OK) {
        assert_fails(invar_ledger_verify(&verdict, ledger, NULL, NULL), INVAR_E_CORRUPT, path);
        assert_true(verdict.problems > 0);
        invar_ledger_close(ledger);
    } else {
        assert_int_equal(invar_error_last()->status, INVAR_E_CORRUPT);
    }
    free(base.data);
}

/* ---- changed schemas ------------------------------------------------------------------------- */

/*
 * Adds an object with a name that SQLite reserves, such as sqlite_evil; only forged files have one.
 */
#define SMUGGLE(type, name, table, text)                                                           \
    "PRAGMA writable_schema = ON; INSERT INTO sqlite_schema VALUES('" type "', '" name             \
    "', '" table "', 0, '" text "')"

static void test_ledger_open__other_schemas(void **state)
{
    static const struct {
        const char *sql;
        invar_status status;
        const char *text;
    } cases[] = {
        {"PRAGMA user_version = 99", INVAR_E_UNSUPPORTED, "version 99, this program knows 5"},
        {"PRAGMA user_version = 0", INVAR_E_CORRUPT, "version 0, which never was"},
        {"PRAGMA user_version = -1", INVAR_E_CORRUPT, "version -1, which never was"},
        {"PRAGMA application_id = 7", INVAR_E_CORRUPT, "of another program"},
        {"DROP TRIGGER step_change", INVAR_E_CORRUPT, "in its schema"},
        {"DROP VIEW timeline", INVAR_E_CORRUPT, "in its schema"},
        {"DROP INDEX event_step", INVAR_E_CORRUPT, "in its schema"},
        {"DROP TRIGGER timing_remove", INVAR_E_CORRUPT, "in its schema"},
        {"DROP TRIGGER work_add", INVAR_E_CORRUPT, "in its schema"},
        {"DROP VIEW reward_parts", INVAR_E_CORRUPT, "in its schema"},
        {"DROP TRIGGER led_sample_add", INVAR_E_CORRUPT, "in its schema"},
        {"DROP TRIGGER op_time_add", INVAR_E_CORRUPT, "in its schema"},
        {"DROP VIEW kept_samples", INVAR_E_CORRUPT, "in its schema"},
        {"PRAGMA user_version = 1", INVAR_E_CORRUPT, "there is a changed or foreign"},
        {"CREATE TRIGGER zz AFTER INSERT ON step BEGIN SELECT 1; END", INVAR_E_CORRUPT, "\"zz\""},
        {"CREATE VIEW aa AS SELECT 1", INVAR_E_CORRUPT, "\"aa\""},
        {"CREATE TABLE zz(x)", INVAR_E_CORRUPT, "\"zz\""},
        {"CREATE INDEX aa ON step(root)", INVAR_E_CORRUPT, "\"aa\""},
        {"DROP VIEW metrics; CREATE VIEW metrics AS SELECT * FROM metric", INVAR_E_CORRUPT,
         "\"metrics\""},
        {"DROP TRIGGER run_change; CREATE TRIGGER run_change BEFORE UPDATE ON run BEGIN SELECT 1; "
         "END",
         INVAR_E_CORRUPT, "\"run_change\""},
        {"ALTER TABLE seal ADD COLUMN note TEXT", INVAR_E_CORRUPT, "\"seal\""},
        {"CREATE TABLE \"\x1b[31m\"(x)", INVAR_E_CORRUPT, "in its schema"},
        {SMUGGLE(
             "trigger", "sqlite_evil", "step",
             "CREATE TRIGGER sqlite_evil BEFORE INSERT ON step BEGIN SELECT RAISE(IGNORE); END"),
         INVAR_E_CORRUPT, "\"sqlite_evil\""},
        {SMUGGLE("view", "sqlite_evil", "sqlite_evil", "CREATE VIEW sqlite_evil AS SELECT 1"),
         INVAR_E_CORRUPT, "\"sqlite_evil\""},
        {"PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, 'value REAL', "
         "'value BLOB') WHERE name = 'metric'",
         INVAR_E_CORRUPT, "\"metric\""},
    };
    const char *path = raw_path("changed.db");

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        raw_copy(path, raw_path("base.db"));
        raw_tamper(path, cases[i].sql);
        assert_no_ledger(path, cases[i].status, cases[i].text);
        assert_null(strchr(invar_error_last()->message, '\x1b'));
    }
}

/* Negative control: maintenance by the sqlite3 shell keeps the ledger valid. */
static void test_ledger_open__maintenance_is_no_change(void **state)
{
    static const char *const cases[] = {"SELECT 1", "ANALYZE", "VACUUM", "REINDEX",
                                        "PRAGMA journal_mode = DELETE"};
    const char *path = raw_path("kept.db");
    invar_digest content = raw_content(raw_path("base.db"), 1), now;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        raw_copy(path, raw_path("base.db"));
        raw_tamper(path, cases[i]);
        raw_assert_clean(path);
        invar_ledger_close(raw_writer(path));
        now = raw_content(path, 1);
        raw_assert_digest(&content, &now);
    }
}

/* File names that SQLite would interpret, such as URIs, are ordinary file names. */
static void test_ledger_open__odd_names(void **state)
{
    static const char *const names[] = {":memory:",  "file:a.db?mode=memory", "a?b#c%20.db",
                                        "sp ace.db", "\xC3\xBC.db",           "-lock"};
    char before[1024];

    (void)state;
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(raw_folder), 0);
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_ok(invar_test_ledger_write(names[i], &three_steps));
        assert_int_equal(access(names[i], F_OK), 0);
        raw_assert_clean(names[i]);
    }
    assert_int_equal(chdir(before), 0);
}

/* ---- permissions ----------------------------------------------------------------------------- */

static char public_folder[] = "/tmp/invar-ledger-XXXXXX";

/* Returns a path in a folder that other users can enter, but not write to. Valid for four calls. */
static const char *public_path(const char *name)
{
    static char paths[4][sizeof public_folder + 64];
    static int next;
    char *out = paths[next++ % 4];

    (void)snprintf(out, sizeof paths[0], "%s/%s", public_folder, name);
    return out;
}

static int make_public(void **state)
{
    (void)state;
    if (getuid() != 0)
        return 0;
    memcpy(public_folder + strlen(public_folder) - 6, "XXXXXX", 6);
    return mkdtemp(public_folder) ? chmod(public_folder, 0755) : -1;
}

static int remove_public(void **state)
{
    (void)state;
    if (getuid() == 0)
        raw_remove_folder(public_folder);
    return 0;
}

/* Skips the test unless this process can start children of another user. */
static void require_root(void)
{
    if (getuid() != 0)
        skip();
}

/* Verifies a ledger with one run and returns the run's last step. */
static invar_status read_all(int64_t *last_out, const char *path)
{
    invar_ledger_summary summary;
    invar_ledger_verify_result verdict;
    invar_ledger *ledger;
    invar_status status;

    INVAR_TRY(invar_ledger_open(&ledger, path, NULL));
    status = invar_ledger_find(&summary, ledger, NULL);
    if (status == INVAR_OK)
        status = invar_ledger_verify(&verdict, ledger, NULL, NULL);
    if (status == INVAR_OK && verdict.problems > 0)
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "%.200s", verdict.first_problem);
    *last_out = summary.last_step;
    invar_ledger_close(ledger);
    return status;
}

static invar_status open_writer(int64_t *out, const char *path)
{
    invar_ledger *ledger;

    *out = 0;
    INVAR_TRY(invar_ledger_open(&ledger, path, &raw_create_options));
    invar_ledger_close(ledger);
    return INVAR_OK;
}

static void test_ledger_open__finished_in_a_folder_that_cannot_be_written(void **state)
{
    // The path is opened as a URI, so it must be escaped.
    const char *path = public_path("a%3f b?.db");
    char doubled[128];
    raw_outcome out;

    (void)state;
    require_root();
    assert_ok(invar_test_ledger_write(path, &three_steps));
    out = raw_child(NOBODY, read_all, path);
    raw_assert_outcome(&out, INVAR_OK, "");
    assert_int_equal(out.number, 2);
    (void)snprintf(doubled, sizeof doubled, "/%s", path);
    out = raw_child(NOBODY, read_all, doubled);
    raw_assert_outcome(&out, INVAR_OK, "");
}

static void test_ledger_open__writer_without_rights(void **state)
{
    raw_outcome out;

    (void)state;
    require_root();
    assert_ok(invar_test_ledger_write(public_path("a.db"), &three_steps));
    out = raw_child(NOBODY, open_writer, public_path("a.db"));
    raw_assert_outcome(&out, INVAR_E_IO, "its lock \"...-lock\" cannot be made: Permission denied");
    out = raw_child(NOBODY, open_writer, public_path("new.db"));
    raw_assert_outcome(&out, INVAR_E_IO, "--ledger FILE");
    assert_int_equal(chmod(public_path("a.db"), 0600), 0);
    out = raw_child(NOBODY, read_all, public_path("a.db"));
    raw_assert_outcome(&out, INVAR_E_IO, "unable to open");
}

/* A log without shared memory cannot be read in a folder without write permission. */
static void test_ledger_open__log_in_a_folder_that_cannot_be_written(void **state)
{
    raw_outcome out;
    invar_ledger *ledger;

    (void)state;
    require_root();
    ledger = raw_writer(public_path("live.db"));
    assert_ok(invar_test_ledger_begin(ledger, &three_steps));
    assert_ok(invar_test_ledger_step(ledger, &three_steps, 0, 0));
    raw_copy(public_path("b.db"), public_path("live.db"));
    raw_copy(public_path("b.db-wal"), public_path("live.db-wal"));
    invar_ledger_close(ledger);
    out = raw_child(NOBODY, read_all, public_path("b.db"));
    raw_assert_outcome(&out, INVAR_E_IO, "copy both files to another folder");
    out = raw_child(0, read_all, public_path("b.db")); // control: root can create the shared memory
    raw_assert_outcome(&out, INVAR_OK, "");
    assert_int_equal(out.number, 0);
}

/* Pipes by which two processes signal each other. */
static int to_writer[2], to_reader[2];

static bool wait_for_signal(int fd)
{
    char byte;

    return read(fd, &byte, 1) == 1;
}

static bool send_signal(int fd)
{
    return write(fd, "", 1) == 1;
}

static invar_status read_before_and_after(int64_t *last_out, const char *path)
{
    invar_ledger_summary summary;
    invar_ledger *ledger;
    invar_status status;

    if (!wait_for_signal(to_reader[0]))
        return INVAR_FAIL(INVAR_E_STATE, 0, "no writer");
    INVAR_TRY(invar_ledger_open(&ledger, path, NULL));
    status = invar_ledger_find(&summary, ledger, NULL);
    if (!send_signal(to_writer[1]) || !wait_for_signal(to_reader[0]))
        status = INVAR_FAIL(INVAR_E_STATE, 0, "the writer is gone");
    if (status == INVAR_OK)
        status = invar_ledger_find(&summary, ledger, NULL);
    *last_out = summary.last_step;
    invar_ledger_close(ledger);
    return status;
}

/* Opens a writer and appends a step after the reader has opened. Returns the exit code. */
static int write_after_signal(const char *path)
{
    invar_ledger *ledger;

    if (invar_ledger_open(&ledger, path, &raw_write_options) != INVAR_OK)
        return 1;
    if (!send_signal(to_reader[1]) || !wait_for_signal(to_writer[0]))
        return 2;
    if (invar_test_ledger_resume(ledger, &three_steps, 3) != INVAR_OK ||
        invar_test_ledger_step(ledger, &three_steps, 1, 3) != INVAR_OK)
        return 3;
    return send_signal(to_reader[1]) && wait_for_signal(to_writer[0]) ? 0 : 4;
}

/* A writer without a step has an empty log; a reader must follow the log all the same. */
static void test_ledger_open__reader_without_rights_follows_a_writer(void **state)
{
    const char *path = public_path("followed.db");
    raw_outcome out;
    int status;
    pid_t writer;

    (void)state;
    require_root();
    assert_ok(invar_test_ledger_write(path, &three_steps));
    assert_true(pipe(to_writer) == 0 && pipe(to_reader) == 0);
    writer = fork();
    assert_true(writer >= 0);
    if (writer == 0) {
        (void)alarm(INVAR_TEST_CHILD_SECONDS);
        _exit(write_after_signal(path));
    }
    out = raw_child(NOBODY, read_before_and_after, path);
    assert_true(send_signal(to_writer[1]));
    assert_int_equal(waitpid(writer, &status, 0), writer);
    assert_int_equal(status, 0);
    raw_assert_outcome(&out, INVAR_OK, "");
    assert_int_equal(out.number, 3);
}

/* ---- network file systems -------------------------------------------------------------------- */

static long fake_type; /* type that statfs returns; 0 for the real type */

int statfs(const char *path, struct statfs *out)
{
    if (fake_type == 0)
        return (int)syscall(SYS_statfs, path, out);
    memset(out, 0, sizeof *out);
    out->f_type = (__typeof__(out->f_type))fake_type;
    return 0;
}

static void test_ledger_open__names_of_networks(void **state)
{
    static const struct {
        long type;
        const char *name;
    } networks[] = {
        {NFS_SUPER_MAGIC, "NFS"}, {CIFS_SUPER_MAGIC, "CIFS"}, {(long)SMB2_SUPER_MAGIC, "SMB"},
        {SMB_SUPER_MAGIC, "SMB"}, {CEPH_SUPER_MAGIC, "Ceph"}, {AFS_SUPER_MAGIC, "AFS"},
        {AFS_FS_MAGIC, "AFS"},    {CODA_SUPER_MAGIC, "Coda"}, {OCFS2_SUPER_MAGIC, "OCFS2"},
        {V9FS_MAGIC, "9P"},       {FUSE_SUPER_MAGIC, "FUSE"}, {0x0BD00BD0, "Lustre"},
        {0x47504653, "GPFS"},     {0x19830326, "BeeGFS"},     {0x20030528, "OrangeFS"},
        {0x01161970, "GFS2"},
    };
    static const long disks[] = {0,
                                 EXT4_SUPER_MAGIC,
                                 XFS_SUPER_MAGIC,
                                 TMPFS_MAGIC,
                                 0x2FC12FC1,
                                 BTRFS_SUPER_MAGIC,
                                 OVERLAYFS_SUPER_MAGIC,
                                 RAMFS_MAGIC,
                                 F2FS_SUPER_MAGIC};

    (void)state;
    for (size_t i = 0; i < COUNT(networks); i++) {
        const char *name = invar_ledger_file_network_name(networks[i].type);
        // On some machines f_type is signed, with 32 significant bits.
        const char *extended = invar_ledger_file_network_name((long)(int)networks[i].type);
        assert_true(name && extended);
        assert_string_equal(name, networks[i].name);
        assert_string_equal(extended, networks[i].name);
    }
    for (size_t i = 0; i < COUNT(disks); i++)
        assert_null(invar_ledger_file_network_name(disks[i]));
}

static void test_ledger_open__on_a_network(void **state)
{
    static const char text[] = "it lies on NFS, where SQLite loses data; put it on a local disk "
                               "with --ledger LOCAL";
    const char *path = raw_path("net.db"), *new_path = raw_path("net-new.db");
    invar_ledger *ledger = NULL, *writer;

    (void)state;
    raw_copy(path, raw_path("base.db"));
    writer = raw_writer(raw_path("net-live.db"));
    assert_ok(invar_test_ledger_begin(writer, &three_steps));

    fake_type = NFS_SUPER_MAGIC;
    assert_fails(invar_ledger_open(&ledger, path, &raw_write_options), INVAR_E_UNSUPPORTED, text);
    assert_fails(invar_ledger_open(&ledger, new_path, &raw_create_options), INVAR_E_UNSUPPORTED,
                 text);
    assert_int_not_equal(access(new_path, F_OK), 0);
    raw_assert_clean(path); // a finished ledger can be read on NFS
    assert_int_not_equal(access(raw_path("net.db-wal"), F_OK), 0);
    assert_fails(invar_ledger_open(&ledger, raw_path("net-live.db"), NULL), INVAR_E_UNSUPPORTED,
                 text);
    fake_type = EXT4_SUPER_MAGIC; // control: a local file system
    raw_assert_clean(raw_path("net-live.db"));
    fake_type = 0;
    assert_null(ledger);
    invar_ledger_close(writer);
}

#define WITH_PUBLIC(test) cmocka_unit_test_setup_teardown(test, make_public, remove_public)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_open__nothing_there),
        cmocka_unit_test(test_ledger_open__no_file),
        cmocka_unit_test(test_ledger_open__path_too_long),
        cmocka_unit_test(test_ledger_open__files_of_others),
        cmocka_unit_test(test_ledger_open__truncated_file),
        cmocka_unit_test(test_ledger_open__other_schemas),
        cmocka_unit_test(test_ledger_open__maintenance_is_no_change),
        cmocka_unit_test(test_ledger_open__odd_names),
        WITH_PUBLIC(test_ledger_open__finished_in_a_folder_that_cannot_be_written),
        WITH_PUBLIC(test_ledger_open__writer_without_rights),
        WITH_PUBLIC(test_ledger_open__log_in_a_folder_that_cannot_be_written),
        WITH_PUBLIC(test_ledger_open__reader_without_rights_follows_a_writer),
        cmocka_unit_test(test_ledger_open__names_of_networks),
        cmocka_unit_test(test_ledger_open__on_a_network),
    };

    return cmocka_run_group_tests(tests, make_base, raw_teardown);
}
