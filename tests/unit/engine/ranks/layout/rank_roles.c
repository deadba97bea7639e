/*
 * rank_roles.c - tests of rank roles: which ranks train and which only sample, in which layout.
 *
 * Expected numbers are literals. Ranks of the last test are threads, each of which checks its
 * own layout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/rank_roles.h"

#include <string.h>

#include "tests/ranks.h"

#define SECONDS 60

static invar_rank_role_sizes sizes_of(int tensor, int pipeline, int rollout_ranks,
                                      int rollout_tensor)
{
    return (invar_rank_role_sizes){
        .train = {.tensor = tensor, .expert_tensor = 1, .pipeline = pipeline, .virtual_stages = 1},
        .rollout = {.tensor = rollout_tensor,
                    .expert_tensor = 1,
                    .pipeline = 1,
                    .virtual_stages = 1},
        .rollout_ranks = rollout_ranks};
}

static void check_rejected(const char *text, int ranks, invar_rank_role_sizes sizes)
{
    invar_rank_roles roles;

    assert_int_equal(invar_rank_roles_init_sizes(&roles, &sizes, ranks), INVAR_E_INVALID);
    assert_non_null(strstr(invar_error_last()->message, text));
}

static void test_rank_roles__refuses_sizes_that_do_not_divide(void **state)
{
    (void)state;
    check_rejected("need a multiple of 2", 8, sizes_of(1, 1, 3, 2));
    check_rejected("leaves 0 of 2 ranks to train", 2, sizes_of(1, 1, 2, 1));
    check_rejected("leaves 0 of 2 ranks to train", 2, sizes_of(1, 1, 7, 1));
    check_rejected("needs a multiple of 4: start with --ranks 9", 7, sizes_of(2, 2, 1, 1));
    check_rejected("needs a multiple of 4: start with --ranks 5", 4, sizes_of(2, 2, 1, 1));
}

static void test_rank_roles__init_sizes(void **state)
{
    const invar_rank_role_sizes sizes = sizes_of(2, 2, 6, 3);
    invar_rank_roles roles;

    (void)state;
    assert_ok(invar_rank_roles_init_sizes(&roles, &sizes, 14));
    assert_int_equal(roles.first_rollout_rank, 8);
    assert_int_equal(roles.train.data.size, 2);
    assert_int_equal(roles.rollout.data.size, 2);
    assert_int_equal(roles.rollout.tensor.size, 3);
}

/*
 * Without roles each rank is an engine. With roles each engine has exactly one rank that sends its
 * samples, and training ranks belong to no engine.
 */
static void test_rank_roles__one_sender_per_engine(void **state)
{
    invar_layout all = {.rollout_group = {.size = 5}};
    int n_senders[4] = {0};

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
            n_senders[engine]++;
    }
    for (int e = 0; e < 4; e++)
        assert_int_equal(n_senders[e], 1);
}

/* Five ranks train; the other four form two engines of two ranks. */
static invar_status open_and_check(rank_run *run)
{
    const invar_rank_role_sizes sizes = sizes_of(1, 1, 4, 2);
    int rank = invar_comm_rank(run->comm);
    invar_layout layout;
    invar_rank_roles roles;
    invar_status status = invar_rank_roles_open(&roles, &layout, run->comm, SECONDS, &sizes);

    if (status == INVAR_OK &&
        (roles.is_rollout_rank != (rank >= 5) || roles.world.data.size != 9 ||
         layout.data.size != (rank < 5 ? 5 : 2) || layout.tensor.size != (rank < 5 ? 1 : 2) ||
         layout.data.rank != (rank < 5 ? rank : (rank - 5) / 2)))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has another place", rank);
    invar_layout_release(&layout);
    invar_rank_roles_close(&roles);
    return status;
}

static void test_rank_roles__each_rank_has_its_layout(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    run_ranks(runs, 9, 3, 0, open_and_check, NULL);
    assert_int_equal(ranks_status(runs, 9), INVAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_roles__refuses_sizes_that_do_not_divide),
        cmocka_unit_test(test_rank_roles__init_sizes),
        cmocka_unit_test(test_rank_roles__one_sender_per_engine),
        cmocka_unit_test(test_rank_roles__each_rank_has_its_layout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
