/*
 * sql.c - wrapper around SQLite that returns our status codes.
 *
 * Every connection is defensive: no trusted schema, no double-quoted strings, no extensions, no
 * memory map. SQLite before 3.51.3 loses data when a second connection resets the WAL, so only the
 * one writer may write and checkpoint, and all other connections are read-only. Limits for
 * untrusted statements are set per call, because the limit of SQLite's memory holds for the
 * process.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/store/sql.h"

#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/text.h"

#include "base/invar_banned.h"

enum {
    PATH_BYTES = 4096,
    URI_BYTES = 3 * PATH_BYTES + 64, /* a path with every byte escaped, scheme and query */
    GUARD_STEPS = 50, /* instructions between checks of the time; few, because one may take long */
    GUARD_HEAP =
        512 << 20 /* bytes that SQLite may use in this process during a guarded statement */
};

struct invar_sql {
    sqlite3 *db;
    sqlite3_stmt *rollback; /* prepared early, because a rollback must not need memory */
    int64_t guard_ms;       /* maximum run time of a guarded statement; 0 for no limit */
    int64_t guard_start;    /* monotonic time in ms at which the guard was set */
    bool stands_in;         /* the connection has temporary tables or views */
    bool limits_heap;       /* this connection has set the limit of SQLite's memory */
    char path[PATH_BYTES];
};

struct invar_sql_stmt {
    sqlite3_stmt *handle;
    invar_sql *sql;
    bool lost; /* a value of the current row was read as empty for lack of memory */
};

/* ---- errors ---------------------------------------------------------------------------------- */

/* Maps a code of SQLite to the status that the caller can react to. */
static invar_status status_of(int rc)
{
    static const struct {
        int rc;
        invar_status status;
    } known[] = {
        {SQLITE_NOMEM, INVAR_E_NOMEM},     {SQLITE_BUSY, INVAR_E_BUSY},
        {SQLITE_LOCKED, INVAR_E_BUSY},     {SQLITE_FULL, INVAR_E_IO},
        {SQLITE_IOERR, INVAR_E_IO},        {SQLITE_CANTOPEN, INVAR_E_IO},
        {SQLITE_PERM, INVAR_E_IO},         {SQLITE_READONLY, INVAR_E_IO},
        {SQLITE_CORRUPT, INVAR_E_CORRUPT}, {SQLITE_NOTADB, INVAR_E_CORRUPT},
        {SQLITE_INTERRUPT, INVAR_E_STATE}, {SQLITE_CONSTRAINT, INVAR_E_INVALID},
    };
    invar_status status = INVAR_E_SQL;

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].rc == (rc & 0xff))
            status = known[i].status;
    return status;
}

static const char *advice_for(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_FULL: return "; free some space and repeat";
    case SQLITE_CORRUPT: return "; the file is damaged: go back to a copy of it";
    case SQLITE_NOTADB: return "; it is no ledger, or its first bytes are damaged";
    case SQLITE_INTERRUPT: return ": the time limit was reached";
    case SQLITE_AUTH: return "; only a SELECT is allowed";
    default: return "";
    }
}

static invar_status sql_fail(const invar_sql *sql, int rc)
{
    const char *why = sqlite3_errstr(rc);
    char quote[512];

    // the message of the connection is more precise, if it is about this failure
    if (sql->db && (sqlite3_errcode(sql->db) & 0xff) == (rc & 0xff))
        why = sqlite3_errmsg(sql->db);
    switch (status_of(rc)) {
    case INVAR_E_NOMEM:
        if (sql->limits_heap)
            return INVAR_FAIL(INVAR_E_NOMEM, rc,
                              "SQL: it needs more than %d MiB of memory; sort, group or join less",
                              GUARD_HEAP >> 20);
        return INVAR_FAIL(INVAR_E_NOMEM, rc, "no memory for SQLite");
    default:
        invar_text_quote(quote, sizeof quote, why, strlen(why)); // names come from the file
        return INVAR_FAIL(status_of(rc), rc, "ledger %.1000s: %s%s", sql->path, quote,
                          advice_for(rc));
    }
}

static invar_status sql_check(const invar_sql *sql, int rc)
{
    return rc == SQLITE_OK ? INVAR_OK : sql_fail(sql, rc);
}

