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
    invar_free(gatherer->start);
    if (gatherer->host)
        invar_device_give_host(dev, gatherer->host);
    *gatherer = (invar_gatherer){.layout = gatherer->layout};
}

static invar_status make_room(invar_gatherer *g, const invar_device *dev, size_t bytes)
{
    int ranks = invar_comm_size(g->layout->world); // no axis has more
    void *memory = NULL;

    if (!g->counts)
        INVAR_TRY(invar_alloc((void **)&g->counts, (size_t)ranks, sizeof *g->counts,
                              "the bytes of a gather"));
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

/* `counts` says how long the parts are, which lie in `whole` one after the other. */
static invar_status move(const invar_gatherer *g, const invar_layout_axis *axis, const char *phase,
                         const void *own, char *whole)
{
    invar_comm_move gather = {.op = INVAR_COMM_ALLGATHERV,
                              .phase = phase,
                              .seconds = g->layout->seconds,
                              .in = own,
                              .out = whole,
                              .out_bytes = g->counts};

    return invar_comm_run(axis->comm, &gather);
}

static size_t before(const invar_gatherer *g, int rank)
{
    size_t bytes = 0;

    for (int r = 0; r < rank; r++)
        bytes += g->counts[r];
    return bytes;
}

/* `bytes` of all parts; `own` is in its place, or elsewhere. */
static invar_status gather(invar_gatherer *g, const invar_layout_axis *axis, const char *phase,
                           invar_caller *caller, const void *own, char *whole, size_t bytes)
{
    char *meet;

    if (!invar_device_far(&caller->dev))
        return move(g, axis, phase, own, whole);
    meet = g->host + before(g, axis->rank);
    INVAR_TRY(invar_caller_get(caller, meet, own, g->counts[axis->rank]));
    INVAR_TRY(move(g, axis, phase, meet, g->host));
    return invar_device_put(&caller->dev, whole, g->host, bytes);
}

static size_t row_bytes(const invar_tensor *t)
{
    return (size_t)t->row_stride * (size_t)invar_dtype_bits(t->dtype) / 8;
}

invar_status invar_gatherer_run(invar_gatherer *g, invar_caller *caller, const invar_tensor *whole,
                                const void *own)
{
    const invar_layout_axis *axis = &g->layout->tensor;
    size_t bytes = (size_t)whole->shape[0] * row_bytes(whole);

    if (caller->dev.backend->memory.dry || bytes == 0)
        return INVAR_OK;
    INVAR_TRY(make_room(g, &caller->dev, bytes));
    for (int r = 0; r < axis->size; r++)
        g->counts[r] = bytes / (size_t)axis->size;
    return gather(g, axis, "parts of a layer", caller, own, whole->data, bytes);
}

/* Where experts begin, in the host's memory. */
static invar_status find_start(const int64_t **out, invar_gatherer *g, invar_caller *caller,
                               const invar_segments *experts)
{
    size_t count = (size_t)experts->count + 1;

    *out = experts->start;
    if (!invar_device_far(&caller->dev))
        return INVAR_OK;
    if (g->experts < experts->count) {
        invar_free(g->start);
        g->start = NULL;
        INVAR_TRY(invar_alloc((void **)&g->start, count, sizeof *g->start, "rows of experts"));
        g->experts = experts->count;
    }
    *out = g->start;
    return invar_caller_get(caller, g->start, experts->start, count * sizeof *g->start);
}

invar_status invar_gatherer_rows(invar_gatherer *g, invar_caller *caller, const invar_tensor *rows,
                                 const invar_segments *experts)
{
    const invar_layout_axis *axis = &g->layout->expert;
    size_t bytes = (size_t)rows->shape[0] * row_bytes(rows);
    const int64_t *start;

    if (caller->dev.backend->memory.dry || bytes == 0)
        return INVAR_OK;
    INVAR_TRY(make_room(g, &caller->dev, bytes));
    INVAR_TRY(find_start(&start, g, caller, experts));
    for (int r = 0; r < axis->size; r++) {
        invar_layout_share share = invar_layout_share_of(experts->count, axis->size, r);
        g->counts[r] =
            (size_t)(start[share.first + share.count] - start[share.first]) * row_bytes(rows);
    }
    return gather(g, axis, "rows of experts", caller,
                  (const char *)rows->data + before(g, axis->rank), rows->data, bytes);
}
