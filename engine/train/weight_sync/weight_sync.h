/*
 * weight_sync.h - new weights, from the ranks that train to those that only sample.
 *
 *     invar_weight_sync_transfer(sync);                 weights travel, in buckets
 *     invar_weight_sync_compare(&result, sync);     all ranks hash what they have, and compare
 *
 * Both are calls of all ranks of the world. What travels is what ops read: values, or codes and
 * scales. What ranks compare afterwards is in their memory, not what was on its way: a digest of
 * every piece of every parameter, which is the same in every layout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_SYNC_H
#define INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_SYNC_H

#include "engine/train/weight_sync/sync_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_weight_sync invar_weight_sync;

typedef struct invar_weight_sync_options {
    const invar_rank_roles *sides; /* of all ranks; borrowed, as is all else */
    invar_model *model;            /* this rank's; one that samples gets its weights */
    const invar_device *dev;
    size_t bucket; /* bytes that travel at a time, at most; there are two of them */
} invar_weight_sync_options;

/* On a dry device it only takes its memory, and moves nothing. */
invar_status invar_weight_sync_new(invar_weight_sync **out,
                                   const invar_weight_sync_options *options) INVAR_MUST_USE;
void invar_weight_sync_free(invar_weight_sync *sync);

/* Bytes that this rank gives or gets. */
uint64_t invar_weight_sync_bytes(const invar_weight_sync *sync);

invar_status invar_weight_sync_transfer(invar_weight_sync *sync) INVAR_MUST_USE;

typedef struct invar_weight_sync_result {
    invar_digest hash; /* of the weights, as all ranks have them */
    uint64_t bytes;    /* that the ranks that sample got, all of them together */
    bool differ;       /* a rank has others, and all of them know */
} invar_weight_sync_result;

/* INVAR_E_MISMATCH with `differ` names, on all ranks, the rank with other weights than most. */
invar_status invar_weight_sync_compare(invar_weight_sync_result *out,
                                       invar_weight_sync *sync) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
