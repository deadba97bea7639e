/*
 * offload.c - streams offloaded arrays through the device; a download overlaps the next upload.
 *
 *     upload      0       1       2
 *     work            0       1       2
 *     download                0       1       2
 *
 * A device runs copies and ops in the order of the calls. Downloads therefore use a second handle
 * of the same device and a second thread. The work overlaps no copy. Invariant: the work on a chunk
 * has finished before its download starts, because invar_offload_run synchronizes in between.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/offload.h"

#include "base/alloc.h"

#include "base/invar_banned.h"

#define SLOTS 2

struct invar_offload {
    const invar_device *dev;   /* runs the work and the uploads; borrowed */
    invar_device download_dev; /* second handle of the same device, for downloads */
    invar_pool *copy_threads;  /* two threads, one for each direction */
    size_t bytes, piece;       /* bytes of each array; bytes of a chunk of an array */
    char *memory;              /* (slots, arrays, piece) device buffer */
    size_t slots;
};

static size_t count_chunks(const invar_offload *o)
{
    return o->bytes == 0 ? 0 : (o->bytes + o->piece - 1) / o->piece;
}

/* Returns the size of the device buffer. */
static size_t buffer_bytes(const invar_offload *o)
{
    return o->slots * INVAR_OFFLOAD_ARRAYS * o->piece;
}

static invar_status init_offload(invar_offload *o)
{
    void *memory;

    // this handle only copies, so checking the numerics of the device again is not necessary
    o->download_dev = (invar_device){.backend = o->dev->backend, .numerics = INVAR_NUMERICS_IEEE};
    INVAR_TRY(invar_device_open(&o->download_dev));
    INVAR_TRY(invar_pool_new(&o->copy_threads, 2));
    o->slots = count_chunks(o) < SLOTS ? count_chunks(o) : SLOTS;
    INVAR_TRY(
        invar_device_alloc(o->dev, &memory, buffer_bytes(o), "pieces of the optimizer's moments"));
    o->memory = memory;
    return INVAR_OK;
}

invar_status invar_offload_new(invar_offload **out, const invar_device *dev, size_t bytes,
                               size_t chunk_bytes)
{
    invar_offload *o;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(o, 1, "pieces that visit the device"));
    *o = (invar_offload){
        .dev = dev, .bytes = bytes, .piece = chunk_bytes < bytes ? chunk_bytes : bytes};
    status = init_offload(o);
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
    invar_pool_free(offload->copy_threads);
    invar_device_close(&offload->download_dev);
    invar_free(offload);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

typedef struct offload_call {
    const invar_offload *offload;
    void *const *arrays;
    size_t current_chunk; /* the chunk to download; the next one is uploaded at the same time */
} offload_call;

static size_t chunk_bytes(const invar_offload *o, size_t piece)
{
    size_t first = piece * o->piece;

    return o->bytes - first < o->piece ? o->bytes - first : o->piece;
}

static void *chunk_address(const invar_offload *o, size_t piece, int array)
{
    return o->memory + (piece % o->slots * INVAR_OFFLOAD_ARRAYS + (size_t)array) * o->piece;
}

static invar_status upload_chunk(const offload_call *j, size_t piece)
{
    const invar_offload *o = j->offload;

    for (int i = 0; i < INVAR_OFFLOAD_ARRAYS; i++)
        INVAR_TRY(invar_device_upload(o->dev, chunk_address(o, piece, i),
                                      (const char *)j->arrays[i] + piece * o->piece,
                                      chunk_bytes(o, piece)));
    return INVAR_OK;
}

static invar_status download_chunk(const offload_call *j, size_t piece)
{
    const invar_offload *o = j->offload;

    for (int i = 0; i < INVAR_OFFLOAD_ARRAYS; i++)
        INVAR_TRY(invar_device_download(&o->download_dev, (char *)j->arrays[i] + piece * o->piece,
                                        chunk_address(o, piece, i), chunk_bytes(o, piece)));
    return INVAR_OK;
}

static invar_status run_copy_task(void *payload, int64_t task, int worker)
{
    const offload_call *j = payload;

    (void)worker;
    return task == 0 ? download_chunk(j, j->current_chunk) : upload_chunk(j, j->current_chunk + 1);
}

invar_status invar_offload_run(invar_offload *offload, void *const arrays[INVAR_OFFLOAD_ARRAYS],
                               invar_offload_chunk_fn work, void *payload)
{
    offload_call j = {offload, arrays, 0};
    size_t pieces = count_chunks(offload);

    if (pieces == 0)
        return INVAR_OK;
    INVAR_TRY(upload_chunk(&j, 0));
    for (; j.current_chunk < pieces; j.current_chunk++) {
        void *there[INVAR_OFFLOAD_ARRAYS];
        for (int i = 0; i < INVAR_OFFLOAD_ARRAYS; i++)
            there[i] = chunk_address(offload, j.current_chunk, i);
        INVAR_TRY(work(payload, j.current_chunk * offload->piece,
                       chunk_bytes(offload, j.current_chunk), there));
        INVAR_TRY(invar_device_synchronize(offload->dev));
        INVAR_TRY(invar_pool_run(offload->copy_threads, j.current_chunk + 1 < pieces ? 2 : 1,
                                 run_copy_task, &j));
    }
    return INVAR_OK;
}
