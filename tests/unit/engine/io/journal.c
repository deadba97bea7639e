/*
 * journal.c - tests of journals: lines are there when they were appended, and a file that is gone
 * is told.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/io/journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/support.h"

static char folder[] = INVAR_TEST_WORK "/journal-XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void path_of(char out[INVAR_PATH_SIZE], const char *name)
{
    assert_ok(invar_path_join(out, INVAR_PATH_SIZE, folder, name));
}

static void assert_text(const char *path, const char *expected)
{
    char *text;
    size_t bytes;

    assert_ok(invar_file_read(&text, &bytes, path, 1000));
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(text, expected, bytes);
    invar_free(text);
}

static void test_journal__appends(void **state)
{
    char path[INVAR_PATH_SIZE];
    invar_journal *j;

    (void)state;
    path_of(path, "a");
    assert_ok(invar_journal_begin(&j, path, "old\n", 4));
    assert_text(path, "old\n");
    assert_ok(invar_journal_append(j, "1\n", 2));
    assert_text(path, "old\n1\n");
    assert_ok(invar_journal_append(j, "2\n3\n", 4));
    invar_journal_close(j);
    assert_text(path, "old\n1\n2\n3\n");
    assert_ok(invar_journal_begin(&j, path, "new\n", 4)); // in place of what is there
    invar_journal_close(j);
    assert_text(path, "new\n");
    assert_int_equal(unlink(path), 0);
}

/* A file that has another name is still the file; one that has none any more is lost. */
static void test_journal__removed(void **state)
{
    char path[INVAR_PATH_SIZE], other[INVAR_PATH_SIZE];
    invar_journal *j;

    (void)state;
    path_of(path, "b");
    path_of(other, "c");
    assert_ok(invar_journal_begin(&j, path, "", 0));
    assert_int_equal(rename(path, other), 0);
    assert_ok(invar_journal_append(j, "1\n", 2));
    assert_text(other, "1\n");
    assert_int_equal(unlink(other), 0);
    assert_int_equal(invar_journal_append(j, "2\n", 2), INVAR_E_STATE);
    assert_non_null(strstr(invar_error_last()->message, "was removed"));
    invar_journal_close(j);
}

static void test_journal__refuses(void **state)
{
    char path[INVAR_PATH_SIZE];
    invar_journal *j;

    (void)state;
    path_of(path, "no/such/folder");
    assert_int_not_equal(invar_journal_begin(&j, path, "", 0), INVAR_OK);
    assert_null(j);
    invar_journal_close(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_journal__appends),
        cmocka_unit_test(test_journal__removed),
        cmocka_unit_test(test_journal__refuses),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
