/*
 * raw_ledger.h - fixtures of ledger tests, and raw access to files and tables of a ledger.
 *
 * Tests damage ledgers and read what was stored through plain SQLite, independent of the library.
 * A raw connection runs no trigger and checks no constraint. It has the SQL function flip(X), which
 * returns X with one bit changed: bit 20 of a number, bit 0 of the first byte of a text or blob;
 * NULL becomes '1'. The independent hashes are those of the program xxhsum.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_LEDGER_RAW_LEDGER_H
#define INVAR_TESTS_UNIT_LEDGER_RAW_LEDGER_H

#include <dirent.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "ledger/ledger.h"
#include "tests/ledger.h"
#include "tests/lock_holder.h"
#include "tests/no_sync.h"
#include "tests/support.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#ifndef INVAR_TEST_WORK
#define INVAR_TEST_WORK "." /* the build defines it, except if this header is compiled alone */
#endif

/* ---- files ----------------------------------------------------------------------------------- */

static char raw_folder[] = INVAR_TEST_WORK "/ledger_raw-XXXXXX";

static inline int raw_setup(void **state)
{
    (void)state;
    return mkdtemp(raw_folder) ? 0 : -1;
}

/* Removes a folder of files. */
static inline void raw_remove_folder(const char *folder)
{
    struct dirent *entry;
    char path[1024];
    DIR *dir = opendir(folder);

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        (void)unlink(path); // fails for "." and ".."
    }
    (void)closedir(dir);
    assert_int_equal(rmdir(folder), 0);
}

static inline int raw_teardown(void **state)
{
    (void)state;
    raw_remove_folder(raw_folder);
    return 0;
}

/* Returns the path of file `name` in the test's folder; it stays valid until the program ends. */
static inline const char *raw_path(const char *name)
{
    static char *paths[64];
    size_t size = sizeof raw_folder + strlen(name) + 1, i = 0;

    while (i < COUNT(paths) && paths[i] && strcmp(paths[i] + sizeof raw_folder, name) != 0)
        i++;
    assert_true(i < COUNT(paths));
    if (!paths[i]) {
        paths[i] = malloc(size);
        assert_non_null(paths[i]);
        (void)snprintf(paths[i], size, "%s/%s", raw_folder, name);
    }
    return paths[i];
}

/* Removes a ledger with its log, shared memory, journal and lock file. */
static inline void raw_remove(const char *path)
{
    static const char *const parts[] = {"", "-wal", "-shm", "-journal", "-lock"};
    char part[1024];

    for (size_t i = 0; i < COUNT(parts); i++) {
        (void)snprintf(part, sizeof part, "%s%s", path, parts[i]);
        (void)unlink(part);
    }
}

typedef struct raw_bytes {
    unsigned char *data;
    size_t count;
} raw_bytes;

static inline raw_bytes raw_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    raw_bytes out = {NULL, 0};

    if (!file)
        fail_msg("%s cannot be read", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    out.count = (size_t)ftell(file);
    rewind(file);
    out.data = malloc(out.count + 1);
    assert_non_null(out.data);
    assert_int_equal(fread(out.data, 1, out.count, file), out.count);
    (void)fclose(file);
    return out;
}

