/*
 * weight_planes.h - bytes of one logical shard of a weight, as rows with a stride.
 *
 * The compute weight of a parameter is values, or codes and their scales. Logical shards
 * (engine/model/shard/logical_shards.h) never begin within a block of one scale. The bytes of a
 * shard are in the order of the complete parameter, so they do not depend on what else the rank
 * holds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_PLANES_H
#define INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_PLANES_H

#include "base/hash.h"
#include "engine/model/graph/param.h"

enum { INVAR_WEIGHT_SYNC_PLANES = 2 }; /* values or codes, then scales */

/*
 * Writes the planes of the local logical shard number `shard` of a parameter and returns their
 * number. `weight` is the parameter's weight tensor, or a copy of it at other addresses.
 */
int invar_weight_sync_planes(invar_tree_shard out[INVAR_WEIGHT_SYNC_PLANES],
                             const invar_param *param, const invar_tensor *weight, int64_t shard);

/* Returns the bytes of all planes of the local logical shard number `shard`. */
size_t invar_weight_sync_shard_bytes(const invar_param *param, int64_t shard);

#endif
