/*
 * sync_plan.h - which pieces of a model travel from ranks that train to ranks that only sample.
 *
 * Both sides (engine/ranks/layout/rank_roles.h) are plain data, so every rank knows what it gives
 * to whom, and nobody sends lists around. Of the copies that data-parallel ranks have, engine e
 * takes copy e mod their number.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_WEIGHT_SYNC_SYNC_PLAN_H
#define INVAR_ENGINE_TRAIN_WEIGHT_SYNC_SYNC_PLAN_H

#include "engine/model/model.h"
#include "engine/ranks/layout/rank_roles.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A piece that this rank has, and where it goes to or comes from. */
typedef struct invar_weight_sync_item {
    int64_t param, piece;
    int peer; /* rank of the world */
} invar_weight_sync_item;

typedef struct invar_weight_sync_plan {
    bool is_receiver;              /* this rank samples; else it gives */
    invar_weight_sync_item *items; /* (count) by peer; those of a peer in canonical order */
    int64_t count;
    uint64_t bytes; /* of all of them */
} invar_weight_sync_plan;

/* For a rank of the world, whose part of the model this is; release. */
invar_status invar_weight_sync_plan_make(invar_weight_sync_plan *out, const invar_rank_roles *sides,
                                         const invar_model *model, int rank) INVAR_MUST_USE;
void invar_weight_sync_plan_release(invar_weight_sync_plan *plan);

/* Bytes of the items from `item` on that have its peer; *next_out is the first that has not. */
uint64_t invar_weight_sync_plan_bytes(int64_t *next_out, const invar_weight_sync_plan *plan,
                                      const invar_model *model, int64_t item);

#ifdef __cplusplus
}
#endif
#endif
