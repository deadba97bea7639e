/*
 * rank_collectives.c - tests of what ranks decide together, whatever the schedule of their
 * messages.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/rank_collectives.h"
#include "tests/unit/engine/ranks/comm/exchange.h"

/* What each rank has, and what all must come to. */
typedef struct question {
    int size;
    int64_t own[MAX_RANKS];
    int64_t first; /* of invar_ranks_first_nonzero */
    int64_t least; /* of invar_ranks_min */
    struct {
        int odd, usual;
    } odd; /* of invar_ranks_compare_digests */
} question;

static const question questions[] = {
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

static bool equal(const char *what, int64_t is, int64_t wanted)
{
    if (is != wanted)
        print_message("%s: %lld, expected %lld\n", what, (long long)is, (long long)wanted);
    return is == wanted;
}

static invar_status answer(rank_run *run)
{
    const question *q = run->payload;
    int64_t own = q->own[invar_comm_rank(run->comm)], all[MAX_RANKS], shared = own, first, least;
    int rank = invar_comm_rank(run->comm), same = 0;
    invar_rank_outlier odd;
    invar_digest digest;
    invar_layout layout;
    bool right;

    for (int r = 0; r < q->size; r++)
        same += q->own[r] == own;

    invar_layout_init(&layout, run->comm, SECONDS);
    invar_hash_bytes(&digest, &own, sizeof own);
    INVAR_TRY(invar_ranks_first_nonzero(&first, &layout, "first", own));
    INVAR_TRY(invar_ranks_min(&least, &layout, "least", own));
    INVAR_TRY(invar_ranks_compare_digests(&odd, &layout, "compare", &digest));
    INVAR_TRY(invar_ranks_all_gather(&layout, "gather", &own, sizeof own, all));
    INVAR_TRY(invar_ranks_broadcast(&layout, "share", q->size - 1, &shared, sizeof shared));
    right = equal("first", first, q->first) && equal("least", least, q->least) &&
            equal("odd", odd.differing_rank, q->odd.odd) &&
            equal("usual", odd.majority_rank, q->odd.usual) &&
            equal("shared", shared, q->own[q->size - 1]) &&
            equal("leads", invar_ranks_is_leader(&layout), rank == 0) &&
            equal("size", invar_ranks_size(&layout), q->size) &&
            equal("here", invar_ranks_local_size(&layout), q->size) &&
            equal("place", invar_ranks_local_rank(&layout), rank) &&
            equal("alike", odd.n_same, same) &&
            memcmp(all, q->own, (size_t)q->size * sizeof *all) == 0;
    return right ? INVAR_OK : INVAR_FAIL(INVAR_E_CORRUPT, 0, "wrong");
}

/* So many bytes of each rank; the seventh rank gives none. */
static size_t bytes_of(int rank)
{
    return (size_t)((rank + 2) * 37 % 296);
}

static invar_status collect(rank_run *run)
{
    int rank = invar_comm_rank(run->comm), size = invar_comm_size(run->comm);
    char own[300];
    const char *at;
    invar_rank_gathered pile;
    invar_layout layout;
    bool right = true;

    invar_layout_init(&layout, run->comm, SECONDS);
    memset(own, 'a' + rank, sizeof own);
    INVAR_TRY(invar_ranks_gather(&pile, &layout, "collect", own, bytes_of(rank)));
    at = pile.data;
    for (int r = 0; r < size && right; r++) {
        right = equal("bytes", (int64_t)pile.bytes[r], rank ? 0 : (int64_t)bytes_of(r));
        for (size_t i = 0; i < pile.bytes[r] && right; i++)
            right = equal("byte", *at++, 'a' + r);
    }
    invar_rank_gathered_release(&pile);
    return right ? INVAR_OK : INVAR_FAIL(INVAR_E_CORRUPT, 0, "wrong");
}

static void test_agree__rank_0_collects(void **state)
{
    invar_rank_gathered pile;

    (void)state;
    for (int size = 2; size <= 8; size += 3) {
        rank_run runs[MAX_RANKS];
        run_ranks(runs, size, (uint64_t)size, 0, collect, NULL);
        for (int r = 0; r < size; r++)
            if (runs[r].status != INVAR_OK)
                fail_msg("%d ranks, rank %d: %s", size, r, runs[r].error.message);
    }
    assert_ok(invar_ranks_gather(&pile, NULL, "x", "own", 4));
    assert_int_equal(pile.bytes[0], 4);
    assert_string_equal(pile.data, "own");
    invar_rank_gathered_release(&pile);
}

static void test_agree__all_ranks_come_to_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++)
        for (uint64_t schedule = 0; schedule < 3; schedule++) {
            question q = questions[i];
            rank_run runs[MAX_RANKS];

            run_ranks(runs, q.size, schedule, 0, answer, &q);
            for (int r = 0; r < q.size; r++)
                if (runs[r].status != INVAR_OK)
                    fail_msg("question %zu, rank %d: %s", i, r, runs[r].error.message);
        }
}

static void test_agree__one_rank_agrees_with_itself(void **state)
{
    int64_t own = 9, out = 0, data = 4;
    invar_rank_outlier odd;
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
    assert_ok(invar_ranks_compare_digests(&odd, NULL, "x", &digest));
    assert_int_equal(odd.differing_rank, -1);
    assert_int_equal(odd.n_same, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agree__all_ranks_come_to_the_same),
        cmocka_unit_test(test_agree__rank_0_collects),
        cmocka_unit_test(test_agree__one_rank_agrees_with_itself),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
