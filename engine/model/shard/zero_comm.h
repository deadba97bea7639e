/*
 * zero_comm.h - a block that data-parallel ranks own in slices, on its way between them.
 *
 * Every rank has a block of the same size, of which it owns a slice: some ranges, one behind the
 * other (engine/model/shard/zero_partition.h; engine/ranks/layout/bucket_plan.h says what moves).
 * Bytes go through buckets: in the device's memory, where it is far and the layout has a group that
 * reaches it, and else in the host's. The calls are those of all ranks of the layout's data axis.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_ZERO_COMM_H
#define INVAR_ENGINE_MODEL_SHARD_ZERO_COMM_H

#include "engine/model/shard/zero_partition.h"
#include "engine/ranks/layout/bucket_plan.h"
#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_zero_comm {
    invar_device dev;           /* whose memory blocks are in */
    const invar_layout *layout; /* borrowed */
    invar_zero_ranges owned;
    invar_bucket_plan exchange;
    bool device_to_device;           /* from device to device, */
    char *send_buffer, *recv_buffer; /* which these are then in, and are the layout's */
} invar_zero_comm;

/*
 * `dev` NULL: blocks are the host's. What is `owned` is taken from the caller. Release, after a
 * failure, too.
 */
invar_status invar_zero_comm_init(invar_zero_comm *out, const invar_device *dev,
                                  const invar_layout *layout,
                                  invar_zero_ranges *owned) INVAR_MUST_USE;
void invar_zero_comm_release(invar_zero_comm *slices);

/* Bytes of this rank's slice. */
size_t invar_zero_comm_own(const invar_zero_comm *slices);

/*
 * A piece of the blocks of the ranks below `givers`: `get` holds what each of them has of this
 * rank's slice, one after the other. Other ranks' blocks are not read.
 */
invar_status invar_zero_comm_scatter(invar_zero_comm *slices, const char *phase, const void *block,
                                     int64_t piece, int givers) INVAR_MUST_USE;

/* The block, of which each rank has its own slice, becomes whole on all of them. */
invar_status invar_zero_comm_gather(invar_zero_comm *slices, const char *phase,
                                    void *block) INVAR_MUST_USE;

/* This rank's slice, at `slice` in the same memory, into the block. */
invar_status invar_zero_comm_place(invar_zero_comm *slices, void *block,
                                   const void *slice) INVAR_MUST_USE;

/*
 * An array `to` of rank 0's host becomes the block, of which each rank has its slice in a block
 * `from`; `packed`: that is the slice alone. Others' `to` is not used.
 */
invar_status invar_zero_comm_collect(invar_zero_comm *slices, const char *phase, char *to,
                                     const void *from, bool packed) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
