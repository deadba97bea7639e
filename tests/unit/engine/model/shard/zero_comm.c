/*
 * zero_comm.c - blocks of devices become slices and blocks again, through the host and straight.
 *
 * Ranks are threads with a device whose memory the host cannot touch. Straight goes a module in the
 * place of NCCL's. Both ways move the bytes that are planned.
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

typedef struct way {
    bool straight;
    uint64_t moved[RANKS]; /* bytes that it sent and received */
} way;

static unsigned char byte_of(int rank, size_t i)
{
    return (unsigned char)((i * 2654435761u >> 13) + (size_t)rank * 77);
}

static invar_status wrong(const char *what, int rank)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: rank %d has wrong bytes", what, rank);
}

/* Uneven, and in several ranges: leaf i is of rank owners[i]. */
static const int owners[] = {0, 0, 1, 2, 2, 0};

static int owner_of(size_t at)
{
    return owners[at / INVAR_TREE_LEAF_BYTES];
}

static invar_status list_owned(invar_zero_ranges *out)
{
    INVAR_TRY(invar_zero_ranges_init(out, RANKS));
    for (int r = 0; r < RANKS; r++)
        for (size_t at = 0; at < BYTES; at += INVAR_TREE_LEAF_BYTES)
            if (owner_of(at) == r)
                INVAR_TRY(invar_zero_ranges_add(
                    out, r, at,
                    BYTES - at < INVAR_TREE_LEAF_BYTES ? BYTES - at : INVAR_TREE_LEAF_BYTES));
    return INVAR_OK;
}

/* Where a byte of this rank's slice is in the block. */
static size_t place_of(const invar_zero_comm *s, size_t at)
{
    const invar_zero_ranges *o = &s->owned;
    int rank = s->plan.rank;
    int64_t i = rank > 0 ? o->end[rank - 1] : 0;

    for (; at >= o->ranges[i].bytes; i++)
        at -= o->ranges[i].bytes;
    return o->ranges[i].first + at;
}

/* All ranks give a block: each gets its slice of every one of them. */
static invar_status scatter(invar_zero_comm *s, const char *block, unsigned char *host)
{
    int rank = s->plan.rank;

    for (int64_t piece = 0; piece < s->plan.n_buckets; piece++) {
        invar_byte_range own = invar_bucket_plan_bucket_range(&s->plan, rank, piece);

        INVAR_TRY(invar_zero_comm_scatter(s, "scatter", block, piece, RANKS));
        for (int r = 0; r < RANKS; r++) {
            const char *came = s->recv_buffer + (size_t)r * own.bytes;

            if (!s->device_to_device)
                memcpy(host, came, own.bytes);
            else if (own.bytes > 0)
                INVAR_TRY(invar_device_download(&s->dev, host, came, own.bytes));
            for (size_t i = 0; i < own.bytes; i++)
                if (host[i] != byte_of(r, place_of(s, own.first + i)))
                    return wrong("scatter", rank);
        }
    }
    return INVAR_OK;
}

static invar_status check_whole(const unsigned char *host, const char *what, int rank)
{
    for (size_t i = 0; i < BYTES; i++)
        if (host[i] != byte_of(owner_of(i), i))
            return wrong(what, rank);
    return INVAR_OK;
}

static invar_status move_all(invar_zero_comm *s, char *block, char *slice, unsigned char *host)
{
    int rank = s->plan.rank;

    for (size_t i = 0; i < BYTES; i++)
        host[i] = byte_of(rank, i);
    INVAR_TRY(invar_device_upload(&s->dev, block, host, BYTES));
    INVAR_TRY(scatter(s, block, host));
    for (size_t i = 0; i < invar_zero_comm_own(s); i++)
        host[i] = byte_of(rank, place_of(s, i));
    INVAR_TRY(invar_device_upload(&s->dev, slice, host, invar_zero_comm_own(s)));
    INVAR_TRY(invar_device_zero(&s->dev, block, BYTES));
    INVAR_TRY(invar_zero_comm_place(s, block, slice));
    memset(host, 0, BYTES);
    INVAR_TRY(invar_zero_comm_collect(s, "collect", (char *)host, slice, true));
    if (rank == 0)
        INVAR_TRY(check_whole(host, "collect", rank));
    memset(host, 0, BYTES);
    INVAR_TRY(invar_zero_comm_collect(s, "collect", (char *)host, block, false));
    if (rank == 0)
        INVAR_TRY(check_whole(host, "collect from blocks", rank));
    INVAR_TRY(invar_zero_comm_gather(s, "gather", block));
    INVAR_TRY(invar_device_download(&s->dev, host, block, BYTES));
    return check_whole(host, "gather", rank);
}

