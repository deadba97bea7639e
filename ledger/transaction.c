/*
 * transaction.c - opens and closes a ledger, and runs the transactions of all its writes.
 *
 * A transaction is one entry of the run: its rows, their number and sum, and the chain over
 * entries. The position of the writer moves after the commit only, so a call that failed has
 * changed neither the file nor the handle and may be repeated. A writer holds the lock beside the
 * file; a reader takes none and opens a file that it may not write as immutable if it is complete.
 *
 * Invariants: L1, L4, L5, L9 (docs/ledger.md)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/ledger.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/process/process.h"
#include "ledger/internal.h"
#include "ledger/store/ledger_file.h"
#include "ledger/store/ledger_schema.h"

#include "base/invar_banned.h"

/* ---- opening --------------------------------------------------------------------------------- */

static invar_status fail_not_found(const char *path)
{
    return INVAR_FAIL(INVAR_E_NOTFOUND, ENOENT, "ledger %.1000s: there is no such file", path);
}

/* The writer was killed before its first entry. Only a new writer can complete such a file. */
static invar_status fail_incomplete(const char *path)
{
    return INVAR_FAIL(
        INVAR_E_CORRUPT, 0,
        "ledger %.1000s: the process that began it was killed before its first entry; nothing is "
        "lost: start the run again, or remove the file",
        path);
}

static invar_status fail_not_a_ledger(const char *path)
{
    if (invar_ledger_file_beside(path, "-lock") >= 0)
        return fail_incomplete(path);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%.1000s: an empty file, not a ledger", path);
}

static invar_status check_file_system(const char *path, bool write)
{
    const char *network = invar_ledger_file_network(path);

    if (!network || (!write && invar_ledger_file_beside(path, "-wal") <= 0))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                      "ledger %.1000s: it lies on %s, where SQLite loses data; put it on a local "
                      "disk with --ledger LOCAL",
                      path, network);
}

/* Creates the tables if the database is empty, as a writer leaves it that dies before that. */
static invar_status make_schema(invar_sql *sql)
{
    int64_t objects, application;

    INVAR_TRY(invar_sql_query_int(&objects, sql, "SELECT count(*) FROM sqlite_schema", 0));
    INVAR_TRY(invar_sql_query_int(&application, sql, "PRAGMA application_id", 0));
    if (objects == 0 && application == 0)
        INVAR_TRY(invar_ledger_schema_migrate(sql, INVAR_LEDGER_VERSION));
    return INVAR_OK;
}

/* Checks whether a writer may open the file: where it lies, and that it has one name. */
static invar_status check_writable(const char *path)
{
    INVAR_TRY(check_file_system(path, true));
    if (invar_ledger_file_has_other_names(path))
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "ledger %.1000s: the file has a second name (a hard link), under which "
                          "another writer could not be seen; make a copy",
                          path);
    return INVAR_OK;
}

/* Opens the database of a writer, which holds the lock, and upgrades its schema. */
static invar_status open_locked(invar_ledger *ledger, const char *path,
                                const invar_ledger_options *options)
{
    INVAR_TRY(invar_sql_open(&ledger->sql, path,
                             options->create ? INVAR_SQL_MODE_CREATE : INVAR_SQL_MODE_WRITE));
    if (options->create)
        INVAR_TRY(make_schema(ledger->sql));
    INVAR_TRY(invar_ledger_schema_check(ledger->sql));
    // the file is known to be a ledger: only now may it be changed
    INVAR_TRY(invar_ledger_schema_migrate(ledger->sql, INVAR_LEDGER_VERSION));
    return invar_sql_exec(ledger->sql, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; "
                                       "PRAGMA foreign_keys = ON; "
                                       "PRAGMA journal_size_limit = 67108864");
}

static invar_status open_writer(invar_ledger *ledger, const char *path,
                                const invar_ledger_options *options, invar_ledger_file_kind kind)
{
    bool locked = invar_ledger_file_beside(path, "-lock") >= 0;
    invar_status status;

    if (kind == INVAR_LEDGER_FILE_KIND_MISSING && !options->create)
        return fail_not_found(path);
    if (kind == INVAR_LEDGER_FILE_KIND_EMPTY && !options->create)
        return fail_not_a_ledger(path);
    INVAR_TRY(check_writable(path));
    INVAR_TRY(invar_ledger_file_lock(&ledger->lock, path, options->writer));
    status = open_locked(ledger, path, options);
    if (status != INVAR_OK && kind == INVAR_LEDGER_FILE_KIND_DATA && !locked)
        invar_ledger_file_remove_lock(path); // leave nothing beside a file that is not a ledger
    INVAR_TRY(status);
    return kind == INVAR_LEDGER_FILE_KIND_MISSING ? invar_ledger_file_sync_folder(path) : INVAR_OK;
}

