/*
 * slices.c - blocks on their way between ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/slices.h"

#include <string.h>

#include "base/invar_banned.h"

invar_status invar_slices_init(invar_slices *out, const invar_device *dev,
                               const invar_layout *layout, invar_owned *owned)
{
    const invar_layout_axis *data = &layout->data;
    void *memory = NULL;
    size_t room;

    *out = (invar_slices){.layout = layout, .owned = *owned};
    *owned = (invar_owned){0};
    out->dev = dev ? *dev : (invar_device){.backend = invar_backend_cpu()};
    INVAR_TRY(invar_exchange_init(&out->exchange, out->owned.bytes, layout->bucket, data->size,
                                  data->rank));
    out->straight = data->far && invar_device_far(&out->dev);
    if (out->straight) {
        out->give = data->buckets;
        out->get = out->give + invar_layout_room(layout, data);
        return INVAR_OK;
    }
    room = invar_exchange_room(&out->exchange);
    INVAR_TRY(invar_device_take_host(&out->dev, &memory, 2 * room, "slices on their way"));
    out->give = memory;
    out->get = out->give + room;
    return INVAR_OK;
}

void invar_slices_release(invar_slices *slices)
{
    if (slices->give && !slices->straight)
        invar_device_give_host(&slices->dev, slices->give);
    invar_exchange_release(&slices->exchange);
    invar_owned_release(&slices->owned);
    *slices = (invar_slices){0};
}

static invar_status run(invar_slices *slices, const char *phase, invar_comm_move *move)
{
    const invar_layout_axis *data = &slices->layout->data;

    move->phase = phase;
    move->seconds = slices->layout->seconds;
    move->in = slices->give;
    move->out = slices->get;
    if (slices->straight)
        INVAR_TRY(invar_device_wait(&slices->dev)); // what it still does to the buckets
    return invar_comm_run(slices->straight ? data->far : data->comm, move);
}

size_t invar_slices_own(const invar_slices *slices)
{
    return slices->owned.bytes[slices->exchange.rank];
}

/* ---- blocks and buckets ---------------------------------------------------------------------- */

typedef invar_status (*copying)(const invar_slices *slices, char *block, char *bucket,
                                size_t bytes);

static invar_status load(const invar_slices *slices, char *block, char *bucket, size_t bytes)
{
    return slices->straight ? invar_device_copy(&slices->dev, bucket, block, bytes)
                            : invar_device_get(&slices->dev, bucket, block, bytes);
}

static invar_status unload(const invar_slices *slices, char *block, char *bucket, size_t bytes)
{
    return slices->straight ? invar_device_copy(&slices->dev, block, bucket, bytes)
                            : invar_device_put(&slices->dev, block, bucket, bytes);
}

/* A slice that is in the memory of the block. */
static invar_status settle(const invar_slices *slices, char *block, char *slice, size_t bytes)
{
    return invar_device_copy(&slices->dev, block, slice, bytes);
}

/* An array of rank 0's host. */
static invar_status take(const invar_slices *slices, char *to, char *bucket, size_t bytes)
{
    if (slices->straight)
        return invar_device_get(&slices->dev, to, bucket, bytes);
    memcpy(to, bucket, bytes);
    return INVAR_OK;
}

/* A piece of a rank's slice, range by range. */
static invar_status copy_piece(const invar_slices *slices, void *block, char *bucket, int rank,
                               invar_layout_slice piece, copying copy)
{
    const invar_owned *o = &slices->owned;
    int64_t i = rank > 0 ? o->end[rank - 1] : 0;

    for (; piece.bytes > 0; i++) {
        size_t left, bytes;

        if (piece.first >= o->ranges[i].bytes) {
            piece.first -= o->ranges[i].bytes;
            continue;
        }
        left = o->ranges[i].bytes - piece.first;
        bytes = left < piece.bytes ? left : piece.bytes;
        INVAR_TRY(copy(slices, (char *)block + o->ranges[i].first + piece.first, bucket, bytes));
        bucket += bytes;
        piece.bytes -= bytes;
        piece.first = 0;
    }
    return INVAR_OK;
}

/* ---- moves ----------------------------------------------------------------------------------- */

invar_status invar_slices_scatter(invar_slices *slices, const char *phase, const void *block,
                                  int64_t piece, int givers)
{
    invar_exchange *x = &slices->exchange;
    invar_comm_move move;
    char *to = slices->give;

    for (int r = 0; r < x->size && x->rank < givers; r++) {
        invar_layout_slice part = invar_exchange_piece(x, r, piece);
        INVAR_TRY(copy_piece(slices, (void *)(uintptr_t)block, to, r, part, load));
        to += part.bytes;
    }
    invar_exchange_scatter(&move, x, piece, givers);
    return run(slices, phase, &move);
}

invar_status invar_slices_gather(invar_slices *slices, const char *phase, void *block)
{
    invar_exchange *x = &slices->exchange;

    for (int64_t i = 0; i < x->pieces; i++) {
        invar_layout_slice own = invar_exchange_piece(x, x->rank, i);
        char *from = slices->get;
        invar_comm_move move;

        INVAR_TRY(copy_piece(slices, block, slices->give, x->rank, own, load));
        invar_exchange_gather(&move, x, i);
        INVAR_TRY(run(slices, phase, &move));
        for (int r = 0; r < x->size; r++) {
            invar_layout_slice part = invar_exchange_piece(x, r, i);
            if (r != x->rank)
                INVAR_TRY(copy_piece(slices, block, from, r, part, unload));
            from += part.bytes;
        }
    }
    return INVAR_OK;
}

invar_status invar_slices_place(invar_slices *slices, void *block, const void *slice)
{
    return copy_piece(slices, block, (char *)(uintptr_t)slice, slices->exchange.rank,
                      (invar_layout_slice){0, invar_slices_own(slices)}, settle);
}

/* A piece of this rank's slice into the bucket. */
static invar_status load_own(const invar_slices *slices, const void *from, invar_layout_slice piece,
                             bool packed)
{
    char *block = (char *)(uintptr_t)from;

    if (!packed)
        return copy_piece(slices, block, slices->give, slices->exchange.rank, piece, load);
    return piece.bytes > 0 ? load(slices, block + piece.first, slices->give, piece.bytes)
                           : INVAR_OK;
}

invar_status invar_slices_collect(invar_slices *slices, const char *phase, char *to,
                                  const void *from, bool packed)
{
    invar_exchange *x = &slices->exchange;

    for (int64_t i = 0; i < x->pieces; i++) {
        char *came = slices->get;
        invar_comm_move move;

        INVAR_TRY(load_own(slices, from, invar_exchange_piece(x, x->rank, i), packed));
        invar_exchange_collect(&move, x, i);
        INVAR_TRY(run(slices, phase, &move));
        for (int r = 0; r < x->size && x->rank == 0; r++) {
            invar_layout_slice part = invar_exchange_piece(x, r, i);
            INVAR_TRY(copy_piece(slices, to, came, r, part, take));
            came += part.bytes;
        }
    }
    return INVAR_OK;
}
