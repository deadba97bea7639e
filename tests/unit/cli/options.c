/*
 * options.c - tests of the parser for command-line options and the words between them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "tests/support.h"

enum { MAX_WORDS = 16 };

/* Values of the options of `parse` below, and the split command line. */
typedef struct parsed_line {
    bool flag;
    int64_t number, bare;
    double real;
    const char *text;
    char *argv[MAX_WORDS];
    int argc;
    int words; /* number of words; parsing moves them to the front of argv */
} parsed_line;

/* Parses a command line, split at single spaces, that may have `low` to `high` words. */
static invar_status parse(parsed_line *l, const char *text, int low, int high)
{
    static char copy[256];
    const invar_option options[] = {
        {.name = "flag", .value = &l->flag},
        {.name = "number",
         .type = INVAR_OPTION_INT,
         .value = &l->number,
         .metavar = "N",
         .low = -5,
         .high = 5},
        {.name = "bare",
         .type = INVAR_OPTION_OPTIONAL_INT,
         .value = &l->bare,
         .metavar = "[N]",
         .low = 1,
         .high = 9},
        {.name = "real", .type = INVAR_OPTION_REAL, .value = &l->real, .metavar = "S", .high = 10},
        {.name = "text", .type = INVAR_OPTION_TEXT, .value = &l->text, .metavar = "TEXT"},
        {.name = NULL},
    };

    memset(l, 0, sizeof *l);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = copy; *word && l->argc < MAX_WORDS;) {
        size_t length = strcspn(word, " ");
        l->argv[l->argc++] = word;
        word += length + (word[length] == ' ');
        word[-1] = word[-1] == ' ' ? '\0' : word[-1];
    }
    return invar_options_parse_words(&l->words, options, l->argc, l->argv, "RUN", low, high);
}

static void test_options__words_come_first_and_in_order(void **state)
{
    parsed_line l;

    (void)state;
    assert_ok(parse(&l, "one --number 3 two --flag three --text=x", 0, 3));
    assert_int_equal(l.words, 3);
    assert_string_equal(l.argv[0], "one");
    assert_string_equal(l.argv[1], "two");
    assert_string_equal(l.argv[2], "three");
    assert_int_equal(l.number, 3);
    assert_true(l.flag);
    assert_string_equal(l.text, "x");
}

static void test_options__two_dashes_end_options(void **state)
{
    parsed_line l;

    (void)state;
    assert_ok(parse(&l, "--flag -- --number -x", 0, 2));
    assert_int_equal(l.words, 2);
    assert_string_equal(l.argv[0], "--number");
    assert_string_equal(l.argv[1], "-x");
    assert_int_equal(l.number, 0);
}

static void test_options__a_dash_is_a_word(void **state)
{
    parsed_line l;

    (void)state;
    assert_ok(parse(&l, "-", 1, 1));
    assert_string_equal(l.argv[0], "-");
    assert_fails(parse(&l, "-x", 1, 1), INVAR_E_INVALID, "unknown option '-x'");
}

static void test_options__count_of_words(void **state)
{
    parsed_line l;

    (void)state;
    assert_fails(parse(&l, "--flag", 1, 1), INVAR_E_INVALID, "missing: expected RUN");
    assert_fails(parse(&l, "a b", 1, 1), INVAR_E_INVALID, "unexpected argument 'b'");
    assert_fails(parse(&l, "a", 0, 0), INVAR_E_INVALID, "unexpected argument 'a'");
    assert_fails(parse(&l, "--", 0, 0), INVAR_E_INVALID, "unexpected argument '--'");
    assert_ok(parse(&l, "--", 0, 1));
    assert_int_equal(l.words, 0);
}

static void test_options__numbers(void **state)
{
    parsed_line l;

    (void)state;
    assert_ok(parse(&l, "--number -5 --real 0.25", 0, 0));
    assert_int_equal(l.number, -5);
    assert_true(l.real == 0.25);
    assert_fails(parse(&l, "--number 6", 0, 0), INVAR_E_INVALID, "expected -5 to 5");
    assert_fails(parse(&l, "--number 1x", 0, 0), INVAR_E_INVALID, "not a whole number");
    assert_fails(parse(&l, "--number", 0, 0), INVAR_E_INVALID, "--number needs a value");
    assert_fails(parse(&l, "--real 10.5", 0, 0), INVAR_E_INVALID, "expected 0 to 10");
    assert_fails(parse(&l, "--real nan", 0, 0), INVAR_E_INVALID, "expected 0 to 10");
    assert_fails(parse(&l, "--real x", 0, 0), INVAR_E_INVALID, "'x' is not a number");
    assert_fails(parse(&l, "--flag=1", 0, 0), INVAR_E_INVALID, "--flag takes no value");
    assert_fails(parse(&l, "--fla", 0, 0), INVAR_E_INVALID, "unknown option '--fla'");
}

/* A next word that is not a number is not the value of --bare, which is then 1. */
static void test_options__a_number_may_be_left_out(void **state)
{
    parsed_line l;

    (void)state;
    assert_ok(parse(&l, "--bare 7 word", 0, 1));
    assert_int_equal(l.bare, 7);
    assert_ok(parse(&l, "--bare=7", 0, 0));
    assert_int_equal(l.bare, 7);
    assert_ok(parse(&l, "--bare word", 0, 1));
    assert_int_equal(l.bare, 1);
    assert_string_equal(l.argv[0], "word");
    assert_ok(parse(&l, "--bare --flag", 0, 0));
    assert_true(l.bare == 1 && l.flag);
    assert_ok(parse(&l, "--bare", 0, 0));
    assert_int_equal(l.bare, 1);
    assert_fails(parse(&l, "--bare 10", 0, 1), INVAR_E_INVALID, "expected 1 to 9");
    assert_fails(parse(&l, "--bare=", 0, 1), INVAR_E_INVALID, "not a whole number");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options__words_come_first_and_in_order),
        cmocka_unit_test(test_options__two_dashes_end_options),
        cmocka_unit_test(test_options__a_dash_is_a_word),
        cmocka_unit_test(test_options__count_of_words),
        cmocka_unit_test(test_options__numbers),
        cmocka_unit_test(test_options__a_number_may_be_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
