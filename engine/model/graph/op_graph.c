/*
 * op_graph.c - appends nodes, points and transfers to an op graph, and drops the unused ones.
 *
 * All lists of the graph are growing arrays. Appending a node scans the fields of its arguments
 * (op_fields.h), notes where they hold symbolic addresses, and extends the lifetime of the buffers
 * that they name. Dropping walks the nodes from the last to the first and keeps a node only if one
 * of its results is live.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/op_graph.h"

#include <string.h>

#include "base/alloc.h"
#include "kernels-deterministic/op_fields.h"

#include "base/invar_banned.h"

/* A symbolic address: a bit that no real address has, the buffer's index, the offset in it. */
#define NAME_BIT ((uintptr_t)1 << 62)
#define ROOM_SHIFT 40
#define OFFSET_MASK (((uintptr_t)1 << ROOM_SHIFT) - 1)

#define ARGS_ALIGN 16 /* alignment of the arguments in the graph's bytes */

enum { ROOMS, CALLS, BYTES, PLACES, POINTS, MOVES };

static void *name_of(int32_t room)
{
    return (void *)(NAME_BIT | (uintptr_t)room << ROOM_SHIFT); // NOLINT: never dereferenced
}

int32_t invar_op_graph_buffer_of(const void *name)
{
    if (!name)
        return -1;
    INVAR_CHECK((uintptr_t)name & NAME_BIT);
    return (int32_t)(((uintptr_t)name & ~NAME_BIT) >> ROOM_SHIFT);
}

