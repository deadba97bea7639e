/*
 * offload.h - runs elementwise work on host arrays by streaming them through the device in chunks.
 *
 * For data that an op needs once per step and that does not fit into device memory, such as the
 * moments of the optimizer. Two chunks are on the device: while one is downloaded, the next one is
 * uploaded on another stream, if the backend has one. The result does not depend on the chunk size
 * as long as the work is elementwise.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_OFFLOAD_H
#define INVAR_ENGINE_TRAIN_OFFLOAD_H

#include "kernels-deterministic/device.h"

#define INVAR_OFFLOAD_ARRAYS 2 /* arrays that are streamed together */

typedef struct invar_offload invar_offload;

/*
 * Allocates the device buffers for arrays of `bytes` bytes each, in chunks of `chunk_bytes` bytes,
 * a multiple of INVAR_ALIGN. The device must have memory of its own; it is borrowed until
 * invar_offload_free. Free with invar_offload_free.
 */
invar_status invar_offload_new(invar_offload **out, const invar_device *dev, size_t bytes,
                               size_t chunk_bytes) INVAR_MUST_USE;
void invar_offload_free(invar_offload *offload);

/*
 * Callback that works on the bytes [first, first + bytes) of each array. During the call
 * device_arrays[i] is the address of these bytes of array i in device memory.
 */
typedef invar_status (*invar_offload_chunk_fn)(void *payload, size_t first, size_t bytes,
                                               void *const device_arrays[INVAR_OFFLOAD_ARRAYS]);

/*
 * Calls `work` for all chunks in order. After a failure some chunks are changed and some are not.
 */
invar_status invar_offload_run(invar_offload *offload, void *const arrays[INVAR_OFFLOAD_ARRAYS],
                               invar_offload_chunk_fn work, void *payload) INVAR_MUST_USE;

#endif
