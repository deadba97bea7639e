/*
 * gather_points.c - points that several ranks have computed.
 *
 * Ranks that divide layers, experts or rows have computed the same: the first of them packs it. In
 * a rollout those that divide rows have other samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/gather_points.h"

#include "base/alloc.h"
#include "engine/ranks/layout/rank_collectives.h"

#include "base/invar_banned.h"

/* What one rank packs, and rank 0 takes of each other. */
typedef struct kind {
    const char *phase;
    bool sampled;
    invar_status (*pack)(invar_rank_buffer *to, invar_recorder *r);
    invar_status (*unpack)(invar_recorder *r, invar_rank_buffer_reader *from);
} kind;

static invar_status unpack_all(invar_recorder *r, const invar_layout *layout, const kind *k,
                               const invar_rank_gathered *pile)
{
    const char *at = pile->data;

    for (int rank = 0; rank < invar_ranks_size(layout); rank++) {
        invar_rank_buffer_reader rest = {at, pile->bytes[rank]};
        if (rank > 0 && rest.bytes > 0)
            INVAR_TRY(k->unpack(r, &rest));
        at += pile->bytes[rank];
    }
    return INVAR_OK;
}

static bool layout_packs(const invar_layout *layout, bool sampled)
{
    bool gives = sampled ? invar_layout_engine_gives(layout, layout->rollout_group.rank)
                         : layout->context.rank == 0;

    return gives && layout->tensor.rank == 0 && layout->expert.rank == 0;
}

static invar_status recorder_unite(invar_recorder *r, const invar_layout *layout, const kind *k)
{
    bool leads = invar_ranks_is_leader(layout), gives = !leads && layout_packs(layout, k->sampled);
    invar_rank_buffer own = {0};
    invar_rank_gathered pile = {0};
    invar_status status = gives ? k->pack(&own, r) : INVAR_OK;

    if (status == INVAR_OK)
        status = invar_ranks_gather(&pile, layout, k->phase, own.data, own.bytes);
    if (status == INVAR_OK && leads)
        status = unpack_all(r, layout, k, &pile);
    invar_ranks_pile_release(&pile);
    invar_rank_buffer_release(&own);
    return status;
}

static invar_status pack_sampled(invar_rank_buffer *to, invar_recorder *r)
{
    return invar_rollout_points_pack(to, r->sampled);
}

static invar_status unpack_sampled(invar_recorder *r, invar_rank_buffer_reader *from)
{
    return invar_rollout_points_unpack(r->sampled, from);
}

invar_status invar_gather_points_rollout(invar_recorder *r, const invar_layout *world)
{
    static const kind sampled = {"points of the rollout", true, pack_sampled, unpack_sampled};

    return world && r->sampled ? recorder_unite(r, world, &sampled) : INVAR_OK;
}

static invar_status pack_learned(invar_rank_buffer *to, invar_recorder *r)
{
    INVAR_TRY(invar_probe_pack(to, r->probe));
    return r->dump ? invar_dump_pack(to, r->dump) : INVAR_OK;
}

static invar_status unpack_learned(invar_recorder *r, invar_rank_buffer_reader *from)
{
    INVAR_TRY(invar_probe_unpack(r->probe, from));
    return r->dump ? invar_dump_unpack(r->dump, from) : INVAR_OK;
}

invar_status invar_gather_points_learned(invar_recorder *r)
{
    static const kind learned = {"points of units", false, pack_learned, unpack_learned};

    return recorder_unite(r, r->options.layout, &learned);
}

/* ---- stages of a pipeline -------------------------------------------------------------------- */

/* A task on its way; what it has shown follows. */
typedef struct task {
    int64_t round, bytes;
} task;

static invar_status pack_task(invar_rank_buffer *to, const invar_recorder_stage *s)
{
    INVAR_TRY(invar_probe_pack(to, s->probe));
    return s->dump ? invar_dump_pack(to, s->dump) : INVAR_OK;
}

