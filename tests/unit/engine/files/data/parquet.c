/*
 * parquet.c - tests of data sets in Parquet, which Python with pyarrow converts to JSON lines.
 *
 * The test puts its own python3 first in PATH: it has no pyarrow, or a fake one that reads JSON
 * lines (parquet/pyarrow). If INVAR_PARQUET names a folder with rows.parquet and rows.jsonl, the
 * real pyarrow reads the former (tests/oracle/parquet.sh). A Parquet file must give the same data
 * set as the JSON lines. Control: another slice must give another one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/data/parquet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tests/support.h"
#include "tests/unit/engine/files/data/options.h"

#define FAKE INVAR_TEST_DATA "/unit/engine/files/data/parquet"
#define MAX_BYTES ((size_t)1 << 24)

static char folder[] = INVAR_TEST_WORK "/parquet-XXXXXX";
static char *path_before;

static void write_file(const char *name, const char *text)
{
    assert_ok(invar_file_write(name, text, strlen(text)));
}

/* Puts a python3 first in PATH that runs the system's python3 with these arguments. */
static void use_python(const char *words)
{
    char text[1024], path[4096];

    snprintf(text, sizeof text,
             "#!/bin/sh\nPATH=${PATH#*:}\nfor script; do :; done\nexec python3 -S -X utf8 %s\n",
             words);
    write_file("bin/python3", text);
    assert_int_equal(chmod("bin/python3", 0755), 0);
    snprintf(path, sizeof path, "%s/bin:%s", folder, path_before);
    assert_int_equal(setenv("PATH", path, 1), 0);
}

static void use_fake(void)
{
    use_python("-c 'import sys; sys.path.insert(0, \"" FAKE "\"); exec(sys.argv[1])' \"$script\"");
}

static void assert_rejected(const char *rows, const char *const *columns, size_t max_bytes,
                            const char *message)
{
    size_t bytes;
    char *text;

    write_file("d.parquet", rows);
    assert_fails(invar_parquet_read(&text, &bytes, "d.parquet", columns, max_bytes),
                 INVAR_E_INVALID, message);
    assert_null(text);
    assert_int_equal(bytes, 0);
}

static void test_engine_parquet__rows_are_lines(void **state)
{
    static const char *const columns[] = {"input", "", "label", "absent", NULL};
    size_t bytes;
    char *text;

    (void)state;
    use_fake();
    write_file("d.parquet",
               "PAR1\n{\"input\": \"\\u00e9\\n\", \"label\": 7, \"image\": \"OBJECT\"}\n"
               "{\"input\": \"b\", \"label\": \"DAY\"}\n"
               "{\"input\": \"BYTES\", \"label\": \"TENTH\"}\n");
    assert_ok(invar_parquet_read(&text, &bytes, "d.parquet", columns, MAX_BYTES));
    assert_string_equal(text, "{\"input\": \"\xC3\xA9\\n\", \"label\": 7}\n"
                              "{\"input\": \"b\", \"label\": \"2026-11-16\"}\n"
                              "{\"input\": \"b\", \"label\": \"0.10\"}\n");
    assert_int_equal(bytes, strlen(text));
    invar_free(text);
    write_file("d.parquet", "PAR1\n{\"input\": \"a\"}\n");
    assert_ok(invar_parquet_read(&text, &bytes, "d.parquet", columns, 15));
    assert_string_equal(text, "{\"input\": \"a\"}\n");
    invar_free(text);
    assert_rejected("PAR1\n{\"input\": \"a\"}\n", columns, 14,
                    "d.parquet: its rows have more than the 14 bytes allowed");
}

static void test_engine_parquet__names_what_is_wrong(void **state)
{
    static const char *const columns[] = {"input", "label", NULL};

    (void)state;
    use_fake();
    assert_rejected("PAR1", columns, MAX_BYTES, "d.parquet: Parquet magic bytes not found");
    assert_rejected("PAR1\n{\"question\": \"a\", \"answer\": \"b\"}\n", columns, MAX_BYTES,
                    "d.parquet: no column \"input\" (input-key); there are: question, answer");
    assert_rejected("PAR1\n{\"input\": \"a\"}\n{\"input\": \"a\", \"label\": \"NAN\"}\n", columns,
                    MAX_BYTES,
                    "d.parquet: row 2: Out of range float values are not JSON compliant");
    assert_rejected("PAR1\n{\"input\": \"OBJECT\"}\n", columns, MAX_BYTES,
                    "d.parquet: row 1: a value of type object cannot be JSON");
    use_python("-c \"$script\"");
    assert_rejected(
        "PAR1\n{\"input\": \"a\"}\n", columns, MAX_BYTES,
        "d.parquet: Parquet files need Python with pyarrow, and python3 has none: make one with "
        "\"python3 -m venv v; v/bin/pip install pyarrow\" and put v/bin first in PATH");
}

/* Returns the digest of the data set at `path`. */
static invar_digest hash_dataset(const char *path)
{
    const invar_dataset_options options = dataset_options(path, "label");
    invar_tokenizer *tokenizer;
    invar_dataset *dataset;
    invar_digest digest;

    assert_ok(invar_tokenizer_alphabet(&tokenizer, "0123456789=+abcdefghijklmnopqrstuvwxyz "));
    assert_ok(invar_dataset_open(&dataset, &options, tokenizer));
    assert_true(invar_dataset_size(dataset) > 0);
    invar_dataset_hash(&digest, dataset);
    invar_dataset_close(dataset);
    invar_tokenizer_free(tokenizer);
    return digest;
}

static void compare_datasets(const char *a, const char *b, bool same)
{
    invar_digest x = hash_dataset(a), y = hash_dataset(b);

    assert_int_equal(invar_digest_equal(&x, &y), same);
}

static void test_engine_parquet__is_the_same_data(void **state)
{
    const char *real = getenv("INVAR_PARQUET");
    char a[4096], b[4096];

    (void)state;
    if (real) {
        assert_int_equal(setenv("PATH", path_before, 1), 0);
        snprintf(a, sizeof a, "%s/rows.parquet", real);
        snprintf(b, sizeof b, "%s/rows.jsonl", real);
        compare_datasets(a, b, true);
        snprintf(b, sizeof b, "%s/rows.jsonl@[1:]", real);
        compare_datasets(a, b, false);
        snprintf(a, sizeof a, "%s/rows.parquet@[1:]", real);
        compare_datasets(a, b, true);
        return;
    }
    use_fake();
    write_file("d.parquet",
               "PAR1\n{\"input\": \"a\", \"label\": 7, \"metadata\": {\"b\": 1, \"a\": 2}}\n"
               "{\"input\": \"b\", \"label\": \"x\", \"metadata\": null}\n");
    write_file("d.jsonl", "{\"metadata\": {\"a\": 2, \"b\": 1}, \"label\": 7, \"input\": \"a\"}\n"
                          "{\"input\": \"b\", \"label\": \"x\"}\n");
    compare_datasets("d.parquet", "d.jsonl", true);
    compare_datasets("d.parquet@[1:]", "d.jsonl@[1:]", true);
    compare_datasets("d.parquet@[:1]", "d.jsonl@[1:]", false);
}

static int set_up(void **state)
{
    const char *path = getenv("PATH");

    (void)state;
    path_before = strdup(path ? path : "");
    return mkdtemp(folder) && chdir(folder) == 0 && mkdir("bin", 0755) == 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    free(path_before);
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_parquet__rows_are_lines),
        cmocka_unit_test(test_engine_parquet__names_what_is_wrong),
        cmocka_unit_test(test_engine_parquet__is_the_same_data),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
