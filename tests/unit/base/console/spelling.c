/*
 * spelling.c - words that are taken for misspelt ones, and words that are not.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/console/spelling.h"

#include <string.h>

#include "tests/support.h"

static const char *const verbs[] = {"train", "eval", "generate", "score", "ledger", "diff", "ci"};

static const char *guess(const char *wanted)
{
    static invar_spelling near;

    invar_spelling_init(&near, wanted, strlen(wanted));
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        invar_spelling_offer(&near, verbs[i]);
    return near.found;
}

static void test_base_near__finds_what_was_meant(void **state)
{
    static const char *const cases[][2] = {
        {"trian", "train"}, {"trai", "train"},   {"tain", "train"},   {"traiin", "train"},
        {"troin", "train"}, {"gen", "generate"}, {"leger", "ledger"}, {"dif", "diff"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(guess(cases[i][0]), cases[i][1]);
}

static void test_base_near__guesses_nothing_far(void **state)
{
    static const char *const cases[] = {"", "x", "xx", "frob", "pattern", "ab"};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(guess(cases[i]), "");
}

static void test_base_near__asks(void **state)
{
    invar_spelling near;

    (void)state;
    invar_spelling_init(&near, "scoreboard", 4);
    assert_string_equal(invar_spelling_hint(&near), "");
    invar_spelling_offer(&near, "score");
    assert_string_equal(invar_spelling_hint(&near), " (did you mean 'score'?)");
}

static void test_base_near__long_words_are_near_to_none(void **state)
{
    char word[3 * INVAR_SPELLING_SIZE];
    invar_spelling near;

    (void)state;
    for (size_t length = 1; length < sizeof word; length++) {
        memset(word, 'a', length);
        word[length] = '\0';
        invar_spelling_init(&near, word, length);
        invar_spelling_offer(&near, word);
        assert_string_equal(near.found, length < INVAR_SPELLING_SIZE ? word : "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_near__finds_what_was_meant),
        cmocka_unit_test(test_base_near__guesses_nothing_far),
        cmocka_unit_test(test_base_near__asks),
        cmocka_unit_test(test_base_near__long_words_are_near_to_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