static invar_status open_as(invar_ledger *ledger, const char *path, invar_sql_mode mode)
{
    invar_status status;

    INVAR_TRY(invar_sql_open(&ledger->sql, path, mode));
    status = invar_ledger_schema_check(ledger->sql);
    if (status == INVAR_OK)
        status = invar_ledger_schema_complete(ledger->sql);
    if (status != INVAR_OK) {
        invar_sql_close(ledger->sql);
        ledger->sql = NULL;
    }
    return status;
}

static bool has_writer(const char *path)
{
    char writer[INVAR_LEDGER_WRITER_SIZE];

    if (invar_ledger_writer(writer, path) != INVAR_OK)
        invar_error_clear(); // a lock that cannot be read counts as no writer
    return writer[0] != '\0';
}

/*
 * Opens the database of a reader. A reader of a database in WAL mode needs the "-shm" file and
 * makes it if it is missing. If the folder cannot be written, a file without WAL and writer is
 * complete and is opened as immutable instead.
 */
static invar_status open_reader(invar_ledger *ledger, const char *path, invar_ledger_file_kind kind)
{
    bool complete = invar_ledger_file_beside(path, "-wal") <= 0 && !has_writer(path);
    invar_status status;

    if (kind == INVAR_LEDGER_FILE_KIND_MISSING)
        return fail_not_found(path);
    if (kind == INVAR_LEDGER_FILE_KIND_EMPTY)
        return fail_not_a_ledger(path);
    INVAR_TRY(check_file_system(path, false));
    if (complete && (invar_ledger_file_network(path) || !invar_ledger_file_writable(path)))
        return open_as(ledger, path, INVAR_SQL_MODE_IMMUTABLE);
    status = open_as(ledger, path, INVAR_SQL_MODE_READ);
    if (status != INVAR_OK && status != INVAR_E_NOMEM &&
        invar_ledger_file_beside(path, "-journal") >= 0 &&
        invar_ledger_file_beside(path, "-lock") >= 0 && !has_writer(path))
        return fail_incomplete(path);
    if (status == INVAR_E_IO && !complete && !invar_ledger_file_writable(path))
        return INVAR_FAIL(
            INVAR_E_IO, invar_error_last()->native,
            "ledger %.1000s: its last steps are in \"...-wal\" and its folder cannot be "
            "written; copy both files to another folder",
            path);
    return status;
}

invar_status invar_ledger_open(invar_ledger **out, const char *path,
                               const invar_ledger_options *options)
{
    static const invar_ledger_options reader = {.write = false};
    char target[INVAR_LEDGER_FILE_PATH_SIZE];
    invar_ledger *ledger;
    invar_ledger_file_kind kind;
    invar_status status;

    if (!options)
        options = &reader;
    if (path[0] == '\0')
        return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger: the path is empty");
    INVAR_TRY(invar_ledger_file_resolve(target, path));
    INVAR_TRY(invar_ledger_file_look(&kind, target));
    INVAR_TRY(INVAR_ALLOC_ZEROED(ledger, 1, "a ledger"));
    ledger->lock = -1;
    ledger->position.step = -1;
    status = options->write || options->create ? open_writer(ledger, target, options, kind)
                                               : open_reader(ledger, target, kind);
    if (status != INVAR_OK) {
        invar_ledger_close(ledger);
        return status;
    }
    *out = ledger;
    return INVAR_OK;
}

