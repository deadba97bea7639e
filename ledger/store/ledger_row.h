/*
 * ledger_row.h - the rows of a run: tables, canonical bytes, sums, and how rows are written and
 * read.
 *
 * A row has logical columns: the stored ones, except that
 *   - the number of the run is left out (an import assigns another),
 *   - a series is its name and a manifest its hash (an import assigns other numbers),
 *   - the readable copy of X_bits is left out (it follows from the bits).
 * So the canonical bytes of a row, and everything hashed from them, survive an import unchanged.
 *
 *   canonical bytes   the table's name as TEXT, then each logical column except the last one, sum:
 *     NULL 0 | INTEGER 1, le64 | TEXT 2, le64 length, bytes | BLOB 3, le64 length, bytes
 *     (REAL 4, le64 of its bits: not in any column)
 *   sum               the first 8 bytes of XXH3-128(canonical bytes), big-endian, as an INTEGER
 *   content bytes     like the canonical bytes, for columns with INVAR_COLUMN_CONTENT only
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

/* The tables with rows of runs, in the order in which they are hashed; not entry and pruned. */
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

/* The tables that the content hash of a step covers after the row of the step, in this order. */
enum { INVAR_CONTENT_TABLES = 4 };
extern const invar_ledger_table invar_content_tables[INVAR_CONTENT_TABLES];

enum {
    INVAR_COLUMN_KEY = 1,     /* part of the primary key */
    INVAR_COLUMN_CONTENT = 2, /* part of the content bytes */
    INVAR_COLUMN_HAS_READABLE_COPY =
        4,                      /* bits of a double; the next stored column is the double itself */
    INVAR_COLUMN_SERIES = 8,    /* stored as a number, logically a name */
    INVAR_COLUMN_MANIFEST = 16, /* stored as a number, logically a hash */
    INVAR_COLUMN_ENTRY = 32     /* number of the entry that wrote the row */
};

typedef struct invar_column {
    const char *name;       /* name of the stored column */
    invar_ledger_type type; /* logical type */
    int flags;              /* INVAR_COLUMN_* */
} invar_column;

#define INVAR_LEDGER_ROW_COLUMNS 24 /* maximum number of logical columns of a table */

typedef struct invar_ledger_table_def {
    const char *name;
    bool detail; /* a copy may leave out rows of old steps (invar_ledger_retention) */
    /* The logical columns, without run and sum, and one without a name. Rows of a table without a
       column of entries belong to the entry of their step. */
    invar_column column[INVAR_LEDGER_ROW_COLUMNS];
} invar_ledger_table_def;

/* Returns the static definition of a table. */
const invar_ledger_table_def *invar_ledger_table_get(invar_ledger_table table);

/* The values of a row's logical columns. */
typedef invar_ledger_value invar_ledger_row_values[INVAR_LEDGER_ROW_COLUMNS];

invar_ledger_value invar_ledger_value_null(void);
invar_ledger_value invar_ledger_value_int(int64_t value);
invar_ledger_value invar_ledger_value_bits(double value); /* INT with the IEEE pattern of value */
invar_ledger_value invar_ledger_value_text(const char *text);
invar_ledger_value invar_ledger_value_blob(const void *data, size_t bytes);
invar_ledger_value invar_ledger_value_digest(const invar_digest *digest);

/* Reads a column of the current row. Its data are valid until the next step or reset. */
invar_ledger_value invar_ledger_value_column(invar_sql_stmt *stmt, int column);

/* Callback that receives bytes to hash, in several calls. */
typedef void (*invar_ledger_bytes_fn)(void *payload, const void *data, size_t bytes);

/* Feed the canonical bytes of a value to `on_bytes`, or to a hasher. */
void invar_ledger_value_feed(invar_ledger_bytes_fn on_bytes, void *payload,
                             const invar_ledger_value *value);
void invar_ledger_value_hash(invar_hasher *hasher, const invar_ledger_value *value);

/* Returns the sum of a row. */
int64_t invar_ledger_row_sum(invar_ledger_table table, const invar_ledger_value *row);

/* Feeds the content bytes of a row. */
void invar_ledger_row_content(invar_hasher *hasher, invar_ledger_table table,
                              const invar_ledger_value *row);

/* Feeds the canonical bytes of a row. */
void invar_ledger_row_canonical(invar_ledger_table table, const invar_ledger_value *row,
                                invar_ledger_bytes_fn on_bytes, void *payload);

/*
 * Prepares an INSERT with ?1 = run, then the logical columns, each followed by its readable copy if
 * it has one, then the sum. The caller frees *out with invar_sql_free.
 */
invar_status invar_ledger_row_insert(invar_sql_stmt **out, invar_sql *sql,
                                     invar_ledger_table table) INVAR_MUST_USE;

/* Binds a row to such a statement and runs it. */
invar_status invar_ledger_row_write(invar_sql_stmt *insert, invar_ledger_table table, int64_t run,
                                    const invar_ledger_value *row, int64_t sum) INVAR_MUST_USE;

/*
 * A row as it is stored. Its values are borrowed from the statement until the next step or reset.
 */
typedef struct invar_ledger_stored_row {
    invar_ledger_table table;
    invar_ledger_row_values values;
    int64_t entry; /* number of the entry that wrote the row; -1 if its step is missing */
    int64_t sum;   /* stored sum, which may be wrong */
    bool readable_copies_agree; /* every readable copy equals the value of its bits */
} invar_ledger_stored_row;

/*
 * Prepares a SELECT of the rows of a run in the order of their logical keys. With three numbers,
 * run, step and segment, it selects the rows of that step, whose table must have these columns;
 * INVAR_SQL_BIND selects those of others. The caller frees *out with invar_sql_free.
 */
#define INVAR_LEDGER_ROW_SELECT(out, sql, table, ...)                                              \
    invar_ledger_row_select(out, sql, table, (const int64_t[]){__VA_ARGS__},                       \
                            sizeof(const int64_t[]){__VA_ARGS__} / sizeof(int64_t))
invar_status invar_ledger_row_select(invar_sql_stmt **out, invar_sql *sql, invar_ledger_table table,
                                     const int64_t *key, size_t count) INVAR_MUST_USE;

/* Reads the next row of such a statement. Fails and ends like invar_sql_next. */
bool invar_ledger_row_next(invar_ledger_stored_row *out, invar_status *status,
                           invar_sql_stmt *select, invar_ledger_table table);

/* Returns INVAR_E_CORRUPT, naming row and ledger, if the row's values do not give its sum. */
invar_status invar_ledger_row_check(const invar_ledger_stored_row *row,
                                    const char *path) INVAR_MUST_USE;

/*
 * Writes table and key of a row, such as "metric (step 3, seg 0, series train/loss)", for messages.
 * Unprintable bytes become question marks.
 */
void invar_ledger_row_describe(char *out, size_t size, invar_ledger_table table,
                               const invar_ledger_value *row);

#endif
