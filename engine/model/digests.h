/*
 * digests.h - the op hash.tree over many tensors, read back at once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_DIGESTS_H
#define INVAR_ENGINE_MODEL_DIGESTS_H

#include "engine/model/call.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_digests {
    invar_caller caller;
    invar_digest *there; /* (capacity) in the device's memory */
    int64_t count, capacity;
} invar_digests;

void invar_digests_init(invar_digests *digests, const invar_device *dev);
void invar_digests_release(invar_digests *digests);

/* One more, of a tensor in the device's memory. */
invar_status invar_digests_add(invar_digests *digests, const invar_tensor *tensor,
                               int32_t shards) INVAR_MUST_USE;

/* All `count` into `out`, in the order of their tensors; there is none afterwards. */
invar_status invar_digests_read(invar_digest *out, invar_digests *digests) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
