/*
 * weight_digests.c - what ranks have after weights have travelled.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/weight_sync/weight_digests.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/model/logical_shards.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/train/weight_sync/weight_planes.h"

#include "base/invar_banned.h"

#define PHASE "digests of weights"

static int64_t count_pieces(const invar_model *model)
{
    int64_t count = 0;

    for (int64_t i = 0; i < model->n_params; i++)
        count += invar_logical_shards_of(&model->params[i]);
    return count;
}

/* The place of a piece that is here among all pieces of the parameter. */
static int64_t place_of(const invar_param *p, int64_t piece)
{
    const invar_param_shard *own = &p->local;

    if (p->cut.shards == 1)
        return 0;
    return (own->expert + piece / own->pieces) * p->cut.shards + own->piece + piece % own->pieces;
}

/* The pieces of a parameter that are here, whose weight the host sees as `shown`. */
static invar_status hash_param(invar_digest *out, const invar_param *p, const invar_tensor *shown,
                               invar_pool *pool)
{
    for (int64_t k = 0; k < invar_logical_shards_here(p); k++) {
        invar_tree_shard planes[INVAR_WEIGHT_SYNC_PLANES];
        int count = invar_weight_sync_planes(planes, p, shown, k);
        INVAR_TRY(invar_tree_hash(&out[place_of(p, k)], pool, &(invar_tree_input){planes, count}));
    }
    return INVAR_OK;
}

/* All that are here, into their places. */
static invar_status hash_own(invar_digest *out, const invar_model *model, const invar_device *dev)
{
    invar_host_window window = {.dev = dev};
    invar_status status = INVAR_OK;

    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++) {
        const invar_param *p = &model->params[i];
        invar_tensor shown;
        if (p->local.experts > 0) {
            status = invar_host_window_tensor(&shown, &window, &p->weight);
            if (status == INVAR_OK)
                status = hash_param(out, p, &shown, dev->pool);
        }
        out += invar_logical_shards_of(p);
    }
    invar_host_window_release(&window);
    return status;
}

/* Those of `all` that this rank gives, one after the other. */
static void pick_given(invar_digest *out, const invar_digest *all, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        for (int64_t k = 0;
             k < invar_logical_shards_here(p) && invar_logical_shards_is_contributor(model, p); k++)
            *out++ = all[place_of(p, k)];
        all += invar_logical_shards_of(p);
    }
}

/* Of all pieces those that are here are as this rank has them. */
static void keep_own(invar_digest *all, const invar_digest *own, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        for (int64_t k = 0; k < invar_logical_shards_here(p); k++)
            all[place_of(p, k)] = own[place_of(p, k)];
        all += invar_logical_shards_of(p);
        own += invar_logical_shards_of(p);
    }
}

/* What others have of the model; of what several have, each keeps its own. */
static invar_status weight_digests_gather(invar_weight_digests *digests)
{
    size_t count = (size_t)digests->count;
    invar_digest *all = NULL, *given;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&all, 2 * count, sizeof *all, PHASE));
    given = all + count;
    pick_given(given, digests->digests, digests->model);
    status = invar_logical_shards_gather(all, digests->model, PHASE, given, sizeof *given, NULL);
    if (status == INVAR_OK) {
        keep_own(all, digests->digests, digests->model);
        memcpy(digests->digests, all, count * sizeof *all);
    }
    invar_free(all);
    return status;
}

invar_status invar_weight_digests_make(invar_weight_digests *out, const invar_model *model,
                                       const invar_device *dev)
{
    *out = (invar_weight_digests){.model = model, .count = count_pieces(model)};
    INVAR_TRY(invar_alloc((void **)&out->digests, (size_t)out->count, sizeof *out->digests, PHASE));
    INVAR_TRY(hash_own(out->digests, model, dev));
    return invar_model_is_divided(model) ? weight_digests_gather(out) : INVAR_OK;
}

void invar_weight_digests_release(invar_weight_digests *digests)
{
    invar_free(digests->digests);
    *digests = (invar_weight_digests){0};
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* What a rank tells the others. */
typedef struct record {
    invar_digest hash;
    uint64_t got;
} record;

/* The name of the parameter that piece number `piece` of all is of. */
static const char *param_of(const invar_model *model, int64_t piece)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        piece -= invar_logical_shards_of(&model->params[i]);
        if (piece < 0)
            return model->params[i].name;
    }
    return "no parameter";
}

/* Is piece number `piece` of all here, and not only known from another rank? */
static bool is_here(const invar_model *model, int64_t piece)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        for (int64_t k = 0; k < invar_logical_shards_here(p) && piece < invar_logical_shards_of(p);
             k++)
            if (place_of(p, k) == piece)
                return true;
        piece -= invar_logical_shards_of(p);
        if (piece < 0)
            return false;
    }
    return false;
}

/* The first piece here that differs from what another rank knows; `count`: none. */
static int64_t first_other(const invar_weight_digests *own, const invar_digest *usual)
{
    for (int64_t i = 0; i < own->count; i++)
        if (!invar_digest_equal(&own->digests[i], &usual[i]) && is_here(own->model, i))
            return i;
    return own->count;
}

