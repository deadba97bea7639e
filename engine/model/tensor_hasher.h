/*
 * tensor_hasher.h - computes the op hash.tree over many tensors in a few calls.
 *
 *     invar_tensor_hasher_add(&digests, &tensor, 1);  ...  invar_tensor_hasher_read(of, &digests);
 *
 * An added tensor must stay in place and unchanged until the digests are read, because only then
 * all of them are hashed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_TENSOR_HASHER_H
#define INVAR_ENGINE_MODEL_TENSOR_HASHER_H

#include "engine/model/graph/op_runner.h"

typedef struct invar_tensor_hasher {
    invar_op_runner op_runner;
    invar_tensor *tensors;     /* (capacity) */
    int32_t *shards;           /* (capacity) shards of each tensor */
    invar_logical_split *cuts; /* (capacity) logical split of each tensor; read if `shards` is 1 */
    int64_t count, capacity;
    invar_digest *device; /* (device_capacity) digests in device memory */
    int64_t device_capacity;
} invar_tensor_hasher;

void invar_tensor_hasher_init(invar_tensor_hasher *hasher, const invar_device *dev);
void invar_tensor_hasher_release(invar_tensor_hasher *hasher);

/* Adds a tensor in device memory; it is hashed in `shards` equal shards. */
invar_status invar_tensor_hasher_add(invar_tensor_hasher *hasher, const invar_tensor *tensor,
                                     int32_t shards) INVAR_MUST_USE;

/* Adds a tensor whose shards are the logical shards of `split`. */
invar_status invar_tensor_hasher_add_cut(invar_tensor_hasher *hasher, const invar_tensor *tensor,
                                         const invar_logical_split *split) INVAR_MUST_USE;

/* Writes all `count` digests to `out` in the order of their tensors, and empties the list. */
invar_status invar_tensor_hasher_read(invar_digest *out,
                                      invar_tensor_hasher *hasher) INVAR_MUST_USE;

#endif
