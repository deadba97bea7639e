/*
 * leaves.c - leaf digests of rows, made where the rows are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/probe/leaves.h"

#include "engine/program/tape.h"

#include "base/invar_banned.h"

#define LEAST_ROOM (1 << 18) // 4 MiB, for 4 GiB of rows

void invar_leaves_init(invar_leaves *leaves, const invar_device *dev)
{
    *leaves = (invar_leaves){.window = {.dev = dev}};
    invar_caller_init(&leaves->caller, dev);
}

static void give_room(invar_leaves *leaves)
{
    if (leaves->there)
        invar_device_give(&leaves->caller.dev, leaves->there);
    leaves->there = NULL;
    leaves->room = leaves->count = 0;
}

void invar_leaves_release(invar_leaves *leaves)
{
    invar_caller_release(&leaves->caller);
    give_room(leaves);
    invar_window_release(&leaves->window);
}

bool invar_leaves_full(const invar_leaves *leaves, int64_t more)
{
    return leaves->count > 0 && more > leaves->room - leaves->count;
}

/* While none is there. */
static invar_status take_room(invar_leaves *leaves, int64_t count)
{
    int64_t room = count > LEAST_ROOM ? count : LEAST_ROOM;

    give_room(leaves);
    INVAR_TRY(invar_device_take(&leaves->caller.dev, (void **)&leaves->there,
                                (size_t)room * sizeof *leaves->there, "digests of rows"));
    leaves->room = room;
    return INVAR_OK;
}

invar_status invar_leaves_add(invar_leaves *leaves, const invar_tensor *rows,
                              const invar_segments *samples, int64_t count)
{
    INVAR_CHECK(!invar_leaves_full(leaves, count));
    if (count > leaves->room)
        INVAR_TRY(take_room(leaves, count));
    INVAR_TRY(INVAR_CALL(&leaves->caller, HASH_LEAVES, hash_leaves,
                         .digest = leaves->there + leaves->count, .x = *rows, .samples = *samples,
                         .leaves = count));
    leaves->count += count;
    return INVAR_OK;
}

invar_status invar_leaves_read(const invar_digest **out, invar_leaves *leaves)
{
    const void *read = NULL;

    if (leaves->caller.tape)
        INVAR_TRY(invar_tape_flush(leaves->caller.tape));
    if (leaves->count > 0)
        INVAR_TRY(invar_window_read(&read, &leaves->window, leaves->there,
                                    (size_t)leaves->count * sizeof *leaves->there));
    leaves->count = 0;
    *out = read;
    return INVAR_OK;
}
