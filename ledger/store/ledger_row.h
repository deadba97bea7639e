/*
 * ledger_row.h - the rows of a run: their tables, canonical bytes and sums, how they are written
 * and read.
 *
 * A row has logical columns: the stored ones, except that
 *   - the run's number is left out (an import gives another),
 *   - a series is its name and a manifest its hash (an import gives other numbers),
 *   - the readable twin of X_bits is left out (it says nothing new).
 * So a row's canonical bytes, and everything hashed from them, survive an import unchanged.
 *
 *   canonical bytes   the table's name as TEXT, then each logical column but the last, sum:
 *     NULL 0 | INTEGER 1, le64 | TEXT 2, le64 length, bytes | BLOB 3, le64 length, bytes
 *     (REAL 4, le64 of its bits: in no column of ours)
 *   sum               the first 8 bytes of XXH3-128(canonical bytes), big-endian, as an INTEGER
 *   content bytes     the same, of the columns marked as content only
 *
 * Invariants: L1, L2, L3 (docs/ledger.md)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_STORE_LEDGER_ROW_H
#define INVAR_LEDGER_STORE_LEDGER_ROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "ledger/ledger.h"
#include "ledger/store/sql.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tables with rows of runs, in the order in which they are hashed; entry and pruned are not. */
typedef enum invar_ledger_table {
    INVAR_LEDGER_TABLE_RUN,
    INVAR_LEDGER_TABLE_IDENTITY,
    INVAR_LEDGER_TABLE_SEGMENT,
    INVAR_LEDGER_TABLE_FINISH,
    INVAR_LEDGER_TABLE_FACT,
    INVAR_LEDGER_TABLE_OBJECT,
    INVAR_LEDGER_TABLE_STEP,
    INVAR_LEDGER_TABLE_METRIC,
    INVAR_LEDGER_TABLE_DIGEST,
    INVAR_LEDGER_TABLE_STAT,
    INVAR_LEDGER_TABLE_SAMPLE,
    INVAR_LEDGER_TABLE_REPLY,
    INVAR_LEDGER_TABLE_EVALUATION,
    INVAR_LEDGER_TABLE_CHECKPOINT,
    INVAR_LEDGER_TABLE_SEAL,
    INVAR_LEDGER_TABLE_TIMING,
    INVAR_LEDGER_TABLE_GAUGE,
    INVAR_LEDGER_TABLE_EVENT,
    INVAR_LEDGER_TABLE_WORK,
    INVAR_LEDGER_TABLE_REWARD_PART,
    INVAR_LEDGER_TABLE_LED_SAMPLE,
    INVAR_LEDGER_TABLE_OP_TIME,
    INVAR_LEDGER_TABLE_KEPT_SAMPLE,
    INVAR_LEDGER_TABLE_COUNT
} invar_ledger_table;

/* The tables that a step's content hash covers after the step's own row, in its order. */
enum { INVAR_CONTENT_TABLES = 4 };
extern const invar_ledger_table invar_content_tables[INVAR_CONTENT_TABLES];

enum {
    INVAR_COLUMN_KEY = 1,     /* part of the primary key */
    INVAR_COLUMN_CONTENT = 2, /* part of the content bytes */
    INVAR_COLUMN_HAS_READABLE_COPY =
        4,                      /* bits of a double; its readable twin is stored behind it */
    INVAR_COLUMN_SERIES = 8,    /* stored as a number, logically a name */
    INVAR_COLUMN_MANIFEST = 16, /* stored as a number, logically a hash */
    INVAR_COLUMN_ENTRY = 32     /* the entry that wrote the row */
};

typedef struct invar_column {
    const char *name; /* as stored */
    invar_ledger_type type;
    int flags;
} invar_column;

#define INVAR_LEDGER_ROW_COLUMNS 24 /* logical ones, at most */

