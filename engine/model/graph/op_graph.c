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

int32_t invar_op_graph_room_of(const void *name)
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
    INVAR_TRY(invar_alloc((void **)out, 1, sizeof **out, "a list of calls"));
    memset(*out, 0, sizeof **out);
    invar_op_graph_clear(*out);
    return INVAR_OK;
}

void invar_op_graph_free(invar_op_graph *program)
{
    if (!program)
        return;
    invar_free(program->rooms);
    invar_free(program->calls);
    invar_free(program->bytes);
    invar_free(program->places);
    invar_free(program->points);
    invar_free(program->moves);
    invar_free(program->scratch);
    invar_free(program);
}

void invar_op_graph_clear(invar_op_graph *program)
{
    program->status = INVAR_OK;
    program->n_rooms = program->n_calls = program->n_places = program->n_points = 0;
    program->n_moves = 0;
    program->n_bytes = 0;
    program->n_segments = 0;
    program->block = 0;
    program->rows = program->max_rows = 0;
    memset(program->section_start, 0, sizeof program->section_start);
    memset(program->n_leads, 0, sizeof program->n_leads);
    for (int i = 0; i < INVAR_OP_GRAPH_MAX_GIVEN; i++)
        program->given[i] = -1;
}

bool invar_op_graph_grow(invar_op_graph *program, void *list, size_t *room, size_t used,
                         size_t need)
{
    char **block = list;
    void *larger;

    if (program->status != INVAR_OK)
        return false;
    if (need <= *room)
        return true;
    program->status = invar_alloc(&larger, 2 * need, 1, "a list of calls");
    if (program->status != INVAR_OK)
        return false;
    if (used)
        memcpy(larger, *block, used);
    invar_free(*block);
    *block = larger;
    *room = 2 * need;
    return true;
}

/* Grows one of the graph's own lists so that `more` bytes fit after `used`. */
static bool grow_list(invar_op_graph *program, int which, void *list, size_t used, size_t more)
{
    return invar_op_graph_grow(program, list, &program->room_for[which], used, used + more);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Adds a buffer and returns its symbolic address; that of buffer 0 if memory is short. */
static void *add_buffer(invar_op_graph *program, size_t bytes, int32_t given)
{
    size_t used = (size_t)program->n_rooms * sizeof *program->rooms;

    if (!grow_list(program, ROOMS, &program->rooms, used, sizeof *program->rooms))
        return name_of(0);
    program->rooms[program->n_rooms] =
        (invar_graph_buffer){.bytes = bytes, .given = given, .first = -1, .last = -1, .entry = -1};
    return name_of(program->n_rooms++);
}

void invar_op_graph_reserve_rows(invar_op_graph *program, int64_t rows, int64_t most)
{
    program->rows = rows;
    program->max_rows = most > rows ? most : rows;
}

int64_t invar_op_graph_rows(const invar_op_graph *program, int64_t rows)
{
    return program->rows > 0 && rows % program->rows == 0 ? rows / program->rows * program->max_rows
                                                          : rows;
}

invar_tensor invar_op_graph_tensor(invar_op_graph *program, invar_dtype dtype, int64_t rows,
                                   int64_t cols)
{
    int64_t most = invar_op_graph_rows(program, rows);
    size_t bytes = (size_t)(most * (cols ? cols : 1)) * (size_t)invar_dtype_bits(dtype) / 8;
    invar_tensor t;

    if (cols == 0)
        return invar_tensor_1d(add_buffer(program, bytes, -1), dtype, rows);
    t = invar_tensor_quantized(add_buffer(program, bytes, -1), NULL, dtype, 1, most, cols);
    if (invar_dtype_scale_block(dtype))
        t.scale = add_buffer(program, invar_tensor_scale_bytes(&t), -1);
    t.shape[0] = rows;
    return t;
}

void *invar_op_graph_input(invar_op_graph *program, int32_t number)
{
    INVAR_CHECK(number < INVAR_OP_GRAPH_MAX_GIVEN);
    if (program->given[number] < 0) {
        void *name = add_buffer(program, 0, number);
        program->given[number] = invar_op_graph_room_of(name);
    }
    return name_of(program->given[number]);
}

void invar_op_graph_source(invar_op_graph *program, const void *name,
                           const invar_graph_point *source)
{
    if (program->status == INVAR_OK)
        program->rooms[invar_op_graph_room_of(name)].source = source;
}

/* Extends the lifetime of the buffer at `name` to node number `call`. */
static void extend_lifetime(invar_op_graph *program, const void *name, int32_t call)
{
    invar_graph_buffer *room = &program->rooms[invar_op_graph_room_of(name)];

    if (room->first < 0)
        room->first = call;
    room->last = call;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Notes the address at offset `at` of the arguments of the node that is being appended. */
static void add_place(invar_op_graph *program, const char *args, size_t at)
{
    size_t used = (size_t)program->n_places * sizeof *program->places;
    const void *name;

    memcpy(&name, args + at, sizeof name);
    if (!name || !grow_list(program, PLACES, &program->places, used, sizeof *program->places))
        return;
    program->places[program->n_places++] = (uint16_t)at;
    extend_lifetime(program, name, program->n_calls);
}

static void add_places(invar_op_graph *program, invar_op op, const char *args)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, op);

    for (int i = 0; i < count; i++) {
        const invar_field *f = &fields[i];
        if (f->kind >= INVAR_FIELD_I32 || !invar_field_present(f, args))
            continue;
        INVAR_CHECK(!f->host && f->kind != INVAR_FIELD_TENSORS);
        if (f->kind == INVAR_FIELD_TENSOR) {
            add_place(program, args, f->offset + offsetof(invar_tensor, data));
            add_place(program, args, f->offset + offsetof(invar_tensor, scale));
        } else if (f->kind == INVAR_FIELD_SEGMENTS) {
            add_place(program, args, f->offset + offsetof(invar_row_offsets, offsets));
        } else {
            add_place(program, args, f->offset);
        }
    }
}

