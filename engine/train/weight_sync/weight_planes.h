/*
 * weight_planes.h - a piece of a parameter's weights as rows of bytes.
 *
 * Weights are what ops read: values, or codes and their scales. Pieces are those of
 * engine/model/logical_shards.h, and no piece cuts a block of scales. The order of a piece's bytes
 * is that of the whole parameter, so it does not depend on what else its rank holds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_PLANES_H
#define INVAR_ENGINE_TRAIN_WEIGHT_SYNC_WEIGHT_PLANES_H

#include "base/hash.h"
#include "engine/model/graph/param.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { INVAR_WEIGHT_SYNC_PLANES = 2 }; /* values or codes; scales */

/*
 * Piece number `piece` of those that this rank has of the parameter, in `weight`: the parameter's
 * own tensor, or one with other addresses. Returns how many planes it has.
 */
int invar_weight_sync_planes(invar_tree_shard out[INVAR_WEIGHT_SYNC_PLANES],
                             const invar_param *param, const invar_tensor *weight, int64_t piece);

/* Bytes of all planes of it. */
size_t invar_weight_sync_piece_bytes(const invar_param *param, int64_t piece);

#ifdef __cplusplus
}
#endif
#endif
