/*
 * leaf_hasher.c - computes leaf digests of rows on the device that holds them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/leaf_hasher.h"

#include "engine/model/graph/cuda_graph_cache.h"

#include "base/invar_banned.h"

#define LEAST_ROOM (1 << 18) // 4 MiB, for 4 GiB of rows

void invar_leaf_hasher_init(invar_leaf_hasher *leaves, const invar_device *dev)
{
    *leaves = (invar_leaf_hasher){.window = {.dev = dev}};
    invar_op_runner_init(&leaves->caller, dev);
}

static void free_digests(invar_leaf_hasher *leaves)
{
    if (leaves->device)
        invar_device_free(&leaves->caller.dev, leaves->device);
    leaves->device = NULL;
    leaves->room = leaves->count = 0;
}

void invar_leaf_hasher_release(invar_leaf_hasher *leaves)
{
    invar_op_runner_release(&leaves->caller);
    free_digests(leaves);
    invar_host_window_release(&leaves->window);
}

bool invar_leaf_hasher_full(const invar_leaf_hasher *leaves, int64_t more)
{
    return leaves->count > 0 && more > leaves->room - leaves->count;
}

/* Replaces the device buffer; call only if it holds no unread digests. */
static invar_status alloc_digests(invar_leaf_hasher *leaves, int64_t count)
{
    int64_t room = count > LEAST_ROOM ? count : LEAST_ROOM;

    free_digests(leaves);
    INVAR_TRY(invar_device_alloc(&leaves->caller.dev, (void **)&leaves->device,
                                 (size_t)room * sizeof *leaves->device, "digests of rows"));
    leaves->room = room;
    return INVAR_OK;
}

invar_status invar_leaf_hasher_add(invar_leaf_hasher *leaves, const invar_tensor *rows,
                                   const invar_row_offsets *samples, int64_t count)
{
    INVAR_CHECK(!invar_leaf_hasher_full(leaves, count));
    if (count > leaves->room)
        INVAR_TRY(alloc_digests(leaves, count));
    INVAR_TRY(INVAR_CALL(&leaves->caller, HASH_LEAVES, hash_leaves,
                         .digest = leaves->device + leaves->count, .x = *rows, .samples = *samples,
                         .leaves = count));
    leaves->count += count;
    return INVAR_OK;
}

invar_status invar_leaf_hasher_read(const invar_digest **out, invar_leaf_hasher *leaves)
{
    const void *read = NULL;

    if (leaves->caller.tape)
        INVAR_TRY(invar_cuda_graph_cache_flush(leaves->caller.tape));
    if (leaves->count > 0)
        INVAR_TRY(invar_host_window_read(&read, &leaves->window, leaves->device,
                                         (size_t)leaves->count * sizeof *leaves->device));
    leaves->count = 0;
    *out = read;
    return INVAR_OK;
}