void invar_op_graph_append(invar_op_graph *program, invar_op op, const void *args, int64_t layer)
{
    size_t used = (size_t)program->n_calls * sizeof *program->calls, bytes;
    int32_t places = program->n_places;

    if (!grow_list(program, CALLS, &program->calls, used, sizeof *program->calls) ||
        !grow_list(program, BYTES, &program->bytes, program->n_bytes, INVAR_OP_ARGS_MAX))
        return;
    add_places(program, op, args);
    if (program->status != INVAR_OK)
        return;
    program->calls[program->n_calls++] = (invar_graph_node){.op = op,
                                                            .layer = layer,
                                                            .args = program->n_bytes,
                                                            .places = places,
                                                            .n_places = program->n_places - places,
                                                            .points = program->n_points,
                                                            .moves = program->n_moves,
                                                            .fresh = -1};
    bytes = invar_op_args_copy(program->bytes + program->n_bytes, op, args);
    program->n_bytes += (bytes + ARGS_ALIGN - 1) / ARGS_ALIGN * ARGS_ALIGN;
}

void invar_op_graph_mark_overwrite(invar_op_graph *program, size_t offset)
{
    if (program->status == INVAR_OK)
        program->calls[program->n_calls - 1].fresh = (int32_t)offset;
}

static bool add_point(invar_op_graph *program, const invar_graph_point *point)
{
    size_t used = (size_t)program->n_points * sizeof *program->points;

    if (!grow_list(program, POINTS, &program->points, used, sizeof *program->points))
        return false;
    program->points[program->n_points++] = *point;
    return true;
}

void invar_op_graph_initial_point(invar_op_graph *program, const invar_graph_point *point)
{
    if (add_point(program, point))
        program->rooms[invar_op_graph_room_of(point->rows.data)].entry = program->n_points - 1;
}

void invar_op_graph_point(invar_op_graph *program, const invar_graph_point *point)
{
    if (add_point(program, point))
        program->calls[program->n_calls - 1].n_points++;
}

