/*
 * layout.c - tests of layouts: ranges per rank, groups per axis, and ranks by coordinates.
 *
 * Expected ranks and ranges are computed by other formulas here. Ranks of a real group are threads;
 * simulated layouts must give every rank the coordinates that number it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/layout.h"
#include "base/hash.h"
#include "tests/ranks.h"

static const int sizes[] = {1, 2, 3, 4, 7, 8, 64, INVAR_COMM_MAX_SIZE};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void test_layout__ranges_are_even(void **state)
{
    static const int64_t counts[] = {0, 1, 2, 3, 5, 8, 63, 64, 65, 1000003, INT64_MAX};

    (void)state;
    for (int i = 0; i < SIZES; i++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            int64_t next = 0, min_count = counts[c] / sizes[i];

            for (int r = 0; r < sizes[i]; r++) {
                invar_index_range s = invar_layout_range_of(counts[c], sizes[i], r);
                assert_true(s.first == next);
                assert_true(s.count == min_count ||
                            (s.count == min_count + 1 && counts[c] % sizes[i] != 0));
                next += s.count;
            }
            assert_true(next == counts[c]);
        }
}

static void test_layout__one_rank_divides_nothing(void **state)
{
    invar_layout layout;
    invar_comm *comm, *pair[2];

    (void)state;
    assert_false(invar_layout_has_data_parallel(NULL));
    assert_ok(invar_comm_self(&comm));
    invar_layout_init(&layout, comm, 0);
    assert_false(invar_layout_has_data_parallel(&layout));
    invar_comm_free(comm);
    assert_ok(invar_comm_threads(pair, 2, 0));
    invar_layout_init(&layout, pair[1], 2.5);
    assert_true(invar_layout_has_data_parallel(&layout) && layout.timeout_s == 2.5);
    assert_true(layout.data.comm == pair[1] && layout.data.rank == 1 && layout.data.size == 2);
    invar_comm_free(pair[0]);
    invar_comm_free(pair[1]);
}

/* Ranks are numbered as in Megatron-LM: tensor changes fastest, then data, then pipeline. */
static const invar_layout_sizes axes = {
    .tensor = 2, .expert_tensor = 1, .pipeline = 2, .virtual_stages = 3};
/* The context axis lies between tensor and data. */
static const invar_layout_sizes contexts = {
    .tensor = 2, .expert_tensor = 1, .context = 2, .pipeline = 1, .virtual_stages = 1};

/*
 * Checks the rank and size on an axis, and that the group's first rank is the lowest in the world.
 */
static invar_status check_axis(const invar_layout_axis *axis, int rank, int size, int world)
{
    int seen = world;
    invar_comm_transfer first = {
        .op = INVAR_COMM_BROADCAST, .phase = "first", .out = &seen, .from_bytes = sizeof seen};

    if (axis->rank == 0)
        first.in = &world;
    INVAR_TRY(invar_comm_run(axis->comm, &first));
    if (axis->rank != rank || axis->size != size || invar_comm_size(axis->comm) != size)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d is %d of %d", world, axis->rank,
                          axis->size);
    return seen <= world ? INVAR_OK : INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d is first", seen);
}

static invar_status divide_and_check(rank_run *run)
{
    int rank = invar_comm_rank(run->comm);
    invar_rank_coords coords;
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, 60);
    status = invar_layout_divide(&layout, &axes);
    coords = invar_rank_coords_of(&layout, rank);
    if (status == INVAR_OK && (coords.tensor != rank % 2 || coords.data != rank / 2 % 2 ||
                               coords.pipeline != rank / 4 || layout.virtual_stages != 3))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "rank %d has another place", rank);
    if (status == INVAR_OK)
        status = check_axis(&layout.tensor, rank % 2, 2, rank);
    if (status == INVAR_OK)
        status = check_axis(&layout.data, rank / 2 % 2, 2, rank);
    if (status == INVAR_OK)
        status = check_axis(&layout.pipeline, rank / 4, 2, rank);
    invar_layout_release(&layout);
    return status;
}

