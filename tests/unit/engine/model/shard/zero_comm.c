/*
 * zero_comm.c - tests of ZeRO communication: scatter, gather and collect of blocks on devices.
 *
 * Ranks are threads with a device whose memory the host cannot access. Bytes go through host
 * memory, or from device to device through tests/plugin/fake_nccl.c. Both transports must deliver
 * every byte and move the same number of bytes. Control: a bit that the module flips is found.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/model/shard/zero_comm.h"
#include "engine/ranks/layout/transport.h"
#include "tests/device/fake_gpu.h"
#include "tests/ranks.h"

#define SECONDS 60

enum { RANKS = 3, BYTES = 5 * INVAR_TREE_LEAF_BYTES + 4096 };

/* One transport and its traffic. */
typedef struct transport_case {
    bool direct;             /* device to device; false through host memory */
    uint64_t n_moved[RANKS]; /* bytes that each rank sent and received */
} transport_case;

/* Returns byte `i` of the block of a rank. */
static unsigned char test_byte(int rank, size_t i)
{
    return (unsigned char)((i * 2654435761u >> 13) + (size_t)rank * 77);
}

static invar_status wrong_bytes(const char *what, int rank)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: rank %d has wrong bytes", what, rank);
}

/* Rank that owns each leaf of the block: uneven, and rank 0 has two ranges. */
static const int owners[] = {0, 0, 1, 2, 2, 0};

static int leaf_owner(size_t offset)
{
    return owners[offset / INVAR_TREE_LEAF_BYTES];
}

static invar_status add_owned_ranges(invar_zero_ranges *out)
{
    INVAR_TRY(invar_zero_ranges_init(out, RANKS));
    for (int r = 0; r < RANKS; r++)
        for (size_t offset = 0; offset < BYTES; offset += INVAR_TREE_LEAF_BYTES)
            if (leaf_owner(offset) == r)
                INVAR_TRY(invar_zero_ranges_add(out, r, offset,
                                                BYTES - offset < INVAR_TREE_LEAF_BYTES
                                                    ? BYTES - offset
                                                    : INVAR_TREE_LEAF_BYTES));
    return INVAR_OK;
}

/* Returns the offset in the block of byte `offset` of this rank's slice. */
static size_t block_offset(const invar_zero_comm *s, size_t offset)
{
    const invar_zero_ranges *o = &s->owned;
    int rank = s->plan.rank;
    int64_t i = rank > 0 ? o->end[rank - 1] : 0;

    for (; offset >= o->ranges[i].bytes; i++)
        offset -= o->ranges[i].bytes;
    return o->ranges[i].first + offset;
}

/* Scatters the blocks of all ranks; each rank checks its slice of every block. */
static invar_status scatter(invar_zero_comm *s, const char *block, unsigned char *host)
{
    int rank = s->plan.rank;

    for (int64_t bucket_index = 0; bucket_index < s->plan.n_buckets; bucket_index++) {
        invar_byte_range own = invar_bucket_plan_bucket_range(&s->plan, rank, bucket_index);

        INVAR_TRY(invar_zero_comm_scatter(s, "scatter", block, bucket_index, RANKS));
        for (int r = 0; r < RANKS; r++) {
            const char *arrived = s->recv_buffer + (size_t)r * own.bytes;

            if (!s->device_to_device)
                memcpy(host, arrived, own.bytes);
            else if (own.bytes > 0)
                INVAR_TRY(invar_device_download(&s->dev, host, arrived, own.bytes));
            for (size_t i = 0; i < own.bytes; i++)
                if (host[i] != test_byte(r, block_offset(s, own.first + i)))
                    return wrong_bytes("scatter", rank);
        }
    }
    return INVAR_OK;
}

static invar_status check_block(const unsigned char *host, const char *what, int rank)
{
    for (size_t i = 0; i < BYTES; i++)
        if (host[i] != test_byte(leaf_owner(i), i))
            return wrong_bytes(what, rank);
    return INVAR_OK;
}