void invar_op_graph_move(invar_op_graph *program, const invar_graph_transfer *move)
{
    size_t used = (size_t)program->n_moves * sizeof *program->moves;
    bool leads = program->n_calls == program->section_start[program->n_segments];
    int32_t call = leads ? program->n_calls : program->n_calls - 1;

    if (!grow_list(program, MOVES, &program->moves, used, sizeof *program->moves))
        return;
    if (leads && program->n_leads[program->n_segments]++ == 0)
        program->leads[program->n_segments] = program->n_moves;
    if (!leads)
        program->calls[call].n_moves++;
    program->moves[program->n_moves++] = *move;
    extend_lifetime(program, move->whole.data, call);
    if (move->local.data)
        extend_lifetime(program, move->local.data, call);
    if (move->experts.offsets)
        extend_lifetime(program, move->experts.offsets, call);
}

void invar_op_graph_host_access(invar_op_graph *program, const invar_tensor *tensor)
{
    if (program->status != INVAR_OK)
        return;
    extend_lifetime(program, tensor->data, program->n_calls);
    program->rooms[invar_op_graph_room_of(tensor->data)].live = true;
}

void invar_op_graph_end_section(invar_op_graph *program)
{
    INVAR_CHECK(program->n_segments < INVAR_OP_GRAPH_MAX_SEGMENTS);
    program->section_start[++program->n_segments] = program->n_calls;
}

/* ---- unused results -------------------------------------------------------------------------- */

/* Returns the buffer that the field points to; NULL if it points to none. */
static invar_graph_buffer *buffer_of_field(const invar_op_graph *program, const invar_field *f,
                                           const void *args)
{
    if (f->kind >= INVAR_FIELD_I32 || !invar_field_present(f, args))
        return NULL;
    return &program->rooms[invar_op_graph_room_of(invar_field_memory(f, args).data)];
}

/* Returns true if hooks see a point of the node. */
static bool is_shown(const invar_op_graph *program, const invar_graph_node *call)
{
    for (int32_t i = call->points; i < call->points + call->n_points; i++)
        if (!program->points[i].again)
            return true;
    return false;
}

/* Keeps the transfer if its destination is live or an input; then marks its sources as live. */
static void keep_used_transfer(invar_op_graph *program, invar_graph_transfer *move)
{
    const invar_graph_buffer *to = &program->rooms[invar_op_graph_room_of(move->whole.data)];
    const void *const from[] = {move->local.data, move->experts.offsets};

    move->dropped = !to->live && to->given < 0;
    for (size_t i = 0; i < sizeof from / sizeof *from && !move->dropped; i++)
        if (from[i])
            program->rooms[invar_op_graph_room_of(from[i])].live = true;
}

/* Keeps the node if one of its results is used; then marks the buffers that it reads as live. */
static void keep_used_node(invar_op_graph *program, invar_graph_node *call)
{
    const void *args = program->bytes + call->args;
    bool wanted = is_shown(program, call);
    int count;
    const invar_field *fields = invar_op_fields(&count, call->op);

    for (int32_t i = call->moves + call->n_moves - 1; i >= call->moves; i--)
        keep_used_transfer(program, &program->moves[i]);
    for (int i = 0; i < count; i++) {
        const invar_graph_buffer *room = buffer_of_field(program, &fields[i], args);
        if (room && fields[i].role != INVAR_FIELD_IN && (room->live || room->given >= 0))
            wanted = true;
    }
    for (int i = 0; i < count && wanted; i++) {
        invar_graph_buffer *room = buffer_of_field(program, &fields[i], args);
        if (room && fields[i].role != INVAR_FIELD_OUT)
            room->live = true;
    }
    call->dropped = !wanted;
}

void invar_op_graph_eliminate_dead(invar_op_graph *program, int32_t first)
{
    for (int32_t i = program->n_calls - 1; i >= first && program->status == INVAR_OK; i--)
        keep_used_node(program, &program->calls[i]);
}