static invar_status run_slices(uint64_t *moved, const invar_layout *layout, const invar_device *dev,
                               unsigned char *host)
{
    const invar_comm *comm =
        layout->data.device_comm ? layout->data.device_comm : layout->data.comm;
    invar_zero_comm slices = {.send_buffer = NULL};
    invar_zero_ranges owned = {0};
    void *block = NULL; // and behind it a slice
    invar_status status = invar_device_alloc(dev, &block, 2 * BYTES, "a block");

    if (status == INVAR_OK)
        status = list_owned(&owned);
    if (status == INVAR_OK)
        status = invar_zero_comm_init(&slices, dev, layout, &owned);
    if (status == INVAR_OK && slices.device_to_device != (layout->data.device_comm != NULL))
        status = INVAR_FAIL(INVAR_E_STATE, 0, "it takes another way");
    if (status == INVAR_OK)
        status = move_all(&slices, block, (char *)block + BYTES, host);
    for (int op = 0; op < INVAR_COMM_SPLIT; op++)
        *moved += invar_comm_get_stats(comm, (invar_comm_op)op).sent +
                  invar_comm_get_stats(comm, (invar_comm_op)op).received;
    invar_zero_comm_release(&slices);
    invar_zero_ranges_release(&owned);
    invar_device_free(dev, block);
    return status;
}

static invar_status part(rank_run *run)
{
    way *w = run->payload;
    int rank = invar_comm_rank(run->comm);
    invar_layout_transport transport = {.nccl = w->straight};
    invar_device dev = {.backend = invar_far_backend()};
    unsigned char *host = malloc(BYTES);
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    layout.bucket_bytes = 2 * RANKS * INVAR_TREE_LEAF_BYTES * (run->seed & 1); // 0: leaf by leaf
    w->moved[rank] = 0;
    status = invar_device_open(&dev);
    if (status == INVAR_OK)
        status = invar_layout_open_transport(&layout, &dev, &transport);
    if (status == INVAR_OK)
        status = run_slices(&w->moved[rank], &layout, &dev, host);
    invar_layout_close_transport(&layout, &dev);
    invar_device_close(&dev);
    free(host);
    return status;
}

static void test_slices__both_ways_move_the_same(void **state)
{
    way host = {.straight = false}, straight = {.straight = true};
    rank_run runs[MAX_RANKS];

    (void)state;
    for (uint64_t bucket = 0; bucket < 2; bucket++) {
        invar_far_begin(0);
        run_ranks(runs, RANKS, 1, bucket, part, &host);
        assert_ok(ranks_status(runs, RANKS));
        run_ranks(runs, RANKS, 1, bucket, part, &straight);
        assert_ok(ranks_status(runs, RANKS));
        for (int r = 0; r < RANKS; r++)
            assert_true(host.moved[r] > BYTES && host.moved[r] == straight.moved[r]);
        assert_int_equal(invar_far_counted().live, 0);
    }
}

/* The control: a bit that is another on the way is found. */
static void test_slices__a_changed_bit_is_found(void **state)
{
    way straight = {.straight = true};
    rank_run runs[MAX_RANKS];

    (void)state;
    setenv("INVAR_TEST_NCCL", "flip", 1);
    run_ranks(runs, RANKS, 0, 0, part, &straight);
    unsetenv("INVAR_TEST_NCCL");
    assert_int_equal(ranks_status(runs, RANKS), INVAR_E_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices__both_ways_move_the_same),
        cmocka_unit_test(test_slices__a_changed_bit_is_found),
    };

    setenv("INVAR_MODULES", INVAR_TEST_WORK "/nccl", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