static invar_status divide_with_context(rank_run *run)
{
    int rank = invar_comm_rank(run->comm);
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, 60);
    status = invar_layout_divide(&layout, &contexts);
    if (status == INVAR_OK)
        status = check_axis(&layout.tensor, rank % 2, 2, rank);
    if (status == INVAR_OK)
        status = check_axis(&layout.context, rank / 2 % 2, 2, rank);
    if (status == INVAR_OK)
        status = check_axis(&layout.data, rank / 4, 2, rank);
    if (status == INVAR_OK)
        status = check_axis(&layout.rollout_group, rank / 2, 4, rank);
    invar_layout_release(&layout);
    return status;
}

static void test_layout__axes(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    run_ranks(runs, 8, 5, 0, divide_with_context, NULL);
    assert_ok(ranks_status(runs, 8));
    run_ranks(runs, 8, 3, 0, divide_and_check, NULL);
    assert_ok(ranks_status(runs, 8));
}

static void test_layout__refuses_a_world_that_is_no_multiple(void **state)
{
    invar_layout layout;
    invar_comm *ranks[6];

    (void)state;
    assert_ok(invar_comm_threads(ranks, 6, 0));
    invar_layout_init(&layout, ranks[0], 0);
    assert_fails(invar_layout_divide(&layout, &axes), INVAR_E_INVALID,
                 "6 ranks: a model cut into 4 parts (tensor-model-parallel-size 2 x "
                 "context-parallel-size 1 x expert-model-parallel-size 1 x "
                 "pipeline-model-parallel-size 2) needs a multiple of 4");
    invar_layout_release(&layout);
    for (int r = 0; r < 6; r++)
        invar_comm_free(ranks[r]);
}

/* Simulated layouts of 96 ranks: each rank's coordinates must give its number again. */
static void test_layout__simulated_ranks(void **state)
{
    static const invar_layout_sizes sizes_of = {.tensor = 2,
                                                .expert_tensor = 2,
                                                .expert = 3,
                                                .context = 2,
                                                .pipeline = 2,
                                                .virtual_stages = 2};
    invar_layout layout;

    (void)state;
    for (int r = 0; r < 96; r++) {
        invar_rank_coords coords;

        assert_ok(invar_layout_simulate(&layout, &sizes_of, 96, r));
        coords = (invar_rank_coords){layout.tensor.rank, layout.context.rank, layout.expert.rank,
                                     layout.data.rank, layout.pipeline.rank};
        assert_int_equal(invar_layout_rank_of(&layout, &coords), r);
        assert_int_equal(layout.data.size, 4);
        assert_int_equal(invar_comm_size(layout.expert.comm), 3);
        assert_int_equal(invar_comm_size(layout.context.comm), 2);
        assert_int_equal(invar_layout_engine_count(&layout), 8);
        assert_int_equal(layout.rollout_group.rank, 2 * layout.data.rank + layout.context.rank);
        assert_int_equal(invar_comm_rank(layout.backward_comm), layout.pipeline.rank);
        assert_false(invar_layout_skips_transfers(&layout, true));
        invar_layout_release(&layout);
    }
    assert_true(invar_layout_skips_transfers(&layout, true) &&
                !invar_layout_skips_transfers(&layout, false));
    assert_fails(invar_layout_simulate(&layout, &sizes_of, 36, 0), INVAR_E_INVALID,
                 "36 ranks: a model cut into 24 parts");
    invar_layout_release(&layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout__ranges_are_even),
        cmocka_unit_test(test_layout__one_rank_divides_nothing),
        cmocka_unit_test(test_layout__axes),
        cmocka_unit_test(test_layout__refuses_a_world_that_is_no_multiple),
        cmocka_unit_test(test_layout__simulated_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
