/*
 * group_select.c - tests of dynamic sampling: groups fill the batch in the order of the data.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/sample/source/group_select.h"
#include "tests/support.h"

enum { B = INVAR_GROUP_BATCH, F = INVAR_GROUP_FILTERED, S = INVAR_GROUP_SURPLUS };

static void test_group_select__first_kept_groups_fill_the_batch(void **state)
{
    const bool rounds[2][5] = {{false, true, false, false, true}, {true, false, true, true, false}};
    const int expected[2][5] = {{F, B, F, F, B}, {B, F, S, S, F}};
    invar_group_selection selection;
    invar_group_outcome outcomes[5];
    int64_t prompts;

    (void)state;
    assert_ok(invar_group_selection_init(&selection, 3, 5, 0));
    for (int r = 0; r < 2; r++) {
        assert_ok(invar_group_selection_next(&prompts, &selection));
        assert_int_equal(prompts, 5);
        invar_group_selection_take(outcomes, &selection, rounds[r], 5);
        for (int i = 0; i < 5; i++)
            assert_int_equal((int)outcomes[i], expected[r][i]);
    }
    assert_ok(invar_group_selection_next(&prompts, &selection));
    assert_int_equal(prompts, 0);
    assert_int_equal(selection.consumed, 10);
    assert_int_equal(selection.chosen, 3);
    assert_int_equal(selection.filtered, 5);
    assert_int_equal(selection.surplus, 2);
    assert_int_equal(selection.rounds, 2);
}

/* Without a filter, one round of the batch's size is the batch. */
static void test_group_select__no_filter(void **state)
{
    const bool keep[4] = {true, true, true, true};
    invar_group_selection selection;
    invar_group_outcome outcomes[4];
    int64_t prompts;

    (void)state;
    assert_ok(invar_group_selection_init(&selection, 4, 4, 1));
    invar_group_selection_take(outcomes, &selection, keep, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(outcomes[i], INVAR_GROUP_BATCH);
    assert_ok(invar_group_selection_next(&prompts, &selection));
    assert_int_equal(prompts, 0);
    assert_int_equal(selection.consumed, 4);
}

static void test_group_select__limits_the_rounds(void **state)
{
    const bool keep[2] = {false, true};
    invar_group_selection selection;
    invar_group_outcome outcomes[2];
    int64_t prompts;

    (void)state;
    assert_ok(invar_group_selection_init(&selection, 3, 2, 2));
    invar_group_selection_take(outcomes, &selection, keep, 2);
    assert_ok(invar_group_selection_next(&prompts, &selection));
    invar_group_selection_take(outcomes, &selection, keep, 2);
    assert_fails(invar_group_selection_next(&prompts, &selection), INVAR_E_STATE,
                 "kept 2 of the 3 groups wanted, in 2 rounds of 2 prompts");
}

static void test_group_select__refuses_invalid_sizes(void **state)
{
    invar_group_selection selection;

    (void)state;
    assert_fails(invar_group_selection_init(&selection, 0, 2, 2), INVAR_E_INVALID,
                 "dynamic sampling");
    assert_fails(invar_group_selection_init(&selection, 1, 0, 2), INVAR_E_INVALID,
                 "dynamic sampling");
    assert_fails(invar_group_selection_init(&selection, 1, 1, -1), INVAR_E_INVALID,
                 "dynamic sampling");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group_select__first_kept_groups_fill_the_batch),
        cmocka_unit_test(test_group_select__no_filter),
        cmocka_unit_test(test_group_select__limits_the_rounds),
        cmocka_unit_test(test_group_select__refuses_invalid_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