/* The first piece that any rank has otherwise than rank `usual` knows it. A call of all. */
static invar_status find_piece(int64_t *out, const invar_weight_digests *own,
                               const invar_layout *world, int usual)
{
    size_t size = (size_t)invar_ranks_size(world);
    size_t bytes = (size_t)own->count * sizeof *own->digests;
    invar_digest *known = NULL;
    int64_t *firsts = NULL, first = own->count;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&known, bytes + size * sizeof *firsts, 1, PHASE));
    firsts = (int64_t *)(void *)(known + own->count);
    memcpy(known, own->digests, bytes);
    status = invar_ranks_broadcast(world, PHASE, usual, known, bytes);
    if (status == INVAR_OK) {
        first = first_other(own, known);
        status = invar_ranks_all_gather(world, PHASE, &first, sizeof first, firsts);
    }
    *out = first;
    for (size_t r = 0; status == INVAR_OK && r < size; r++)
        *out = firsts[r] < *out ? firsts[r] : *out;
    invar_free(known);
    return status;
}

/* What a rank has of a piece. */
typedef struct holding {
    invar_digest digest;
    uint64_t here;
} holding;

/* Of the ranks that have a piece the one that differs from most. A call of all. */
static invar_status find_holder(invar_rank_outlier *out, const invar_weight_digests *own,
                                const invar_layout *world, int64_t piece)
{
    int size = invar_ranks_size(world), count = 0;
    holding mine = {.digest = own->digests[piece], .here = is_here(own->model, piece)}, *all = NULL;
    invar_digest *digests;
    invar_status status;
    int *ranks;

    INVAR_TRY(invar_alloc((void **)&all, (size_t)size,
                          sizeof *all + sizeof *digests + sizeof *ranks, PHASE));
    digests = (invar_digest *)(void *)(all + size);
    ranks = (int *)(void *)(digests + size);
    status = invar_ranks_all_gather(world, PHASE, &mine, sizeof mine, all);
    for (int r = 0; status == INVAR_OK && r < size; r++)
        if (all[r].here) {
            digests[count] = all[r].digest;
            ranks[count++] = r;
        }
    if (status == INVAR_OK) {
        *out = invar_ranks_find_odd(digests, count);
        INVAR_CHECK(out->differing_rank >= 0);
        out->differing_rank = ranks[out->differing_rank];
        out->majority_rank = ranks[out->majority_rank];
    }
    invar_free(all);
    return status;
}

/* Ranks know of a divided model what others have: the one that has what differs is named. */
static invar_status name_odd(const invar_weight_digests *own, const invar_layout *world, int usual)
{
    invar_rank_outlier who;
    int64_t piece;

    INVAR_TRY(find_piece(&piece, own, world, usual));
    INVAR_CHECK(piece < own->count);
    INVAR_TRY(find_holder(&who, own, world, piece));
    return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                      "rank %d on %s has other weights than rank %d on %s after they were synced: "
                      "%s differs; check both hosts and their network with invar doctor --ranks, "
                      "then start the run again",
                      who.differing_rank, invar_comm_host(world->world, who.differing_rank),
                      who.majority_rank, invar_comm_host(world->world, who.majority_rank),
                      param_of(own->model, piece));
}

static invar_status weight_digests_compare(invar_weight_sync_result *out,
                                           const invar_weight_digests *own,
                                           const invar_layout *world, const record *all,
                                           invar_digest *hashes)
{
    invar_rank_outlier who;
    invar_status status;

    for (int r = 0; r < invar_ranks_size(world); r++) {
        out->bytes += all[r].got;
        hashes[r] = all[r].hash;
    }
    who = invar_ranks_find_odd(hashes, invar_ranks_size(world));
    if (who.differing_rank < 0)
        return INVAR_OK;
    status = name_odd(own, world, who.majority_rank);
    out->differ = status == INVAR_E_MISMATCH;
    return status;
}

invar_status invar_weight_digests_compare(invar_weight_sync_result *out,
                                          const invar_weight_digests *own,
                                          const invar_layout *world, uint64_t got)
{
    size_t size = (size_t)invar_ranks_size(world);
    record mine = {.got = got}, *all = NULL;
    invar_digest *hashes = NULL;
    invar_status status;

    invar_hash_bytes(&mine.hash, own->digests, (size_t)own->count * sizeof *own->digests);
    out->hash = mine.hash;
    INVAR_TRY(invar_alloc((void **)&all, size, sizeof *all, PHASE));
    status = invar_alloc((void **)&hashes, size, sizeof *hashes, PHASE);
    if (status == INVAR_OK)
        status = invar_ranks_all_gather(world, PHASE, &mine, sizeof mine, all);
    if (status == INVAR_OK)
        status = weight_digests_compare(out, own, world, all, hashes);
    invar_free(hashes);
    invar_free(all);
    return status;
}
