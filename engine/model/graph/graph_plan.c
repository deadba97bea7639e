/*
 * graph_plan.c - places the buffers of an op graph in one block: memory is reused after the last
 * use.
 *
 * The nodes are walked in order. A buffer takes the smallest free gap that it fits in; otherwise it
 * extends the gap at the end of the block or the block. The offsets are therefore a pure function
 * of the graph. Best-fit gaps are not optimal, but fast: graphs of a thousand buffers are planned
 * between two decode steps.
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

/* Gaps in ascending order; adjacent ones are merged. */
typedef struct gaps {
    gap *at;
    int32_t count;
    size_t end; /* size of the block so far */
} gaps;

static void remove_gap(gaps *g, int32_t i)
{
    memmove(&g->at[i], &g->at[i + 1], (size_t)(g->count - i - 1) * sizeof *g->at);
    g->count--;
}

static size_t alloc_gap(gaps *g, size_t bytes)
{
    int32_t best = -1;
    size_t from;

    for (int32_t i = 0; i < g->count; i++) {
        size_t have = g->at[i].to - g->at[i].from;
        if (have >= bytes && (best < 0 || have < g->at[best].to - g->at[best].from))
            best = i;
    }
    if (best < 0) { // at the end, extending a gap that may lie there
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

static void free_gap(gaps *g, size_t from, size_t bytes)
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

static bool is_planned(const invar_graph_buffer *room)
{
    return room->input < 0 && room->first >= 0 && room->bytes > 0;
}

/* Buffers by the node of their first use and by the node of their last use, as linked lists. */
typedef struct buffer_lists {
    int32_t *first, *last;             /* (nodes + 2) first buffer of each node, or -1 */
    int32_t *after_first, *after_last; /* (buffers) next buffer of the list, or -1 */
} buffer_lists;

/*
 * Fills the lists. Node i has list i + 1; the last list has the buffers that the host accesses
 * after the last node.
 */
static void list_buffers_by_node(buffer_lists *l, const invar_op_graph *p)
{
    for (int32_t i = 0; i < p->n_nodes + 2; i++)
        l->first[i] = l->last[i] = -1;
    for (int32_t i = p->n_buffers - 1; i >= 0; i--) {
        const invar_graph_buffer *r = &p->buffers[i];
        if (!is_planned(r))
            continue;
        l->after_first[i] = l->first[r->first + 1];
        l->first[r->first + 1] = i;
        l->after_last[i] = l->last[r->last + 1];
        l->last[r->last + 1] = i;
    }
}

static void place_buffers(invar_op_graph *p, const buffer_lists *l, gaps *g)
{
    for (int32_t call = 0; call < p->n_nodes + 2; call++) {
        for (int32_t i = l->first[call]; i >= 0; i = l->after_first[i])
            p->buffers[i].offset = alloc_gap(g, invar_aligned(p->buffers[i].bytes));
        for (int32_t i = l->last[call]; i >= 0; i = l->after_last[i])
            free_gap(g, p->buffers[i].offset, invar_aligned(p->buffers[i].bytes));
    }
    p->block = g->end;
}

invar_status invar_op_graph_plan(invar_op_graph *graph)
{
    size_t calls = (size_t)graph->n_nodes + 2, rooms = (size_t)graph->n_buffers;
    size_t need = (rooms + 1) * sizeof(gap) + 2 * (calls + rooms) * sizeof(int32_t);
    gaps g = {NULL, 0, 0};
    int32_t *memory;
    buffer_lists l;

    INVAR_TRY(graph->status);
    if (need > graph->scratch_bytes) {
        invar_free(graph->scratch);
        graph->scratch = NULL;
        graph->scratch_bytes = 0;
        INVAR_TRY(invar_alloc(&graph->scratch, 2 * need, 1, "a plan of memory"));
        graph->scratch_bytes = 2 * need;
    }
    g.at = graph->scratch;
    memory = (int32_t *)(g.at + rooms + 1);
    l = (buffer_lists){memory, memory + calls, memory + 2 * calls, memory + 2 * calls + rooms};
    list_buffers_by_node(&l, graph);
    place_buffers(graph, &l, &g);
    return INVAR_OK;
}
