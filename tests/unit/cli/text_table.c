/*
 * text_table.c - tests of aligned tables, and of the records that replace them if a line is short.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/text_table.h"

#include <stdlib.h>
#include <string.h>

#include "cli/safe_text.h"
#include "tests/support.h"

/* Makes a table with the columns text, number, text. The first three cells are its head. */
static invar_text_table make_table(const char *const *cells)
{
    invar_text_table table = {.columns = 3};

    for (int i = 0; cells[i]; i++)
        invar_text_table_add(&table, i % 3 == 1 && i > 3 ? "n" : "s", cells[i]);
    assert_ok(table.status);
    return table;
}

static const char *const sample_cells[] = {
    "name",  "value", "note",      "a", "1",    "",  "\xc3\xa4\xc3\xb6",
    "-12.5", "x",     "long name", "",  "last", NULL};

static void assert_printed(const char *const *cells, int width, bool color, const char *expected)
{
    invar_text_table table = make_table(cells);
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    assert_non_null(stream);
    assert_ok(invar_text_table_print(&table, stream, width, color));
    fclose(stream);
    assert_string_equal(text, expected);
    free(text);
    invar_text_table_free(&table);
}

static void test_text_table__right_aligns_numbers(void **state)
{
    (void)state;
    assert_printed(sample_cells, 0, false,
                   "name       value  note\n"
                   "a              1\n"
                   "\xc3\xa4\xc3\xb6         -12.5  x\n"
                   "long name         last\n");
}

static void test_text_table__prints_bold_head(void **state)
{
    (void)state;
    assert_printed((const char *const[]){"a", "b", "c", NULL}, 0, true, "\033[1ma  b  c\033[0m\n");
}

static void test_text_table__cuts_texts_then_prints_records(void **state)
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
    assert_printed(cells, 24, false, records); // too narrow for a cut note
    assert_printed(cells, 6, false, records);
    assert_printed(
        (const char *const[]){"name", "x", "y", "a.very.long.name.that.is.a.key", "1", "2", NULL},
        20, false, "name  a.very.long.name.that.is.a.key\nx     1\ny     2\n");
}

static void test_text_table__escapes_control_characters(void **state)
{
    (void)state;
    assert_printed((const char *const[]){"a\033[2J", "b", "c", "x\ny", "1", "\xff", NULL}, 0, false,
                   "a\\x1b[2J  b  c\nx\\x0ay    1  \\xff\n");
}

/* At each width the output fits, or nothing in it is cut: no ellipsis. */
static void test_text_table__fits_or_is_not_cut(void **state)
{
    (void)state;
    for (int width = 4; width < 60; width++) {
        invar_text_table table = make_table(sample_cells);
        char *text;
        size_t bytes;
        bool fits = true;
        FILE *stream = open_memstream(&text, &bytes);
        assert_ok(invar_text_table_print(&table, stream, width, false));
        fclose(stream);
        for (char *line = text; *line; line += strcspn(line, "\n") + 1)
            fits = fits && invar_safe_text_width(line, strcspn(line, "\n")) <= (size_t)width;
        assert_true(fits || !strstr(text, "\xe2\x80\xa6"));
        free(text);
        invar_text_table_free(&table);
    }
}

static void test_text_table__grows(void **state)
{
    invar_text_table table = {.columns = 1};
    char *text;
    size_t bytes, lines = 0;
    FILE *stream = open_memstream(&text, &bytes);

    (void)state;
    for (int64_t i = 0; i < 10000; i++)
        invar_text_table_add(&table, "i", i - 1);
    assert_ok(invar_text_table_print(&table, stream, 0, false));
    fclose(stream);
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    assert_int_equal(lines, 10000);
    assert_non_null(strstr(text, "\n9998\n"));
    free(text);
    invar_text_table_free(&table);
}

/* Rounded and exact numbers; neither has an exponent at ordinary magnitudes. */
static void test_text_table__prints_plain_decimals(void **state)
{
    static const double values[] = {10, 0.25, 56349.9};
    invar_text_table table = {.columns = 2};
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    (void)state;
    invar_text_table_add(&table, "ss", "a", "b");
    for (size_t i = 0; i < 3; i++) {
        invar_text_table_real(&table, values[i], false);
        invar_text_table_real(&table, values[i], true);
    }
    assert_ok(invar_text_table_print(&table, stream, 0, false));
    fclose(stream);
    assert_string_equal(text, "    a        b\n"
                              "   10       10\n"
                              " 0.25     0.25\n"
                              "56350  56349.9\n");
    free(text);
    invar_text_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_table__right_aligns_numbers),
        cmocka_unit_test(test_text_table__prints_bold_head),
        cmocka_unit_test(test_text_table__cuts_texts_then_prints_records),
        cmocka_unit_test(test_text_table__escapes_control_characters),
        cmocka_unit_test(test_text_table__fits_or_is_not_cut),
        cmocka_unit_test(test_text_table__grows),
        cmocka_unit_test(test_text_table__prints_plain_decimals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
