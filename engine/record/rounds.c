/*
 * rounds.c - points that several ranks have computed.
 *
 * Ranks that divide layers or experts have computed the same: the first of them packs it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/rounds.h"

#include "engine/layout/agree.h"

#include "base/invar_banned.h"

/* What one rank packs, and rank 0 takes of each other. */
typedef struct kind {
    const char *phase;
    invar_status (*pack)(invar_parcel *to, invar_recorder *r);
    invar_status (*unpack)(invar_recorder *r, invar_parcel_rest *from);
} kind;

static invar_status unpack_all(invar_recorder *r, const kind *k, const invar_agree_pile *pile)
{
    const char *at = pile->data;

    for (int rank = 0; rank < invar_agree_size(r->options.layout); rank++) {
        invar_parcel_rest rest = {at, pile->bytes[rank]};
        if (rank > 0 && rest.bytes > 0)
            INVAR_TRY(k->unpack(r, &rest));
        at += pile->bytes[rank];
    }
    return INVAR_OK;
}

static bool packs(const invar_layout *layout)
{
    return layout->tensor.rank == 0 && layout->expert.rank == 0;
}

static invar_status unite(invar_recorder *r, const kind *k)
{
    bool leads = invar_agree_leads(r->options.layout);
    invar_parcel own = {0};
    invar_agree_pile pile = {0};
    invar_status status = leads || !packs(r->options.layout) ? INVAR_OK : k->pack(&own, r);

    if (status == INVAR_OK)
        status = invar_agree_collect(&pile, r->options.layout, k->phase, own.data, own.bytes);
    if (status == INVAR_OK && leads)
        status = unpack_all(r, k, &pile);
    invar_agree_pile_release(&pile);
    invar_parcel_release(&own);
    return status;
}

static invar_status pack_sampled(invar_parcel *to, invar_recorder *r)
{
    return invar_sequences_pack(to, r->sampled);
}

static invar_status unpack_sampled(invar_recorder *r, invar_parcel_rest *from)
{
    return invar_sequences_unpack(r->sampled, from);
}

invar_status invar_rounds_rollout(invar_recorder *r)
{
    static const kind sampled = {"points of the rollout", pack_sampled, unpack_sampled};

    if (!r->options.layout || !r->sampled || r->united)
        return INVAR_OK;
    r->united = true;
    return unite(r, &sampled);
}

static invar_status pack_learned(invar_parcel *to, invar_recorder *r)
{
    INVAR_TRY(invar_probe_pack(to, r->probe));
    return r->dump ? invar_dump_pack(to, r->dump) : INVAR_OK;
}

static invar_status unpack_learned(invar_recorder *r, invar_parcel_rest *from)
{
    INVAR_TRY(invar_probe_unpack(r->probe, from));
    return r->dump ? invar_dump_unpack(r->dump, from) : INVAR_OK;
}

invar_status invar_rounds_learned(invar_recorder *r)
{
    static const kind learned = {"points of units", pack_learned, unpack_learned};

    return unite(r, &learned);
}
