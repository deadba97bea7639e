/*
 * choices.c - tests of the words of an enumeration, with a value that has no word.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/recipe/choices.h"

#include <string.h>

#include "tests/support.h"

enum { RED, GREEN, SECRET, BLUE, COUNT };

static const char *const words[COUNT] = {[RED] = "red", [GREEN] = "green", [BLUE] = "blue"};
static const invar_choices colors = {words, COUNT};

static void test_choices__finds_words(void **state)
{
    (void)state;
    assert_int_equal(invar_choices_find(&colors, "red", 3), RED);
    assert_int_equal(invar_choices_find(&colors, "blue", 4), BLUE);
    assert_int_equal(invar_choices_find(&colors, "redder", 3), RED);
    assert_int_equal(invar_choices_find(&colors, "re", 2), -1);
    assert_int_equal(invar_choices_find(&colors, "", 0), -1);
    assert_string_equal(invar_choices_word(&colors, GREEN), "green");
    assert_null(invar_choices_word(&colors, SECRET));
    assert_null(invar_choices_word(&colors, COUNT));
    assert_null(invar_choices_word(&colors, -1));
}

static void test_choices__lists_words(void **state)
{
    static const char *const one[] = {NULL, "one", NULL};
    char text[INVAR_CHOICES_TEXT_SIZE], small[8];

    (void)state;
    invar_choices_text(text, sizeof text, &colors, ", ", " or ");
    assert_string_equal(text, "red, green or blue");
    invar_choices_text(text, sizeof text, &(invar_choices){one, 3}, ", ", " or ");
    assert_string_equal(text, "one");
    invar_choices_text(text, sizeof text, &(invar_choices){one, 1}, ", ", " or ");
    assert_string_equal(text, "");
    invar_choices_text(small, sizeof small, &colors, "|", "|");
    assert_string_equal(small, "red|gre");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices__finds_words),
        cmocka_unit_test(test_choices__lists_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
