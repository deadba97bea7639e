/*
 * graph_plan.c - where the rooms of a program lie: a room's place is free again after its last
 * call.
 *
 * Calls are walked in order. A room takes the smallest gap that it fits in, or grows the last one,
 * or else the block; so the places are a pure function of the list. Lists of a thousand rooms are
 * planned between two steps of decoding: hence gaps, and not the best of all plans.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/op_graph.h"

#include "base/invar_banned.h"

/* Free memory [from, to) of the block. */
typedef struct gap {
    size_t from, to;
} gap;

/* Ascending, never touching each other. */
typedef struct gaps {
    gap *at;
    int32_t count;
    size_t end; /* of the block */
} gaps;

static void remove_gap(gaps *g, int32_t i)
{
    memmove(&g->at[i], &g->at[i + 1], (size_t)(g->count - i - 1) * sizeof *g->at);
    g->count--;
}

static size_t gaps_take(gaps *g, size_t bytes)
{
    int32_t best = -1;
    size_t from;

    for (int32_t i = 0; i < g->count; i++) {
        size_t have = g->at[i].to - g->at[i].from;
        if (have >= bytes && (best < 0 || have < g->at[best].to - g->at[best].from))
            best = i;
    }
    if (best < 0) { // at the end, where a gap may lie already
        bool open = g->count > 0 && g->at[g->count - 1].to == g->end;
        from = open ? g->at[g->count - 1].from : g->end;
        g->end = from + bytes;
        if (open)
            remove_gap(g, g->count - 1);
        return from;
    }
    from = g->at[best].from;
    g->at[best].from += bytes;
    if (g->at[best].from == g->at[best].to)
        remove_gap(g, best);
    return from;
}

static void gaps_free(gaps *g, size_t from, size_t bytes)
{
    int32_t i = 0;

    while (i < g->count && g->at[i].from < from)
        i++;
    memmove(&g->at[i + 1], &g->at[i], (size_t)(g->count - i) * sizeof *g->at);
    g->at[i].from = from;
    g->at[i].to = from + bytes;
    g->count++;
    if (i + 1 < g->count && g->at[i].to == g->at[i + 1].from) {
        g->at[i].to = g->at[i + 1].to;
        remove_gap(g, i + 1);
    }
    if (i > 0 && g->at[i - 1].to == g->at[i].from) {
        g->at[i - 1].to = g->at[i].to;
        remove_gap(g, i);
    }
}

static bool graph_buffer_planned(const invar_graph_buffer *room)
{
    return room->given < 0 && room->first >= 0 && room->bytes > 0;
}

/* One list of rooms for each call, by first or by last use: heads by call, links by room. */
typedef struct lists {
    int32_t *first, *last;             /* (calls + 2): the room that comes first, or -1 */
    int32_t *after_first, *after_last; /* (rooms): the next one */
} lists;

/* The host may touch rooms before the first call and behind the last: numbers -1 and n. */
static void sort_rooms(lists *l, const invar_op_graph *p)
{
    for (int32_t i = 0; i < p->n_calls + 2; i++)
        l->first[i] = l->last[i] = -1;
    for (int32_t i = p->n_rooms - 1; i >= 0; i--) {
        const invar_graph_buffer *r = &p->rooms[i];
        if (!graph_buffer_planned(r))
            continue;
        l->after_first[i] = l->first[r->first + 1];
        l->first[r->first + 1] = i;
        l->after_last[i] = l->last[r->last + 1];
        l->last[r->last + 1] = i;
    }
}

static void place_rooms(invar_op_graph *p, const lists *l, gaps *g)
{
    for (int32_t call = 0; call < p->n_calls + 2; call++) {
        for (int32_t i = l->first[call]; i >= 0; i = l->after_first[i])
            p->rooms[i].offset = gaps_take(g, invar_aligned(p->rooms[i].bytes));
        for (int32_t i = l->last[call]; i >= 0; i = l->after_last[i])
            gaps_free(g, p->rooms[i].offset, invar_aligned(p->rooms[i].bytes));
    }
    p->block = g->end;
}

invar_status invar_op_graph_plan(invar_op_graph *program)
{
    size_t calls = (size_t)program->n_calls + 2, rooms = (size_t)program->n_rooms;
    size_t need = (rooms + 1) * sizeof(gap) + 2 * (calls + rooms) * sizeof(int32_t);
    gaps g = {NULL, 0, 0};
    int32_t *memory;
    lists l;

    INVAR_TRY(program->status);
    if (need > program->scratch_bytes) {
        invar_free(program->scratch);
        program->scratch = NULL;
        program->scratch_bytes = 0;
        INVAR_TRY(invar_alloc(&program->scratch, 2 * need, 1, "a plan of memory"));
        program->scratch_bytes = 2 * need;
    }
    g.at = program->scratch;
    memory = (int32_t *)(g.at + rooms + 1);
    l = (lists){memory, memory + calls, memory + 2 * calls, memory + 2 * calls + rooms};
    sort_rooms(&l, program);
    place_rooms(program, &l, &g);
    return INVAR_OK;
}
