/*
 * digests.c - what ranks have after weights have travelled.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sync/digests.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/layout/agree.h"
#include "engine/model/pieces.h"
#include "engine/program/near.h"
#include "engine/sync/bytes.h"

#include "base/invar_banned.h"

#define PHASE "digests of weights"

static int64_t count_pieces(const invar_model *model)
{
    int64_t count = 0;

    for (int64_t i = 0; i < model->n_params; i++)
        count += invar_pieces_of(&model->params[i]);
    return count;
}

/* The place of a piece that is here among all pieces of the parameter. */
static int64_t place_of(const invar_param *p, int64_t piece)
{
    const invar_param_box *own = &p->own;

    if (p->cut.pieces == 1)
        return 0;
    return (own->expert + piece / own->pieces) * p->cut.pieces + own->piece + piece % own->pieces;
}

/* The pieces of a parameter that are here, whose weight the host sees as `shown`. */
static invar_status hash_param(invar_digest *out, const invar_param *p, const invar_tensor *shown,
                               invar_pool *pool)
{
    for (int64_t k = 0; k < invar_pieces_here(p); k++) {
        invar_tree_shard planes[INVAR_SYNC_PLANES];
        int count = invar_sync_planes(planes, p, shown, k);
        INVAR_TRY(invar_tree_hash(&out[place_of(p, k)], pool, &(invar_tree_input){planes, count}));
    }
    return INVAR_OK;
}

/* All that are here, into their places. */
static invar_status hash_own(invar_digest *out, const invar_model *model, const invar_device *dev)
{
    invar_window window = {.dev = dev};
    invar_status status = INVAR_OK;

    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++) {
        const invar_param *p = &model->params[i];
        invar_tensor shown;
        if (p->own.experts > 0) {
            status = invar_window_tensor(&shown, &window, &p->weight);
            if (status == INVAR_OK)
                status = hash_param(out, p, &shown, dev->pool);
        }
        out += invar_pieces_of(p);
    }
    invar_window_release(&window);
    return status;
}

/* Those of `all` that this rank gives, one after the other. */
static void pick_given(invar_digest *out, const invar_digest *all, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        for (int64_t k = 0; k < invar_pieces_here(p) && invar_pieces_given(model, p); k++)
            *out++ = all[place_of(p, k)];
        all += invar_pieces_of(p);
    }
}

/* Of all pieces those that are here are as this rank has them. */
static void keep_own(invar_digest *all, const invar_digest *own, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        for (int64_t k = 0; k < invar_pieces_here(p); k++)
            all[place_of(p, k)] = own[place_of(p, k)];
        all += invar_pieces_of(p);
        own += invar_pieces_of(p);
    }
}

/* What others have of the model; of what several have, each keeps its own. */
static invar_status gather(invar_sync_digests *digests)
{
    size_t count = (size_t)digests->count;
    invar_digest *all = NULL, *given;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&all, 2 * count, sizeof *all, PHASE));
    given = all + count;
    pick_given(given, digests->of, digests->model);
    status = invar_pieces_gather(all, digests->model, PHASE, given, sizeof *given, NULL);
    if (status == INVAR_OK) {
        keep_own(all, digests->of, digests->model);
        memcpy(digests->of, all, count * sizeof *all);
    }
    invar_free(all);
    return status;
}

invar_status invar_sync_digests_make(invar_sync_digests *out, const invar_model *model,
                                     const invar_device *dev)
{
    *out = (invar_sync_digests){.model = model, .count = count_pieces(model)};
    INVAR_TRY(invar_alloc((void **)&out->of, (size_t)out->count, sizeof *out->of, PHASE));
    INVAR_TRY(hash_own(out->of, model, dev));
    return invar_model_is_divided(model) ? gather(out) : INVAR_OK;
}

void invar_sync_digests_release(invar_sync_digests *digests)
{
    invar_free(digests->of);
    *digests = (invar_sync_digests){0};
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
        piece -= invar_pieces_of(&model->params[i]);
        if (piece < 0)
            return model->params[i].name;
    }
    return "no parameter";
}

static int64_t first_other(const invar_digest *a, const invar_digest *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!invar_digest_equal(&a[i], &b[i]))
            return i;
    return count;
}

/* The rank that differs learns what most have, and tells where its own first differ. */
static invar_status name_odd(const invar_sync_digests *own, const invar_layout *world,
                             const invar_agree_odd *who)
{
    size_t bytes = (size_t)own->count * sizeof *own->of;
    invar_digest *usual = NULL;
    int64_t first = 0;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&usual, bytes, 1, PHASE));
    memcpy(usual, own->of, bytes);
    status = invar_agree_share(world, PHASE, who->usual, usual, bytes);
    first = first_other(own->of, usual, own->count);
    if (status == INVAR_OK)
        status = invar_agree_share(world, PHASE, who->odd, &first, sizeof first);
    invar_free(usual);
    INVAR_TRY(status);
    return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                      "rank %d on %s has other weights than rank %d on %s after they were synced: "
                      "%s differs; check both hosts and their network with invar doctor --ranks, "
                      "then start the run again",
                      who->odd, invar_comm_host(world->world, who->odd), who->usual,
                      invar_comm_host(world->world, who->usual), param_of(own->model, first));
}

static invar_status compare(invar_sync_result *out, const invar_sync_digests *own,
                            const invar_layout *world, const record *all, invar_digest *hashes)
{
    invar_agree_odd who;
    invar_status status;

    for (int r = 0; r < invar_agree_size(world); r++) {
        out->bytes += all[r].got;
        hashes[r] = all[r].hash;
    }
    who = invar_agree_find_odd(hashes, invar_agree_size(world));
    if (who.odd < 0)
        return INVAR_OK;
    status = name_odd(own, world, &who);
    out->differ = status == INVAR_E_MISMATCH;
    return status;
}

invar_status invar_sync_digests_compare(invar_sync_result *out, const invar_sync_digests *own,
                                        const invar_layout *world, uint64_t got)
{
    size_t size = (size_t)invar_agree_size(world);
    record mine = {.got = got}, *all = NULL;
    invar_digest *hashes = NULL;
    invar_status status;

    invar_hash_bytes(&mine.hash, own->of, (size_t)own->count * sizeof *own->of);
    out->hash = mine.hash;
    INVAR_TRY(invar_alloc((void **)&all, size, sizeof *all, PHASE));
    status = invar_alloc((void **)&hashes, size, sizeof *hashes, PHASE);
    if (status == INVAR_OK)
        status = invar_agree_gather(world, PHASE, &mine, sizeof mine, all);
    if (status == INVAR_OK)
        status = compare(out, own, world, all, hashes);
    invar_free(hashes);
    invar_free(all);
    return status;
}
