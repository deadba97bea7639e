/*
 * slices.c - blocks on their way between ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/slices.h"

#include <string.h>

#include "base/invar_banned.h"

invar_status invar_slices_init(invar_slices *out, const invar_device *dev,
                               const invar_layout *layout, size_t bytes)
{
    const invar_layout_axis *data = &layout->data;
    void *memory = NULL;
    size_t room;

    *out = (invar_slices){.layout = layout,
                          .own = invar_layout_slice_of(bytes, data->size, data->rank)};
    out->dev = dev ? *dev : (invar_device){.backend = invar_backend_cpu()};
    INVAR_TRY(invar_exchange_init(&out->exchange, bytes, layout->bucket, data->size, data->rank));
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

/* Of a block into a bucket. */
static invar_status load(invar_slices *slices, char *to, const void *block, size_t at, size_t bytes)
{
    const char *from = (const char *)block + at;

    if (bytes == 0)
        return INVAR_OK;
    return slices->straight ? invar_device_copy(&slices->dev, to, from, bytes)
                            : invar_device_get(&slices->dev, to, from, bytes);
}

/* Out of a bucket into a block. */
static invar_status unload(invar_slices *slices, void *block, size_t at, const char *from,
                           size_t bytes)
{
    char *to = (char *)block + at;

    return slices->straight ? invar_device_copy(&slices->dev, to, from, bytes)
                            : invar_device_put(&slices->dev, to, from, bytes);
}

invar_status invar_slices_scatter(invar_slices *slices, const char *phase, const void *block,
                                  int64_t piece, int givers)
{
    invar_exchange *x = &slices->exchange;
    invar_comm_move move;
    char *to = slices->give;

    for (int r = 0; r < x->size && x->rank < givers; r++) {
        invar_layout_slice part = invar_exchange_piece(x, r, piece);
        INVAR_TRY(load(slices, to, block, part.first, part.bytes));
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
        const char *from = slices->get;
        invar_comm_move move;

        INVAR_TRY(load(slices, slices->give, block, own.first, own.bytes));
        invar_exchange_gather(&move, x, i);
        INVAR_TRY(run(slices, phase, &move));
        for (int r = 0; r < x->size; r++) {
            invar_layout_slice part = invar_exchange_piece(x, r, i);
            if (r != x->rank && part.bytes > 0)
                INVAR_TRY(unload(slices, block, part.first, from, part.bytes));
            from += part.bytes;
        }
    }
    return INVAR_OK;
}

invar_status invar_slices_collect(invar_slices *slices, const char *phase, char *to,
                                  const void *slice)
{
    invar_exchange *x = &slices->exchange;

    for (int64_t i = 0; i < x->pieces; i++) {
        invar_layout_slice own = invar_exchange_piece(x, x->rank, i);
        const char *from = slices->get;
        invar_comm_move move;

        INVAR_TRY(load(slices, slices->give, slice, own.first - slices->own.first, own.bytes));
        invar_exchange_collect(&move, x, i);
        INVAR_TRY(run(slices, phase, &move));
        for (int r = 0; r < x->size && x->rank == 0; r++) {
            invar_layout_slice part = invar_exchange_piece(x, r, i);
            if (!slices->straight)
                memcpy(to + part.first, from, part.bytes);
            else if (part.bytes > 0)
                INVAR_TRY(invar_device_get(&slices->dev, to + part.first, from, part.bytes));
            from += part.bytes;
        }
    }
    return INVAR_OK;
}
