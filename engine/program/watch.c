/*
 * watch.c - follows the data through a list of calls, and shows points.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/program/watch.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/program/near.h"
#include "kernels-deterministic/parts.h"

#include "base/invar_banned.h"

/* Points by their number; a value that comes from elsewhere as -1 - its room. */
typedef struct sources {
    int32_t of[INVAR_WATCH_INPUTS];
    int32_t count;
} sources;

/* What the memory from this place of a room on holds. */
typedef struct content {
    size_t offset;
    int32_t next; /* of the room; -1: none */
    sources from;
} content;

struct invar_watch {
    const invar_program *program;
    const invar_program_run_args *run;
    invar_parts parts; /* of the next call */
    void *side;        /* memory of the device for them */
    size_t side_bytes;
    content *contents; /* one for each address and point at most */
    int32_t n_contents;
    int32_t *rooms; /* the first content of each, or -1 */
    int32_t call;   /* the next one */
};

invar_status invar_watch_new(invar_watch **out, const invar_program *program,
                             const invar_program_run_args *run)
{
    invar_watch *w = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&w, 1, sizeof *w, "what calls read"));
    *w = (invar_watch){.program = program, .run = run};
    status = invar_alloc((void **)&w->contents, (size_t)(program->n_places + program->n_points) + 1,
                         sizeof *w->contents, "what calls read");
    if (status == INVAR_OK)
        status = invar_alloc((void **)&w->rooms, (size_t)program->n_rooms + 1, sizeof *w->rooms,
                             "what calls read");
    if (status != INVAR_OK) {
        invar_watch_free(w);
        return status;
    }
    for (int32_t i = 0; i < program->n_rooms; i++)
        w->rooms[i] = -1;
    *out = w;
    return INVAR_OK;
}

void invar_watch_free(invar_watch *watch)
{
    if (!watch)
        return;
    invar_device_give(&watch->run->caller->dev, watch->side);
    invar_free(watch->contents);
    invar_free(watch->rooms);
    invar_free(watch);
}

/* ---- sources --------------------------------------------------------------------------------- */

static void add_source(sources *s, int32_t source)
{
    for (int32_t i = 0; i < s->count; i++)
        if (s->of[i] == source)
            return;
    INVAR_CHECK(s->count < INVAR_WATCH_INPUTS);
    s->of[s->count++] = source;
}

static void add_sources(sources *s, const sources *more)
{
    for (int32_t i = 0; i < more->count; i++)
        add_source(s, more->of[i]);
}

static content *find_content(const invar_watch *w, const void *name)
{
    size_t offset = invar_program_offset_of(name);
    int32_t at = w->rooms[invar_program_room_of(name)];

    while (at >= 0 && w->contents[at].offset != offset)
        at = w->contents[at].next;
    return at >= 0 ? &w->contents[at] : NULL;
}

/* What was read at this address; of a part of a room that no call wrote as such, all of it. */
static void read_memory(sources *s, const invar_watch *w, const void *name)
{
    int32_t room = invar_program_room_of(name);
    const content *exact = find_content(w, name);

    if (w->program->rooms[room].source)
        add_source(s, -1 - room);
    if (exact)
        add_sources(s, &exact->from);
    if (exact || w->program->rooms[room].given >= 0)
        return;
    for (int32_t at = w->rooms[room]; at >= 0; at = w->contents[at].next)
        add_sources(s, &w->contents[at].from);
}

