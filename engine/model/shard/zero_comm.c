/*
 * zero_comm.c - scatters and gathers a block of bytes that data-parallel ranks own in ranges.
 *
 * Every operation copies a bucket's worth of ranges into the send buffer, runs one collective that
 * invar_bucket_plan describes, and copies the received bytes to their ranges; a scatter leaves them
 * in the receive buffer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/zero_comm.h"

#include <string.h>

#include "base/invar_banned.h"

invar_status invar_zero_comm_init(invar_zero_comm *out, const invar_device *dev,
                                  const invar_layout *layout, invar_zero_ranges *ranges)
{
    const invar_layout_axis *data = &layout->data;
    void *memory = NULL;
    size_t room;

    *out = (invar_zero_comm){.layout = layout, .owned = *ranges};
    *ranges = (invar_zero_ranges){0};
    out->dev = dev ? *dev : (invar_device){.backend = invar_backend_cpu()};
    INVAR_TRY(invar_bucket_plan_init(&out->plan, out->owned.bytes, layout->bucket_bytes, data->size,
                                     data->rank));
    out->device_to_device = data->device_comm && invar_device_is_local(&out->dev);
    if (out->device_to_device) {
        out->send_buffer = data->buckets;
        out->recv_buffer = out->send_buffer + invar_layout_bucket_bytes(layout, data);
        return INVAR_OK;
    }
    room = invar_bucket_plan_max_bytes(&out->plan);
    INVAR_TRY(invar_device_alloc_host(&out->dev, &memory, 2 * room, "slices on their way"));
    out->send_buffer = memory;
    out->recv_buffer = out->send_buffer + room;
    return INVAR_OK;
}

void invar_zero_comm_release(invar_zero_comm *comm)
{
    if (comm->send_buffer && !comm->device_to_device)
        invar_device_free_host(&comm->dev, comm->send_buffer);
    invar_bucket_plan_release(&comm->plan);
    invar_zero_ranges_release(&comm->owned);
    *comm = (invar_zero_comm){0};
}

static invar_status run_collective(invar_zero_comm *comm, const char *phase,
                                   invar_comm_transfer *transfer)
{
    const invar_layout_axis *data = &comm->layout->data;

    transfer->phase = phase;
    transfer->timeout_s = comm->layout->timeout_s;
    transfer->in = comm->send_buffer;
    transfer->out = comm->recv_buffer;
    if (comm->device_to_device)
        INVAR_TRY(invar_device_synchronize(&comm->dev)); // copies from and to buckets
    return invar_comm_run(comm->device_to_device ? data->device_comm : data->comm, transfer);
}

size_t invar_zero_comm_own(const invar_zero_comm *comm)
{
    return comm->owned.bytes[comm->plan.rank];
}

/* ---- blocks and buckets ---------------------------------------------------------------------- */

typedef invar_status (*copy_fn)(const invar_zero_comm *slices, char *block, char *bucket,
                                size_t bytes);

static invar_status copy_to_bucket(const invar_zero_comm *comm, char *block, char *bucket,
                                   size_t bytes)
{
    return comm->device_to_device ? invar_device_copy(&comm->dev, bucket, block, bytes)
                                  : invar_device_download(&comm->dev, bucket, block, bytes);
}

static invar_status copy_from_bucket(const invar_zero_comm *comm, char *block, char *bucket,
                                     size_t bytes)
{
    return comm->device_to_device ? invar_device_copy(&comm->dev, block, bucket, bytes)
                                  : invar_device_upload(&comm->dev, block, bucket, bytes);
}

/* Copies bytes of a rank's part that is in the same memory as the block. */
static invar_status copy_within_device(const invar_zero_comm *comm, char *block, char *slice,
                                       size_t bytes)
{
    return invar_device_copy(&comm->dev, block, slice, bytes);
}

/* Copies bytes to an array in rank 0's host memory. */
static invar_status copy_to_host(const invar_zero_comm *comm, char *to, char *bucket, size_t bytes)
{
    if (comm->device_to_device)
        return invar_device_download(&comm->dev, to, bucket, bytes);
    memcpy(to, bucket, bytes);
    return INVAR_OK;
}