/* ---- connections ----------------------------------------------------------------------------- */

/*
 * Writes the path as a URI with all special characters escaped, because SQLite gives a meaning of
 * its own to paths such as ":memory:" and "file:a?mode=memory".
 */
static void make_uri(char out[URI_BYTES], const char *path, invar_sql_mode mode)
{
    static const char plain[] =
        "/-_.~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    size_t used = (size_t)snprintf(out, URI_BYTES, path[0] == '/' ? "file://" : "file:./");

    for (; *path; path++)
        used += (size_t)snprintf(out + used, URI_BYTES - used,
                                 strchr(plain, *path) ? "%c" : "%%%02X", (unsigned char)*path);
    if (mode == INVAR_SQL_MODE_IMMUTABLE)
        snprintf(out + used, URI_BYTES - used, "?immutable=1");
}

static invar_status sql_configure(invar_sql *sql, invar_sql_mode mode)
{
    sqlite3_extended_result_codes(sql->db, 1);
    sqlite3_db_config(sql->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(sql->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(sql->db, SQLITE_DBCONFIG_DQS_DML, 0, NULL);
    sqlite3_db_config(sql->db, SQLITE_DBCONFIG_DQS_DDL, 0, NULL);
    sqlite3_busy_timeout(sql->db, 10000);
    INVAR_TRY(invar_sql_exec(sql, "PRAGMA mmap_size = 0; PRAGMA cell_size_check = ON"));
    if (mode == INVAR_SQL_MODE_READ || mode == INVAR_SQL_MODE_IMMUTABLE)
        INVAR_TRY(invar_sql_exec(sql, "PRAGMA query_only = ON"));
    return sql_check(sql, sqlite3_prepare_v3(sql->db, "ROLLBACK", -1, SQLITE_PREPARE_PERSISTENT,
                                             &sql->rollback, NULL));
}

/*
 * Opens the connection in `sql`, which is zeroed. `path` must fit into sql->path. The caller calls
 * close_connection, also after a failure.
 */
static invar_status open_connection(invar_sql *sql, const char *path, invar_sql_mode mode)
{
    static const int flags[] = {
        [INVAR_SQL_MODE_READ] = SQLITE_OPEN_READONLY,
        [INVAR_SQL_MODE_IMMUTABLE] = SQLITE_OPEN_READONLY,
        [INVAR_SQL_MODE_WRITE] = SQLITE_OPEN_READWRITE,
        [INVAR_SQL_MODE_CREATE] = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
    };
    const int always = SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX;
    char uri[URI_BYTES] = ":memory:";

    if (path[0])
        make_uri(uri, path, mode);
    memcpy(sql->path, path, strlen(path) + 1);
    INVAR_TRY(sql_check(sql, sqlite3_open_v2(uri, &sql->db, flags[mode] | always, NULL)));
    return sql_configure(sql, mode);
}

static void close_connection(invar_sql *sql)
{
    sqlite3_finalize(sql->rollback);
    // SQLite does not close while a statement exists, which would be a leak
    INVAR_CHECK(sqlite3_close(sql->db) == SQLITE_OK);
}

invar_status invar_sql_open(invar_sql **out, const char *path, invar_sql_mode mode)
{
    invar_sql *sql;
    invar_status status;

    if (strlen(path) >= PATH_BYTES)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger: the path is too long: %.1000s", path);
    INVAR_TRY(INVAR_ALLOC_ZEROED(sql, 1, "a connection"));
    status = open_connection(sql, path, mode);
    if (status != INVAR_OK) {
        invar_sql_close(sql);
        return status;
    }
    *out = sql;
    return INVAR_OK;
}

void invar_sql_close(invar_sql *sql)
{
    if (!sql)
        return;
    close_connection(sql);
    invar_free(sql);
}

void invar_sql_remove_wal(const char *path)
{
    invar_sql sql;
    invar_error error;

    memset(&sql, 0, sizeof sql);
    invar_error_take(&error);
    if (open_connection(&sql, path, INVAR_SQL_MODE_WRITE) != INVAR_OK ||
        invar_sql_exec(&sql, "PRAGMA user_version") != INVAR_OK)
        invar_error_clear();
    close_connection(&sql);
    invar_error_put(&error);
}

const char *invar_sql_path(const invar_sql *sql)
{
    return sql->path;
}

invar_status invar_sql_exec(invar_sql *sql, const char *text)
{
    return sql_check(sql, sqlite3_exec(sql->db, text, NULL, NULL, NULL));
}

invar_status invar_sql_create_temp(invar_sql *sql, const char *text)
{
    int64_t query_only;
    invar_status status;

    INVAR_TRY(invar_sql_query_int(&query_only, sql, "PRAGMA query_only", 0));
    INVAR_TRY(invar_sql_exec(sql, "PRAGMA temp_store = MEMORY; PRAGMA query_only = OFF"));
    sql->stands_in = true;
    status = invar_sql_exec(sql, text);
    if (query_only)
        sqlite3_exec(sql->db, "PRAGMA query_only = ON", NULL, NULL, NULL);
    return status;
}

/* ---- functions ------------------------------------------------------------------------------- */

enum { MAX_ARGUMENTS = 4 };

typedef struct function {
    invar_sql_compute compute;
    void *payload;
    void (*release)(void *payload);
} function;

/* Converts an argument. Only the type of a number is set, because functions take text and blobs. */
static invar_ledger_value argument_of(sqlite3_value *value)
{
    switch (sqlite3_value_type(value)) {
    case SQLITE_INTEGER: return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_INT};
    case SQLITE_FLOAT: return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_REAL};
    case SQLITE_TEXT:
        return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_TEXT,
                                    .data = sqlite3_value_text(value),
                                    .bytes = (size_t)sqlite3_value_bytes(value)};
    case SQLITE_BLOB:
        return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_BLOB,
                                    .data = sqlite3_value_blob(value),
                                    .bytes = (size_t)sqlite3_value_bytes(value)};
    default: return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_NULL};
    }
}

