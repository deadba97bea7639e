/*
 * layout.c - who owns what.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/layout/layout.h"

#include "base/hash.h"

#include "base/invar_banned.h"

void invar_layout_init(invar_layout *out, invar_comm *world, double seconds)
{
    *out = (invar_layout){.world = world,
                          .seconds = seconds,
                          .bucket = INVAR_LAYOUT_BUCKET,
                          .data = {world, invar_comm_rank(world), invar_comm_size(world)}};
}

int invar_layout_owner(int64_t unit, int size)
{
    return (int)(unit % size);
}

/* The first ranks have one more where it does not come out even: no product that overflows. */
invar_layout_share invar_layout_share_of(int64_t count, int size, int rank)
{
    int64_t each = count / size, rest = count % size;

    return (invar_layout_share){rank * each + (rank < rest ? rank : rest),
                                each + (rank < rest ? 1 : 0)};
}

invar_layout_slice invar_layout_slice_of(size_t bytes, int size, int rank)
{
    size_t leaves = bytes / INVAR_TREE_LEAF_BYTES + (bytes % INVAR_TREE_LEAF_BYTES > 0);
    invar_layout_share share = invar_layout_share_of((int64_t)leaves, size, rank);
    size_t first = (size_t)share.first * INVAR_TREE_LEAF_BYTES;
    size_t most = (size_t)share.count * INVAR_TREE_LEAF_BYTES;

    if (first >= bytes)
        return (invar_layout_slice){bytes, 0};
    return (invar_layout_slice){first, most < bytes - first ? most : bytes - first};
}

invar_status invar_layout_gather(const invar_layout *layout, const invar_layout_axis *axis,
                                 const char *phase, void *array, const size_t *bytes)
{
    invar_comm_move move = {.op = INVAR_COMM_ALLGATHERV,
                            .phase = phase,
                            .seconds = layout->seconds,
                            .in = array,
                            .out = array,
                            .out_bytes = bytes};

    for (int r = 0; r < axis->rank; r++)
        move.in = (const char *)move.in + bytes[r];
    return invar_comm_run(axis->comm, &move);
}
