/*
 * sync_plan.c - which logical shards go from training ranks to rollout ranks in a weight sync.
 *
 * A receiver finds the sending rank of each shard that it holds; a sender runs the same function
 * for every shard of every receiver. Invariant: both get the same items in the same order for a
 * pair of ranks, because the bytes are sent without headers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/weight_sync/sync_plan.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/shard/logical_shards.h"
#include "engine/train/weight_sync/weight_planes.h"

#include "base/invar_banned.h"

typedef struct sync_planner {
    const invar_rank_roles *sides;
    const invar_model *model;
    invar_weight_sync_plan *plan;
    /* allocated items */
    int64_t room;
    int rank; /* rank in the world */
} sync_planner;

static invar_status add_item(sync_planner *p, int64_t param, int64_t piece, int peer)
{
    invar_weight_sync_plan *plan = p->plan;

    INVAR_TRY(
        INVAR_GROW(plan->items, p->room, plan->count, plan->count + 1, "weights that travel"));
    plan->items[plan->count++] = (invar_weight_sync_item){param, piece, peer};
    plan->bytes += invar_weight_sync_shard_bytes(&p->model->params[param], piece);
    return INVAR_OK;
}

/*
 * Finds the expert and the shard index of local logical shard number `piece`. A parameter that is
 * not divided is one shard.
 */
static void locate_shard(int64_t *expert, int32_t *v, const invar_param *param, int64_t piece)
{
    *expert = param->local.expert + piece / param->local.n_shards;
    *v = param->local.first_shard + (int32_t)(piece % param->local.n_shards);
}

/*
 * Returns the rank that sends a shard to an engine: the first rank with it in the engine's copy of
 * the model.
 */
static int sender_of(const sync_planner *p, const invar_param *param, int64_t piece, int engine)
{
    const invar_layout *train = &p->sides->train;
    invar_model_partition part = invar_model_partition_of(train, 0);
    int32_t v;
    int64_t expert;

    locate_shard(&expert, &v, param, piece);
    part = invar_model_partition_numbered(
        &part, invar_model_partition_first(&part, &p->model->spec, param, expert, v));
    return invar_layout_rank_of(train, &(invar_rank_coords){.tensor = part.tensor,
                                                            .expert = part.expert,
                                                            .data = engine % train->data.size,
                                                            .pipeline = part.stage});
}

/* Adds all shards that this rank receives, from any rank. */
static invar_status add_received(sync_planner *p)
{
    int engine =
        invar_rank_coords_of(&p->sides->rollout, p->rank - p->sides->first_rollout_rank).data;

    for (int64_t i = 0; i < p->model->n_params; i++)
        for (int64_t k = 0; k < invar_logical_shards_here(&p->model->params[i]); k++)
            INVAR_TRY(add_item(p, i, k, sender_of(p, &p->model->params[i], k, engine)));
    return INVAR_OK;
}

/* Adds all shards that this rank sends to rollout rank `to`. */
static invar_status add_sent_to(sync_planner *p, int to)
{
    invar_model_partition part = invar_model_partition_of(&p->sides->rollout, to);
    int engine = invar_rank_coords_of(&p->sides->rollout, to).data;

    for (int64_t i = 0; i < p->model->n_params; i++) {
        const invar_param *param = &p->model->params[i];
        invar_param_shard box = invar_model_partition_shard(&part, &p->model->spec, param);
        for (int64_t k = 0; k < invar_logical_shards_here(param); k++) {
            int64_t expert;
            int32_t v;
            locate_shard(&expert, &v, param, k);
            if (invar_param_shard_has(&box, expert, v) && sender_of(p, param, k, engine) == p->rank)
                INVAR_TRY(add_item(p, i, k, p->sides->first_rollout_rank + to));
        }
    }
    return INVAR_OK;
}

/* Sorts the items by peer, stably. */
static invar_status sort_by_peer(invar_weight_sync_plan *plan, int peers)
{
    invar_weight_sync_item *grouped = NULL;
    int64_t count = 0;

    INVAR_TRY(INVAR_ALLOC(grouped, (size_t)plan->count + 1, "weights that travel"));
    for (int peer = 0; peer < peers; peer++)
        for (int64_t i = 0; i < plan->count; i++)
            if (plan->items[i].peer == peer)
                grouped[count++] = plan->items[i];
    invar_free(plan->items);
    plan->items = grouped;
    return INVAR_OK;
}

/* Checks that each block of columns with one scale belongs to one logical shard. */
static invar_status check_scale_blocks(const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        int64_t block = invar_dtype_scale_block(p->weight.dtype);

        for (int32_t v = 1; v < p->split.shards && p->split.columns && block > 0; v++)
            if (invar_logical_shard_share(p, v).first % block != 0)
                return INVAR_FAIL(INVAR_E_INVALID, 0,
                                  "%s in %s: a piece of logical-tp or logical-etp begins inside of "
                                  "a block of %d columns with one scale, and cannot travel to "
                                  "ranks that only sample: leave out rollout-num-gpus, or take "
                                  "fewer pieces",
                                  p->name, invar_format_name(model->format), (int)block);
    }
    return INVAR_OK;
}

static invar_status add_all_items(sync_planner *p)
{
    const invar_layout *rollout = &p->sides->rollout;

    if (!p->plan->is_receiver) {
        for (int r = 0; r < rollout->tensor.size * rollout->data.size; r++)
            INVAR_TRY(add_sent_to(p, r));
        return INVAR_OK;
    }
    INVAR_TRY(add_received(p));
    return sort_by_peer(p->plan, p->sides->first_rollout_rank);
}

invar_status invar_weight_sync_plan_make(invar_weight_sync_plan *out, const invar_rank_roles *roles,
                                         const invar_model *model, int rank)
{
    sync_planner p = {.sides = roles, .model = model, .plan = out, .rank = rank};
    invar_status status;

    *out = (invar_weight_sync_plan){.is_receiver = rank >= roles->first_rollout_rank};
    status = check_scale_blocks(model);
    if (status == INVAR_OK)
        status = add_all_items(&p);
    if (status != INVAR_OK)
        invar_weight_sync_plan_release(out);
    return status;
}

void invar_weight_sync_plan_release(invar_weight_sync_plan *plan)
{
    invar_free(plan->items);
    *plan = (invar_weight_sync_plan){0};
}

uint64_t invar_weight_sync_plan_bytes(int64_t *next_out, const invar_weight_sync_plan *plan,
                                      const invar_model *model, int64_t item)
{
    int64_t next = item;
    uint64_t bytes = 0;

    for (; next < plan->count && plan->items[next].peer == plan->items[item].peer; next++)
        bytes += invar_weight_sync_shard_bytes(&model->params[plan->items[next].param],
                                               plan->items[next].shard);
    *next_out = next;
    return bytes;
}
