/*
 * leaf_hasher.c - computes leaf digests of rows on the device that holds them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/leaf_hasher.h"

#include "engine/model/graph/cuda_graph_cache.h"

#include "base/invar_banned.h"

#define LEAST_ROOM (1 << 18) // 4 MiB, for 4 GiB of rows

void invar_leaf_hasher_init(invar_leaf_hasher *hasher, const invar_device *dev)
{
    *hasher = (invar_leaf_hasher){.window = {.dev = dev}};
    invar_op_runner_init(&hasher->op_runner, dev);
}

static void free_digests(invar_leaf_hasher *leaves)
{
    if (leaves->device)
        invar_device_free(&leaves->op_runner.dev, leaves->device);
    leaves->device = NULL;
    leaves->capacity = leaves->count = 0;
}

void invar_leaf_hasher_release(invar_leaf_hasher *hasher)
{
    invar_op_runner_release(&hasher->op_runner);
    free_digests(hasher);
    invar_host_window_release(&hasher->window);
}

bool invar_leaf_hasher_full(const invar_leaf_hasher *hasher, int64_t more)
{
    return hasher->count > 0 && more > hasher->capacity - hasher->count;
}

/* Replaces the device buffer; call only if it holds no unread digests. */
static invar_status alloc_digests(invar_leaf_hasher *leaves, int64_t count)
{
    int64_t room = count > LEAST_ROOM ? count : LEAST_ROOM;

    free_digests(leaves);
    INVAR_TRY(invar_device_alloc(&leaves->op_runner.dev, (void **)&leaves->device,
                                 (size_t)room * sizeof *leaves->device, "digests of rows"));
    leaves->capacity = room;
    return INVAR_OK;
}

invar_status invar_leaf_hasher_add(invar_leaf_hasher *hasher, const invar_tensor *rows,
                                   const invar_row_offsets *samples, int64_t count)
{
    INVAR_CHECK(!invar_leaf_hasher_full(hasher, count));
    if (count > hasher->capacity)
        INVAR_TRY(alloc_digests(hasher, count));
    INVAR_TRY(INVAR_CALL(&hasher->op_runner, HASH_LEAVES, hash_leaves,
                         .digest = hasher->device + hasher->count, .x = *rows, .samples = *samples,
                         .leaves = count));
    hasher->count += count;
    return INVAR_OK;
}

invar_status invar_leaf_hasher_read(const invar_digest **out, invar_leaf_hasher *hasher)
{
    const void *read = NULL;

    if (hasher->op_runner.graph_cache)
        INVAR_TRY(invar_cuda_graph_cache_flush(hasher->op_runner.graph_cache));
    if (hasher->count > 0)
        INVAR_TRY(invar_host_window_read(&read, &hasher->window, hasher->device,
                                         (size_t)hasher->count * sizeof *hasher->device));
    hasher->count = 0;
    *out = read;
    return INVAR_OK;
}
