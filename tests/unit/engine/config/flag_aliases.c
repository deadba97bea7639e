/*
 * flag_aliases.c - tests of the table of flags of Miles, Megatron-LM and SGLang.
 *
 * miles_flags.txt has the names that their users know, one a line. Each has to be a key, or to have
 * a sentence.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/flag_aliases.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "tests/support.h"

static bool find(invar_flag_alias *out, const char *name)
{
    return invar_flag_alias_find(out, name, strlen(name));
}

static void test_foreign__every_flag_is_a_key_or_has_a_sentence(void **state)
{
    FILE *file = fopen(INVAR_TEST_DATA "/unit/engine/config/miles_flags.txt", "r");
    char name[128];
    int count = 0;
    (void)state;

    assert_non_null(file);
    while (fgets(name, sizeof name, file)) {
        invar_flag_alias what;

        name[strcspn(name, "\n")] = '\0';
        if (!find(&what, name))
            fail_msg("--%s is neither a key nor in foreign.def", name);
        if (what.key == INVAR_KEY_NONE && !what.sentence[0])
            fail_msg("--%s is no key and has no sentence", name);
        count++;
    }
    fclose(file);
    assert_true(count > 400);
}

static void test_foreign__others_are_unknown(void **state)
{
    static const char *const names[] = {"",      "s",    "sglang", "swiglu2",
                                        "swigl", "roll", "*",      "wandb"};
    invar_flag_alias what;
    (void)state;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_false(find(&what, names[i]));
}

static void test_foreign__rows_are_sound(void **state)
{
    invar_flag_alias what, found;
    const char *flags, *word;
    size_t bytes;
    int rows = 0;
    (void)state;

    for (; invar_flag_alias_row(&what, &flags, rows); rows++) {
        assert_int_equal(what.how < INVAR_FLAG_ALIAS_ONLY, what.key != INVAR_KEY_NONE);
        assert_int_equal(what.how == INVAR_FLAG_ALIAS_ONLY, what.only != NULL);
        assert_true(what.how < INVAR_FLAG_ALIAS_ONLY || what.sentence[0]);
        assert_true(strlen(what.sentence) < 200);
        while (invar_text_item(&word, &bytes, &flags, ' ')) {
            if (word[bytes - 1] == '*')
                continue;
            assert_true(invar_flag_alias_find(&found, word, bytes));
            if (found.sentence != what.sentence || found.how != what.how)
                fail_msg("two rows have %.*s", (int)bytes, word);
        }
    }
    assert_true(rows > 50);
}

static void test_foreign__finds_by_row_key_column_and_beginning(void **state)
{
    static const struct {
        const char *name;
        invar_flag_alias_kind how;
        invar_key key;
    } cases[] = {
        {"lr", INVAR_FLAG_ALIAS_KEY, INVAR_KEY_LR},
        {"sglang-page-size", INVAR_FLAG_ALIAS_KEY, INVAR_KEY_PAGE_SIZE},
        {"sglang-context-length", INVAR_FLAG_ALIAS_KEY, INVAR_KEY_ROLLOUT_MAX_CONTEXT_LEN},
        {"custom-megatron-init-path", INVAR_FLAG_ALIAS_PLUGIN, INVAR_KEY_CUSTOM_INIT_PATH},
        {"load", INVAR_FLAG_ALIAS_WEIGHTS, INVAR_KEY_LOAD},
        {"optimizer", INVAR_FLAG_ALIAS_ONLY, INVAR_KEY_NONE},
        {"colocate", INVAR_FLAG_ALIAS_MOOT, INVAR_KEY_NONE},
        {"sglang-anything", INVAR_FLAG_ALIAS_MOOT, INVAR_KEY_NONE},
        {"sglang-quantization", INVAR_FLAG_ALIAS_LOST, INVAR_KEY_NONE},
        {"log-passrate", INVAR_FLAG_ALIAS_KEY, INVAR_KEY_LOG_PASSRATE},
        {"log-interval", INVAR_FLAG_ALIAS_MOOT, INVAR_KEY_NONE},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_flag_alias what;
        assert_true(find(&what, cases[i].name));
        assert_int_equal(what.how, cases[i].how);
        assert_int_equal(what.key, cases[i].key);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_foreign__every_flag_is_a_key_or_has_a_sentence),
        cmocka_unit_test(test_foreign__others_are_unknown),
        cmocka_unit_test(test_foreign__rows_are_sound),
        cmocka_unit_test(test_foreign__finds_by_row_key_column_and_beginning),
    };

    return cmocka_run_group_tests_name("foreign", tests, NULL, NULL);
}
