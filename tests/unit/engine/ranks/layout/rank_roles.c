/*
 * rank_roles.c - ranks that train and ranks that only sample: who is on which side, who samples
 * what.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/rank_roles.h"

#include <string.h>

#include "tests/ranks.h"

#define SECONDS 60

static invar_rank_role_sizes sizes_of(int tensor, int pipeline, int rollout_ranks, int each)
{
    return (invar_rank_role_sizes){
        .train = {.tensor = tensor, .expert_tensor = 1, .pipeline = pipeline, .virtual_stages = 1},
        .rollout = {.tensor = each, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1},
        .rollout_ranks = rollout_ranks};
}

static void refuses(const char *text, int ranks, invar_rank_role_sizes sizes)
{
    invar_rank_roles sides;

    assert_int_equal(invar_rank_roles_init_sizes(&sides, &sizes, ranks), INVAR_E_INVALID);
    assert_non_null(strstr(invar_error_last()->message, text));
}

static void test_sides__refuses_what_does_not_come_out_even(void **state)
{
    (void)state;
    refuses("need a multiple of 2", 8, sizes_of(1, 1, 3, 2));
    refuses("leaves 0 of 2 ranks to train", 2, sizes_of(1, 1, 2, 1));
    refuses("leaves 0 of 2 ranks to train", 2, sizes_of(1, 1, 7, 1));
    refuses("needs a multiple of 4: start with --ranks 9", 7, sizes_of(2, 2, 1, 1));
    refuses("needs a multiple of 4: start with --ranks 5", 4, sizes_of(2, 2, 1, 1));
}

static void test_sides__outlines_have_the_sizes(void **state)
{
    const invar_rank_role_sizes sizes = sizes_of(2, 2, 6, 3);
    invar_rank_roles sides;

    (void)state;
    assert_ok(invar_rank_roles_init_sizes(&sides, &sizes, 14));
    assert_int_equal(sides.first_rollout_rank, 8);
    assert_int_equal(sides.train.data.size, 2);
    assert_int_equal(sides.rollout.data.size, 2);
    assert_int_equal(sides.rollout.tensor.size, 3);
}

/* Without sides each rank is an engine; with them, each engine has one rank that gives. */
static void test_sides__engines_give_once(void **state)
{
    invar_layout all = {.rollout_group = {.size = 5}};
    int given[4] = {0};

    (void)state;
    assert_int_equal(invar_layout_engine_count(&all), 5);
    for (int r = 0; r < 5; r++)
        assert_true(invar_layout_engine_of(&all, r) == r && invar_layout_engine_sends(&all, r));
    all.rollout_group.size = 11;
    all.engines = (invar_layout_engines){.first = 3, .ranks_per_engine = 2};
    assert_int_equal(invar_layout_engine_count(&all), 4);
    for (int r = 0; r < 11; r++) {
        int engine = invar_layout_engine_of(&all, r);
        assert_true((engine < 0) == (r < 3) && engine < 4);
        assert_true(engine >= 0 || !invar_layout_engine_sends(&all, r));
        if (invar_layout_engine_sends(&all, r))
            given[engine]++;
    }
    for (int e = 0; e < 4; e++)
        assert_int_equal(given[e], 1);
}

/* Five ranks train, two by two of the others sample. */
static invar_status open_part(rank_run *run)
{
    const invar_rank_role_sizes sizes = sizes_of(1, 1, 4, 2);
    int rank = invar_comm_rank(run->comm);
    invar_layout own;
    invar_rank_roles sides;
    invar_status status = invar_rank_roles_open(&sides, &own, run->comm, SECONDS, &sizes);

    if (status == INVAR_OK &&
        (sides.is_rollout_rank != (rank >= 5) || sides.world.data.size != 9 ||
         own.data.size != (rank < 5 ? 5 : 2) || own.tensor.size != (rank < 5 ? 1 : 2) ||
         own.data.rank != (rank < 5 ? rank : (rank - 5) / 2)))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has another place", rank);
    invar_layout_release(&own);
    invar_rank_roles_close(&sides);
    return status;
}

static void test_sides__each_rank_has_its_place(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    run_ranks(runs, 9, 3, 0, open_part, NULL);
    assert_int_equal(ranks_status(runs, 9), INVAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sides__refuses_what_does_not_come_out_even),
        cmocka_unit_test(test_sides__outlines_have_the_sizes),
        cmocka_unit_test(test_sides__engines_give_once),
        cmocka_unit_test(test_sides__each_rank_has_its_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
