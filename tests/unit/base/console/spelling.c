/*
 * spelling.c - tests of "did you mean": typos that get a suggestion, and words that get none.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/console/spelling.h"

#include <string.h>

#include "tests/support.h"

static const char *const commands[] = {"train",  "eval", "generate", "score",
                                       "ledger", "diff", "ci"};

static const char *suggested(const char *typed)
{
    static invar_spelling spelling;

    invar_spelling_init(&spelling, typed, strlen(typed));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        invar_spelling_offer(&spelling, commands[i]);
    return spelling.found;
}

static void test_spelling__suggests_the_intended_word(void **state)
{
    static const char *const cases[][2] = {
        {"trian", "train"}, {"trai", "train"},   {"tain", "train"},   {"traiin", "train"},
        {"troin", "train"}, {"gen", "generate"}, {"leger", "ledger"}, {"dif", "diff"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(suggested(cases[i][0]), cases[i][1]);
}

static void test_spelling__no_suggestion_for_distant_words(void **state)
{
    static const char *const cases[] = {"", "x", "xx", "frob", "pattern", "ab"};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(suggested(cases[i]), "");
}

static void test_spelling__hint_names_the_suggestion(void **state)
{
    invar_spelling spelling;

    (void)state;
    invar_spelling_init(&spelling, "scoreboard", 4);
    assert_string_equal(invar_spelling_hint(&spelling), "");
    invar_spelling_offer(&spelling, "score");
    assert_string_equal(invar_spelling_hint(&spelling), " (did you mean 'score'?)");
}

static void test_spelling__no_suggestion_for_long_words(void **state)
{
    char word[3 * INVAR_SPELLING_SIZE];
    invar_spelling spelling;

    (void)state;
    for (size_t length = 1; length < sizeof word; length++) {
        memset(word, 'a', length);
        word[length] = '\0';
        invar_spelling_init(&spelling, word, length);
        invar_spelling_offer(&spelling, word);
        assert_string_equal(spelling.found, length < INVAR_SPELLING_SIZE ? word : "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spelling__suggests_the_intended_word),
        cmocka_unit_test(test_spelling__no_suggestion_for_distant_words),
        cmocka_unit_test(test_spelling__hint_names_the_suggestion),
        cmocka_unit_test(test_spelling__no_suggestion_for_long_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
