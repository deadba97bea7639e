/*
 * journal.c - tests of line journals: appending, the chain of sums, torn and removed files.
 *
 * Every flipped bit and every moved, repeated or missing line must be found. Control: the unchanged
 * text, and every prefix of it, is read. The sum is recomputed here from the documented format.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/journal.h"

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

static void join_path(char out[INVAR_PATH_SIZE], const char *name)
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

/* Returns these lines with their sums, NUL-terminated; the caller releases them. */
static invar_json_text add_sums(const char *lines)
{
    invar_json_text out = {0};
    invar_digest chain = {{0}};

    assert_ok(invar_journal_add_sums(&out, &chain, lines, strlen(lines)));
    invar_json_text_append(&out, "", 1);
    assert_ok(out.status);
    out.bytes--;
    return out;
}

/*
 * Reads all lines and returns their number; -1 if the journal is rejected. *checked_out is false if
 * the journal has no sums.
 */
static int64_t count_lines(const char *text, size_t bytes, bool *checked_out)
{
    invar_journal_reader reader;
    invar_status status;
    json_t *line;

    invar_journal_read(&reader, "test", text, bytes, "a.jsonl");
    do {
        status = invar_journal_next(&line, &reader);
        json_decref(line);
    } while (status == INVAR_OK && line);
    *checked_out = reader.checked;
    if (status == INVAR_OK)
        return reader.line;
    assert_int_equal(status, INVAR_E_CORRUPT);
    assert_non_null(strstr(invar_error_last()->message, "a.jsonl:"));
    invar_error_clear();
    return -1;
}

static const char four_lines[] =
    "{\"test\":2,\"run\":\"r\"}\n{\"a\":[1,2]}\n{\"a\":[3,4]}\n{\"b\":0.5}\n";

static void test_journal__appends(void **state)
{
    invar_json_text old = add_sums("{\"old\":0}\n"), new = add_sums("{\"new\":0}\n");
    invar_json_text all = add_sums("{\"old\":0}\n{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n");
    char path[INVAR_PATH_SIZE];
    invar_journal *journal;

    (void)state;
    join_path(path, "a");
    assert_ok(invar_journal_create(&journal, path, "{\"old\":0}\n", 10));
    assert_text(path, old.data);
    assert_ok(invar_journal_append(journal, "{\"a\":1}\n", 8));
    assert_ok(invar_journal_append(journal, "{\"a\":2}\n{\"a\":3}\n", 16));
    invar_journal_close(journal);
    assert_text(path, all.data);
    assert_ok(invar_journal_create(&journal, path, "{\"new\":0}\n", 10)); // replaces the file
    invar_journal_close(journal);
    assert_text(path, new.data);
    assert_int_equal(unlink(path), 0);
    invar_json_text_release(&old);
    invar_json_text_release(&new);
    invar_json_text_release(&all);
}

/* The format of journal.h: XXH3-128 of the previous sum and of the line before its own sum. */
static void test_journal__sums_are_as_documented(void **state)
{
    static const char line[] = "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0{\"test\":2";
    invar_json_text text = add_sums("{\"test\":2}\n");
    char hex[INVAR_DIGEST_HEX_SIZE], expected[128];
    invar_digest digest;

    (void)state;
    invar_hash_bytes(&digest, line, sizeof line - 1);
    invar_digest_format(hex, &digest);
    (void)snprintf(expected, sizeof expected, "{\"test\":2,\"sum\":\"%s\"}\n", hex);
    assert_string_equal(text.data, expected);
    invar_json_text_release(&text);
}

