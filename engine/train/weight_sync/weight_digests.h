/*
 * weight_digests.h - digests of all logical shards of the weights, compared across ranks.
 *
 * A digest is the tree hash (base/hash.h) of a shard, with codes and scales as its two planes. The
 * ranks that hold a model together gather the digests of all its shards.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_DIGESTS_H
#define INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_DIGESTS_H

#include "engine/train/weight_sync/weight_sync.h"

typedef struct invar_weight_digests {
    const invar_model *model;
    invar_digest *digests; /* (count) digests of the logical shards in canonical order; owned */
    int64_t count;
} invar_weight_digests;

/*
 * Hashes the local weights and gathers the other digests. Collective: all ranks that hold the model
 * together must call it. Release with invar_weight_digests_release, also after a failure.
 */
invar_status invar_weight_digests_make(invar_weight_digests *out, const invar_model *model,
                                       const invar_device *dev) INVAR_MUST_USE;
void invar_weight_digests_release(invar_weight_digests *digests);

/*
 * Compares the digests of all ranks and adds up the bytes that they received (`got`). Returns
 * INVAR_E_MISMATCH on all ranks, and sets out->differ, if a rank has other weights. Collective: all
 * ranks of the world must call it.
 */
invar_status invar_weight_digests_compare(invar_weight_sync_result *out,
                                          const invar_weight_digests *own,
                                          const invar_layout *world, uint64_t got) INVAR_MUST_USE;

#endif