static void write_memory(invar_watch *w, const void *name, const sources *from)
{
    int32_t room = invar_program_room_of(name);
    content *c = find_content(w, name);

    if (!c) {
        c = &w->contents[w->n_contents];
        *c = (content){.offset = invar_program_offset_of(name), .next = w->rooms[room]};
        w->rooms[room] = w->n_contents++;
    }
    c->from = *from;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* The address in a field; NULL: it has none. */
static const void *address_in(const invar_field *f, const void *args)
{
    bool leads = f->kind < INVAR_FIELD_I32 && invar_field_present(f, args);

    return leads ? invar_field_memory(f, args).data : NULL;
}

/* What the next call reads and writes; `read_out` gets the points that it has read. */
static void follow(sources *read_out, invar_watch *w)
{
    const invar_program *p = w->program;
    const invar_call *c = &p->calls[w->call++];
    const void *args = p->bytes + c->args;
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    *read_out = (sources){.count = 0};
    for (int i = 0; i < count; i++) {
        const void *name = address_in(&fields[i], args);
        if (name && fields[i].role != INVAR_FIELD_OUT)
            read_memory(read_out, w, name);
    }
    for (int i = 0; i < count; i++) {
        const void *name = address_in(&fields[i], args);
        if (name && fields[i].role != INVAR_FIELD_IN)
            write_memory(w, name, read_out);
    }
    for (int32_t i = c->points; i < c->points + c->n_points; i++)
        write_memory(w, p->points[i].rows.data, &(sources){{i}, 1});
}

void invar_watch_pass(invar_watch *watch)
{
    sources read;

    follow(&read, watch);
}

/* ---- showing --------------------------------------------------------------------------------- */

static invar_value_name name_of(const invar_point *p, const char *more)
{
    invar_value_name name = {.layer = p->layer};
    int bytes = snprintf(name.text, sizeof name.text, "%s%s%s%s%s", p->gradient ? "d" : "", p->name,
                         p->suffix ? "." : "", p->suffix ? p->suffix : "", more);

    INVAR_CHECK(bytes < (int)sizeof name.text);
    return name;
}

/* Rows (P, n) of experts, as (T, slots * n). */
static void put_by_slot(char *out, const invar_tensor *rows, const invar_tensor *by_slot)
{
    int64_t slots = by_slot->shape[0] * by_slot->shape[1];
    const int32_t *row = by_slot->data;
    size_t bytes =
        (size_t)(rows->shape[1] / by_slot->shape[1]) * (size_t)invar_dtype_bits(rows->dtype) / 8;

    for (int64_t i = 0; i < slots; i++)
        memcpy(out + (size_t)i * bytes, (const char *)rows->data + (size_t)row[i] * bytes, bytes);
}

invar_status invar_watch_slots(invar_tensor *out, const invar_forward_value *value)
{
    invar_window windows[2] = {{.dev = value->dev}, {.dev = value->dev}};
    invar_tensor rows, order;
    invar_status status;

    *out = *value->rows;
    out->data = NULL;
    status = invar_window_tensor(&rows, &windows[0], value->rows);
    if (status == INVAR_OK)
        status = invar_window_tensor(&order, &windows[1], value->by_slot);
    if (status == INVAR_OK)
        status = invar_alloc(&out->data, (size_t)out->shape[0] * (size_t)out->shape[1],
                             (size_t)invar_dtype_bits(out->dtype) / 8, "rows of experts to show");
    if (status == INVAR_OK)
        put_by_slot(out->data, &rows, &order);
    invar_window_release(&windows[0]);
    invar_window_release(&windows[1]);
    return status;
}

/* `rows` is the point's own tensor, or what parts of its call made of it. */
static invar_status show(const invar_watch *w, const invar_point *point, const sources *read,
                         const invar_tensor *rows, invar_op op, const char *more)
{
    const invar_program *p = w->program;
    const invar_program_run_args *run = w->run;
    invar_tensor shown = *rows;
    invar_tensor by_slot = invar_program_find(p, &point->by_slot, run);
    invar_forward_value value = {.name = name_of(point, more),
                                 .op = invar_op_name(op),
                                 .backward = point->backward,
                                 .stream = point->stream && !*more,
                                 .dev = &run->caller->dev,
                                 .rows = &shown,
                                 .samples = &run->samples[point->samples],
                                 .there = &run->there[point->samples]};

    for (int32_t i = 0; i < read->count; i++) {
        int32_t from = read->of[i];
        value.inputs[i] = name_of(from < 0 ? p->rooms[-1 - from].source : &p->points[from], "");
    }
    value.n_inputs = read->count;
    if (invar_tensor_present(&by_slot)) {
        shown = invar_tensor_2d(rows->data, rows->dtype, by_slot.shape[0],
                                by_slot.shape[1] * rows->shape[1]);
        value.by_slot = &by_slot;
    }
    return run->probe->take(run->probe->payload, &value);
}

/* The same rows as the parts of the call have made them. */
static invar_status show_parts(const invar_watch *w, const invar_point *point, const sources *read,
                               const invar_tensor *rows)
{
    for (int i = 0; i < w->parts.outputs && w->parts.count > 0; i++) {
        const invar_part_output *o = &w->parts.output[i];
        invar_tensor side = *rows;
        if (o->fused.data != rows->data)
            continue;
        side.data = o->side.data;
        side.scale = o->side.scale;
        side.row_stride = invar_tensor_row_elements(rows);
        return show(w, point, read, &side, w->parts.call[o->call].op, ".parts");
    }
    return INVAR_OK;
}

invar_status invar_watch_show(invar_watch *watch)
{
    const invar_program *p = watch->program;
    const invar_call *c = &p->calls[watch->call];
    sources read;

    follow(&read, watch);
    for (int32_t i = c->points; i < c->points + c->n_points; i++) {
        const invar_point *point = &p->points[i];
        invar_tensor rows = invar_program_find(p, &point->rows, watch->run);
        if (point->again)
            continue;
        INVAR_TRY(show(watch, point, &read, &rows, c->op, ""));
        INVAR_TRY(show_parts(watch, point, &read, &rows));
    }
    return INVAR_OK;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static invar_status make_room(invar_watch *w, size_t bytes)
{
    const invar_device *dev = &w->run->caller->dev;

    if (bytes <= w->side_bytes)
        return INVAR_OK;
    invar_device_give(dev, w->side);
    w->side = NULL;
    w->side_bytes = 0;
    INVAR_TRY(invar_device_take(dev, &w->side, bytes, "the parts of a fused call"));
    w->side_bytes = bytes;
    return INVAR_OK;
}

/* An audit looks at the calls of the run, not at these. */
static invar_status run_parts(invar_watch *w)
{
    invar_caller *caller = w->run->caller;
    invar_audit *audit = caller->audit;
    invar_status status = invar_parts_begin(&caller->dev, &w->parts);

    caller->audit = NULL;
    for (int i = 0; i < w->parts.count && status == INVAR_OK; i++)
        status = invar_caller_run_now(caller, w->parts.call[i].op, &w->parts.call[i].args);
    caller->audit = audit;
    return status;
}

invar_status invar_watch_before(invar_watch *watch, const void *args)
{
    const invar_call *c = &watch->program->calls[watch->call];

    watch->parts.count = 0;
    if (!watch->run->probe->parts || c->n_points == 0)
        return INVAR_OK;
    invar_parts_of(&watch->parts, c->op, args, NULL, NULL);
    if (watch->parts.count == 0)
        return INVAR_OK;
    INVAR_CHECK(watch->parts.host_bytes == 0); // ops of the optimizer alone
    INVAR_TRY(make_room(watch, watch->parts.bytes));
    invar_parts_of(&watch->parts, c->op, args, watch->side, NULL);
    return run_parts(watch);
}