invar_status invar_ledger_check_output(const char *path, const char *home)
{
    char target[INVAR_LEDGER_FILE_PATH_SIZE];
    invar_ledger there = {.lock = -1};
    invar_ledger_file_kind kind;

    INVAR_TRY(invar_ledger_file_resolve(target, path));
    INVAR_TRY(invar_error_of_key(invar_path_check_writable_in(target, home), "ledger"));
    INVAR_TRY(invar_ledger_file_look(&kind, target));
    INVAR_TRY(check_writable(target));
    // a file with a WAL or a journal cannot be opened as immutable: open checks it later
    if (kind != INVAR_LEDGER_FILE_KIND_DATA || invar_ledger_file_beside(target, "-wal") > 0 ||
        invar_ledger_file_beside(target, "-journal") >= 0)
        return INVAR_OK;
    INVAR_TRY(open_as(&there, target, INVAR_SQL_MODE_IMMUTABLE));
    invar_sql_close(there.sql);
    return INVAR_OK;
}

/* Moves the WAL into the file, because a reader may keep SQLite from doing so when it closes. */
static void complete_file(invar_sql *sql)
{
    invar_error error;

    invar_error_take(&error); // close may follow a failure, whose record must stay
    if (invar_sql_exec(sql, "PRAGMA busy_timeout = 200; PRAGMA wal_checkpoint(TRUNCATE)") !=
        INVAR_OK)
        invar_error_clear();
    invar_error_put(&error);
}

void invar_ledger_close(invar_ledger *ledger)
{
    char path[INVAR_LEDGER_FILE_PATH_SIZE] = "";

    if (!ledger)
        return;
    if (ledger->lock < 0 && ledger->sql)
        (void)snprintf(path, sizeof path, "%s", invar_sql_path(ledger->sql));
    for (int i = 0; i < INVAR_LEDGER_TABLE_COUNT; i++)
        invar_sql_free(ledger->insert[i]);
    invar_sql_free(ledger->insert_entry);
    invar_sql_free(ledger->insert_series);
    if (ledger->lock >= 0 && ledger->sql)
        complete_file(ledger->sql);
    invar_free(ledger->series);
    invar_free(ledger->definition.rooted);
    invar_sql_close(ledger->sql);
    if (ledger->lock >= 0)
        close(ledger->lock);
    // a reader had to make "-wal" and "-shm", which SQLite removes only when the last connection
    // that can write is closed
    if (path[0] && invar_ledger_file_beside(path, "-wal") == 0 &&
        invar_ledger_file_writable(path) && !has_writer(path))
        invar_sql_remove_wal(path);
    invar_free(ledger);
}

/* ---- reading in one snapshot ----------------------------------------------------------------- */

invar_status invar_ledger_snapshot(bool *began_out, invar_ledger *ledger)
{
    *began_out = !invar_sql_in_transaction(ledger->sql);
    return *began_out ? invar_sql_exec(ledger->sql, "BEGIN") : INVAR_OK;
}

void invar_ledger_snapshot_end(invar_ledger *ledger, bool began)
{
    if (began)
        invar_sql_roll_back(ledger->sql, INVAR_OK); // keeps the record of the reader's failure
}

/* ---- transactions ---------------------------------------------------------------------------- */

invar_status invar_ledger_begin_transaction(invar_ledger *ledger, const char *kind,
                                            invar_durability durability)
{
    if (ledger->lock < 0)
        return INVAR_FAIL(INVAR_E_STATE, 0, "ledger %.1000s: it is open for reading only",
                          invar_sql_path(ledger->sql));
    if (invar_sql_in_transaction(ledger->sql)) // an earlier rollback failed: repeat it
        INVAR_TRY(invar_sql_exec(ledger->sql, "ROLLBACK"));
    if (!invar_ledger_file_lock_valid(ledger->lock))
        return INVAR_FAIL(
            INVAR_E_STATE, 0,
            "ledger %.1000s: its lock \"...-lock\" was removed, so another process may be "
            "writing by now; open it again",
            invar_sql_path(ledger->sql));
    if (invar_ledger_file_removed(ledger->lock))
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "ledger %.1000s: the file was removed while it was written; what was in "
                          "it is gone",
                          invar_sql_path(ledger->sql));
    INVAR_TRY(invar_sql_exec(ledger->sql, durability == INVAR_DURABILITY_POWER
                                              ? "PRAGMA synchronous = FULL"
                                              : "PRAGMA synchronous = NORMAL"));
    INVAR_TRY(invar_sql_exec(ledger->sql, "BEGIN IMMEDIATE"));
    ledger->kind = kind;
    ledger->rows = 0;
    ledger->total = 0;
    return INVAR_OK;
}

