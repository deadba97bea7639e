/*
 * digests.c - hashes of tensors, made where the tensors are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/digests.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define FIRST_ROOM 64

void invar_digests_init(invar_digests *digests, const invar_device *dev)
{
    *digests = (invar_digests){.count = 0};
    invar_caller_init(&digests->caller, dev);
}

void invar_digests_release(invar_digests *digests)
{
    invar_caller_release(&digests->caller);
    if (digests->there)
        invar_device_give(&digests->caller.dev, digests->there);
    invar_free(digests->tensors);
    invar_free(digests->shards);
    digests->there = NULL;
    digests->tensors = NULL;
    digests->shards = NULL;
    digests->count = digests->capacity = digests->room = 0;
}

static invar_status grow(invar_digests *digests)
{
    int64_t capacity = digests->capacity ? 2 * digests->capacity : FIRST_ROOM;
    size_t used = (size_t)digests->count;
    invar_tensor *tensors = NULL;
    int32_t *shards = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&tensors, (size_t)capacity, sizeof *tensors,
                          "the list of tensors to hash"));
    status = invar_alloc((void **)&shards, (size_t)capacity, sizeof *shards,
                         "the list of tensors to hash");
    if (status != INVAR_OK) {
        invar_free(tensors);
        return status;
    }
    if (used > 0) {
        memcpy(tensors, digests->tensors, used * sizeof *tensors);
        memcpy(shards, digests->shards, used * sizeof *shards);
    }
    invar_free(digests->tensors);
    invar_free(digests->shards);
    digests->tensors = tensors;
    digests->shards = shards;
    digests->capacity = capacity;
    return INVAR_OK;
}

invar_status invar_digests_add(invar_digests *digests, const invar_tensor *tensor, int32_t shards)
{
    if (digests->count == digests->capacity)
        INVAR_TRY(grow(digests));
    digests->tensors[digests->count] = *tensor;
    digests->shards[digests->count] = shards;
    digests->count++;
    return INVAR_OK;
}

static invar_status make_room(invar_digests *digests)
{
    const invar_device *dev = &digests->caller.dev;

    if (digests->count <= digests->room)
        return INVAR_OK;
    if (digests->there)
        invar_device_give(dev, digests->there);
    digests->there = NULL;
    digests->room = 0;
    INVAR_TRY(invar_device_take(dev, (void **)&digests->there,
                                (size_t)digests->capacity * sizeof *digests->there, "digests"));
    digests->room = digests->capacity;
    return INVAR_OK;
}

/* One call for each row of tensors with the same number of shards. */
static invar_status hash_all(invar_digests *digests, int64_t count)
{
    for (int64_t first = 0, end; first < count; first = end) {
        end = first + 1;
        while (end < count && digests->shards[end] == digests->shards[first])
            end++;
        INVAR_TRY(INVAR_CALL(&digests->caller, HASH_TREE, hash_tree,
                             .digest = &digests->there[first], .x = &digests->tensors[first],
                             .count = end - first, .shards = digests->shards[first]));
    }
    return INVAR_OK;
}

invar_status invar_digests_read(invar_digest *out, invar_digests *digests)
{
    int64_t count = digests->count;

    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(make_room(digests));
    digests->count = 0;
    INVAR_TRY(hash_all(digests, count));
    return invar_device_get(&digests->caller.dev, out, digests->there, (size_t)count * sizeof *out);
}