static void call_function(sqlite3_context *context, int count, sqlite3_value **values)
{
    const function *f = sqlite3_user_data(context);
    invar_ledger_value arguments[MAX_ARGUMENTS], out;

    for (int i = 0; i < count; i++) {
        arguments[i] = argument_of(values[i]);
        // NULL data means that SQLite had no memory, except for an empty blob
        if (!arguments[i].data &&
            (arguments[i].type == INVAR_LEDGER_TYPE_TEXT ||
             (arguments[i].type == INVAR_LEDGER_TYPE_BLOB && arguments[i].bytes > 0))) {
            sqlite3_result_error_nomem(context);
            return;
        }
    }
    invar_status status = f->compute(&out, f->payload, arguments);
    if (status == INVAR_E_NOMEM)
        sqlite3_result_error_nomem(context);
    else if (status != INVAR_OK)
        sqlite3_result_error(context, invar_error_last()->message, -1);
    else if (out.type == INVAR_LEDGER_TYPE_TEXT)
        sqlite3_result_text64(context, out.data, out.bytes, SQLITE_TRANSIENT, SQLITE_UTF8);
    if (status != INVAR_OK)
        invar_error_clear();
}

static void release_function(void *payload)
{
    function *f = payload;

    f->release(f->payload);
    invar_free(f);
}

invar_status invar_sql_define(invar_sql *sql, const char *name, int arguments,
                              invar_sql_compute compute, void *payload,
                              void (*release)(void *payload))
{
    const int flags = SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS;
    function *f;
    invar_status status = INVAR_ALLOC(f, 1, "a function of SQL");

    INVAR_CHECK(arguments <= MAX_ARGUMENTS);
    if (status != INVAR_OK) {
        release(payload);
        return status;
    }
    *f = (function){compute, payload, release};
    return sql_check(sql, sqlite3_create_function_v2(sql->db, name, arguments, flags, f,
                                                     call_function, NULL, NULL, release_function));
}

bool invar_sql_in_transaction(const invar_sql *sql)
{
    return !sqlite3_get_autocommit(sql->db);
}

invar_status invar_sql_roll_back(invar_sql *sql, invar_status status)
{
    if (invar_sql_in_transaction(sql)) {
        sqlite3_step(sql->rollback); // if this fails, the next transaction repeats it
        sqlite3_reset(sql->rollback);
    }
    return status;
}

