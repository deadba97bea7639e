/*
 * sql.h - SQLite behind our status codes. sql.c is the only file that includes sqlite3.h.
 *
 * Inside ledger/ only. Failures carry SQLite's extended code as `native` and the file's path in the
 * message. Column getters never fail: they read the current row, whose types a STRICT table fixes.
 * Where there is no memory for a value it reads as empty, and the next step fails.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_sql invar_sql;           /* a connection */
typedef struct invar_sql_stmt invar_sql_stmt; /* a prepared statement */

typedef enum invar_sql_mode {
    INVAR_SQL_MODE_READ,      /* a live or finished file */
    INVAR_SQL_MODE_IMMUTABLE, /* a file that nobody writes, in a folder that cannot be written */
    INVAR_SQL_MODE_WRITE,     /* an existing file */
    INVAR_SQL_MODE_CREATE     /* a file that may not exist yet */
} invar_sql_mode;

/* "" opens a private database in memory (with CREATE). */
invar_status invar_sql_open(invar_sql **out, const char *path, invar_sql_mode mode) INVAR_MUST_USE;
void invar_sql_close(invar_sql *sql); /* NULL is allowed; all statements freed before */

/*
 * Removes "-wal" and "-shm" of a file whose path was opened before, if it can: by entering as a
 * writer and leaving as the last one. Takes no memory of ours and tells no error.
 */
void invar_sql_remove_wal(const char *path);

const char *invar_sql_path(const invar_sql *sql);

/* Runs statements that yield no rows. */
invar_status invar_sql_exec(invar_sql *sql, const char *text) INVAR_MUST_USE;

/*
 * Makes a temporary table or view, which only this connection sees, a reader's too. From then on
 * what SQLite keeps for a while is in memory, since that is where the table is.
 */
invar_status invar_sql_create_temp(invar_sql *sql, const char *text) INVAR_MUST_USE;

/*
 * Computes the value of a function of SQL. *out is NULL or text; the text is borrowed until the
 * next call. A failure ends the statement with its message.
 */
typedef invar_status (*invar_sql_compute)(invar_ledger_value *out, void *payload,
                                          const invar_ledger_value *arguments);

/*
 * Defines a function for this connection only, whose value depends on its arguments alone.
 * `payload` is released when the connection is closed, or here if this call fails.
 */
invar_status invar_sql_define(invar_sql *sql, const char *name, int arguments,
                              invar_sql_compute compute, void *payload,
                              void (*release)(void *payload)) INVAR_MUST_USE;

/* True between BEGIN and its end: SQLite rolls back by itself after some failures. */
bool invar_sql_in_transaction(const invar_sql *sql);

/* Ends a transaction that failed and keeps the failure's record; returns `status`. */
invar_status invar_sql_roll_back(invar_sql *sql, invar_status status);

/* Exactly one statement; anything behind it is refused. */
invar_status invar_sql_prepare(invar_sql_stmt **out, invar_sql *sql,
                               const char *text) INVAR_MUST_USE;
void invar_sql_free(invar_sql_stmt *stmt); /* NULL is allowed */

/* Parameters are numbered from 1. Text and blobs are borrowed until the next reset. */
invar_status invar_sql_bind_int(invar_sql_stmt *stmt, int index, int64_t value) INVAR_MUST_USE;
invar_status invar_sql_bind_real(invar_sql_stmt *stmt, int index, double value) INVAR_MUST_USE;
invar_status invar_sql_bind_text(invar_sql_stmt *stmt, int index, const char *text,
                                 size_t bytes) INVAR_MUST_USE;
invar_status invar_sql_bind_blob(invar_sql_stmt *stmt, int index, const void *data,
                                 size_t bytes) INVAR_MUST_USE;
invar_status invar_sql_bind_null(invar_sql_stmt *stmt, int index) INVAR_MUST_USE;

/* The index of ":name", 0 when the statement has none; the name of the index, with its colon. */
int invar_sql_param(invar_sql_stmt *stmt, const char *name);
int invar_sql_params(invar_sql_stmt *stmt);
const char *invar_sql_param_name(invar_sql_stmt *stmt, int index);

/* *row_out: there is a current row. */
invar_status invar_sql_step(bool *row_out, invar_sql_stmt *stmt) INVAR_MUST_USE;

/* Fails when there was no memory for a value of the current row, as far as it has been read. */
invar_status invar_sql_row(const invar_sql_stmt *stmt) INVAR_MUST_USE;

/* Ready to run again; bindings stay. */
void invar_sql_reset(invar_sql_stmt *stmt);

/* The current row; columns from 0. Pointers are valid until the next step or reset. */
int invar_sql_columns(invar_sql_stmt *stmt);
const char *invar_sql_column_name(invar_sql_stmt *stmt, int column);
invar_ledger_type invar_sql_type(invar_sql_stmt *stmt, int column);
int64_t invar_sql_int(invar_sql_stmt *stmt, int column);
double invar_sql_real(invar_sql_stmt *stmt, int column);
const char *invar_sql_text(invar_sql_stmt *stmt, int column, size_t *bytes_out); /* never NULL */
const void *invar_sql_blob(invar_sql_stmt *stmt, int column, size_t *bytes_out);

/* False when the column does not hold exactly 16 bytes. */
bool invar_sql_digest(invar_digest *out, invar_sql_stmt *stmt, int column);

/* One value: runs the statement `text` with `?1 = argument` and yields the first column. */
invar_status invar_sql_query_int(int64_t *out, invar_sql *sql, const char *text,
                                 int64_t argument) INVAR_MUST_USE;

/* From now on every statement may only read, and no run of one takes longer than limit_ms. */
invar_status invar_sql_restrict_to_reads(invar_sql *sql, int64_t limit_ms) INVAR_MUST_USE;
void invar_sql_unguard(invar_sql *sql);

/* Copies the whole database, as of now, into a new or empty file. */
invar_status invar_sql_copy(invar_sql *sql, const char *path) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
