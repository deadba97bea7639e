/*
 * digests.h - the op hash.tree over many tensors at once.
 *
 *     invar_digests_add(&digests, &tensor, 1);  ...  invar_digests_read(of, &digests);
 *
 * A tensor that was added must not change, and stay where it is, until the digests are read: only
 * then all of them are hashed, in a few calls of the op.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_DIGESTS_H
#define INVAR_ENGINE_MODEL_DIGESTS_H

#include "engine/program/call.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_digests {
    invar_caller caller;
    invar_tensor *tensors; /* (capacity) */
    int32_t *shards;       /* (capacity) of each */
    invar_cut *cuts;       /* (capacity) those of one shard may be cut */
    int64_t count, capacity;
    invar_digest *there; /* (room) in the device's memory */
    int64_t room;
} invar_digests;

void invar_digests_init(invar_digests *digests, const invar_device *dev);
void invar_digests_release(invar_digests *digests);

/* One more, of a tensor in the device's memory. */
invar_status invar_digests_add(invar_digests *digests, const invar_tensor *tensor,
                               int32_t shards) INVAR_MUST_USE;

/* One more, whose shards are the pieces of the cut. */
invar_status invar_digests_add_cut(invar_digests *digests, const invar_tensor *tensor,
                                   const invar_cut *cut) INVAR_MUST_USE;

/* All `count` into `out`, in the order of their tensors; there is none afterwards. */
invar_status invar_digests_read(invar_digest *out, invar_digests *digests) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
