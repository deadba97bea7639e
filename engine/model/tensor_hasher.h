/*
 * tensor_hasher.h - the op hash.tree over many tensors at once.
 *
 *     invar_tensor_hasher_add(&digests, &tensor, 1);  ...  invar_tensor_hasher_read(of, &digests);
 *
 * A tensor that was added must not change, and stay where it is, until the digests are read: only
 * then all of them are hashed, in a few calls of the op.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_TENSOR_HASHER_H
#define INVAR_ENGINE_MODEL_TENSOR_HASHER_H

#include "engine/model/graph/op_runner.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_tensor_hasher {
    invar_op_runner caller;
    invar_tensor *tensors;     /* (capacity) */
    int32_t *shards;           /* (capacity) of each */
    invar_logical_split *cuts; /* (capacity) those of one shard may be cut */
    int64_t count, capacity;
    invar_digest *device; /* (room) in the device's memory */
    int64_t room;
} invar_tensor_hasher;

void invar_tensor_hasher_init(invar_tensor_hasher *digests, const invar_device *dev);
void invar_tensor_hasher_release(invar_tensor_hasher *digests);

/* One more, of a tensor in the device's memory. */
invar_status invar_tensor_hasher_add(invar_tensor_hasher *digests, const invar_tensor *tensor,
                                     int32_t shards) INVAR_MUST_USE;

/* One more, whose shards are the pieces of the cut. */
invar_status invar_tensor_hasher_add_cut(invar_tensor_hasher *digests, const invar_tensor *tensor,
                                         const invar_logical_split *cut) INVAR_MUST_USE;

/* All `count` into `out`, in the order of their tensors; there is none afterwards. */
invar_status invar_tensor_hasher_read(invar_digest *out,
                                      invar_tensor_hasher *digests) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