/* Every flipped bit of a journal is found, even in the last newline. */
static void test_journal__refuses_every_flipped_bit(void **state)
{
    invar_json_text text = add_sums(four_lines);
    bool checked;

    (void)state;
    assert_int_equal(count_lines(text.data, text.bytes, &checked), 4);
    assert_true(checked);
    for (size_t bit = 0; bit < 8 * text.bytes; bit++) {
        text.data[bit / 8] ^= (char)(1 << bit % 8);
        if (count_lines(text.data, text.bytes, &checked) != -1)
            fail_msg("bit %zu of byte %zu can be flipped", bit % 8, bit / 8);
        text.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    invar_json_text_release(&text);
}

/* Writes the lines of `text` in the order of the indices `order`, which end with -1. */
static void reorder(char *out, const char *text, const int *order)
{
    *out = '\0';
    for (; *order >= 0; order++) {
        const char *line = text;
        size_t used = strlen(out);

        for (int i = 0; i < *order; i++)
            line = strchr(line, '\n') + 1;
        (void)snprintf(out + used, 2000 - used, "%.*s", (int)(strchr(line, '\n') + 1 - line), line);
    }
}

static void test_journal__refuses_lines_that_were_moved(void **state)
{
    static const int orders[][8] = {{0, 2, 3, -1},    {1, 2, 3, -1},       {0, 2, 1, 3, -1},
                                    {0, 1, 3, 2, -1}, {0, 1, 1, 2, 3, -1}, {0, 1, 2, 3, 0, -1},
                                    {0, 3, -1},       {0, 1, 2, 3, 3, -1}};
    static const int without_last[] = {0, 1, 2, -1};
    invar_json_text text = add_sums(four_lines);
    invar_json_text other = add_sums("{\"test\":2,\"run\":\"s\"}\n{\"a\":[1,2]}\n");
    char moved[2000];
    bool checked;

    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        reorder(moved, text.data, orders[i]);
        assert_int_equal(count_lines(moved, strlen(moved), &checked), -1);
    }
    reorder(moved, text.data,
            without_last); // missing lines at the end are found by comparison with the ledger
    assert_int_equal(count_lines(moved, strlen(moved), &checked), 3);
    // a line of a journal with another first line
    reorder(moved, text.data, (int[]){0, -1});
    (void)snprintf(moved + strlen(moved), 500, "%s", strchr(other.data, '\n') + 1);
    assert_int_equal(count_lines(moved, strlen(moved), &checked), -1);
    invar_json_text_release(&text);
    invar_json_text_release(&other);
}

/* A kill can cut the file anywhere: complete lines are kept, the rest is dropped. */
static void test_journal__drops_torn_last_line(void **state)
{
    invar_json_text text = add_sums(four_lines);
    int64_t lines = 0;
    bool checked;

    (void)state;
    for (size_t cut = 0; cut <= text.bytes; cut++) {
        lines += cut > 0 && text.data[cut - 1] == '\n';
        assert_int_equal(count_lines(text.data, cut, &checked), lines);
    }
    invar_json_text_release(&text);
}

static void test_journal__reads_version_1_unchecked(void **state)
{
    static const char old[] = "{\"test\":1}\n{\"a\":1}\n";
    static const char new[] = "{\"test\":2}\n{\"a\":1}\n", newer[] = "{\"test\":3}\n";
    bool checked = true;

    (void)state;
    assert_int_equal(count_lines(old, strlen(old), &checked), 2);
    assert_false(checked);
    assert_int_equal(count_lines(new, strlen(new), &checked), -1); // version 2 without its sums
    assert_int_equal(count_lines(newer, strlen(newer), &checked), -1);
}

/* A renamed file is still appended to; after its removal appending fails. */
static void test_journal__removed(void **state)
{
    invar_json_text line = add_sums("{\"a\":1}\n");
    char path[INVAR_PATH_SIZE], other[INVAR_PATH_SIZE];
    invar_journal *journal;

    (void)state;
    join_path(path, "b");
    join_path(other, "c");
    assert_ok(invar_journal_create(&journal, path, "", 0));
    assert_int_equal(rename(path, other), 0);
    assert_ok(invar_journal_append(journal, "{\"a\":1}\n", 8));
    assert_text(other, line.data);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(invar_journal_append(journal, "{\"a\":1}\n", 8), INVAR_E_STATE);
    assert_non_null(strstr(invar_error_last()->message, "was removed"));
    invar_journal_close(journal);
    invar_json_text_release(&line);
}

static void test_journal__refuses(void **state)
{
    char path[INVAR_PATH_SIZE];
    invar_journal *journal;

    (void)state;
    join_path(path, "no/such/folder");
    assert_int_not_equal(invar_journal_create(&journal, path, "", 0), INVAR_OK);
    assert_null(journal);
    invar_journal_close(journal);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_journal__appends),
        cmocka_unit_test(test_journal__sums_are_as_documented),
        cmocka_unit_test(test_journal__refuses_every_flipped_bit),
        cmocka_unit_test(test_journal__refuses_lines_that_were_moved),
        cmocka_unit_test(test_journal__drops_torn_last_line),
        cmocka_unit_test(test_journal__reads_version_1_unchecked),
        cmocka_unit_test(test_journal__removed),
        cmocka_unit_test(test_journal__refuses),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
