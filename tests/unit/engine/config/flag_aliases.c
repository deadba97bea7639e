/*
 * flag_aliases.c - tests of the table that maps flags of Miles, Megatron-LM and SGLang.
 *
 * miles_flags.txt lists the flags that users of Miles know, one name per line. Each must map to a
 * key or have a sentence of advice. Controls: words that are similar to flags must be unknown, and
 * a name that two rows list must mean the same in both.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/flag_aliases.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "tests/support.h"

static bool find_alias(invar_flag_alias *out, const char *name)
{
    return invar_flag_alias_find(out, name, strlen(name));
}

static void test_flag_aliases__every_flag_is_a_key_or_has_a_sentence(void **state)
{
    FILE *file = fopen(INVAR_TEST_DATA "/unit/engine/config/miles_flags.txt", "r");
    char name[128];
    int count = 0;
    (void)state;

    assert_non_null(file);
    while (fgets(name, sizeof name, file)) {
        invar_flag_alias alias;

        name[strcspn(name, "\n")] = '\0';
        if (!find_alias(&alias, name))
            fail_msg("--%s is neither a key nor in foreign.def", name);
        if (alias.key == INVAR_KEY_NONE && !alias.sentence[0])
            fail_msg("--%s is no key and has no sentence", name);
        count++;
    }
    fclose(file);
    assert_true(count > 400);
}

static void test_flag_aliases__others_are_unknown(void **state)
{
    static const char *const unknown[] = {"",      "s",    "sglang", "swiglu2",
                                          "swigl", "roll", "*",      "wandb"};
    invar_flag_alias alias;
    (void)state;

    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_false(find_alias(&alias, unknown[i]));
}

static void test_flag_aliases__rows_are_sound(void **state)
{
    invar_flag_alias alias, lookup;
    const char *flags, *flag;
    size_t bytes;
    int rows = 0;
    (void)state;

    for (; invar_flag_alias_row(&alias, &flags, rows); rows++) {
        assert_int_equal(alias.how < INVAR_FLAG_ALIAS_ONLY, alias.key != INVAR_KEY_NONE);
        assert_int_equal(alias.how == INVAR_FLAG_ALIAS_ONLY, alias.only != NULL);
        assert_true(alias.how < INVAR_FLAG_ALIAS_ONLY || alias.sentence[0]);
        assert_true(strlen(alias.sentence) < 200);
        while (invar_text_item(&flag, &bytes, &flags, ' ')) {
            if (flag[bytes - 1] == '*')
                continue;
            assert_true(invar_flag_alias_find(&lookup, flag, bytes));
            if (lookup.sentence != alias.sentence || lookup.how != alias.how)
                fail_msg("two rows have %.*s", (int)bytes, flag);
        }
    }
    assert_true(rows > 50);
}

static void test_flag_aliases__finds_by_row_key_column_and_beginning(void **state)
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
        invar_flag_alias alias;
        assert_true(find_alias(&alias, cases[i].name));
        assert_int_equal(alias.how, cases[i].how);
        assert_int_equal(alias.key, cases[i].key);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flag_aliases__every_flag_is_a_key_or_has_a_sentence),
        cmocka_unit_test(test_flag_aliases__others_are_unknown),
        cmocka_unit_test(test_flag_aliases__rows_are_sound),
        cmocka_unit_test(test_flag_aliases__finds_by_row_key_column_and_beginning),
    };

    return cmocka_run_group_tests_name("foreign", tests, NULL, NULL);
}
