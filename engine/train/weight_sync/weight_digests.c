/*
 * weight_digests.c - verifies after a weight sync that all ranks have the same weights.
 *
 * Each rank hashes its memory, not what was sent. First one digest per rank is compared; only if
 * they differ, further collectives find the first differing shard and the rank whose copy differs
 * from the majority, which the error message names. All ranks take the same branches, because they
 * decide on gathered data.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/weight_sync/weight_digests.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/model/shard/logical_shards.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/train/weight_sync/weight_planes.h"

#include "base/invar_banned.h"

#define PHASE "digests of weights"

static int64_t count_shards(const invar_model *model)
{
    int64_t count = 0;

    for (int64_t i = 0; i < model->n_params; i++)
        count += invar_logical_shards_of(&model->params[i]);
    return count;
}

/* Returns the index of a local shard among all logical shards of the parameter. */
static int64_t shard_index_of(const invar_param *p, int64_t piece)
{
    const invar_param_shard *own = &p->local;

    if (p->split.shards == 1)
        return 0;
    return (own->expert + piece / own->n_shards) * p->split.shards + own->first_shard +
           piece % own->n_shards;
}

/* Hashes the local logical shards of a parameter; `shown` is its weight in host memory. */
static invar_status hash_param(invar_digest *out, const invar_param *p, const invar_tensor *shown,
                               invar_pool *pool)
{
    for (int64_t k = 0; k < invar_logical_shards_here(p); k++) {
        invar_tree_shard planes[INVAR_WEIGHT_SYNC_PLANES];
        int count = invar_weight_sync_planes(planes, p, shown, k);
        INVAR_TRY(
            invar_tree_hash(&out[shard_index_of(p, k)], pool, &(invar_tree_input){planes, count}));
    }
    return INVAR_OK;
}

/* Hashes all local logical shards, each to its canonical index. */
static invar_status hash_local_shards(invar_digest *out, const invar_model *model,
                                      const invar_device *dev)
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

/* Copies the digests in `all` that this rank contributes, in order. */
static void copy_contributed(invar_digest *out, const invar_digest *all, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        for (int64_t k = 0;
             k < invar_logical_shards_here(p) && invar_logical_shards_is_contributor(model, p); k++)
            *out++ = all[shard_index_of(p, k)];
        all += invar_logical_shards_of(p);
    }
}

/* Replaces the digests of local shards in `all` by those that this rank computed. */
static void restore_local(invar_digest *all, const invar_digest *own, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        for (int64_t k = 0; k < invar_logical_shards_here(p); k++)
            all[shard_index_of(p, k)] = own[shard_index_of(p, k)];
        all += invar_logical_shards_of(p);
        own += invar_logical_shards_of(p);
    }
}

/*
 * Gathers the digests of the shards on other ranks. A shard that several ranks hold keeps the
 * digest of this rank.
 */
static invar_status gather_digests(invar_weight_digests *digests)
{
    size_t count = (size_t)digests->count;
    invar_digest *all = NULL, *given;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(all, 2 * count, PHASE));
    given = all + count;
    copy_contributed(given, digests->digests, digests->model);
    status = invar_logical_shards_gather(all, digests->model, PHASE, given, sizeof *given, NULL);
    if (status == INVAR_OK) {
        restore_local(all, digests->digests, digests->model);
        memcpy(digests->digests, all, count * sizeof *all);
    }
    invar_free(all);
    return status;
}

invar_status invar_weight_digests_make(invar_weight_digests *out, const invar_model *model,
                                       const invar_device *dev)
{
    *out = (invar_weight_digests){.model = model, .count = count_shards(model)};
    INVAR_TRY(INVAR_ALLOC(out->digests, (size_t)out->count, PHASE));
    INVAR_TRY(hash_local_shards(out->digests, model, dev));
    return invar_model_is_divided(model) ? gather_digests(out) : INVAR_OK;
}

void invar_weight_digests_release(invar_weight_digests *digests)
{
    invar_free(digests->digests);
    *digests = (invar_weight_digests){0};
}

/* Digest and received bytes of one rank, gathered from all ranks. */
typedef struct rank_report {
    invar_digest hash;
    uint64_t got;
} rank_report;

/* Returns the name of the parameter of the piece-th logical shard of the model. */
static const char *param_of(const invar_model *model, int64_t piece)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        piece -= invar_logical_shards_of(&model->params[i]);
        if (piece < 0)
            return model->params[i].name;
    }
    return "no parameter";
}

/* Returns true if this rank holds the piece-th logical shard of the model. */
static bool holds_shard(const invar_model *model, int64_t piece)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        for (int64_t k = 0; k < invar_logical_shards_here(p) && piece < invar_logical_shards_of(p);
             k++)
            if (shard_index_of(p, k) == piece)
                return true;
        piece -= invar_logical_shards_of(p);
        if (piece < 0)
            return false;
    }
    return false;
}

/* Returns the first local shard whose digest differs from `usual`; own->count if all equal. */
static int64_t first_difference(const invar_weight_digests *own, const invar_digest *usual)
{
    for (int64_t i = 0; i < own->count; i++)
        if (!invar_digest_equal(&own->digests[i], &usual[i]) && holds_shard(own->model, i))
            return i;
    return own->count;
}