/* ---- statements ------------------------------------------------------------------------------ */

/* True when only white space, comments and semicolons follow. */
static bool is_only_statement(sqlite3 *db, const char *tail)
{
    while (*tail) {
        sqlite3_stmt *next = NULL;
        const char *after;
        if (sqlite3_prepare_v2(db, tail, -1, &next, &after) != SQLITE_OK || next) {
            sqlite3_finalize(next);
            return false;
        }
        tail = after;
    }
    return true;
}

invar_status invar_sql_prepare(invar_sql_stmt **out, invar_sql *sql, const char *text)
{
    sqlite3_stmt *handle = NULL;
    char quote[INVAR_TEXT_QUOTE_SIZE];
    const char *tail;
    invar_status status;

    *out = NULL;
    INVAR_TRY(sql_check(sql, sqlite3_prepare_v2(sql->db, text, -1, &handle, &tail)));
    if (!handle)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "SQL: there is no statement in it");
    if (!is_only_statement(sql->db, tail)) {
        sqlite3_finalize(handle);
        invar_text_quote(quote, sizeof quote, tail, strlen(tail));
        return INVAR_FAIL(INVAR_E_INVALID, 0, "SQL: one statement at a time; behind it stands: %s",
                          quote);
    }
    status = INVAR_ALLOC(*out, 1, "a statement");
    if (status == INVAR_OK)
        **out = (invar_sql_stmt){.handle = handle, .sql = sql};
    else
        sqlite3_finalize(handle);
    return status;
}

void invar_sql_free(invar_sql_stmt *stmt)
{
    if (!stmt)
        return;
    sqlite3_finalize(stmt->handle);
    invar_free(stmt);
}

invar_status invar_sql_end(invar_sql_stmt *stmt, invar_status status)
{
    invar_sql_free(stmt);
    return status;
}

invar_status invar_sql_bind(invar_sql_stmt *stmt, int index, invar_ledger_value value)
{
    sqlite3_stmt *to = stmt->handle;

    switch (value.type) {
    case INVAR_LEDGER_TYPE_INT:
        return sql_check(stmt->sql, sqlite3_bind_int64(to, index, value.integer));
    case INVAR_LEDGER_TYPE_REAL:
        return sql_check(stmt->sql, sqlite3_bind_double(to, index, value.real));
    case INVAR_LEDGER_TYPE_TEXT:
        return sql_check(stmt->sql, sqlite3_bind_text64(to, index, value.data, value.bytes,
                                                        SQLITE_STATIC, SQLITE_UTF8));
    case INVAR_LEDGER_TYPE_BLOB:
        // sqlite3_bind_blob64 with a NULL pointer would bind NULL
        return sql_check(stmt->sql, value.bytes == 0
                                        ? sqlite3_bind_zeroblob(to, index, 0)
                                        : sqlite3_bind_blob64(to, index, value.data, value.bytes,
                                                              SQLITE_STATIC));
    default: return sql_check(stmt->sql, sqlite3_bind_null(to, index));
    }
}

invar_status invar_sql_bind_ints(invar_sql_stmt *stmt, const int64_t *values, size_t count)
{
    int params = invar_sql_params(stmt);

    invar_sql_reset(stmt);
    for (int i = 0; i < (int)count && i < params; i++)
        INVAR_TRY(sql_check(stmt->sql, sqlite3_bind_int64(stmt->handle, i + 1, values[i])));
    return INVAR_OK;
}

invar_status invar_sql_query(invar_sql_stmt **out, invar_sql *sql, const char *text,
                             const int64_t *values, size_t count)
{
    invar_status status;

    INVAR_TRY(invar_sql_prepare(out, sql, text));
    status = invar_sql_bind_ints(*out, values, count);
    if (status != INVAR_OK) {
        invar_sql_free(*out);
        *out = NULL;
    }
    return status;
}

int invar_sql_params(invar_sql_stmt *stmt)
{
    return sqlite3_bind_parameter_count(stmt->handle);
}

const char *invar_sql_param_name(invar_sql_stmt *stmt, int index)
{
    const char *name = sqlite3_bind_parameter_name(stmt->handle, index);

    return name ? name : "?";
}

