/*
 * sync_plan.h - which logical shards go from training ranks to rollout ranks in a weight sync.
 *
 * Both layouts (engine/ranks/layout/rank_roles.h) are plain data, so every rank computes what it
 * sends to which rank, without negotiation. Data-parallel training ranks hold copies of the model:
 * rollout engine e receives from copy e mod the number of copies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_WEIGHT_SYNC_SYNC_PLAN_H
#define INVAR_ENGINE_TRAIN_WEIGHT_SYNC_SYNC_PLAN_H

#include "engine/model/model.h"
#include "engine/ranks/layout/rank_roles.h"

/* A logical shard that this rank holds, and the rank that it is sent to or received from. */
typedef struct invar_weight_sync_item {
    /* parameter; number of the logical shard among those of the parameter on this rank */
    int64_t param, shard;
    int peer; /* rank in the world */
} invar_weight_sync_item;

typedef struct invar_weight_sync_plan {
    bool is_receiver; /* this rank is a rollout rank; else it sends */
    /* (count) sorted by peer; the items of a peer are in canonical order */
    invar_weight_sync_item *items;
    int64_t count;
    uint64_t bytes; /* bytes of all items */
} invar_weight_sync_plan;

/*
 * Makes the plan of a rank of the world; `model` is the model of this rank. Returns INVAR_E_INVALID
 * if a logical shard begins within a block of one scale. Release with
 * invar_weight_sync_plan_release.
 */
invar_status invar_weight_sync_plan_make(invar_weight_sync_plan *out, const invar_rank_roles *roles,
                                         const invar_model *model, int rank) INVAR_MUST_USE;
void invar_weight_sync_plan_release(invar_weight_sync_plan *plan);

/*
 * Returns the bytes of the consecutive items from `item` on that have the same peer; *next_out is
 * the index after the last of them.
 */
uint64_t invar_weight_sync_plan_bytes(int64_t *next_out, const invar_weight_sync_plan *plan,
                                      const invar_model *model, int64_t item);

#endif