/* Runs scatter, place, collect and gather, and checks the bytes that arrive. */
static invar_status move_all(invar_zero_comm *s, char *block, char *slice, unsigned char *host)
{
    int rank = s->plan.rank;

    for (size_t i = 0; i < BYTES; i++)
        host[i] = test_byte(rank, i);
    INVAR_TRY(invar_device_upload(&s->dev, block, host, BYTES));
    INVAR_TRY(scatter(s, block, host));
    for (size_t i = 0; i < invar_zero_comm_own(s); i++)
        host[i] = test_byte(rank, block_offset(s, i));
    INVAR_TRY(invar_device_upload(&s->dev, slice, host, invar_zero_comm_own(s)));
    INVAR_TRY(invar_device_zero(&s->dev, block, BYTES));
    INVAR_TRY(invar_zero_comm_place(s, block, slice));
    memset(host, 0, BYTES);
    INVAR_TRY(invar_zero_comm_collect(s, "collect", (char *)host, slice, true));
    if (rank == 0)
        INVAR_TRY(check_block(host, "collect", rank));
    memset(host, 0, BYTES);
    INVAR_TRY(invar_zero_comm_collect(s, "collect", (char *)host, block, false));
    if (rank == 0)
        INVAR_TRY(check_block(host, "collect from blocks", rank));
    INVAR_TRY(invar_zero_comm_gather(s, "gather", block));
    INVAR_TRY(invar_device_download(&s->dev, host, block, BYTES));
    return check_block(host, "gather", rank);
}

static invar_status run_zero_comm(uint64_t *n_moved, const invar_layout *layout,
                                  const invar_device *dev, unsigned char *host)
{
    const invar_comm *comm =
        layout->data.device_comm ? layout->data.device_comm : layout->data.comm;
    invar_zero_comm zero_comm = {.send_buffer = NULL};
    invar_zero_ranges owned = {0};
    void *block = NULL; // the block, followed by the slice
    invar_status status = invar_device_alloc(dev, &block, 2 * BYTES, "a block");

    if (status == INVAR_OK)
        status = add_owned_ranges(&owned);
    if (status == INVAR_OK)
        status = invar_zero_comm_init(&zero_comm, dev, layout, &owned);
    if (status == INVAR_OK && zero_comm.device_to_device != (layout->data.device_comm != NULL))
        status = INVAR_FAIL(INVAR_E_STATE, 0, "it takes another way");
    if (status == INVAR_OK)
        status = move_all(&zero_comm, block, (char *)block + BYTES, host);
    for (int op = 0; op < INVAR_COMM_SPLIT; op++)
        *n_moved += invar_comm_get_stats(comm, (invar_comm_op)op).sent +
                    invar_comm_get_stats(comm, (invar_comm_op)op).received;
    invar_zero_comm_release(&zero_comm);
    invar_zero_ranges_release(&owned);
    invar_device_free(dev, block);
    return status;
}

static invar_status run_rank(rank_run *run)
{
    transport_case *w = run->payload;
    int rank = invar_comm_rank(run->comm);
    invar_layout_transport transport = {.nccl = w->direct};
    invar_device dev = {.backend = invar_fake_gpu_backend()};
    unsigned char *host = malloc(BYTES);
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    layout.bucket_bytes =
        2 * RANKS * INVAR_TREE_LEAF_BYTES * (run->seed & 1); // 0: one leaf per bucket
    w->n_moved[rank] = 0;
    status = invar_device_open(&dev);
    if (status == INVAR_OK)
        status = invar_layout_open_transport(&layout, &dev, &transport);
    if (status == INVAR_OK)
        status = run_zero_comm(&w->n_moved[rank], &layout, &dev, host);
    invar_layout_close_transport(&layout, &dev);
    invar_device_close(&dev);
    free(host);
    return status;
}

static void test_zero_comm__both_transports_move_the_same(void **state)
{
    transport_case host = {.direct = false}, direct = {.direct = true};
    rank_run runs[MAX_RANKS];

    (void)state;
    for (uint64_t bucket = 0; bucket < 2; bucket++) {
        invar_fake_gpu_begin(0);
        run_ranks(runs, RANKS, 1, bucket, run_rank, &host);
        assert_ok(ranks_status(runs, RANKS));
        run_ranks(runs, RANKS, 1, bucket, run_rank, &direct);
        assert_ok(ranks_status(runs, RANKS));
        for (int r = 0; r < RANKS; r++)
            assert_true(host.n_moved[r] > BYTES && host.n_moved[r] == direct.n_moved[r]);
        assert_int_equal(invar_fake_gpu_counted().live, 0);
    }
}

/* Control: a bit that is flipped in transit is found. */
static void test_zero_comm__a_changed_bit_is_found(void **state)
{
    transport_case direct = {.direct = true};
    rank_run runs[MAX_RANKS];

    (void)state;
    setenv("INVAR_TEST_NCCL", "flip", 1);
    run_ranks(runs, RANKS, 0, 0, run_rank, &direct);
    unsetenv("INVAR_TEST_NCCL");
    assert_int_equal(ranks_status(runs, RANKS), INVAR_E_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zero_comm__both_transports_move_the_same),
        cmocka_unit_test(test_zero_comm__a_changed_bit_is_found),
    };

    setenv("INVAR_MODULES", INVAR_TEST_WORK "/nccl", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
