/*
 * ledger_rows.c - fuzz target: a ledger whose file is sound and whose values are arbitrary.
 *
 * An input is a list of records: a column out of all columns (2 bytes) and a row (1 byte), both
 * modulo their number, a value (1 byte, see `values`), and a byte that the value may use. SQLite
 * itself writes them, with the triggers and checks of the schema switched off, so that only Invar's
 * code can find them. A ledger in which verify finds no problem must have the content that it had
 * before.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/ledger/ledger_use.h"
#include "tests/fuzz/scratch.h"

enum { RECORD = 5, MAX_COLUMNS = 256, TEXT_SIZE = 4096 };

/* New values of a column; ?1 is the record's last byte. */
static const char *const values[] = {
    "9223372036854775807",
    "-9223372036854775808",
    "1152921504606846976 + ?1",
    "4294967296 + ?1",
    "?1",
    "-1 - ?1",
    "1e308 * ?1",
    "NULL",
    "''",
    "'[' || ?1 || ',9223372036854775807,-1]'",
    "char(?1, 27, 10, 128, 60) || '</script>'",
    "printf('%.*c', 300 * (1 + ?1), 'x')",
    "x''",
    "zeroblob(?1)",
    "zeroblob(65536 * (1 + ?1 % 16))",
    "x'ff00fe' || ?1",
    "CAST(x'c3c3' AS TEXT)",
    "(SELECT uuid FROM run)",
};
enum { VALUES = sizeof values / sizeof *values };

static struct {
    uint8_t *bytes;
    size_t size;
    invar_ledger *ledger;
    invar_digest content;
    char tables[MAX_COLUMNS][64], columns[MAX_COLUMNS][64]; /* one element per column */
    int count;
} valid;

static char path[FUZZ_PATH_SIZE];

static void list_columns(const char *from)
{
    sqlite3 *db;
    sqlite3_stmt *stmt;

    INVAR_CHECK(sqlite3_open_v2(from, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK);
    INVAR_CHECK(sqlite3_prepare_v2(db,
                                   "SELECT t.name, c.name FROM sqlite_schema t, "
                                   "pragma_table_info(t.name) c WHERE t.type = 'table' "
                                   "ORDER BY t.name, c.cid",
                                   -1, &stmt, NULL) == SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        INVAR_CHECK(valid.count < MAX_COLUMNS);
        snprintf(valid.tables[valid.count], 64, "%s", (const char *)sqlite3_column_text(stmt, 0));
        snprintf(valid.columns[valid.count++], 64, "%s",
                 (const char *)sqlite3_column_text(stmt, 1));
    }
    sqlite3_finalize(stmt);
    sqlite3_close(db);
}

static void make_valid(void)
{
    char valid_path[FUZZ_PATH_SIZE];

    fuzz_path(path, "ledger.db");
    fuzz_path(valid_path, "valid.db");
    INVAR_CHECK(invar_test_ledger_write(valid_path, &fuzz_spec) == INVAR_OK);
    valid.bytes = fuzz_read(&valid.size, valid_path);
    INVAR_CHECK(invar_ledger_open(&valid.ledger, valid_path, NULL) == INVAR_OK);
    INVAR_CHECK(invar_ledger_content_hash(&valid.content, valid.ledger, 1) == INVAR_OK);
    list_columns(valid_path);
}

/* Writes an UPDATE of the rows that equal, in all columns, the row at the offset ?2. */
static void print_update(char out[TEXT_SIZE], int column, const char *value)
{
    const char *table = valid.tables[column];
    char all_columns[TEXT_SIZE / 4] = "";
    size_t used = 0;

    for (int i = 0; i < valid.count; i++)
        if (strcmp(valid.tables[i], table) == 0)
            used += (size_t)snprintf(all_columns + used, sizeof all_columns - used, "%s%s",
                                     used > 0 ? ", " : "", valid.columns[i]);
    snprintf(out, TEXT_SIZE,
             "UPDATE OR IGNORE %s SET %s = %s WHERE (%s) IS "
             "(SELECT %s FROM %s LIMIT 1 OFFSET ?2 %% (SELECT max(1, count(*)) FROM %s))",
             table, valid.columns[column], value, all_columns, all_columns, table, table);
}

/*
 * Applies one record. STRICT tables reject a value of another type; then the record changes
 * nothing.
 */
static void apply_record(sqlite3 *db, const uint8_t *record)
{
    char text[TEXT_SIZE];
    sqlite3_stmt *stmt;

    print_update(text, (record[0] << 8 | record[1]) % valid.count, values[record[3] % VALUES]);
    INVAR_CHECK(sqlite3_prepare_v2(db, text, -1, &stmt, NULL) == SQLITE_OK);
    sqlite3_bind_int(stmt, 1, record[4]);
    sqlite3_bind_int(stmt, 2, record[2]);
    sqlite3_step(stmt);
    sqlite3_finalize(stmt);
}

static void write_changed(const uint8_t *data, size_t size)
{
    sqlite3 *db;

    fuzz_write(path, valid.bytes, valid.size);
    INVAR_CHECK(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_exec(db, "PRAGMA ignore_check_constraints = ON; PRAGMA synchronous = OFF; BEGIN", NULL,
                 NULL, NULL);
    for (; size >= RECORD; data += RECORD, size -= RECORD)
        apply_record(db, data);
    INVAR_CHECK(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL) == SQLITE_OK);
    INVAR_CHECK(sqlite3_close(db) == SQLITE_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    invar_digest content;
    invar_ledger *ledger;

    if (!valid.bytes)
        make_valid();
    write_changed(data, size);
    INVAR_CHECK(invar_ledger_open(&ledger, path, NULL) == INVAR_OK);
    if (fuzz_use(ledger, valid.ledger, size > 0 ? data[size - 1] : 0)) {
        INVAR_CHECK(invar_ledger_content_hash(&content, ledger, 1) == INVAR_OK);
        INVAR_CHECK(invar_digest_equal(&content, &valid.content));
    }
    invar_ledger_close(ledger);
    fuzz_write_on(path);
    return 0;
}
