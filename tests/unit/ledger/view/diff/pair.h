/*
 * pair.h - writes two runs and computes their diff, for the tests of the diff.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_LEDGER_VIEW_DIFF_PAIR_H
#define INVAR_TESTS_UNIT_LEDGER_VIEW_DIFF_PAIR_H

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ledger/view/diff/diff.h"
#include "tests/ledger.h"
#include "tests/no_sync.h"
#include "tests/support.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#ifndef INVAR_TEST_WORK
#define INVAR_TEST_WORK "." /* the build defines it, except if this header is compiled alone */
#endif

static char work_folder[400] = INVAR_TEST_WORK "/diff-XXXXXX";

/* Ledger of all runs that need no ledger of their own, open for writing; and its number of runs. */
static invar_ledger *shared;
static int64_t shared_runs;

static inline int setup_shared(void **state)
{
    char path[512];

    (void)state;
    assert_non_null(mkdtemp(work_folder));
    (void)snprintf(path, sizeof path, "%s/shared.db", work_folder);
    assert_ok(invar_ledger_open(&shared, path, &(invar_ledger_options){.create = true}));
    return 0;
}

static inline int teardown_shared(void **state)
{
    (void)state;
    invar_ledger_close(shared);
    return 0;
}

/* Returns a new path; it stays valid for four calls. */
static inline const char *new_path(void)
{
    static char paths[4][512];
    static int next;
    char *out = paths[next % 4];

    (void)snprintf(out, sizeof paths[0], "%s/%d.db", work_folder, next++);
    return out;
}

static inline invar_ledger *open_read(const char *path)
{
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    return ledger;
}

static inline invar_status diff_paths(invar_diff **out, const char *a, const char *b)
{
    invar_ledger *x = open_read(a), *y = open_read(b);
    invar_status status = invar_diff_runs(out, x, 1, y, 1);

    invar_ledger_close(x);
    invar_ledger_close(y);
    return status;
}

static inline invar_diff *diff_files(const char *a, const char *b)
{
    invar_diff *diff;

    assert_ok(diff_paths(&diff, a, b));
    return diff;
}

static inline int64_t add_shared_run(const invar_test_ledger *spec)
{
    assert_ok(invar_test_ledger_begin(shared, spec));
    for (int64_t step = 0; step < spec->steps; step++)
        assert_ok(invar_test_ledger_step(shared, spec, 0, step));
    return ++shared_runs;
}

static inline invar_diff *diff_shared(int64_t a, int64_t b)
{
    invar_diff *diff;

    assert_ok(invar_diff_runs(&diff, shared, a, shared, b));
    return diff;
}

static inline invar_diff *diff_specs(const invar_test_ledger *a, const invar_test_ledger *b)
{
    int64_t run = add_shared_run(a);

    return diff_shared(run, add_shared_run(b));
}

/* Like diff_specs, but writes each run to a file of its own, so that it can be interrupted. */
static inline invar_diff *diff_interrupted(const invar_test_ledger *a, const invar_test_ledger *b)
{
    const char *x = new_path(), *y = new_path();

    assert_ok(invar_test_ledger_write(x, a));
    assert_ok(invar_test_ledger_write(y, b));
    return diff_files(x, y);
}

static inline char *text_of(const invar_diff *diff,
                            invar_status (*print)(FILE *, const invar_diff *))
{
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    assert_non_null(stream);
    assert_ok(print(stream, diff));
    assert_int_equal(fclose(stream), 0);
    return text;
}

static inline invar_status print_plain(FILE *stream, const invar_diff *diff)
{
    return invar_diff_print(stream, diff, false);
}

static inline void assert_headline(const invar_diff *diff, const char *expected)
{
    char headline[INVAR_DIFF_HEADLINE_SIZE];

    invar_diff_headline(headline, diff);
    assert_string_equal(headline, expected);
}

static inline void assert_has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in:\n%s", part, text);
}

static inline size_t lines_with(const char *text, const char *part)
{
    size_t count = 0;

    for (; (text = strstr(text, part)) != NULL; text++)
        count++;
    return count;
}

/* Copies a ledger, which must be closed, and returns the path of the copy. */
static inline const char *copy_of(const char *path)
{
    const char *copy = new_path();
    FILE *from = fopen(path, "rb"), *to = fopen(copy, "wb");
    char bytes[4096];
    size_t count;

    assert_true(from && to);
    while ((count = fread(bytes, 1, sizeof bytes, from)) > 0)
        assert_int_equal(fwrite(bytes, 1, count, to), count);
    fclose(from);
    assert_int_equal(fclose(to), 0);
    return copy;
}

/* Executes SQL on a ledger without its triggers, to damage it. */
static inline void tamper(const char *path, const char *sql)
{
    sqlite3 *db;
    char *message = NULL;

    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA synchronous = OFF", NULL, NULL, NULL), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", sql, message);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static const invar_ledger_fact other_program[] = {{"build", "binary", "ff"}};

#endif