/*
 * Finds the first shard that any rank holds with another digest than rank `usual` reports.
 * Collective: all ranks of the world must call it.
 */
static invar_status find_differing_shard(int64_t *out, const invar_weight_digests *own,
                                         const invar_layout *world, int usual)
{
    size_t size = (size_t)invar_ranks_size(world);
    size_t bytes = (size_t)own->count * sizeof *own->digests;
    invar_digest *known = NULL;
    int64_t *firsts = NULL, first = own->count;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_SIZED(known, bytes + size * sizeof *firsts, 1, PHASE));
    firsts = (int64_t *)(void *)(known + own->count);
    memcpy(known, own->digests, bytes);
    status = invar_ranks_broadcast(world, PHASE, usual, known, bytes);
    if (status == INVAR_OK) {
        first = first_difference(own, known);
        status = invar_ranks_all_gather(world, PHASE, &first, sizeof first, firsts);
    }
    *out = first;
    for (size_t r = 0; status == INVAR_OK && r < size; r++)
        *out = firsts[r] < *out ? firsts[r] : *out;
    invar_free(known);
    return status;
}

/* Digest of one shard on one rank; `here` is 1 if the rank holds it. */
typedef struct shard_report {
    invar_digest digest;
    uint64_t here;
} shard_report;

/*
 * Finds the rank that differs from the majority of those that hold a shard. Collective: all ranks
 * of the world must call it.
 */
static invar_status find_differing_rank(invar_rank_outlier *out, const invar_weight_digests *own,
                                        const invar_layout *world, int64_t piece)
{
    int size = invar_ranks_size(world), count = 0;
    shard_report mine = {.digest = own->digests[piece], .here = holds_shard(own->model, piece)},
                 *all = NULL;
    invar_digest *digests;
    invar_status status;
    int *ranks;

    INVAR_TRY(
        INVAR_ALLOC_SIZED(all, (size_t)size, sizeof *all + sizeof *digests + sizeof *ranks, PHASE));
    digests = (invar_digest *)(void *)(all + size);
    ranks = (int *)(void *)(digests + size);
    status = invar_ranks_all_gather(world, PHASE, &mine, sizeof mine, all);
    for (int r = 0; status == INVAR_OK && r < size; r++)
        if (all[r].here) {
            digests[count] = all[r].digest;
            ranks[count++] = r;
        }
    if (status == INVAR_OK) {
        *out = invar_ranks_find_outlier(digests, count);
        INVAR_CHECK(out->differing_rank >= 0);
        out->differing_rank = ranks[out->differing_rank];
        out->majority_rank = ranks[out->majority_rank];
    }
    invar_free(all);
    return status;
}

/*
 * Fails with the rank whose weights differ. The ranks of a divided model also have the digests of
 * shards on other ranks, so the rank that holds the differing shard must be found. Collective: all
 * ranks of the world must call it.
 */
static invar_status report_differing_rank(const invar_weight_digests *own,
                                          const invar_layout *world, int usual)
{
    invar_rank_outlier outlier;
    int64_t piece;

    INVAR_TRY(find_differing_shard(&piece, own, world, usual));
    INVAR_CHECK(piece < own->count);
    INVAR_TRY(find_differing_rank(&outlier, own, world, piece));
    return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                      "rank %d on %s has other weights than rank %d on %s after they were synced: "
                      "%s differs; check both hosts and their network with invar doctor --ranks, "
                      "then start the run again",
                      outlier.differing_rank, invar_comm_host(world->world, outlier.differing_rank),
                      outlier.majority_rank, invar_comm_host(world->world, outlier.majority_rank),
                      param_of(own->model, piece));
}

static invar_status compare_reports(invar_weight_sync_result *out, const invar_weight_digests *own,
                                    const invar_layout *world, const rank_report *all,
                                    invar_digest *hashes)
{
    invar_rank_outlier outlier;
    invar_status status;

    for (int r = 0; r < invar_ranks_size(world); r++) {
        out->bytes += all[r].got;
        hashes[r] = all[r].hash;
    }
    outlier = invar_ranks_find_outlier(hashes, invar_ranks_size(world));
    if (outlier.differing_rank < 0)
        return INVAR_OK;
    status = report_differing_rank(own, world, outlier.majority_rank);
    out->differ = status == INVAR_E_MISMATCH;
    return status;
}

invar_status invar_weight_digests_compare(invar_weight_sync_result *out,
                                          const invar_weight_digests *own,
                                          const invar_layout *world, uint64_t got)
{
    size_t size = (size_t)invar_ranks_size(world);
    rank_report mine = {.got = got}, *all = NULL;
    invar_digest *hashes = NULL;
    invar_status status;

    invar_hash_bytes(&mine.hash, own->digests, (size_t)own->count * sizeof *own->digests);
    out->hash = mine.hash;
    INVAR_TRY(INVAR_ALLOC(all, size, PHASE));
    status = INVAR_ALLOC(hashes, size, PHASE);
    if (status == INVAR_OK)
        status = invar_ranks_all_gather(world, PHASE, &mine, sizeof mine, all);
    if (status == INVAR_OK)
        status = compare_reports(out, own, world, all, hashes);
    invar_free(hashes);
    invar_free(all);
    return status;
}
