/*
 * pair.h - two ledgers and their diff, for the tests of the diff.
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
#include "tests/support.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#ifndef INVAR_TEST_WORK
#define INVAR_TEST_WORK "." /* the build says it; a header that is compiled alone need not know */
#endif

static char work[400] = INVAR_TEST_WORK "/diff-XXXXXX";

/* One ledger for all runs that need none of their own; a writer reads, too. */
static invar_ledger *shared;
static int64_t shared_runs;

static inline int set_up(void **state)
{
    char path[512];

    (void)state;
    assert_non_null(mkdtemp(work));
    (void)snprintf(path, sizeof path, "%s/shared.db", work);
    assert_ok(invar_ledger_open(&shared, path, &(invar_ledger_options){.create = true}));
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    invar_ledger_close(shared);
    return 0;
}

/* A path that no call has returned before. */
static inline const char *fresh(void)
{
    static char paths[4][512];
    static int next;
    char *out = paths[next % 4];

    (void)snprintf(out, sizeof paths[0], "%s/%d.db", work, next++);
    return out;
}

static inline invar_ledger *open_read(const char *path)
{
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    return ledger;
}

static inline invar_status try_diff(invar_diff **out, const char *a, const char *b)
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

    assert_ok(try_diff(&diff, a, b));
    return diff;
}

static inline int64_t share(const invar_test_ledger *spec)
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
    int64_t run = share(a);

    return diff_shared(run, share(b));
}

/* The same for runs that were interrupted, each in its file. */
static inline invar_diff *diff_lives(const invar_test_ledger *a, const invar_test_ledger *b)
{
    const char *x = fresh(), *y = fresh();

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

/* A copy of a ledger that nobody has open. */
static inline const char *copy_of(const char *path)
{
    const char *copy = fresh();
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

/* Changes a ledger behind its back. */
static inline void forge(const char *path, const char *sql)
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
