/*
 * digests.c - hashes of tensors, made where the tensors are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/digests.h"

#include "base/invar_banned.h"

#define FIRST_ROOM 64

void invar_digests_init(invar_digests *digests, const invar_device *dev)
{
    *digests = (invar_digests){.count = 0};
    invar_caller_init(&digests->caller, dev);
}

void invar_digests_release(invar_digests *digests)
{
    if (digests->there)
        invar_device_give(&digests->caller.dev, digests->there);
    invar_caller_release(&digests->caller);
    digests->there = NULL;
    digests->count = digests->capacity = 0;
}

static invar_status grow(invar_digests *digests)
{
    const invar_device *dev = &digests->caller.dev;
    int64_t capacity = digests->capacity ? 2 * digests->capacity : FIRST_ROOM;
    size_t size = sizeof *digests->there;
    invar_digest *larger;
    invar_status status;

    INVAR_TRY(invar_device_take(dev, (void **)&larger, (size_t)capacity * size, "digests"));
    status = invar_device_copy(dev, larger, digests->there, (size_t)digests->count * size);
    if (status != INVAR_OK) {
        invar_device_give(dev, larger);
        return status;
    }
    if (digests->there)
        invar_device_give(dev, digests->there);
    digests->there = larger;
    digests->capacity = capacity;
    return INVAR_OK;
}

invar_status invar_digests_add(invar_digests *digests, const invar_tensor *tensor, int32_t shards)
{
    if (digests->count == digests->capacity)
        INVAR_TRY(grow(digests));
    INVAR_TRY(INVAR_CALL(&digests->caller, HASH_TREE, hash_tree,
                         .digest = &digests->there[digests->count], .x = *tensor,
                         .shards = shards));
    digests->count++;
    return INVAR_OK;
}

invar_status invar_digests_read(invar_digest *out, invar_digests *digests)
{
    size_t bytes = (size_t)digests->count * sizeof *out;

    digests->count = 0;
    return bytes > 0 ? invar_device_get(&digests->caller.dev, out, digests->there, bytes)
                     : INVAR_OK;
}
