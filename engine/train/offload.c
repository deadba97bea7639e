/*
 * offload.c - pieces on their way to the device and back.
 *
 *     to the device       0   1   2   3
 *     work                    0   1   2   3
 *     to the host                 0   1   2   3
 *
 * A device runs copies and ops in the order of the calls. So the way back has a device of its own,
 * the same one opened again, and a thread; the work on a piece has run before its way back begins.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/offload.h"

#include "base/alloc.h"

#include "base/invar_banned.h"

#define SLOTS 2

struct invar_offload {
    const invar_device *dev; /* of the work and the way there; borrowed */
    invar_device back;       /* of the way back */
    invar_pool *pair;        /* a thread for each way */
    size_t bytes, piece;     /* of each array */
    char *memory;            /* (slots, arrays, piece) of the device */
    size_t slots;
};

static size_t pieces_of(const invar_offload *o)
{
    return o->bytes == 0 ? 0 : (o->bytes + o->piece - 1) / o->piece;
}

/* Of the device's memory. */
static size_t room_bytes(const invar_offload *o)
{
    return o->slots * INVAR_OFFLOAD_ARRAYS * o->piece;
}

static invar_status set_up(invar_offload *o)
{
    void *memory;

    // it only copies, so the arithmetic of products need not be tried again
    o->back = (invar_device){.backend = o->dev->backend, .numerics = INVAR_NUMERICS_IEEE};
    INVAR_TRY(invar_device_open(&o->back));
    INVAR_TRY(invar_pool_new(&o->pair, 2));
    o->slots = pieces_of(o) < SLOTS ? pieces_of(o) : SLOTS;
    INVAR_TRY(
        invar_device_alloc(o->dev, &memory, room_bytes(o), "pieces of the optimizer's moments"));
    o->memory = memory;
    return INVAR_OK;
}

invar_status invar_offload_new(invar_offload **out, const invar_device *dev, size_t bytes,
                               size_t piece)
{
    invar_offload *o;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&o, 1, sizeof *o, "pieces that visit the device"));
    *o = (invar_offload){.dev = dev, .bytes = bytes, .piece = piece < bytes ? piece : bytes};
    status = set_up(o);
    if (status != INVAR_OK) {
        invar_offload_free(o);
        return status;
    }
    *out = o;
    return INVAR_OK;
}

void invar_offload_free(invar_offload *offload)
{
    if (!offload)
        return;
    invar_device_free(offload->dev, offload->memory);
    invar_pool_free(offload->pair);
    invar_device_close(&offload->back);
    invar_free(offload);
}

/* ---- the ways -------------------------------------------------------------------------------- */

typedef struct journey {
    const invar_offload *offload;
    void *const *arrays;
    size_t at; /* the piece on its way back; the next one is on its way there */
} journey;

static size_t bytes_of(const invar_offload *o, size_t piece)
{
    size_t first = piece * o->piece;

    return o->bytes - first < o->piece ? o->bytes - first : o->piece;
}

static void *place_of(const invar_offload *o, size_t piece, int array)
{
    return o->memory + (piece % o->slots * INVAR_OFFLOAD_ARRAYS + (size_t)array) * o->piece;
}

static invar_status journey_bring(const journey *j, size_t piece)
{
    const invar_offload *o = j->offload;

    for (int i = 0; i < INVAR_OFFLOAD_ARRAYS; i++)
        INVAR_TRY(invar_device_upload(o->dev, place_of(o, piece, i),
                                      (const char *)j->arrays[i] + piece * o->piece,
                                      bytes_of(o, piece)));
    return INVAR_OK;
}

static invar_status bring_back(const journey *j, size_t piece)
{
    const invar_offload *o = j->offload;

    for (int i = 0; i < INVAR_OFFLOAD_ARRAYS; i++)
        INVAR_TRY(invar_device_download(&o->back, (char *)j->arrays[i] + piece * o->piece,
                                        place_of(o, piece, i), bytes_of(o, piece)));
    return INVAR_OK;
}

static invar_status one_way(void *payload, int64_t task, int worker)
{
    const journey *j = payload;

    (void)worker;
    return task == 0 ? bring_back(j, j->at) : journey_bring(j, j->at + 1);
}

invar_status invar_offload_run(invar_offload *offload, void *const arrays[INVAR_OFFLOAD_ARRAYS],
                               invar_offload_chunk_fn work, void *payload)
{
    journey j = {offload, arrays, 0};
    size_t pieces = pieces_of(offload);

    if (pieces == 0)
        return INVAR_OK;
    INVAR_TRY(journey_bring(&j, 0));
    for (; j.at < pieces; j.at++) {
        void *there[INVAR_OFFLOAD_ARRAYS];
        for (int i = 0; i < INVAR_OFFLOAD_ARRAYS; i++)
            there[i] = place_of(offload, j.at, i);
        INVAR_TRY(work(payload, j.at * offload->piece, bytes_of(offload, j.at), there));
        INVAR_TRY(invar_device_synchronize(offload->dev));
        INVAR_TRY(invar_pool_run(offload->pair, j.at + 1 < pieces ? 2 : 1, one_way, &j));
    }
    return INVAR_OK;
}
