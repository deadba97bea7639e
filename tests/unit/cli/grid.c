/*
 * grid.c - tests of aligned tables.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/grid.h"

#include <stdlib.h>
#include <string.h>

#include "cli/plain.h"
#include "tests/support.h"

/* Three columns: text, number, text. NULL ends the cells. */
static invar_grid *make(const char *const *cells)
{
    invar_grid *grid;

    assert_ok(invar_grid_new(&grid, 3));
    for (int i = 0; cells[i]; i++)
        assert_ok(i % 3 == 1 && i > 3 ? invar_grid_number(grid, cells[i])
                                      : invar_grid_string(grid, cells[i]));
    return grid;
}

static const char *const usual[] = {
    "name",  "value", "note",      "a", "1",    "",  "\xc3\xa4\xc3\xb6",
    "-12.5", "x",     "long name", "",  "last", NULL};

static void assert_printed(const char *const *cells, int width, bool colour, const char *expected)
{
    invar_grid *grid = make(cells);
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    assert_non_null(stream);
    assert_ok(invar_grid_print(grid, stream, width, colour));
    fclose(stream);
    assert_string_equal(text, expected);
    free(text);
    invar_grid_free(grid);
}

static void test_grid__aligns_numbers_at_the_right(void **state)
{
    (void)state;
    assert_printed(usual, 0, false,
                   "name       value  note\n"
                   "a              1\n"
                   "\xc3\xa4\xc3\xb6         -12.5  x\n"
                   "long name         last\n");
}

static void test_grid__bold_head(void **state)
{
    (void)state;
    assert_printed((const char *const[]){"a", "b", "c", NULL}, 0, true, "\033[1ma  b  c\033[0m\n");
}

static void test_grid__cuts_texts_then_leaves_out_columns(void **state)
{
    static const char *const cells[] = {"name",
                                        "value",
                                        "note",
                                        "\xc3\xa4"
                                        "bcdefghijklmnopqrstuvwxyz",
                                        "17",
                                        "short",
                                        NULL};

    (void)state;
    assert_printed(cells, 40, false,
                   "name                        value  note\n"
                   "\xc3\xa4"
                   "bcdefghijklmnopqrstuvwxyz     17  short\n");
    assert_printed(cells, 30, false,
                   "name              value  note\n"
                   "\xc3\xa4"
                   "bcdefghijklmno\xe2\x80\xa6     17  short\n");
    assert_printed(cells, 24, false,
                   "name          value  \xe2\x80\xa6\n"
                   "\xc3\xa4"
                   "bcdefghijk\xe2\x80\xa6     17  \xe2\x80\xa6\n");
    assert_printed(cells, 16, false,
                   "name          \xe2\x80\xa6\n"
                   "\xc3\xa4"
                   "bcdefghijk\xe2\x80\xa6  \xe2\x80\xa6\n");
    assert_printed(cells, 6, false,
                   "na\xe2\x80\xa6  \xe2\x80\xa6\n\xc3\xa4"
                   "b\xe2\x80\xa6  \xe2\x80\xa6\n");
}

static void test_grid__is_safe(void **state)
{
    (void)state;
    assert_printed((const char *const[]){"a\033[2J", "b", "c", "x\ny", "1", "\xff", NULL}, 0, false,
                   "a\\x1b[2J  b  c\nx\\x0ay    1  \\xff\n");
}

/* Every line fits, down to a letter of the first column and the ellipsis. */
static void test_grid__always_fits(void **state)
{
    (void)state;
    for (int width = 4; width < 60; width++) {
        invar_grid *grid = make(usual);
        char *text;
        size_t bytes;
        FILE *stream = open_memstream(&text, &bytes);
        assert_ok(invar_grid_print(grid, stream, width, false));
        fclose(stream);
        for (char *line = text; *line; line += strcspn(line, "\n") + 1)
            assert_true(invar_plain_width(line, strcspn(line, "\n")) <= (size_t)width);
        free(text);
        invar_grid_free(grid);
    }
}

static void test_grid__grows(void **state)
{
    invar_grid *grid;
    char *text;
    size_t bytes, lines = 0;
    FILE *stream = open_memstream(&text, &bytes);

    (void)state;
    assert_ok(invar_grid_new(&grid, 1));
    for (int64_t i = 0; i < 10000; i++)
        assert_ok(invar_grid_int(grid, i - 1));
    assert_ok(invar_grid_print(grid, stream, 0, false));
    fclose(stream);
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    assert_int_equal(lines, 10000);
    assert_non_null(strstr(text, "\n9998\n"));
    free(text);
    invar_grid_free(grid);
    invar_grid_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grid__aligns_numbers_at_the_right),
        cmocka_unit_test(test_grid__bold_head),
        cmocka_unit_test(test_grid__cuts_texts_then_leaves_out_columns),
        cmocka_unit_test(test_grid__is_safe),
        cmocka_unit_test(test_grid__always_fits),
        cmocka_unit_test(test_grid__grows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