invar_status invar_sql_step(bool *row_out, invar_sql_stmt *stmt)
{
    int rc;

    *row_out = false;
    INVAR_TRY(invar_sql_row(stmt));
    rc = sqlite3_step(stmt->handle);
    *row_out = rc == SQLITE_ROW;
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? INVAR_OK : sql_fail(stmt->sql, rc);
}

bool invar_sql_next(invar_status *status, invar_sql_stmt *stmt)
{
    bool row = false;

    if (*status == INVAR_OK)
        *status = invar_sql_step(&row, stmt);
    return *status == INVAR_OK && row;
}

invar_status invar_sql_run(invar_sql_stmt *stmt)
{
    bool row;
    invar_status status = invar_sql_step(&row, stmt);

    invar_sql_reset(stmt);
    return status;
}

void invar_sql_reset(invar_sql_stmt *stmt)
{
    sqlite3_reset(stmt->handle); // its code repeats the failure that step has returned
    stmt->lost = false;
}

/* ---- the current row ------------------------------------------------------------------------- */

/* Remembers that a value was lost: NULL is an empty value, or one that SQLite had no memory for. */
static void check_lost(invar_sql_stmt *stmt, const void *data)
{
    if (!data && sqlite3_errcode(stmt->sql->db) == SQLITE_NOMEM)
        stmt->lost = true;
}

invar_status invar_sql_row(const invar_sql_stmt *stmt)
{
    return stmt->lost ? sql_fail(stmt->sql, SQLITE_NOMEM) : INVAR_OK;
}

int invar_sql_columns(invar_sql_stmt *stmt)
{
    return sqlite3_column_count(stmt->handle);
}

const char *invar_sql_column_name(invar_sql_stmt *stmt, int column)
{
    const char *name = sqlite3_column_name(stmt->handle, column);

    return name ? name : "";
}

invar_ledger_type invar_sql_type(invar_sql_stmt *stmt, int column)
{
    switch (sqlite3_column_type(stmt->handle, column)) {
    case SQLITE_INTEGER: return INVAR_LEDGER_TYPE_INT;
    case SQLITE_FLOAT: return INVAR_LEDGER_TYPE_REAL;
    case SQLITE_TEXT: return INVAR_LEDGER_TYPE_TEXT;
    case SQLITE_BLOB: return INVAR_LEDGER_TYPE_BLOB;
    default: return INVAR_LEDGER_TYPE_NULL;
    }
}

int64_t invar_sql_int(invar_sql_stmt *stmt, int column)
{
    return sqlite3_column_int64(stmt->handle, column);
}

double invar_sql_real(invar_sql_stmt *stmt, int column)
{
    return sqlite3_column_double(stmt->handle, column);
}

const char *invar_sql_text(invar_sql_stmt *stmt, int column, size_t *bytes_out)
{
    const char *text = (const char *)sqlite3_column_text(stmt->handle, column);

    check_lost(stmt, text);
    if (bytes_out)
        *bytes_out = text ? (size_t)sqlite3_column_bytes(stmt->handle, column) : 0;
    return text ? text : "";
}

const void *invar_sql_blob(invar_sql_stmt *stmt, int column, size_t *bytes_out)
{
    const void *data = sqlite3_column_blob(stmt->handle, column);

    check_lost(stmt, data);
    *bytes_out = data ? (size_t)sqlite3_column_bytes(stmt->handle, column) : 0;
    return data ? data : "";
}

bool invar_sql_digest(invar_digest *out, invar_sql_stmt *stmt, int column)
{
    size_t bytes;
    const void *data = invar_sql_blob(stmt, column, &bytes);

    if (bytes != sizeof out->bytes)
        return false;
    memcpy(out->bytes, data, sizeof out->bytes);
    return true;
}

invar_status invar_sql_query_int(int64_t *out, invar_sql *sql, const char *text, int64_t argument)
{
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(&stmt, sql, text, argument);
    bool row = invar_sql_next(&status, stmt);

    if (status == INVAR_OK)
        *out = row ? invar_sql_int(stmt, 0) : 0;
    return invar_sql_end(stmt, status);
}

/* ---- guarded statements ---------------------------------------------------------------------- */