invar_status invar_gather_points_task(invar_recorder *r, int64_t round)
{
    invar_recorder_stage *s = &r->stage;
    task is = {.round = round};
    invar_rank_buffer shown = {0};
    invar_status status;

    if (!layout_packs(r->options.layout, false))
        return INVAR_OK;
    status = pack_task(&shown, s);
    is.bytes = (int64_t)shown.bytes;
    if (status == INVAR_OK)
        status = invar_rank_buffer_put(&s->tasks, &is, 1, sizeof is);
    if (status == INVAR_OK)
        status = invar_rank_buffer_put(&s->tasks, shown.data, shown.bytes, 1);
    s->n_tasks += status == INVAR_OK;
    invar_rank_buffer_release(&shown);
    return status;
}

static invar_status pack_stage(invar_rank_buffer *to, const invar_recorder *r)
{
    const invar_recorder_stage *s = &r->stage;

    if (!layout_packs(r->options.layout, false))
        return INVAR_OK;
    INVAR_TRY(invar_point_list_pack(to, &s->listing));
    INVAR_TRY(invar_rank_buffer_put(to, &s->n_tasks, 1, sizeof s->n_tasks));
    return invar_rank_buffer_put(to, s->tasks.data, s->tasks.bytes, 1);
}

/* The tasks of this round; *last is the largest round of all. */
static invar_status take_tasks(invar_recorder *r, invar_rank_buffer_reader from, int64_t round,
                               int64_t *last)
{
    const void *count, *item, *shown;

    INVAR_TRY(invar_rank_buffer_take(&count, &from, 1, sizeof(int64_t)));
    for (int64_t i = 0; i < *(const int64_t *)count; i++) {
        const task *is;
        INVAR_TRY(invar_rank_buffer_take(&item, &from, 1, sizeof *is));
        is = item;
        INVAR_TRY(invar_rank_buffer_take(&shown, &from, is->bytes, 1));
        *last = is->round > *last ? is->round : *last;
        if (is->round == round)
            INVAR_TRY(unpack_learned(
                r, &(invar_rank_buffer_reader){.cursor = shown, .bytes = (size_t)is->bytes}));
    }
    return INVAR_OK;
}

/* What ranks have packed, behind their listings. */
static invar_status take_stages(invar_recorder *r, const invar_rank_gathered *pile)
{
    int ranks = invar_ranks_size(r->options.layout);
    const char *at = pile->data;
    invar_rank_buffer_reader *rest;
    invar_status status = INVAR_OK;
    int64_t last = 0;

    INVAR_TRY(invar_alloc((void **)&rest, (size_t)ranks, sizeof *rest, "what stages have shown"));
    for (int i = 0; i < ranks && status == INVAR_OK; i++) {
        rest[i] = (invar_rank_buffer_reader){at, pile->bytes[i]};
        if (rest[i].bytes > 0)
            status = invar_point_list_unpack(&r->stage.listing, &rest[i]);
        at += pile->bytes[i];
    }
    if (status == INVAR_OK)
        status = invar_recorder_define(r);
    for (int64_t round = 0; round <= last && status == INVAR_OK; round++)
        for (int i = 0; i < ranks && status == INVAR_OK; i++)
            if (rest[i].bytes > 0)
                status = take_tasks(r, rest[i], round, &last);
    invar_free(rest);
    return status;
}

invar_status invar_gather_points_stages(invar_recorder *r)
{
    invar_rank_buffer own = {0};
    invar_rank_gathered pile = {0};
    invar_status status = pack_stage(&own, r);

    if (status == INVAR_OK)
        status =
            invar_ranks_gather(&pile, r->options.layout, "points of stages", own.data, own.bytes);
    if (status == INVAR_OK && invar_ranks_is_leader(r->options.layout))
        status = take_stages(r, &pile);
    invar_ranks_pile_release(&pile);
    invar_rank_buffer_release(&own);
    return status;
}
