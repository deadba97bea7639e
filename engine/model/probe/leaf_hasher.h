/*
 * leaf_hasher.h - hashes rows on the device as they are computed, and reads the digests later.
 *
 *     invar_leaf_hasher_add(&leaves, &rows, &samples, count);  ...
 *     invar_leaf_hasher_read(&of, &leaves);
 *
 * The op hash.leaves hashes rows at once, so they may change afterwards. The digests stay in device
 * memory, in order, until they are read: one synchronization for many rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_LEAF_HASHER_H
#define INVAR_ENGINE_MODEL_PROBE_LEAF_HASHER_H

#include "engine/model/graph/host_staging.h"
#include "engine/model/graph/op_runner.h"

typedef struct invar_leaf_hasher {
    /* set its `graph_cache` to hash rows that ops of a CUDA graph cache compute */
    invar_op_runner op_runner;
    invar_digest *device; /* (capacity) device memory */
    int64_t capacity;
    int64_t count; /* digests not read yet */
    invar_host_window window;
} invar_leaf_hasher;

/* Initializes a hasher; allocates nothing. `dev` is borrowed by the window. */
void invar_leaf_hasher_init(invar_leaf_hasher *hasher, const invar_device *dev);
void invar_leaf_hasher_release(invar_leaf_hasher *hasher);

/* Returns true if `more` leaves fit only after the pending ones have been read. */
bool invar_leaf_hasher_full(const invar_leaf_hasher *hasher, int64_t more);

/*
 * Appends the leaves of rows in device memory; the offsets of `samples` are there too. `count` must
 * be the result of invar_hash_leaf_count.
 */
invar_status invar_leaf_hasher_add(invar_leaf_hasher *hasher, const invar_tensor *rows,
                                   const invar_row_offsets *samples, int64_t count) INVAR_MUST_USE;

/* *out = all pending digests in order, valid until the next call; none are pending afterwards. */
invar_status invar_leaf_hasher_read(const invar_digest **out,
                                    invar_leaf_hasher *hasher) INVAR_MUST_USE;

#endif