invar_status invar_ledger_add(invar_ledger *ledger, invar_ledger_table table,
                              const invar_ledger_value *row)
{
    int64_t sum = invar_ledger_row_sum(table, row);

    if (!ledger->insert[table])
        INVAR_TRY(invar_ledger_row_insert(&ledger->insert[table], ledger->sql, table));
    INVAR_TRY(invar_ledger_row_write(ledger->insert[table], table, ledger->position.run, row, sum));
    ledger->rows++;
    ledger->total += (uint64_t)sum;
    return INVAR_OK;
}

/* ---- series ---------------------------------------------------------------------------------- */

static invar_status insert_series(invar_ledger *ledger, const char *name)
{
    if (!ledger->insert_series)
        INVAR_TRY(invar_sql_prepare(&ledger->insert_series, ledger->sql,
                                    "INSERT INTO series(name) SELECT ?1 WHERE NOT EXISTS(SELECT 1 "
                                    "FROM series WHERE name = ?1)"));
    INVAR_TRY(invar_sql_bind(ledger->insert_series, 1, invar_ledger_value_text(name)));
    return invar_sql_run(ledger->insert_series);
}

/* Known names are skipped without a statement, because most names come again at every step. */
invar_status invar_ledger_add_series(invar_ledger *ledger, const char *name)
{
    invar_digest digest;
    uint64_t hash;

    invar_hash_bytes(&digest, name, strlen(name));
    memcpy(&hash, digest.bytes, sizeof hash);
    for (int64_t i = 0; i < ledger->n_series; i++)
        if (ledger->series[i] == hash)
            return INVAR_OK;
    INVAR_TRY(insert_series(ledger, name));
    INVAR_TRY(INVAR_GROW(ledger->series, ledger->series_room, ledger->n_series,
                         ledger->n_series + 1, "names"));
    ledger->series[ledger->n_series++] = hash;
    return INVAR_OK;
}

/* ---- the end of a transaction ---------------------------------------------------------------- */

void invar_ledger_entry_chain(invar_digest *chain, int64_t n, const invar_ledger_value *kind,
                              int64_t ns, int64_t rows, int64_t total)
{
    const invar_ledger_value values[] = {invar_ledger_value_int(n), *kind,
                                         invar_ledger_value_int(ns), invar_ledger_value_int(rows),
                                         invar_ledger_value_int(total)};
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, chain->bytes, sizeof chain->bytes);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        invar_ledger_value_hash(&hasher, &values[i]);
    invar_hasher_final(chain, &hasher);
}

static invar_status add_entry(invar_ledger *ledger, invar_digest *chain_out)
{
    invar_ledger_value kind = invar_ledger_value_text(ledger->kind);
    invar_digest chain = ledger->position.entry_chain;
    int64_t ns = invar_process_clock_ns(CLOCK_REALTIME);
    invar_sql_stmt *stmt;

    if (!ledger->insert_entry)
        INVAR_TRY(invar_sql_prepare(&ledger->insert_entry, ledger->sql,
                                    "INSERT INTO entry(run, n, ns, rows, total, kind, chain) "
                                    "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)"));
    stmt = ledger->insert_entry;
    invar_ledger_entry_chain(&chain, ledger->position.entry, &kind, ns, ledger->rows,
                             (int64_t)ledger->total);
    INVAR_TRY(INVAR_SQL_BIND(stmt, ledger->position.run, ledger->position.entry, ns, ledger->rows,
                             (int64_t)ledger->total));
    INVAR_TRY(invar_sql_bind(stmt, 6, kind));
    INVAR_TRY(invar_sql_bind(stmt, 7, invar_ledger_value_digest(&chain)));
    *chain_out = chain;
    return invar_sql_run(stmt);
}

invar_status invar_ledger_commit(invar_ledger *ledger, invar_status status,
                                 const invar_ledger_position *next)
{
    invar_digest chain;

    if (status == INVAR_OK)
        status = add_entry(ledger, &chain);
    if (status == INVAR_OK)
        status = invar_sql_exec(ledger->sql, "COMMIT");
    if (status != INVAR_OK) {
        ledger->n_series = 0; // the rollback removed the names that this transaction added
        return invar_sql_roll_back(ledger->sql, status);
    }
    ledger->position = *next;
    ledger->position.entry++;
    ledger->position.entry_chain = chain;
    return INVAR_OK;
}