static int authorize_read(void *payload, int action, const char *a, const char *b, const char *c,
                          const char *d)
{
    (void)payload, (void)a, (void)c, (void)d;
    switch (action) {
    case SQLITE_SELECT:
    case SQLITE_READ:
    case SQLITE_RECURSIVE: return SQLITE_OK;
    case SQLITE_FUNCTION:
        // these built-in functions load libraries or reveal and set pointers
        return !b || sqlite3_stricmp(b, "load_extension") == 0 ||
                       sqlite3_stricmp(b, "fts3_tokenizer") == 0
                   ? SQLITE_DENY
                   : SQLITE_OK;
    default: return SQLITE_DENY;
    }
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int is_time_over(void *payload)
{
    const invar_sql *sql = payload;

    return now_ms() - sql->guard_start > sql->guard_ms;
}

/*
 * Makes SQLite sort in memory, so that a query cannot fill the disk. A failure in a transaction is
 * ignored, because SQLite may not allow the change there.
 */
static invar_status sort_in_memory(invar_sql *sql)
{
    invar_status status = invar_sql_exec(sql, "PRAGMA temp_store = MEMORY");

    if (status == INVAR_OK || !invar_sql_in_transaction(sql))
        return status;
    invar_error_clear();
    return INVAR_OK;
}

invar_status invar_sql_restrict_to_reads(invar_sql *sql, int64_t limit_ms)
{
    INVAR_TRY(sort_in_memory(sql));
    // the first use of these functions declares a table; the authorizer would take it for CREATE
    INVAR_TRY(invar_sql_exec(sql, "SELECT 1 FROM json_each('[]'), json_tree('[]')"));
    INVAR_TRY(sql_check(sql, sqlite3_set_authorizer(sql->db, authorize_read, NULL)));
    sql->guard_ms = limit_ms;
    sql->guard_start = now_ms();
    if (limit_ms > 0)
        sqlite3_progress_handler(sql->db, GUARD_STEPS, is_time_over, sql);
    // bounds for one value, for the text of a statement, and for all of SQLite
    sqlite3_limit(sql->db, SQLITE_LIMIT_LENGTH, 64 * 1024 * 1024);
    sqlite3_limit(sql->db, SQLITE_LIMIT_SQL_LENGTH, 1024 * 1024);
    sqlite3_limit(sql->db, SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000);
    sql->limits_heap = sqlite3_hard_heap_limit64(-1) == 0; // a limit of the process stays
    if (sql->limits_heap)
        sqlite3_hard_heap_limit64(GUARD_HEAP);
    return INVAR_OK;
}

void invar_sql_unguard(invar_sql *sql)
{
    sqlite3_set_authorizer(sql->db, NULL, NULL);
    sqlite3_progress_handler(sql->db, 0, NULL, NULL);
    if (sql->limits_heap)
        sqlite3_hard_heap_limit64(0);
    sql->limits_heap = false;
    if (!sql->stands_in) // the change would remove temporary tables
        sqlite3_exec(sql->db, "PRAGMA temp_store = DEFAULT", NULL, NULL, NULL);
    sqlite3_limit(sql->db, SQLITE_LIMIT_LENGTH, INT_MAX);
    sqlite3_limit(sql->db, SQLITE_LIMIT_SQL_LENGTH, INT_MAX);
}

/* ---- copies ---------------------------------------------------------------------------------- */

invar_status invar_sql_copy(invar_sql *sql, const char *path)
{
    sqlite3_backup *backup;
    invar_sql *to;
    invar_status status = invar_sql_open(&to, path, INVAR_SQL_MODE_CREATE);
    int rc;

    if (status != INVAR_OK)
        return status;
    backup = sqlite3_backup_init(to->db, "main", sql->db, "main");
    if (!backup) {
        status = sql_fail(to, sqlite3_extended_errcode(to->db));
    } else {
        // all pages in one step are one snapshot, even if a process writes at the same time
        rc = sqlite3_backup_step(backup, -1);
        sqlite3_backup_finish(backup);
        if (rc != SQLITE_DONE)
            status = sql_fail(rc == sqlite3_extended_errcode(to->db) ? to : sql, rc);
    }
    invar_sql_close(to);
    return status;
}
