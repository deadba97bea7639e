/*
 * cyclic_btree.c - tests that verify ends on a hostile ledger with a shared B-tree.
 *
 * The table `entry` becomes a tree of 16 levels. Every page has 13 times the next page as its
 * child, down to the original leaf, so a scan would read 13^16 rows, although each page is valid
 * by itself. Control: verify finds nothing in the ledger before the change.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ledger/ledger.h"
#include "tests/ledger.h"
#include "tests/support.h"

enum { PAGE = 4096, LEVELS = 16, CHILDREN = 12, SECONDS = 60 };

static void write_be16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void write_be32(uint8_t *at, uint32_t value)
{
    write_be16(at, value >> 16);
    write_be16(at + 2, value);
}

/* Returns the number of the root page of a table. */
static uint32_t root_page(const char *path, const char *table)
{
    sqlite3 *db;
    sqlite3_stmt *stmt;
    uint32_t page;

    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT rootpage FROM sqlite_schema WHERE name = ?1",
                                        -1, &stmt, NULL),
                     SQLITE_OK);
    sqlite3_bind_text(stmt, 1, table, -1, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    page = (uint32_t)sqlite3_column_int(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return page;
}

/* Writes an interior page of an index: CHILDREN cells with one row each, and the last child. */
static void make_interior(uint8_t *page, uint32_t child, const uint8_t *row, size_t bytes)
{
    uint32_t at = PAGE;

    memset(page, 0, PAGE);
    for (uint32_t i = 0; i < CHILDREN; i++) {
        at -= (uint32_t)bytes + 4;
        write_be32(page + at, child);
        memcpy(page + at + 4, row, bytes);
        write_be16(page + 12 + 2 * i, at);
    }
    page[0] = 2;
    write_be16(page + 3, CHILDREN);
    write_be16(page + 5, at);
    write_be32(page + 8, child);
}

static void make_endless(const char *path)
{
    static uint8_t file[1 << 20];
    uint8_t leaf[PAGE];
    uint32_t root = root_page(path, "entry"), cell;
    FILE *stream = fopen(path, "r+b");
    size_t bytes, pages;

    assert_non_null(stream);
    bytes = fread(file, 1, sizeof file, stream);
    pages = bytes / PAGE;
    assert_true(bytes % PAGE == 0 && bytes + (size_t)LEVELS * PAGE < sizeof file);
    memcpy(leaf, file + (root - 1) * PAGE, PAGE);
    assert_int_equal(leaf[0], 10); // leaf page of an index; otherwise the schema has changed
    cell = (uint32_t)leaf[8] << 8 | leaf[9];
    assert_true(leaf[cell] < 0x80); // the length of the cell is one byte
    for (uint32_t level = 0; level < LEVELS; level++) {
        uint32_t page = level == 0 ? root : (uint32_t)pages + level;
        make_interior(file + (page - 1) * PAGE, (uint32_t)pages + level + 1, leaf + cell,
                      leaf[cell] + 1u);
    }
    memcpy(file + (pages + LEVELS - 1) * PAGE, leaf, PAGE);
    write_be32(file + 28, (uint32_t)pages + LEVELS); // size of the file in pages
    memcpy(file + 92, file + 24, 4);                 // marks the size as valid for this change
    rewind(stream);
    assert_int_equal(fwrite(file, PAGE, pages + LEVELS, stream), pages + LEVELS);
    assert_int_equal(fclose(stream), 0);
}

static void verify_ledger(invar_ledger_verify_result *out, const char *path)
{
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path, NULL));
    assert_ok(invar_ledger_verify(out, ledger, NULL, NULL));
    invar_ledger_close(ledger);
}

static void test_ledger_endless__verify_ends(void **state)
{
    char folder[] = INVAR_TEST_WORK "/endless-XXXXXX", path[sizeof folder + 16];
    char command[sizeof folder + 16];
    invar_ledger_verify_result verdict;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    assert_ok(invar_test_ledger_write(path, &(invar_test_ledger){.steps = 2}));
    verify_ledger(&verdict, path);
    assert_int_equal(verdict.problems, 0);
    make_endless(path);
    alarm(SECONDS); // kills the program if verify does not end
    verify_ledger(&verdict, path);
    alarm(0);
    assert_true(verdict.problems > 0);
    assert_non_null(strstr(verdict.first_problem, "2nd reference to page"));
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_endless__verify_ends),
    };

    return cmocka_run_group_tests_name("ledger.endless", tests, NULL, NULL);
}
