/*
 * offload.h - arrays of the host that visit a device piece by piece.
 *
 * For what an op needs once a step and the device has no room for. Two pieces are on the device:
 * while one is on its way back to the host the next one is brought, by copies of another order than
 * that of the ops, where the backend has such. What is computed does not depend on the pieces as
 * long as the work on them is elementwise.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_OFFLOAD_H
#define INVAR_ENGINE_TRAIN_OFFLOAD_H

#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_OFFLOAD_ARRAYS 2 /* that travel together */

typedef struct invar_offload invar_offload;

/*
 * For arrays of `bytes` in pieces of `piece`, which is a multiple of INVAR_ALIGN. The device has
 * memory of its own, and stays where it is, open.
 */
invar_status invar_offload_new(invar_offload **out, const invar_device *dev, size_t bytes,
                               size_t piece) INVAR_MUST_USE;
void invar_offload_free(invar_offload *offload);

/* The bytes [first, first + bytes) of each array, which lie at `there` during the call. */
typedef invar_status (*invar_offload_chunk_fn)(void *payload, size_t first, size_t bytes,
                                               void *const there[INVAR_OFFLOAD_ARRAYS]);

/* All pieces in order. A failure leaves some of them changed and some not. */
invar_status invar_offload_run(invar_offload *offload, void *const arrays[INVAR_OFFLOAD_ARRAYS],
                               invar_offload_chunk_fn work, void *payload) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