size_t invar_op_graph_offset_of(const void *name)
{
    return (uintptr_t)name & OFFSET_MASK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

invar_status invar_op_graph_new(invar_op_graph **out)
{
    INVAR_TRY(INVAR_ALLOC_ZEROED(*out, 1, "a list of calls"));
    invar_op_graph_clear(*out);
    return INVAR_OK;
}

void invar_op_graph_free(invar_op_graph *graph)
{
    if (!graph)
        return;
    invar_free(graph->buffers);
    invar_free(graph->nodes);
    invar_free(graph->bytes);
    invar_free(graph->address_offsets);
    invar_free(graph->points);
    invar_free(graph->transfers);
    invar_free(graph->scratch);
    invar_free(graph);
}

void invar_op_graph_clear(invar_op_graph *graph)
{
    graph->status = INVAR_OK;
    graph->n_buffers = graph->n_nodes = graph->n_address_offsets = graph->n_points = 0;
    graph->n_transfers = 0;
    graph->n_bytes = 0;
    graph->n_sections = 0;
    graph->block = 0;
    graph->rows = graph->max_rows = 0;
    memset(graph->section_start, 0, sizeof graph->section_start);
    memset(graph->n_lead_transfers, 0, sizeof graph->n_lead_transfers);
    for (int i = 0; i < INVAR_OP_GRAPH_MAX_INPUTS; i++)
        graph->inputs[i] = -1;
}

bool invar_op_graph_grow(invar_op_graph *graph, void *list, size_t *capacity, size_t used,
                         size_t need)
{
    char **block = list;
    void *larger;

    if (graph->status != INVAR_OK)
        return false;
    if (need <= *capacity)
        return true;
    graph->status = invar_alloc(&larger, 2 * need, 1, "a list of calls");
    if (graph->status != INVAR_OK)
        return false;
    if (used)
        memcpy(larger, *block, used);
    invar_free(*block);
    *block = larger;
    *capacity = 2 * need;
    return true;
}

/* Grows one of the graph's own lists so that `more` bytes fit after `used`. */
static bool grow_list(invar_op_graph *graph, int which, void *list, size_t used, size_t more)
{
    return invar_op_graph_grow(graph, list, &graph->capacity_bytes[which], used, used + more);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Adds a buffer and returns its symbolic address; that of buffer 0 if memory is short. */
static void *add_buffer(invar_op_graph *graph, size_t bytes, int32_t given)
{
    size_t used = (size_t)graph->n_buffers * sizeof *graph->buffers;

    if (!grow_list(graph, ROOMS, &graph->buffers, used, sizeof *graph->buffers))
        return name_of(0);
    graph->buffers[graph->n_buffers] =
        (invar_graph_buffer){.bytes = bytes, .input = given, .first = -1, .last = -1, .entry = -1};
    return name_of(graph->n_buffers++);
}

void invar_op_graph_reserve_rows(invar_op_graph *graph, int64_t rows, int64_t max_rows)
{
    graph->rows = rows;
    graph->max_rows = max_rows > rows ? max_rows : rows;
}

int64_t invar_op_graph_rows(const invar_op_graph *graph, int64_t rows)
{
    return graph->rows > 0 && rows % graph->rows == 0 ? rows / graph->rows * graph->max_rows : rows;
}

invar_tensor invar_op_graph_tensor(invar_op_graph *graph, invar_dtype dtype, int64_t rows,
                                   int64_t cols)
{
    int64_t most = invar_op_graph_rows(graph, rows);
    size_t bytes = (size_t)(most * (cols ? cols : 1)) * (size_t)invar_dtype_bits(dtype) / 8;
    invar_tensor t;

    if (cols == 0)
        return invar_tensor_1d(add_buffer(graph, bytes, -1), dtype, rows);
    t = invar_tensor_quantized(add_buffer(graph, bytes, -1), NULL, dtype, 1, most, cols);
    if (invar_dtype_scale_block(dtype))
        t.scale = add_buffer(graph, invar_tensor_scale_bytes(&t), -1);
    t.shape[0] = rows;
    return t;
}

void *invar_op_graph_input(invar_op_graph *graph, int32_t number)
{
    INVAR_CHECK(number < INVAR_OP_GRAPH_MAX_INPUTS);
    if (graph->inputs[number] < 0) {
        void *name = add_buffer(graph, 0, number);
        graph->inputs[number] = invar_op_graph_buffer_of(name);
    }
    return name_of(graph->inputs[number]);
}

void invar_op_graph_source(invar_op_graph *graph, const void *name, const invar_graph_point *source)
{
    if (graph->status == INVAR_OK)
        graph->buffers[invar_op_graph_buffer_of(name)].source = source;
}

/* Extends the lifetime of the buffer at `name` to node number `call`. */
static void extend_lifetime(invar_op_graph *graph, const void *name, int32_t call)
{
    invar_graph_buffer *room = &graph->buffers[invar_op_graph_buffer_of(name)];

    if (room->first < 0)
        room->first = call;
    room->last = call;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Notes the address at offset `at` of the arguments of the node that is being appended. */
static void add_place(invar_op_graph *graph, const char *args, size_t at)
{
    size_t used = (size_t)graph->n_address_offsets * sizeof *graph->address_offsets;
    const void *name;

    memcpy(&name, args + at, sizeof name);
    if (!name ||
        !grow_list(graph, PLACES, &graph->address_offsets, used, sizeof *graph->address_offsets))
        return;
    graph->address_offsets[graph->n_address_offsets++] = (uint16_t)at;
    extend_lifetime(graph, name, graph->n_nodes);
}

static void add_places(invar_op_graph *graph, invar_op op, const char *args)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, op);

    for (int i = 0; i < count; i++) {
        const invar_field *f = &fields[i];
        if (f->kind >= INVAR_FIELD_I32 || !invar_field_present(f, args))
            continue;
        INVAR_CHECK(!f->host && f->kind != INVAR_FIELD_TENSORS);
        if (f->kind == INVAR_FIELD_TENSOR) {
            add_place(graph, args, f->offset + offsetof(invar_tensor, data));
            add_place(graph, args, f->offset + offsetof(invar_tensor, scale));
        } else if (f->kind == INVAR_FIELD_SEGMENTS) {
            add_place(graph, args, f->offset + offsetof(invar_row_offsets, offsets));
        } else {
            add_place(graph, args, f->offset);
        }
    }
}

void invar_op_graph_append(invar_op_graph *graph, invar_op op, const void *args, int64_t layer)
{
    size_t used = (size_t)graph->n_nodes * sizeof *graph->nodes, bytes;
    int32_t places = graph->n_address_offsets;

    if (!grow_list(graph, CALLS, &graph->nodes, used, sizeof *graph->nodes) ||
        !grow_list(graph, BYTES, &graph->bytes, graph->n_bytes, INVAR_OP_ARGS_MAX))
        return;
    add_places(graph, op, args);
    if (graph->status != INVAR_OK)
        return;
    graph->nodes[graph->n_nodes++] =
        (invar_graph_node){.op = op,
                           .layer = layer,
                           .args = graph->n_bytes,
                           .address_offsets = places,
                           .n_address_offsets = graph->n_address_offsets - places,
                           .points = graph->n_points,
                           .transfers = graph->n_transfers,
                           .overwrite_offset = -1};
    bytes = invar_op_args_copy(graph->bytes + graph->n_bytes, op, args);
    graph->n_bytes += (bytes + ARGS_ALIGN - 1) / ARGS_ALIGN * ARGS_ALIGN;
}

void invar_op_graph_mark_overwrite(invar_op_graph *graph, size_t offset)
{
    if (graph->status == INVAR_OK)
        graph->nodes[graph->n_nodes - 1].overwrite_offset = (int32_t)offset;
}

static bool add_point(invar_op_graph *graph, const invar_graph_point *point)
{
    size_t used = (size_t)graph->n_points * sizeof *graph->points;

    if (!grow_list(graph, POINTS, &graph->points, used, sizeof *graph->points))
        return false;
    graph->points[graph->n_points++] = *point;
    return true;
}

void invar_op_graph_initial_point(invar_op_graph *graph, const invar_graph_point *point)
{
    if (add_point(graph, point))
        graph->buffers[invar_op_graph_buffer_of(point->rows.data)].entry = graph->n_points - 1;
}

void invar_op_graph_point(invar_op_graph *graph, const invar_graph_point *point)
{
    if (add_point(graph, point))
        graph->nodes[graph->n_nodes - 1].n_points++;
}

void invar_op_graph_transfer(invar_op_graph *graph, const invar_graph_transfer *transfer)
{
    size_t used = (size_t)graph->n_transfers * sizeof *graph->transfers;
    bool leads = graph->n_nodes == graph->section_start[graph->n_sections];
    int32_t call = leads ? graph->n_nodes : graph->n_nodes - 1;

    if (!grow_list(graph, MOVES, &graph->transfers, used, sizeof *graph->transfers))
        return;
    if (leads && graph->n_lead_transfers[graph->n_sections]++ == 0)
        graph->lead_transfers[graph->n_sections] = graph->n_transfers;
    if (!leads)
        graph->nodes[call].n_transfers++;
    graph->transfers[graph->n_transfers++] = *transfer;
    extend_lifetime(graph, transfer->full.data, call);
    if (transfer->local.data)
        extend_lifetime(graph, transfer->local.data, call);
    if (transfer->experts.offsets)
        extend_lifetime(graph, transfer->experts.offsets, call);
}

void invar_op_graph_host_access(invar_op_graph *graph, const invar_tensor *tensor)
{
    if (graph->status != INVAR_OK)
        return;
    extend_lifetime(graph, tensor->data, graph->n_nodes);
    graph->buffers[invar_op_graph_buffer_of(tensor->data)].live = true;
}

void invar_op_graph_end_section(invar_op_graph *graph)
{
    INVAR_CHECK(graph->n_sections < INVAR_OP_GRAPH_MAX_SECTIONS);
    graph->section_start[++graph->n_sections] = graph->n_nodes;
}

/* ---- unused results -------------------------------------------------------------------------- */

/* Returns the buffer that the field points to; NULL if it points to none. */
static invar_graph_buffer *buffer_of_field(const invar_op_graph *graph, const invar_field *f,
                                           const void *args)
{
    if (f->kind >= INVAR_FIELD_I32 || !invar_field_present(f, args))
        return NULL;
    return &graph->buffers[invar_op_graph_buffer_of(invar_field_memory(f, args).data)];
}

/* Returns true if hooks see a point of the node. */
static bool is_shown(const invar_op_graph *graph, const invar_graph_node *call)
{
    for (int32_t i = call->points; i < call->points + call->n_points; i++)
        if (!graph->points[i].recomputed)
            return true;
    return false;
}

/* Keeps the transfer if its destination is live or an input; then marks its sources as live. */
static void keep_used_transfer(invar_op_graph *graph, invar_graph_transfer *transfer)
{
    const invar_graph_buffer *to = &graph->buffers[invar_op_graph_buffer_of(transfer->full.data)];
    const void *const from[] = {transfer->local.data, transfer->experts.offsets};

    transfer->dropped = !to->live && to->input < 0;
    for (size_t i = 0; i < sizeof from / sizeof *from && !transfer->dropped; i++)
        if (from[i])
            graph->buffers[invar_op_graph_buffer_of(from[i])].live = true;
}

/* Keeps the node if one of its results is used; then marks the buffers that it reads as live. */
static void keep_used_node(invar_op_graph *graph, invar_graph_node *call)
{
    const void *args = graph->bytes + call->args;
    bool wanted = is_shown(graph, call);
    int count;
    const invar_field *fields = invar_op_fields(&count, call->op);

    for (int32_t i = call->transfers + call->n_transfers - 1; i >= call->transfers; i--)
        keep_used_transfer(graph, &graph->transfers[i]);
    for (int i = 0; i < count; i++) {
        const invar_graph_buffer *room = buffer_of_field(graph, &fields[i], args);
        if (room && fields[i].role != INVAR_FIELD_IN && (room->live || room->input >= 0))
            wanted = true;
    }
    for (int i = 0; i < count && wanted; i++) {
        invar_graph_buffer *room = buffer_of_field(graph, &fields[i], args);
        if (room && fields[i].role != INVAR_FIELD_OUT)
            room->live = true;
    }
    call->dropped = !wanted;
}

void invar_op_graph_eliminate_dead(invar_op_graph *graph, int32_t first)
{
    for (int32_t i = graph->n_nodes - 1; i >= first && graph->status == INVAR_OK; i--)
        keep_used_node(graph, &graph->nodes[i]);
}
