/*
 * tensor_hasher.c - hashes of tensors, made where the tensors are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/tensor_hasher.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define FIRST_ROOM 64

void invar_tensor_hasher_init(invar_tensor_hasher *digests, const invar_device *dev)
{
    *digests = (invar_tensor_hasher){.count = 0};
    invar_op_runner_init(&digests->caller, dev);
}

void invar_tensor_hasher_release(invar_tensor_hasher *digests)
{
    invar_op_runner_release(&digests->caller);
    if (digests->device)
        invar_device_free(&digests->caller.dev, digests->device);
    invar_free(digests->tensors);
    invar_free(digests->shards);
    invar_free(digests->cuts);
    digests->device = NULL;
    digests->tensors = NULL;
    digests->shards = NULL;
    digests->cuts = NULL;
    digests->count = digests->capacity = digests->room = 0;
}

/* *list = room for `capacity` elements, the first `used` as they were. */
static invar_status widen(void *list, size_t size, size_t capacity, size_t used)
{
    void **at = list, *wider = NULL;

    INVAR_TRY(invar_alloc(&wider, capacity, size, "the list of tensors to hash"));
    if (used > 0)
        memcpy(wider, *at, used * size);
    invar_free(*at);
    *at = wider;
    return INVAR_OK;
}

static invar_status tensor_hasher_grow(invar_tensor_hasher *digests)
{
    int64_t capacity = digests->capacity ? 2 * digests->capacity : FIRST_ROOM;
    size_t wide = (size_t)capacity, used = (size_t)digests->count;

    INVAR_TRY(widen(&digests->tensors, sizeof *digests->tensors, wide, used));
    INVAR_TRY(widen(&digests->shards, sizeof *digests->shards, wide, used));
    INVAR_TRY(widen(&digests->cuts, sizeof *digests->cuts, wide, used));
    digests->capacity = capacity;
    return INVAR_OK;
}

static invar_status tensor_hasher_add(invar_tensor_hasher *digests, const invar_tensor *tensor,
                                      int32_t shards, const invar_logical_split *cut)
{
    if (digests->count == digests->capacity)
        INVAR_TRY(tensor_hasher_grow(digests));
    digests->tensors[digests->count] = *tensor;
    digests->shards[digests->count] = shards;
    digests->cuts[digests->count] = *cut;
    digests->count++;
    return INVAR_OK;
}

invar_status invar_tensor_hasher_add(invar_tensor_hasher *digests, const invar_tensor *tensor,
                                     int32_t shards)
{
    return tensor_hasher_add(digests, tensor, shards,
                             &(invar_logical_split){.shards = 1, .experts = 1});
}

invar_status invar_tensor_hasher_add_cut(invar_tensor_hasher *digests, const invar_tensor *tensor,
                                         const invar_logical_split *cut)
{
    return tensor_hasher_add(digests, tensor, 1, cut);
}

static invar_status make_room(invar_tensor_hasher *digests)
{
    const invar_device *dev = &digests->caller.dev;

    if (digests->count <= digests->room)
        return INVAR_OK;
    if (digests->device)
        invar_device_free(dev, digests->device);
    digests->device = NULL;
    digests->room = 0;
    INVAR_TRY(invar_device_alloc(dev, (void **)&digests->device,
                                 (size_t)digests->capacity * sizeof *digests->device, "digests"));
    digests->room = digests->capacity;
    return INVAR_OK;
}

/* One call for each row of tensors with the same number of shards. */
static invar_status hash_all(invar_tensor_hasher *digests, int64_t count)
{
    for (int64_t first = 0, end; first < count; first = end) {
        end = first + 1;
        while (end < count && digests->shards[end] == digests->shards[first])
            end++;
        INVAR_TRY(INVAR_CALL(&digests->caller, HASH_TREE, hash_tree,
                             .digest = &digests->device[first], .x = &digests->tensors[first],
                             .count = end - first, .shards = digests->shards[first],
                             .cuts = digests->shards[first] == 1 ? &digests->cuts[first] : NULL));
    }
    return INVAR_OK;
}

invar_status invar_tensor_hasher_read(invar_digest *out, invar_tensor_hasher *digests)
{
    int64_t count = digests->count;

    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(make_room(digests));
    digests->count = 0;
    INVAR_TRY(hash_all(digests, count));
    return invar_device_download(&digests->caller.dev, out, digests->device,
                                 (size_t)count * sizeof *out);
}
