/*
 * tensor_hasher.c - collects tensors and hashes them on the device.
 *
 * Consecutive tensors with the same number of shards share one call of hash.tree; all digests are
 * downloaded together.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/tensor_hasher.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

void invar_tensor_hasher_init(invar_tensor_hasher *hasher, const invar_device *dev)
{
    *hasher = (invar_tensor_hasher){.count = 0};
    invar_op_runner_init(&hasher->op_runner, dev);
}

void invar_tensor_hasher_release(invar_tensor_hasher *hasher)
{
    invar_op_runner_release(&hasher->op_runner);
    if (hasher->device)
        invar_device_free(&hasher->op_runner.dev, hasher->device);
    invar_free(hasher->tensors);
    invar_free(hasher->shards);
    invar_free(hasher->cuts);
    *hasher = (invar_tensor_hasher){.count = 0};
}

static invar_status add_tensor(invar_tensor_hasher *hasher, const invar_tensor *tensor,
                               int32_t shards, const invar_logical_split *split)
{
    static const char what[] = "the list of tensors to hash";
    int64_t used = hasher->count, a = hasher->capacity, b = a, c = a;

    INVAR_TRY(INVAR_GROW(hasher->tensors, a, used, used + 1, what));
    INVAR_TRY(INVAR_GROW(hasher->shards, b, used, used + 1, what));
    INVAR_TRY(INVAR_GROW(hasher->cuts, c, used, used + 1, what));
    hasher->capacity = a;
    hasher->tensors[used] = *tensor;
    hasher->shards[used] = shards;
    hasher->cuts[used] = *split;
    hasher->count++;
    return INVAR_OK;
}

invar_status invar_tensor_hasher_add(invar_tensor_hasher *hasher, const invar_tensor *tensor,
                                     int32_t shards)
{
    return add_tensor(hasher, tensor, shards, &(invar_logical_split){.shards = 1, .experts = 1});
}

invar_status invar_tensor_hasher_add_cut(invar_tensor_hasher *hasher, const invar_tensor *tensor,
                                         const invar_logical_split *split)
{
    return add_tensor(hasher, tensor, 1, split);
}

static invar_status ensure_digests(invar_tensor_hasher *hasher)
{
    const invar_device *dev = &hasher->op_runner.dev;

    if (hasher->count <= hasher->device_capacity)
        return INVAR_OK;
    if (hasher->device)
        invar_device_free(dev, hasher->device);
    hasher->device = NULL;
    hasher->device_capacity = 0;
    INVAR_TRY(invar_device_alloc(dev, (void **)&hasher->device,
                                 (size_t)hasher->capacity * sizeof *hasher->device, "digests"));
    hasher->device_capacity = hasher->capacity;
    return INVAR_OK;
}

/* Hashes the tensors with one call per run of equal numbers of shards. */
static invar_status hash_runs(invar_tensor_hasher *hasher, int64_t count)
{
    for (int64_t first = 0, end; first < count; first = end) {
        end = first + 1;
        while (end < count && hasher->shards[end] == hasher->shards[first])
            end++;
        INVAR_TRY(INVAR_CALL(&hasher->op_runner, HASH_TREE, hash_tree,
                             .digest = &hasher->device[first], .x = &hasher->tensors[first],
                             .count = end - first, .shards = hasher->shards[first],
                             .cuts = hasher->shards[first] == 1 ? &hasher->cuts[first] : NULL));
    }
    return INVAR_OK;
}

invar_status invar_tensor_hasher_read(invar_digest *out, invar_tensor_hasher *hasher)
{
    int64_t count = hasher->count;

    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(ensure_digests(hasher));
    hasher->count = 0;
    INVAR_TRY(hash_runs(hasher, count));
    return invar_device_download(&hasher->op_runner.dev, out, hasher->device,
                                 (size_t)count * sizeof *out);
}
