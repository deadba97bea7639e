/*
 * sql.h - wrapper around SQLite that returns our status codes. Private to ledger/.
 *
 * sql.c is the only file that includes sqlite3.h. Failures carry SQLite's extended code as `native`
 * and the path of the file in the message. Column getters never fail: they read the current row,
 * whose types a STRICT table fixes. If there is no memory for a value, it reads as empty, and the
 * next step fails.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_STORE_SQL_H
#define INVAR_LEDGER_STORE_SQL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "ledger/ledger.h"

typedef struct invar_sql invar_sql;           /* a connection */
typedef struct invar_sql_stmt invar_sql_stmt; /* a prepared statement */

typedef enum invar_sql_mode {
    INVAR_SQL_MODE_READ,      /* read a file that another process may be writing */
    INVAR_SQL_MODE_IMMUTABLE, /* read a file that no process writes, without locks and "-shm" */
    INVAR_SQL_MODE_WRITE,     /* write an existing file */
    INVAR_SQL_MODE_CREATE     /* write a file, and create it if it does not exist */
} invar_sql_mode;

/*
 * Opens a database. An empty path with INVAR_SQL_MODE_CREATE opens a private database in memory.
 * The caller closes *out with invar_sql_close.
 */
invar_status invar_sql_open(invar_sql **out, const char *path, invar_sql_mode mode) INVAR_MUST_USE;

/* Closes a connection; `sql` may be NULL. All its statements must have been freed. */
void invar_sql_close(invar_sql *sql);

/*
 * Removes "-wal" and "-shm" of a file that was opened before, if possible: opens and closes it for
 * writing, and SQLite removes them when the last connection closes. Allocates nothing outside
 * SQLite, reports no failure, and keeps the record of an earlier one.
 */
void invar_sql_remove_wal(const char *path);

const char *invar_sql_path(const invar_sql *sql);

/* Runs statements that yield no rows. */
invar_status invar_sql_exec(invar_sql *sql, const char *text) INVAR_MUST_USE;

/*
 * Creates a temporary table or view, which only this connection sees; a reader may create one, too.
 * It lies in memory, so from then on SQLite keeps all temporary data of the connection in memory.
 */
invar_status invar_sql_create_temp(invar_sql *sql, const char *text) INVAR_MUST_USE;

/*
 * Callback that computes the value of an SQL function. *out is NULL or TEXT; the text is borrowed
 * until the next call. Of an argument that is a number only the type is set. A failure ends the
 * statement with its message.
 */
typedef invar_status (*invar_sql_compute)(invar_ledger_value *out, void *payload,
                                          const invar_ledger_value *arguments);

/*
 * Defines an SQL function for this connection, with at most 4 arguments, on which alone its value
 * may depend. `release` is called for `payload` when the connection is closed, or by this call if
 * it fails.
 */
invar_status invar_sql_define(invar_sql *sql, const char *name, int arguments,
                              invar_sql_compute compute, void *payload,
                              void (*release)(void *payload)) INVAR_MUST_USE;

/* True while a transaction is open. After some failures SQLite rolls back by itself. */
bool invar_sql_in_transaction(const invar_sql *sql);

/* Rolls back the open transaction, if any, keeps the record of a failure, and returns `status`. */
invar_status invar_sql_roll_back(invar_sql *sql, invar_status status);

/*
 * Prepares exactly one statement; text after it is rejected with INVAR_E_INVALID. The caller frees
 * *out, which is NULL after a failure, with invar_sql_free.
 */
invar_status invar_sql_prepare(invar_sql_stmt **out, invar_sql *sql,
                               const char *text) INVAR_MUST_USE;
void invar_sql_free(invar_sql_stmt *stmt); /* `stmt` may be NULL */

/* Frees the statement and returns `status`. */
invar_status invar_sql_end(invar_sql_stmt *stmt, invar_status status) INVAR_MUST_USE;

/* Binds a value to a parameter, from 1. Text and blobs are borrowed until the next reset. */
invar_status invar_sql_bind(invar_sql_stmt *stmt, int index,
                            invar_ledger_value value) INVAR_MUST_USE;

