/*
 * zero_comm.h - ZeRO communication: scatter and gather of a block that ranks own in ranges.
 *
 * Every data-parallel rank has a block of the same size and owns some byte ranges of it
 * (engine/model/shard/zero_partition.h). engine/ranks/layout/bucket_plan.h plans the transfers.
 * Bytes go through buckets: in device memory if the block is device-local and the layout has a
 * device communicator, else in pinned host memory. Scatter, gather and collect are collective over
 * the layout's data axis.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_ZERO_COMM_H
#define INVAR_ENGINE_MODEL_SHARD_ZERO_COMM_H

#include "engine/model/shard/zero_partition.h"
#include "engine/ranks/layout/bucket_plan.h"
#include "kernels-deterministic/device.h"

typedef struct invar_zero_comm {
    invar_device dev;           /* device of the blocks */
    const invar_layout *layout; /* borrowed */
    invar_zero_ranges owned;
    invar_bucket_plan plan;
    bool device_to_device;           /* the buffers below are device memory and belong to the
                                        layout */
    char *send_buffer, *recv_buffer; /* one bucket each */
} invar_zero_comm;

/*
 * Takes over `ranges`, which is zeroed. `dev` is NULL if blocks are in host memory. Release with
 * invar_zero_comm_release, also after a failure.
 */
invar_status invar_zero_comm_init(invar_zero_comm *out, const invar_device *dev,
                                  const invar_layout *layout,
                                  invar_zero_ranges *ranges) INVAR_MUST_USE;
void invar_zero_comm_release(invar_zero_comm *comm);

/* Bytes that this rank owns. */
size_t invar_zero_comm_own(const invar_zero_comm *comm);

/*
 * Scatters bucket number `bucket` of the blocks of the ranks below `givers`: recv_buffer receives
 * the bytes that this rank owns from each of them, one after another. The blocks of other ranks are
 * not read.
 */
invar_status invar_zero_comm_scatter(invar_zero_comm *comm, const char *phase, const void *block,
                                     int64_t bucket, int givers) INVAR_MUST_USE;

/* Gathers the block on all ranks; each contributes the ranges that it owns. */
invar_status invar_zero_comm_gather(invar_zero_comm *comm, const char *phase,
                                    void *block) INVAR_MUST_USE;

/*
 * Copies this rank's bytes, which are contiguous at `slice` in the memory of the same device, to
 * their ranges of the block. Moves nothing between ranks.
 */
invar_status invar_zero_comm_place(invar_zero_comm *comm, void *block,
                                   const void *slice) INVAR_MUST_USE;

/*
 * Gathers the block in the host array `to` of rank 0. Each rank contributes the ranges that it owns
 * of the block `from`; with `packed`, `from` has only these bytes. On other ranks `to` is not used.
 */
invar_status invar_zero_comm_collect(invar_zero_comm *comm, const char *phase, char *to,
                                     const void *from, bool packed) INVAR_MUST_USE;

#endif
