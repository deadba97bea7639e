/*
 * gather_points.c - packs points on the ranks that contribute and unpacks them on rank 0.
 *
 * Ranks that divide layers, experts or rows compute the same points, so only the first of them
 * packs; in a rollout, ranks that divide rows have different samples and all of them pack. Rank 0
 * unpacks in the order of rounds, then of ranks, which gives samples the order that they have on
 * one rank.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/gather_points.h"

#include "base/alloc.h"
#include "engine/ranks/layout/rank_collectives.h"

#include "base/invar_banned.h"

static bool is_contributor(const invar_layout *layout, bool sampled)
{
    bool gives = sampled ? invar_layout_engine_sends(layout, layout->rollout_group.rank)
                         : layout->context.rank == 0;

    return gives && layout->tensor.rank == 0 && layout->expert.rank == 0;
}

static invar_status pack_points(invar_rank_buffer *to, const invar_recorder *r, bool sampled)
{
    if (sampled)
        return invar_rollout_points_pack(to, r->sampled);
    INVAR_TRY(invar_probe_pack(to, r->probe));
    return r->dump ? invar_dump_pack(to, r->dump) : INVAR_OK;
}

static invar_status unpack_learned(invar_recorder *r, invar_rank_buffer_reader *from)
{
    INVAR_TRY(invar_probe_unpack(r->probe, from));
    return r->dump ? invar_dump_unpack(r->dump, from) : INVAR_OK;
}

static invar_status unpack_all(invar_recorder *r, const invar_layout *layout, bool sampled,
                               const invar_rank_gathered *gathered)
{
    const char *at = gathered->data;

    for (int rank = 0; rank < invar_ranks_size(layout); at += gathered->bytes[rank++]) {
        invar_rank_buffer_reader rest = {at, gathered->bytes[rank]};

        if (rank > 0 && rest.bytes > 0)
            INVAR_TRY(sampled ? invar_rollout_points_unpack(r->sampled, &rest)
                              : unpack_learned(r, &rest));
    }
    return INVAR_OK;
}

/* Gathers the points of training on rank 0, or those of the rollout if `sampled` is set. */
static invar_status gather_on_leader(invar_recorder *r, const invar_layout *layout, bool sampled)
{
    bool leads = invar_ranks_is_leader(layout), gives = !leads && is_contributor(layout, sampled);
    invar_rank_buffer own = {0};
    invar_rank_gathered gathered = {0};
    invar_status status = gives ? pack_points(&own, r, sampled) : INVAR_OK;

    if (status == INVAR_OK)
        status = invar_ranks_gather(&gathered, layout,
                                    sampled ? "points of the rollout" : "points of units", own.data,
                                    own.bytes);
    if (status == INVAR_OK && leads)
        status = unpack_all(r, layout, sampled, &gathered);
    invar_rank_gathered_release(&gathered);
    invar_rank_buffer_release(&own);
    return status;
}

invar_status invar_gather_points_rollout(invar_recorder *r, const invar_layout *world)
{
    return world && r->sampled ? gather_on_leader(r, world, true) : INVAR_OK;
}

invar_status invar_gather_points_learned(invar_recorder *r)
{
    return gather_on_leader(r, r->options.layout, false);
}

/* ---- stages of a pipeline -------------------------------------------------------------------- */

/* Header of a packed task; `bytes` bytes of points follow. */
typedef struct packed_task {
    int64_t round, bytes;
} packed_task;

static invar_status pack_task(invar_rank_buffer *to, const invar_recorder_stage *s)
{
    INVAR_TRY(invar_probe_pack(to, s->probe));
    return s->dump ? invar_dump_pack(to, s->dump) : INVAR_OK;
}

invar_status invar_gather_points_task(invar_recorder *r, int64_t round)
{
    invar_recorder_stage *s = &r->stage;
    packed_task is = {.round = round};
    invar_rank_buffer shown = {0};
    invar_status status;

    if (!is_contributor(r->options.layout, false))
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

    if (!is_contributor(r->options.layout, false))
        return INVAR_OK;
    INVAR_TRY(invar_point_list_pack(to, &s->listing));
    INVAR_TRY(invar_rank_buffer_put(to, &s->n_tasks, 1, sizeof s->n_tasks));
    return invar_rank_buffer_put(to, s->tasks.data, s->tasks.bytes, 1);
}

/* Unpacks the tasks of one round. *last is raised to the largest round of all tasks. */
static invar_status unpack_tasks(invar_recorder *r, invar_rank_buffer_reader from, int64_t round,
                                 int64_t *last)
{
    const void *count, *item, *shown;

    INVAR_TRY(invar_rank_buffer_take(&count, &from, 1, sizeof(int64_t)));
    for (int64_t i = 0; i < *(const int64_t *)count; i++) {
        const packed_task *is;
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

/* Unpacks the listings of all stages, defines the points, then unpacks the tasks round by round. */
static invar_status unpack_stages(invar_recorder *r, const invar_rank_gathered *gathered)
{
    int ranks = invar_ranks_size(r->options.layout);
    const char *at = gathered->data;
    invar_rank_buffer_reader *rest;
    invar_status status = INVAR_OK;
    int64_t last = 0;

    INVAR_TRY(INVAR_ALLOC(rest, (size_t)ranks, "what stages have shown"));
    for (int i = 0; i < ranks && status == INVAR_OK; i++) {
        rest[i] = (invar_rank_buffer_reader){at, gathered->bytes[i]};
        if (rest[i].bytes > 0)
            status = invar_point_list_unpack(&r->stage.listing, &rest[i]);
        at += gathered->bytes[i];
    }
    if (status == INVAR_OK)
        status = invar_recorder_define_listed_points(r);
    for (int64_t round = 0; round <= last && status == INVAR_OK; round++)
        for (int i = 0; i < ranks && status == INVAR_OK; i++)
            if (rest[i].bytes > 0)
                status = unpack_tasks(r, rest[i], round, &last);
    invar_free(rest);
    return status;
}

invar_status invar_gather_points_stages(invar_recorder *r)
{
    invar_rank_buffer own = {0};
    invar_rank_gathered gathered = {0};
    invar_status status = pack_stage(&own, r);

    if (status == INVAR_OK)
        status = invar_ranks_gather(&gathered, r->options.layout, "points of stages", own.data,
                                    own.bytes);
    if (status == INVAR_OK && invar_ranks_is_leader(r->options.layout))
        status = unpack_stages(r, &gathered);
    invar_rank_gathered_release(&gathered);
    invar_rank_buffer_release(&own);
    return status;
}
