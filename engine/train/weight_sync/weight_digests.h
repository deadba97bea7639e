/*
 * weight_digests.h - the digests of all pieces of a model's weights, and whether all ranks have the
 * same.
 *
 * A digest is the tree hash of a piece (base/hash.h), codes and scales being two shards of it. The
 * ranks that hold a model together know those of all pieces.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_DIGESTS_H
#define INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_DIGESTS_H

#include "engine/train/weight_sync/weight_sync.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_weight_digests {
    const invar_model *model;
    invar_digest *digests; /* (count) in canonical order */
    int64_t count;
} invar_weight_digests;

/* A call of all ranks that hold the model together; release, after a failure, too. */
invar_status invar_weight_digests_make(invar_weight_digests *out, const invar_model *model,
                                       const invar_device *dev) INVAR_MUST_USE;
void invar_weight_digests_release(invar_weight_digests *digests);

/* A call of all ranks of the world, each with what it `got`; as invar_weight_sync_compare. */
invar_status invar_weight_digests_compare(invar_weight_sync_result *out,
                                          const invar_weight_digests *own,
                                          const invar_layout *world, uint64_t got) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
