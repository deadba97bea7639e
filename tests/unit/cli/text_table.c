/*
 * text_table.c - tests of aligned tables.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/text_table.h"

#include <stdlib.h>
#include <string.h>

#include "cli/safe_text.h"
#include "tests/support.h"

/* Three columns: text, number, text. NULL ends the cells. */
static invar_text_table *make(const char *const *cells)
{
    invar_text_table *grid;

    assert_ok(invar_text_table_new(&grid, 3));
    for (int i = 0; cells[i]; i++)
        assert_ok(i % 3 == 1 && i > 3 ? invar_text_table_number(grid, cells[i])
                                      : invar_text_table_string(grid, cells[i]));
    return grid;
}

static const char *const usual[] = {
    "name",  "value", "note",      "a", "1",    "",  "\xc3\xa4\xc3\xb6",
    "-12.5", "x",     "long name", "",  "last", NULL};

static void assert_printed(const char *const *cells, int width, bool colour, const char *expected)
{
    invar_text_table *grid = make(cells);
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    assert_non_null(stream);
    assert_ok(invar_text_table_print(grid, stream, width, colour));
    fclose(stream);
    assert_string_equal(text, expected);
    free(text);
    invar_text_table_free(grid);
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

static void test_grid__cuts_texts_then_shows_records(void **state)
{
    static const char *const cells[] = {"name",
                                        "value",
                                        "note",
                                        "short",
                                        "17",
                                        "\xc3\xa4"
                                        "bcdefghijklmnopqrstuvwxyz",
                                        "more",
                                        "4",
                                        "",
                                        NULL};
    static const char records[] = "name   short\nvalue  17\nnote   \xc3\xa4"
                                  "bcdefghijklmnopqrstuvwxyz\n\nname   more\nvalue  4\n";

    (void)state;
    assert_printed(cells, 40, false,
                   "name   value  note\n"
                   "short     17  \xc3\xa4"
                   "bcdefghijklmnopqrstuvwxyz\n"
                   "more       4\n");
    assert_printed(cells, 30, false,
                   "name   value  note\n"
                   "short     17  \xc3\xa4"
                   "bcdefghijklmno\xe2\x80\xa6\n"
                   "more       4\n");
    assert_printed(cells, 24, false, records); // a note of 10 letters would say nothing
    assert_printed(cells, 6, false, records);
    assert_printed(
        (const char *const[]){"name", "x", "y", "a.very.long.name.that.is.a.key", "1", "2", NULL},
        20, false, "name  a.very.long.name.that.is.a.key\nx     1\ny     2\n");
}

static void test_grid__is_safe(void **state)
{
    (void)state;
    assert_printed((const char *const[]){"a\033[2J", "b", "c", "x\ny", "1", "\xff", NULL}, 0, false,
                   "a\\x1b[2J  b  c\nx\\x0ay    1  \\xff\n");
}

/* Whatever the width, a table fits, and where there is none nothing is missing. */
static void test_grid__fits_or_is_whole(void **state)
{
    (void)state;
    for (int width = 4; width < 60; width++) {
        invar_text_table *grid = make(usual);
        char *text;
        size_t bytes;
        bool fits = true;
        FILE *stream = open_memstream(&text, &bytes);
        assert_ok(invar_text_table_print(grid, stream, width, false));
        fclose(stream);
        for (char *line = text; *line; line += strcspn(line, "\n") + 1)
            fits = fits && invar_safe_text_width(line, strcspn(line, "\n")) <= (size_t)width;
        assert_true(fits || !strstr(text, "\xe2\x80\xa6"));
        free(text);
        invar_text_table_free(grid);
    }
}

static void test_grid__grows(void **state)
{
    invar_text_table *grid;
    char *text;
    size_t bytes, lines = 0;
    FILE *stream = open_memstream(&text, &bytes);

    (void)state;
    assert_ok(invar_text_table_new(&grid, 1));
    for (int64_t i = 0; i < 10000; i++)
        assert_ok(invar_text_table_int(grid, i - 1));
    assert_ok(invar_text_table_print(grid, stream, 0, false));
    fclose(stream);
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    assert_int_equal(lines, 10000);
    assert_non_null(strstr(text, "\n9998\n"));
    free(text);
    invar_text_table_free(grid);
    invar_text_table_free(NULL);
}

/* Rounded for people, and with all digits; neither has an exponent at ordinary magnitudes. */
static void test_grid__numbers_are_plain_decimals(void **state)
{
    static const double values[] = {10, 0.25, 56349.9};
    invar_text_table *grid;
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    (void)state;
    assert_ok(invar_text_table_new(&grid, 2));
    assert_ok(invar_text_table_string(grid, "a"));
    assert_ok(invar_text_table_string(grid, "b"));
    for (size_t i = 0; i < 3; i++) {
        assert_ok(invar_text_table_real(grid, values[i], false));
        assert_ok(invar_text_table_real(grid, values[i], true));
    }
    assert_ok(invar_text_table_print(grid, stream, 0, false));
    fclose(stream);
    assert_string_equal(text, "    a        b\n"
                              "   10       10\n"
                              " 0.25     0.25\n"
                              "56350  56349.9\n");
    free(text);
    invar_text_table_free(grid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grid__aligns_numbers_at_the_right),
        cmocka_unit_test(test_grid__bold_head),
        cmocka_unit_test(test_grid__cuts_texts_then_shows_records),
        cmocka_unit_test(test_grid__is_safe),
        cmocka_unit_test(test_grid__fits_or_is_whole),
        cmocka_unit_test(test_grid__grows),
        cmocka_unit_test(test_grid__numbers_are_plain_decimals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