/* Copies bytes [piece.first, piece.first + piece.bytes) of a rank's part, range by range. */
static invar_status copy_ranges(const invar_zero_comm *comm, void *block, char *bucket, int rank,
                                invar_byte_range piece, copy_fn copy)
{
    const invar_zero_ranges *o = &comm->owned;
    int64_t i = rank > 0 ? o->end[rank - 1] : 0;

    for (; piece.bytes > 0; i++) {
        size_t left, bytes;

        if (piece.first >= o->ranges[i].bytes) {
            piece.first -= o->ranges[i].bytes;
            continue;
        }
        left = o->ranges[i].bytes - piece.first;
        bytes = left < piece.bytes ? left : piece.bytes;
        INVAR_TRY(copy(comm, (char *)block + o->ranges[i].first + piece.first, bucket, bytes));
        bucket += bytes;
        piece.bytes -= bytes;
        piece.first = 0;
    }
    return INVAR_OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

invar_status invar_zero_comm_scatter(invar_zero_comm *comm, const char *phase, const void *block,
                                     int64_t bucket, int givers)
{
    invar_bucket_plan *x = &comm->plan;
    invar_comm_transfer transfer;
    char *to = comm->send_buffer;

    for (int r = 0; r < x->size && x->rank < givers; r++) {
        invar_byte_range part = invar_bucket_plan_bucket_range(x, r, bucket);
        INVAR_TRY(copy_ranges(comm, (void *)(uintptr_t)block, to, r, part, copy_to_bucket));
        to += part.bytes;
    }
    invar_bucket_plan_scatter(&transfer, x, bucket, givers);
    return run_collective(comm, phase, &transfer);
}

invar_status invar_zero_comm_gather(invar_zero_comm *comm, const char *phase, void *block)
{
    invar_bucket_plan *x = &comm->plan;

    for (int64_t i = 0; i < x->n_buckets; i++) {
        invar_byte_range own = invar_bucket_plan_bucket_range(x, x->rank, i);
        char *from = comm->recv_buffer;
        invar_comm_transfer transfer;

        INVAR_TRY(copy_ranges(comm, block, comm->send_buffer, x->rank, own, copy_to_bucket));
        invar_bucket_plan_gather(&transfer, x, i);
        INVAR_TRY(run_collective(comm, phase, &transfer));
        for (int r = 0; r < x->size; r++) {
            invar_byte_range part = invar_bucket_plan_bucket_range(x, r, i);
            if (r != x->rank)
                INVAR_TRY(copy_ranges(comm, block, from, r, part, copy_from_bucket));
            from += part.bytes;
        }
    }
    return INVAR_OK;
}

invar_status invar_zero_comm_place(invar_zero_comm *comm, void *block, const void *slice)
{
    return copy_ranges(comm, block, (char *)(uintptr_t)slice, comm->plan.rank,
                       (invar_byte_range){0, invar_zero_comm_own(comm)}, copy_within_device);
}

/* Copies a bucket of this rank's part to the send buffer. */
static invar_status load_own_bucket(const invar_zero_comm *comm, const void *from,
                                    invar_byte_range piece, bool packed)
{
    char *block = (char *)(uintptr_t)from;

    if (!packed)
        return copy_ranges(comm, block, comm->send_buffer, comm->plan.rank, piece, copy_to_bucket);
    return piece.bytes > 0
               ? copy_to_bucket(comm, block + piece.first, comm->send_buffer, piece.bytes)
               : INVAR_OK;
}

invar_status invar_zero_comm_collect(invar_zero_comm *comm, const char *phase, char *to,
                                     const void *from, bool packed)
{
    invar_bucket_plan *x = &comm->plan;

    for (int64_t i = 0; i < x->n_buckets; i++) {
        char *came = comm->recv_buffer;
        invar_comm_transfer transfer;

        INVAR_TRY(
            load_own_bucket(comm, from, invar_bucket_plan_bucket_range(x, x->rank, i), packed));
        invar_bucket_plan_collect(&transfer, x, i);
        INVAR_TRY(run_collective(comm, phase, &transfer));
        for (int r = 0; r < x->size && x->rank == 0; r++) {
            invar_byte_range part = invar_bucket_plan_bucket_range(x, r, i);
            INVAR_TRY(copy_ranges(comm, to, came, r, part, copy_to_host));
            came += part.bytes;
        }
    }
    return INVAR_OK;
}
