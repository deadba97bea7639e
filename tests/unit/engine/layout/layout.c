/*
 * layout.c - whatever is divided has one owner, and nobody has much more than others.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/layout/layout.h"
#include "base/hash.h"
#include "tests/support.h"

static const int sizes[] = {1, 2, 3, 4, 7, 8, 64, INVAR_COMM_MAX_SIZE};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void test_layout__units_go_round(void **state)
{
    (void)state;
    for (int i = 0; i < SIZES; i++)
        for (int64_t u = 0; u < 20; u++)
            assert_int_equal(invar_layout_owner(u, sizes[i]), u % sizes[i]);
}

static void test_layout__shares_are_even(void **state)
{
    static const int64_t counts[] = {0, 1, 2, 3, 5, 8, 63, 64, 65, 1000003, INT64_MAX};

    (void)state;
    for (int i = 0; i < SIZES; i++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            int64_t next = 0, least = counts[c] / sizes[i];

            for (int r = 0; r < sizes[i]; r++) {
                invar_layout_share s = invar_layout_share_of(counts[c], sizes[i], r);
                assert_true(s.first == next);
                assert_true(s.count == least ||
                            (s.count == least + 1 && counts[c] % sizes[i] != 0));
                next += s.count;
            }
            assert_true(next == counts[c]);
        }
}

static void test_layout__slices_begin_at_leaves(void **state)
{
    static const size_t blocks[] = {0,
                                    256,
                                    INVAR_TREE_LEAF_BYTES - 256,
                                    INVAR_TREE_LEAF_BYTES,
                                    INVAR_TREE_LEAF_BYTES + 256,
                                    9 * INVAR_TREE_LEAF_BYTES + 1024,
                                    1000 * INVAR_TREE_LEAF_BYTES,
                                    (size_t)1 << 62};

    (void)state;
    for (int i = 0; i < SIZES; i++)
        for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
            size_t next = 0, most = blocks[b] / (size_t)sizes[i] + INVAR_TREE_LEAF_BYTES;

            for (int r = 0; r < sizes[i]; r++) {
                invar_layout_slice s = invar_layout_slice_of(blocks[b], sizes[i], r);
                assert_true(s.first == next && s.bytes <= most);
                assert_true(s.bytes == 0 || s.first % INVAR_TREE_LEAF_BYTES == 0);
                next += s.bytes;
            }
            assert_true(next == blocks[b]);
        }
}

static void test_layout__one_rank_divides_nothing(void **state)
{
    invar_layout layout;
    invar_comm *comm, *pair[2];

    (void)state;
    assert_false(invar_layout_divides(NULL));
    assert_ok(invar_comm_self(&comm));
    invar_layout_init(&layout, comm, 0);
    assert_false(invar_layout_divides(&layout));
    invar_comm_free(comm);
    assert_ok(invar_comm_threads(pair, 2, 0));
    invar_layout_init(&layout, pair[1], 2.5);
    assert_true(invar_layout_divides(&layout) && layout.seconds == 2.5);
    assert_true(layout.data.comm == pair[1] && layout.data.rank == 1 && layout.data.size == 2);
    invar_comm_free(pair[0]);
    invar_comm_free(pair[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout__units_go_round),
        cmocka_unit_test(test_layout__shares_are_even),
        cmocka_unit_test(test_layout__slices_begin_at_leaves),
        cmocka_unit_test(test_layout__one_rank_divides_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
