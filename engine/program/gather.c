/*
 * gather.c - parts of ranks, made whole.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/program/gather.h"

#include "base/alloc.h"

#include "base/invar_banned.h"

void invar_gatherer_release(invar_gatherer *gatherer, const invar_device *dev)
{
    invar_free(gatherer->counts);
    if (gatherer->host)
        invar_device_give_host(dev, gatherer->host);
    gatherer->counts = NULL;
    gatherer->host = NULL;
    gatherer->bytes = 0;
}

static invar_status make_room(invar_gatherer *g, const invar_device *dev, size_t bytes)
{
    void *memory = NULL;

    if (!g->counts)
        INVAR_TRY(invar_alloc((void **)&g->counts, (size_t)g->layout->tensor.size,
                              sizeof *g->counts, "the bytes of a gather"));
    if (!invar_device_far(dev) || bytes <= g->bytes)
        return INVAR_OK;
    if (g->host)
        invar_device_give_host(dev, g->host);
    g->host = NULL;
    g->bytes = 0;
    INVAR_TRY(invar_device_take_host(dev, &memory, bytes, "parts of ranks"));
    g->host = memory;
    g->bytes = bytes;
    return INVAR_OK;
}

static invar_status move(const invar_gatherer *g, const void *own, char *whole)
{
    invar_comm_move gather = {.op = INVAR_COMM_ALLGATHERV,
                              .phase = "parts of a layer",
                              .seconds = g->layout->seconds,
                              .in = own,
                              .out = whole,
                              .out_bytes = g->counts};

    return invar_comm_run(g->layout->tensor.comm, &gather);
}

invar_status invar_gatherer_run(invar_gatherer *g, invar_caller *caller, const invar_tensor *whole,
                                const void *own)
{
    const invar_layout_axis *axis = &g->layout->tensor;
    const invar_device *dev = &caller->dev;
    size_t bytes =
        (size_t)(whole->shape[0] * whole->row_stride) * (size_t)invar_dtype_bits(whole->dtype) / 8;
    size_t part = bytes / (size_t)axis->size;
    char *meet;

    if (dev->backend->memory.dry || bytes == 0)
        return INVAR_OK;
    INVAR_TRY(make_room(g, dev, bytes));
    for (int r = 0; r < axis->size; r++)
        g->counts[r] = part;
    if (!invar_device_far(dev))
        return move(g, own, whole->data);
    meet = g->host + (size_t)axis->rank * part;
    INVAR_TRY(invar_caller_get(caller, meet, own, part));
    INVAR_TRY(move(g, meet, g->host));
    return invar_device_put(dev, whole->data, g->host, bytes);
}