/* The parameters of a statement: their number, and the name of one of them, with its colon. */
int invar_sql_params(invar_sql_stmt *stmt);
const char *invar_sql_param_name(invar_sql_stmt *stmt, int index);

/*
 * Bind integers to ?1, ?2 ... of a statement that is made ready to run again, as far as it has
 * these parameters; the first prepares the statement. The caller frees *out, which is NULL after a
 * failure, with invar_sql_free.
 */
#define INVAR_SQL_QUERY(out, sql, text, ...)                                                       \
    invar_sql_query(out, sql, text, (const int64_t[]){__VA_ARGS__},                                \
                    sizeof(const int64_t[]){__VA_ARGS__} / sizeof(int64_t))
#define INVAR_SQL_BIND(stmt, ...)                                                                  \
    invar_sql_bind_ints(stmt, (const int64_t[]){__VA_ARGS__},                                      \
                        sizeof(const int64_t[]){__VA_ARGS__} / sizeof(int64_t))
invar_status invar_sql_query(invar_sql_stmt **out, invar_sql *sql, const char *text,
                             const int64_t *values, size_t count) INVAR_MUST_USE;
invar_status invar_sql_bind_ints(invar_sql_stmt *stmt, const int64_t *values,
                                 size_t count) INVAR_MUST_USE;

/* Advances to the next row. *row_out is false if there are no more rows. */
invar_status invar_sql_step(bool *row_out, invar_sql_stmt *stmt) INVAR_MUST_USE;

/*
 * Advances to the next row if *status is INVAR_OK, and sets it if that fails. False after the last
 * row and after a failure; `stmt` may be NULL if *status is a failure.
 */
bool invar_sql_next(invar_status *status, invar_sql_stmt *stmt);

/* Runs a statement without rows, such as an INSERT, and makes it ready to run again. */
invar_status invar_sql_run(invar_sql_stmt *stmt) INVAR_MUST_USE;

/* Returns INVAR_E_NOMEM if a value of the current row was read as empty for lack of memory. */
invar_status invar_sql_row(const invar_sql_stmt *stmt) INVAR_MUST_USE;

/* Makes the statement ready to run again; bindings stay. */
void invar_sql_reset(invar_sql_stmt *stmt);

/* Read the current row. Columns count from 0. Pointers are valid until the next step or reset. */
int invar_sql_columns(invar_sql_stmt *stmt);
const char *invar_sql_column_name(invar_sql_stmt *stmt, int column);
invar_ledger_type invar_sql_type(invar_sql_stmt *stmt, int column);
int64_t invar_sql_int(invar_sql_stmt *stmt, int column);
double invar_sql_real(invar_sql_stmt *stmt, int column);
const char *invar_sql_text(invar_sql_stmt *stmt, int column, size_t *bytes_out); /* never NULL */
const void *invar_sql_blob(invar_sql_stmt *stmt, int column, size_t *bytes_out);

/* *out = the digest in a column. Returns false if the column does not have exactly 16 bytes. */
bool invar_sql_digest(invar_digest *out, invar_sql_stmt *stmt, int column);

/*
 * Runs the statement `text` with ?1 = argument, if it has a parameter. *out = the first column of
 * the first row, or 0 if there is no row.
 */
invar_status invar_sql_query_int(int64_t *out, invar_sql *sql, const char *text,
                                 int64_t argument) INVAR_MUST_USE;

/*
 * Guards the connection until invar_sql_unguard: statements may only read, and are interrupted
 * limit_ms after this call (0 for no limit). SQLite may use 512 MiB in this process, unless the
 * process has set another limit.
 */
invar_status invar_sql_restrict_to_reads(invar_sql *sql, int64_t limit_ms) INVAR_MUST_USE;
void invar_sql_unguard(invar_sql *sql);

/* Copies the database, as it is at the time of the call, to a new or empty file. */
invar_status invar_sql_copy(invar_sql *sql, const char *path) INVAR_MUST_USE;

#endif
