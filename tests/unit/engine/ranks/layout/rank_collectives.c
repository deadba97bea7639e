/*
 * rank_collectives.c - tests of small collectives: minimum, first nonzero, compare, gather.
 *
 * Ranks are threads with an adversarial message schedule. Expected results are literals in a
 * table; every rank must get them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/rank_collectives.h"
#include "tests/unit/engine/ranks/comm/exchange.h"

/* One case: the value of each rank and the results that all ranks must get. */
typedef struct collective_case {
    int size;
    int64_t own[MAX_RANKS];
    int64_t first; /* expected result of invar_ranks_first_nonzero */
    int64_t min;   /* expected result of invar_ranks_min */
    struct {
        int rank, majority;
    } outlier; /* expected ranks of invar_ranks_compare_digests; rank is -1 if all are equal */
} collective_case;

static const collective_case cases[] = {
    {2, {0, 0}, 0, 0, {-1, 0}},
    {2, {0, 15}, 15, 0, {1, 0}},
    {2, {15, 0}, 15, 0, {1, 0}},
    {3, {7, 7, 7}, 7, 7, {-1, 0}},
    {3, {7, 0, 0}, 7, 0, {0, 1}},
    {3, {0, 2, 0}, 2, 0, {1, 0}},
    {3, {3, 2, 9}, 3, 2, {1, 0}},
    {5, {4, 2, 3, 2, 3}, 4, 2, {0, 1}},
    {5, {0, 0, 4, 0, 9}, 4, 0, {2, 0}},
    {8, {5, 5, 5, 5, 3, 3, 3, 3}, 5, 3, {4, 0}},
    {8, {0, 0, 0, 0, 0, 0, 0, 2}, 2, 0, {7, 0}},
};

static bool check_equal(const char *what, int64_t is, int64_t wanted)
{
    if (is != wanted)
        print_message("%s: %lld, expected %lld\n", what, (long long)is, (long long)wanted);
    return is == wanted;
}

static invar_status run_collectives(rank_run *run)
{
    const collective_case *c = run->payload;
    int64_t own = c->own[invar_comm_rank(run->comm)], all[MAX_RANKS], shared = own, first, min;
    int rank = invar_comm_rank(run->comm), same = 0;
    invar_rank_outlier outlier;
    invar_digest digest;
    invar_layout layout;
    bool ok;

    for (int r = 0; r < c->size; r++)
        same += c->own[r] == own;

    invar_layout_init(&layout, run->comm, SECONDS);
    invar_hash_bytes(&digest, &own, sizeof own);
    INVAR_TRY(invar_ranks_first_nonzero(&first, &layout, "first", own));
    INVAR_TRY(invar_ranks_min(&min, &layout, "least", own));
    INVAR_TRY(invar_ranks_compare_digests(&outlier, &layout, "compare", &digest));
    INVAR_TRY(invar_ranks_all_gather(&layout, "gather", &own, sizeof own, all));
    INVAR_TRY(invar_ranks_broadcast(&layout, "share", c->size - 1, &shared, sizeof shared));
    ok = check_equal("first", first, c->first) && check_equal("least", min, c->min) &&
         check_equal("odd", outlier.differing_rank, c->outlier.rank) &&
         check_equal("usual", outlier.majority_rank, c->outlier.majority) &&
         check_equal("shared", shared, c->own[c->size - 1]) &&
         check_equal("leads", invar_ranks_is_leader(&layout), rank == 0) &&
         check_equal("size", invar_ranks_size(&layout), c->size) &&
         check_equal("here", invar_ranks_local_size(&layout), c->size) &&
         check_equal("place", invar_ranks_local_rank(&layout), rank) &&
         check_equal("alike", outlier.n_same, same) &&
         memcmp(all, c->own, (size_t)c->size * sizeof *all) == 0;
    return ok ? INVAR_OK : INVAR_FAIL(INVAR_E_CORRUPT, 0, "wrong");
}

/* Returns the number of bytes that a rank sends; 0 for rank 6. */
static size_t rank_bytes(int rank)
{
    return (size_t)((rank + 2) * 37 % 296);
}

static invar_status gather_and_check(rank_run *run)
{
    int rank = invar_comm_rank(run->comm), size = invar_comm_size(run->comm);
    char own[300];
    const char *data;
    invar_rank_gathered gathered;
    invar_layout layout;
    bool ok = true;

    invar_layout_init(&layout, run->comm, SECONDS);
    memset(own, 'a' + rank, sizeof own);
    INVAR_TRY(invar_ranks_gather(&gathered, &layout, "collect", own, rank_bytes(rank)));
    data = gathered.data;
    for (int r = 0; r < size && ok; r++) {
        ok = check_equal("bytes", (int64_t)gathered.bytes[r], rank ? 0 : (int64_t)rank_bytes(r));
        for (size_t i = 0; i < gathered.bytes[r] && ok; i++)
            ok = check_equal("byte", *data++, 'a' + r);
    }
    invar_rank_gathered_release(&gathered);
    return ok ? INVAR_OK : INVAR_FAIL(INVAR_E_CORRUPT, 0, "wrong");
}

static void test_rank_collectives__rank_0_collects(void **state)
{
    invar_rank_gathered gathered;

    (void)state;
    for (int size = 2; size <= 8; size += 3) {
        rank_run runs[MAX_RANKS];
        run_ranks(runs, size, (uint64_t)size, 0, gather_and_check, NULL);
        for (int r = 0; r < size; r++)
            if (runs[r].status != INVAR_OK)
                fail_msg("%d ranks, rank %d: %s", size, r, runs[r].error.message);
    }
    assert_ok(invar_ranks_gather(&gathered, NULL, "x", "own", 4));
    assert_int_equal(gathered.bytes[0], 4);
    assert_string_equal(gathered.data, "own");
    invar_rank_gathered_release(&gathered);
}

static void test_rank_collectives__all_ranks_come_to_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t schedule = 0; schedule < 3; schedule++) {
            collective_case c = cases[i];
            rank_run runs[MAX_RANKS];

            run_ranks(runs, c.size, schedule, 0, run_collectives, &c);
            for (int r = 0; r < c.size; r++)
                if (runs[r].status != INVAR_OK)
                    fail_msg("question %zu, rank %d: %s", i, r, runs[r].error.message);
        }
}

static void test_rank_collectives__one_rank_agrees_with_itself(void **state)
{
    int64_t own = 9, out = 0, data = 4;
    invar_rank_outlier outlier;
    invar_digest digest;

    (void)state;
    invar_hash_bytes(&digest, &own, sizeof own);
    assert_true(invar_ranks_is_leader(NULL));
    assert_int_equal(invar_ranks_size(NULL), 1);
    assert_int_equal(invar_ranks_local_size(NULL), 1);
    assert_int_equal(invar_ranks_local_rank(NULL), 0);
    assert_ok(invar_ranks_first_nonzero(&out, NULL, "x", own));
    assert_int_equal(out, 9);
    assert_ok(invar_ranks_broadcast(NULL, "x", 0, &data, sizeof data));
    assert_int_equal(data, 4);
    assert_ok(invar_ranks_all_gather(NULL, "x", &own, sizeof own, &data));
    assert_int_equal(data, 9);
    assert_ok(invar_ranks_compare_digests(&outlier, NULL, "x", &digest));
    assert_int_equal(outlier.differing_rank, -1);
    assert_int_equal(outlier.n_same, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_collectives__all_ranks_come_to_the_same),
        cmocka_unit_test(test_rank_collectives__rank_0_collects),
        cmocka_unit_test(test_rank_collectives__one_rank_agrees_with_itself),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