typedef struct invar_ledger_table_def {
    const char *name;
    int columns; /* logical ones, without run and sum */
    invar_column column[INVAR_LEDGER_ROW_COLUMNS];
    bool keyed_by_step; /* no entry column: a row belongs to the entry of its step */
    bool detail;        /* a shortened copy may leave its old rows out */
} invar_ledger_table_def;

const invar_ledger_table_def *invar_ledger_table_get(invar_ledger_table table);

/* Values for the logical columns. */
typedef invar_ledger_value invar_ledger_row_values[INVAR_LEDGER_ROW_COLUMNS];

invar_ledger_value invar_ledger_value_null(void);
invar_ledger_value invar_ledger_value_int(int64_t value);
invar_ledger_value invar_ledger_value_bits(double value); /* its IEEE pattern */
invar_ledger_value invar_ledger_value_text(const char *text);
invar_ledger_value invar_ledger_value_blob(const void *data, size_t bytes);
invar_ledger_value invar_ledger_value_digest(const invar_digest *digest);

/* To and from a statement; what column yields is valid until the next step or reset. */
invar_status invar_ledger_value_bind(invar_sql_stmt *stmt, int index,
                                     const invar_ledger_value *value) INVAR_MUST_USE;
invar_ledger_value invar_ledger_value_column(invar_sql_stmt *stmt, int column);

/* Takes bytes piece by piece, for a hash. */
typedef void (*invar_ledger_bytes_fn)(void *payload, const void *data, size_t bytes);

/* Feeds a value's canonical form. */
void invar_ledger_value_feed(invar_ledger_bytes_fn feed, void *payload,
                             const invar_ledger_value *value);
void invar_ledger_value_hash(invar_hasher *hasher, const invar_ledger_value *value);

/* The row's sum. */
int64_t invar_ledger_row_sum(invar_ledger_table table, const invar_ledger_value *row);

/* Feeds the row's content bytes. */
void invar_ledger_row_content(invar_hasher *hasher, invar_ledger_table table,
                              const invar_ledger_value *row);

/* Feeds the row's canonical bytes. */
void invar_ledger_row_canonical(invar_ledger_table table, const invar_ledger_value *row,
                                invar_ledger_bytes_fn feed, void *payload);

/* INSERT with ?1 = run, then the logical columns and their twins in order, then the sum. */
invar_status invar_ledger_row_insert(invar_sql_stmt **out, invar_sql *sql,
                                     invar_ledger_table table) INVAR_MUST_USE;

/* Binds and runs such a statement. */
invar_status invar_ledger_row_write(invar_sql_stmt *insert, invar_ledger_table table, int64_t run,
                                    const invar_ledger_value *row, int64_t sum) INVAR_MUST_USE;

/* A row as it was found. */
typedef struct invar_ledger_stored_row {
    invar_ledger_table table;
    invar_ledger_row_values values;
    int64_t entry;              /* that it belongs to; -1: to none, its step is missing */
    int64_t sum;                /* as stored */
    bool readable_copies_agree; /* the readable twins say what the bits say */
} invar_ledger_stored_row;

/*
 * SELECT of the rows of run ?1 in logical key order; with `of_step` also ?2 = step, ?3 = segment.
 * Only the rows of tables that have those columns can be asked for by step.
 */
invar_status invar_ledger_row_select(invar_sql_stmt **out, invar_sql *sql, invar_ledger_table table,
                                     bool of_step) INVAR_MUST_USE;

/* The current row of such a statement. */
void invar_ledger_row_read(invar_ledger_stored_row *out, invar_sql_stmt *select,
                           invar_ledger_table table);

/* Returns INVAR_E_CORRUPT, naming row and ledger, if the row's values do not give its sum. */
invar_status invar_ledger_row_check(const invar_ledger_stored_row *row,
                                    const char *path) INVAR_MUST_USE;

/* "metric (step 3, seg 0, series 'train/loss')", for messages. */
void invar_ledger_row_describe(char *out, size_t size, invar_ledger_table table,
                               const invar_ledger_value *row);

#ifdef __cplusplus
}
#endif
#endif