static inline void raw_write(const char *path, const void *data, size_t count)
{
    FILE *file = fopen(path, "wb");

    if (!file)
        fail_msg("%s cannot be written", path);
    assert_int_equal(fwrite(data, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* Copies the database file alone, and removes the files of an older ledger at `to`. */
static inline void raw_copy(const char *to, const char *from)
{
    raw_bytes bytes = raw_read(from);

    raw_remove(to);
    raw_write(to, bytes.data, bytes.count);
    free(bytes.data);
}

static inline invar_digest raw_hash(const char *path)
{
    raw_bytes bytes = raw_read(path);
    invar_digest out;

    invar_hash_bytes(&out, bytes.data, bytes.count);
    free(bytes.data);
    return out;
}

/* Returns the XXH3-128 digest of some bytes, computed by the program xxhsum. */
static inline invar_digest raw_xxhsum(const void *data, size_t count)
{
    char command[2 * sizeof raw_folder + 64], line[256];
    invar_digest out;
    FILE *stream;

    raw_write(raw_path("bytes"), data, count);
    (void)snprintf(command, sizeof command, "xxhsum -H2 < '%s'", raw_path("bytes"));
    stream = popen(command, "r");
    assert_non_null(stream);
    if (!fgets(line, sizeof line, stream))
        fail_msg("xxhsum is missing, the oracle of this test: apt-get install xxhash");
    (void)pclose(stream);
    line[32] = '\0';
    assert_ok(invar_digest_parse(&out, line));
    return out;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static inline void raw_flip(sqlite3_context *context, int count, sqlite3_value **values)
{
    int type = sqlite3_value_type(values[0]), bytes = sqlite3_value_bytes(values[0]);
    unsigned char *copy = malloc((size_t)bytes + 1);
    double real = sqlite3_value_double(values[0]);
    int64_t bits;

    (void)count;
    assert_non_null(copy);
    copy[0] = 0; // the byte that is flipped if the value is empty
    memcpy(copy, bytes ? sqlite3_value_blob(values[0]) : "", (size_t)bytes);
    copy[0] ^= 1;
    memcpy(&bits, &real, sizeof bits);
    bits ^= 1 << 20;
    memcpy(&real, &bits, sizeof bits);
    switch (type) {
    case SQLITE_INTEGER:
        sqlite3_result_int64(context, sqlite3_value_int64(values[0]) ^ 1 << 20);
        break;
    case SQLITE_FLOAT: sqlite3_result_double(context, real); break;
    case SQLITE_TEXT:
        sqlite3_result_text(context, (char *)copy, bytes ? bytes : 1, SQLITE_TRANSIENT);
        break;
    case SQLITE_BLOB:
        sqlite3_result_blob(context, copy, bytes ? bytes : 1, SQLITE_TRANSIENT);
        break;
    default: sqlite3_result_text(context, "1", 1, SQLITE_STATIC); break;
    }
    free(copy);
}

static inline sqlite3 *raw_open(const char *path)
{
    sqlite3 *db;

    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "PRAGMA synchronous = OFF; PRAGMA foreign_keys = OFF; "
                                  "PRAGMA ignore_check_constraints = ON",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    assert_int_equal(
        sqlite3_create_function(db, "flip", 1, SQLITE_UTF8, NULL, raw_flip, NULL, NULL), SQLITE_OK);
    return db;
}

static inline void raw_exec(sqlite3 *db, const char *format, ...) INVAR_PRINTF(2, 3);

static inline void raw_exec(sqlite3 *db, const char *format, ...)
{
    char text[8192];
    va_list arguments;

    va_start(arguments, format);
    assert_true(vsnprintf(text, sizeof text, format, arguments) < (int)sizeof text);
    va_end(arguments);
    if (sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", text, sqlite3_errmsg(db));
}

/* Returns a statement at its first row. The caller finalizes it. */
static inline sqlite3_stmt *raw_row(sqlite3 *db, const char *text)
{
    sqlite3_stmt *stmt;

    if (sqlite3_prepare_v2(db, text, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", text, sqlite3_errmsg(db));
    if (sqlite3_step(stmt) != SQLITE_ROW)
        fail_msg("%s: no row: %s", text, sqlite3_errmsg(db));
    return stmt;
}

static inline int64_t raw_int_of(sqlite3 *db, const char *text)
{
    sqlite3_stmt *stmt = raw_row(db, text);
    int64_t out = sqlite3_column_int64(stmt, 0);

    sqlite3_finalize(stmt);
    return out;
}

/* Like raw_int_of, but opens a connection to `path` for the query. */
static inline int64_t raw_int(const char *path, const char *text)
{
    sqlite3 *db = raw_open(path);
    int64_t out = raw_int_of(db, text);

    sqlite3_close(db);
    return out;
}

/* Copies the first column of the first row to `out` and returns its size, at most `capacity`. */
static inline size_t raw_blob(void *out, size_t capacity, const char *path, const char *text)
{
    sqlite3 *db = raw_open(path);
    sqlite3_stmt *stmt = raw_row(db, text);
    size_t bytes = (size_t)sqlite3_column_bytes(stmt, 0);

    assert_true(bytes <= capacity);
    memcpy(out, bytes ? sqlite3_column_blob(stmt, 0) : "", bytes);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return bytes;
}

/* Executes SQL on a raw connection, which neither triggers nor constraints prevent. */
static inline void raw_tamper(const char *path, const char *text)
{
    sqlite3 *db = raw_open(path);

    raw_exec(db, "%s", text);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

#define RAW_NAMES 96

typedef struct raw_names {
    int count;
    char at[RAW_NAMES][64];
} raw_names;

/* Returns the first column of all rows as text. */
static inline raw_names raw_list(sqlite3 *db, const char *text)
{
    raw_names out = {0};
    sqlite3_stmt *stmt;

    if (sqlite3_prepare_v2(db, text, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", text, sqlite3_errmsg(db));
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        assert_true(out.count < RAW_NAMES);
        (void)snprintf(out.at[out.count++], sizeof out.at[0], "%s", sqlite3_column_text(stmt, 0));
    }
    sqlite3_finalize(stmt);
    return out;
}

static inline raw_names raw_tables(sqlite3 *db)
{
    return raw_list(db, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE "
                        "'sqlite!_%' ESCAPE '!' ORDER BY name");
}

static inline raw_names raw_columns(sqlite3 *db, const char *table)
{
    char text[160];

    (void)snprintf(text, sizeof text, "SELECT name FROM pragma_table_info('%s')", table);
    return raw_list(db, text);
}

/* Returns the digest of all rows of all tables; two digests show if a call changed anything. */
static inline invar_digest raw_dump(const char *path)
{
    sqlite3 *db = raw_open(path);
    raw_names tables = raw_tables(db);
    char text[96];
    invar_hasher hasher;
    invar_digest out;

    invar_hasher_init(&hasher);
    for (int i = 0; i < tables.count; i++) {
        sqlite3_stmt *stmt;
        (void)snprintf(text, sizeof text, "SELECT * FROM %s", tables.at[i]);
        assert_int_equal(sqlite3_prepare_v2(db, text, -1, &stmt, NULL), SQLITE_OK);
        invar_hasher_update(&hasher, text, strlen(text));
        while (sqlite3_step(stmt) == SQLITE_ROW)
            for (int k = 0; k < sqlite3_column_count(stmt); k++) {
                const void *data = sqlite3_column_blob(stmt, k); // numbers as text
                int bytes = sqlite3_column_bytes(stmt, k);
                invar_hasher_update(&hasher, &bytes, sizeof bytes);
                invar_hasher_update(&hasher, data, (size_t)bytes);
            }
        sqlite3_finalize(stmt);
    }
    sqlite3_close(db);
    invar_hasher_final(&out, &hasher);
    return out;
}

/* Writes the columns of the table's primary key, or of its unique index: "run, step, seg". */
static inline void raw_key(char *out, size_t size, sqlite3 *db, const char *table)
{
    char text[400];
    raw_names columns;

    // A table without a primary key has exactly one unique index.
    (void)snprintf(text, sizeof text,
                   "SELECT name FROM pragma_table_info('%s') WHERE pk > 0 ORDER BY pk", table);
    columns = raw_list(db, text);
    if (columns.count == 0) {
        (void)snprintf(text, sizeof text,
                       "SELECT i.name FROM pragma_index_list('%s') l, pragma_index_info(l.name) i "
                       "WHERE l.\"unique\" AND l.origin = 'u' ORDER BY i.seqno",
                       table);
        columns = raw_list(db, text);
    }
    assert_true(columns.count > 0);
    out[0] = '\0';
    for (int i = 0; i < columns.count; i++) {
        size_t used = strlen(out);
        (void)snprintf(out + used, size - used, "%s%s", i ? ", " : "", columns.at[i]);
    }
}

/* ---- canonical bytes, written independently of the library ----------------------------------- */

typedef struct raw_spelling {
    unsigned char data[4096];
    size_t count;
} raw_spelling;

static inline void raw_spell_bytes(raw_spelling *s, const void *data, size_t count)
{
    assert_true(s->count + count <= sizeof s->data);
    memcpy(s->data + s->count, data, count);
    s->count += count;
}

static inline void raw_spell_number(raw_spelling *s, char tag, uint64_t number)
{
    unsigned char bytes[9] = {(unsigned char)tag};

    for (int i = 1; i < 9; i++, number >>= 8)
        bytes[i] = (unsigned char)(number & 0xFF);
    raw_spell_bytes(s, bytes, 9);
}

static inline void raw_spell_text(raw_spelling *s, const char *text)
{
    raw_spell_number(s, 2, strlen(text));
    raw_spell_bytes(s, text, strlen(text));
}

static inline void raw_spell_blob(raw_spelling *s, const void *data, size_t count)
{
    raw_spell_number(s, 3, count);
    raw_spell_bytes(s, data, count);
}

/* ---- through the library --------------------------------------------------------------------- */

static const invar_ledger_options raw_write_options = {.write = true};
static const invar_ledger_options raw_create_options = {.create = true};

static inline invar_ledger *raw_reader(const char *path)
{
    invar_ledger *out;

    assert_ok(invar_ledger_open(&out, path, NULL));
    return out;
}

/* Opens a ledger for writing; creates it if it does not exist. */
static inline invar_ledger *raw_writer(const char *path)
{
    invar_ledger *out;

    assert_ok(invar_ledger_open(&out, path, &raw_create_options));
    return out;
}

/*
 * Writes two ledgers: "whole.db" has rows in every table except `pruned`, and "short.db", a copy of
 * it without old detail, has rows in `pruned`.
 */
static inline int raw_setup_whole(void **state)
{
    const invar_test_ledger spec = {
        .steps = 12, .crash = 11, .resume = 9, .faults = {{.kind = INVAR_TEST_DIRTY}}};
    char seal[INVAR_LEDGER_SEAL_SIZE];
    invar_ledger *ledger;

    if (raw_setup(state) != 0)
        return -1;
    assert_ok(invar_test_ledger_write(raw_path("whole.db"), &spec));
    ledger = raw_writer(raw_path("whole.db"));
    assert_ok(invar_ledger_seal(seal, ledger, 1));
    assert_ok(invar_ledger_backup(ledger, raw_path("short.db"), &(invar_ledger_retention){2, 0}));
    invar_ledger_close(ledger);
    return 0;
}

/* Returns the ledger of raw_setup_whole in which `table` has rows. */
static inline const char *raw_with_rows(const char *table)
{
    return raw_path(strcmp(table, "pruned") == 0 ? "short.db" : "whole.db");
}

static inline invar_ledger_verify_result raw_verify(const char *path)
{
    invar_ledger *ledger = raw_reader(path);
    invar_ledger_verify_result verdict;

    assert_ok(invar_ledger_verify(&verdict, ledger, NULL, NULL));
    invar_ledger_close(ledger);
    return verdict;
}

static inline void raw_assert_clean(const char *path)
{
    invar_ledger_verify_result verdict = raw_verify(path);

    if (verdict.problems > 0)
        fail_msg("%s: %s", path, verdict.first_problem);
    assert_true(verdict.rows > 0);
}

static inline invar_ledger_summary raw_summary(const char *path, const char *which)
{
    invar_ledger *ledger = raw_reader(path);
    invar_ledger_summary out;

    assert_ok(invar_ledger_find(&out, ledger, which));
    invar_ledger_close(ledger);
    return out;
}

static inline invar_digest raw_content(const char *path, int64_t run)
{
    invar_ledger *ledger = raw_reader(path);
    invar_digest out;

    assert_ok(invar_ledger_content_hash(&out, ledger, run));
    invar_ledger_close(ledger);
    return out;
}

static inline void raw_assert_digest(const invar_digest *a, const invar_digest *b)
{
    char x[INVAR_DIGEST_HEX_SIZE], y[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(x, a);
    invar_digest_format(y, b);
    assert_string_equal(x, y);
}

/* ---- other processes ------------------------------------------------------------------------- */

/*
 * Result of raw_child. A child process returns its failure, since it cannot fail the test itself.
 */
typedef struct raw_outcome {
    invar_status status;
    int64_t number;                         /* result of the function */
    char message[INVAR_ERROR_MESSAGE_SIZE]; /* last error message of the child */
} raw_outcome;

typedef invar_status (*raw_act)(int64_t *number_out, const char *path);

/* Runs `act` in a child process, as user `uid`, or as the current user if `uid` is 0. */
static inline raw_outcome raw_child(uid_t uid, raw_act act, const char *path)
{
    raw_outcome out = {.status = INVAR_E_STATE};
    int ends[2], status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(INVAR_TEST_CHILD_SECONDS);
        if (uid != 0 && (setgid(uid) != 0 || setuid(uid) != 0))
            _exit(1);
        out.status = act(&out.number, path);
        (void)snprintf(out.message, sizeof out.message, "%s", invar_error_last()->message);
        _exit(write(ends[1], &out, sizeof out) == (ssize_t)sizeof out ? 0 : 1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &out, sizeof out), (ssize_t)sizeof out);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return out;
}

static inline void raw_assert_outcome(const raw_outcome *out, invar_status status, const char *text)
{
    if (out->status != status || !strstr(out->message, text))
        fail_msg("%s: \"%s\", expected %s: \"%s\"", invar_status_name(out->status), out->message,
                 invar_status_name(status), text);
}

#endif
