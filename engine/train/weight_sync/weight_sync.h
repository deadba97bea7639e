/*
 * weight_sync.h - sends new weights from training ranks to rollout ranks and verifies them.
 *
 *     invar_weight_sync_transfer(sync);            send the weights, in buckets
 *     invar_weight_sync_compare(&result, sync);    hash the weights on all ranks and compare
 *
 * Both are collective: all ranks of the world must call them. The compute weights are sent: values,
 * or codes and scales. The comparison hashes the memory of each rank, not the buffers that were
 * sent; there is a digest per logical shard, which is the same in every layout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_SYNC_H
#define INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_SYNC_H

#include "engine/train/weight_sync/sync_plan.h"

typedef struct invar_weight_sync invar_weight_sync;

typedef struct invar_weight_sync_options {
    const invar_rank_roles *roles; /* roles of all ranks; borrowed, like the other pointers */
    invar_model *model; /* model of this rank; on a rollout rank its weights are overwritten */
    const invar_device *dev;
    size_t bucket_bytes; /* largest number of bytes of a transfer; there are two buffers of this
                         size */
} invar_weight_sync_options;

/*
 * Makes the plan and allocates the buckets. On a dry-run device nothing is transferred. Free with
 * invar_weight_sync_free.
 */
invar_status invar_weight_sync_new(invar_weight_sync **out,
                                   const invar_weight_sync_options *options) INVAR_MUST_USE;
void invar_weight_sync_free(invar_weight_sync *sync);

/* Returns the bytes that this rank sends or receives. */
uint64_t invar_weight_sync_bytes(const invar_weight_sync *sync);

/*
 * Sends or receives the weights of this rank. After a failure the weights of a rollout rank are
 * undefined.
 */
invar_status invar_weight_sync_transfer(invar_weight_sync *sync) INVAR_MUST_USE;

typedef struct invar_weight_sync_result {
    /* digest of the weights on this rank; equal on all ranks if `differ` is false */
    invar_digest hash;
    uint64_t bytes; /* bytes that all rollout ranks received together */
    bool differ;    /* a rank has other weights, and all ranks know it */
} invar_weight_sync_result;

/*
 * Compares the weights of all ranks. Returns INVAR_E_MISMATCH on all ranks, and sets out->differ,
 * if they differ; the message names the rank that differs from the majority.
 */
invar_status invar_weight_sync_compare(invar_weight_sync_result *out,
                                       invar_weight_sync *sync) INVAR_MUST_USE;

#endif
