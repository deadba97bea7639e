/*
 * leaf_hasher.h - the op hash.leaves over rows that come one after the other.
 *
 *     invar_leaf_hasher_add(&leaves, &rows, &samples, count);  ...  invar_leaf_hasher_read(&of,
 *     &leaves);
 *
 * Rows are hashed at once and may change afterwards. Their digests stay in the device's memory, one
 * behind the other, until they are read: so the device is waited for once, and not for all rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_LEAF_HASHER_H
#define INVAR_ENGINE_MODEL_PROBE_LEAF_HASHER_H

#include "engine/model/graph/host_staging.h"
#include "engine/model/graph/op_runner.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_leaf_hasher {
    invar_op_runner caller; /* who hashes rows that a tape's calls make sets its tape */
    invar_digest *device;   /* (room) in the device's memory */
    int64_t room;
    int64_t count; /* that were not read */
    invar_host_window window;
} invar_leaf_hasher;

/* `dev` is borrowed. */
void invar_leaf_hasher_init(invar_leaf_hasher *leaves, const invar_device *dev);
void invar_leaf_hasher_release(invar_leaf_hasher *leaves);

/* There is no room for so many more before those that are there are read. */
bool invar_leaf_hasher_full(const invar_leaf_hasher *leaves, int64_t more);

/*
 * The leaves of rows in the device's memory; so are the boundaries of `samples`. `count` is what
 * invar_hash_leaf_count says.
 */
invar_status invar_leaf_hasher_add(invar_leaf_hasher *leaves, const invar_tensor *rows,
                                   const invar_row_offsets *samples, int64_t count) INVAR_MUST_USE;

/* *out = all `count`, in order, until the next call; there is none afterwards. */
invar_status invar_leaf_hasher_read(const invar_digest **out,
                                    invar_leaf_hasher *leaves) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
