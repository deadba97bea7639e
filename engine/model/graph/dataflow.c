/*
 * dataflow.c - derives the inputs of each point from the nodes of an op graph, and calls the hooks.
 *
 * The tracker keeps, for each buffer, which points the memory at each written offset was computed
 * from. A node reads the union of its inputs' sources and passes it to its outputs; a point
 * replaces it by itself. Before a point is shown, rows that other ranks hold are gathered, so all
 * ranks must show the same points (collective).
 *
 * Memory for gathered rows and decomposed calls lives in invar_hook_buffers and only grows. It is
 * replaced only after the CUDA graph cache is flushed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/dataflow.h"

#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/model/graph/builder.h"
#include "engine/model/graph/cuda_graph_cache.h"
#include "engine/model/graph/graph_transfer.h"
#include "engine/model/graph/host_staging.h"
#include "kernels-deterministic/fused_parts.h"

#include "base/invar_banned.h"

/* Points by index; a value of another graph as -1 - its buffer index. */
typedef struct sources {
    int32_t of[INVAR_DATAFLOW_INPUTS];
    int32_t count;
} sources;

/* Sources of the memory of a buffer from one offset on. */
typedef struct content {
    size_t offset;
    int32_t next; /* index of the next entry of the buffer, or -1 */
    sources from;
    int32_t elsewhere; /* source (-1 - index) of the buffer that a transfer copied, if that holds
                          a value of another graph; else 0 */
} content;

struct invar_dataflow_tracker {
    const invar_op_graph *program;
    const invar_graph_exec_args *run;
    invar_fused_parts parts; /* decomposition of the next node */
    content *contents;       /* at most one for each address, point and transfer */
    int32_t n_contents;
    int32_t *rooms; /* index of the first entry of each buffer, or -1 */
    int32_t call;   /* index of the next node */
};

/* ---- sources --------------------------------------------------------------------------------- */

static void add_source(sources *s, int32_t source)
{
    for (int32_t i = 0; i < s->count; i++)
        if (s->of[i] == source)
            return;
    INVAR_CHECK(s->count < INVAR_DATAFLOW_INPUTS);
    s->of[s->count++] = source;
}

static void add_sources(sources *s, const sources *more)
{
    for (int32_t i = 0; i < more->count; i++)
        add_source(s, more->of[i]);
}

static content *find_content(const invar_dataflow_tracker *w, const void *name)
{
    size_t offset = invar_op_graph_offset_of(name);
    int32_t at = w->rooms[invar_op_graph_buffer_of(name)];

    while (at >= 0 && w->contents[at].offset != offset)
        at = w->contents[at].next;
    return at >= 0 ? &w->contents[at] : NULL;
}

/*
 * Adds the sources of the memory at `name`: of the entry at this offset, or of all entries of the
 * buffer if there is no such entry.
 */
static void read_memory(sources *s, const invar_dataflow_tracker *w, const void *name)
{
    int32_t room = invar_op_graph_buffer_of(name);
    const content *exact = find_content(w, name);

    if (exact && exact->elsewhere)
        add_source(s, exact->elsewhere);
    if (exact)
        add_sources(s, &exact->from);
    else if (w->program->buffers[room].source)
        add_source(s, -1 - room);
    if (exact || w->program->buffers[room].input >= 0)
        return;
    for (int32_t at = w->rooms[room]; at >= 0; at = w->contents[at].next)
        add_sources(s, &w->contents[at].from);
}

static content *write_memory(invar_dataflow_tracker *w, const void *name, const sources *from)
{
    int32_t room = invar_op_graph_buffer_of(name);
    content *c = find_content(w, name);

    if (!c) {
        c = &w->contents[w->n_contents];
        *c = (content){.offset = invar_op_graph_offset_of(name), .next = w->rooms[room]};
        w->rooms[room] = w->n_contents++;
    }
    c->from = *from;
    c->elsewhere = 0;
    return c;
}

/* ---- create and free ------------------------------------------------------------------------- */

invar_status invar_dataflow_new(invar_dataflow_tracker **out, const invar_op_graph *graph,
                                const invar_graph_exec_args *run)
{
    invar_dataflow_tracker *w = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(w, 1, "what calls read"));
    *w = (invar_dataflow_tracker){.program = graph, .run = run};
    status = INVAR_ALLOC(
        w->contents, (size_t)(graph->n_address_offsets + graph->n_points + graph->n_transfers) + 1,
        "what calls read");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(w->rooms, (size_t)graph->n_buffers + 1, "what calls read");
    if (status != INVAR_OK) {
        invar_dataflow_free(w);
        return status;
    }
    for (int32_t i = 0; i < graph->n_buffers; i++)
        w->rooms[i] = -1;
    for (int32_t i = 0; i < graph->n_buffers; i++) { // the points that buffers hold at first
        int32_t entry = graph->buffers[i].entry;
        if (entry >= 0)
            (void)write_memory(w, graph->points[entry].rows.data, &(sources){{entry}, 1});
    }
    *out = w;
    return INVAR_OK;
}

void invar_dataflow_free(invar_dataflow_tracker *tracker)
{
    if (!tracker)
        return;
    invar_free(tracker->contents);
    invar_free(tracker->rooms);
    invar_free(tracker);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Returns the tensor of a field; without memory if the field points to none. */
static invar_tensor tensor_in(const invar_field *f, const void *args)
{
    bool leads = f->kind < INVAR_FIELD_I32 && invar_field_present(f, args);

    return leads ? invar_field_memory(f, args) : (invar_tensor){0};
}

/* Data of other ranks was computed there from the same points as the local part was here. */
static void follow_transfer(invar_dataflow_tracker *w, const invar_graph_transfer *transfer)
{
    int32_t room = invar_op_graph_buffer_of(transfer->local.data);
    const content *exact;
    sources own = {.count = 0};
    int32_t elsewhere = 0;

    if (room < 0)
        return;
    exact = find_content(w, transfer->local.data);
    if (exact) {
        own = exact->from;
        elsewhere = exact->elsewhere;
    } else if (w->program->buffers[room].source) {
        elsewhere = -1 - room;
    } else {
        read_memory(&own, w, transfer->local.data);
    }
    write_memory(w, transfer->full.data, &own)->elsewhere = elsewhere;
}

/* Follows the transfers before the next node, if it is the first of a section. */
static void follow_leading_transfers(invar_dataflow_tracker *w)
{
    const invar_op_graph *p = w->program;

    for (int32_t s = 0; s < p->n_sections; s++)
        for (int32_t i = 0; i < p->n_lead_transfers[s] && p->section_start[s] == w->call; i++)
            follow_transfer(w, &p->transfers[p->lead_transfers[s] + i]);
}

/* Records what the next node reads and writes; *read_out = the points that it has read. */
static void follow_node(sources *read_out, invar_dataflow_tracker *w)
{
    const invar_op_graph *p = w->program;
    const invar_graph_node *c = &p->nodes[w->call++];
    const void *args = p->bytes + c->args;
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    *read_out = (sources){.count = 0};
    for (int i = 0; i < count; i++) {
        const void *name = tensor_in(&fields[i], args).data;
        if (name && fields[i].role != INVAR_FIELD_OUT)
            read_memory(read_out, w, name);
    }
    for (int i = 0; i < count; i++) {
        const void *name = tensor_in(&fields[i], args).data;
        if (name && fields[i].role != INVAR_FIELD_IN)
            (void)write_memory(w, name, read_out);
    }
    for (int32_t i = c->points; i < c->points + c->n_points; i++)
        (void)write_memory(w, p->points[i].rows.data, &(sources){{i}, 1});
    for (int32_t i = c->transfers; i < c->transfers + c->n_transfers; i++)
        follow_transfer(w, &p->transfers[i]);
}

void invar_dataflow_pass(invar_dataflow_tracker *tracker)
{
    sources read;

    follow_leading_transfers(tracker);
    follow_node(&read, tracker);
}

/* ---- showing points -------------------------------------------------------------------------- */

static invar_value_name name_of(const invar_graph_point *p, const char *more)
{
    const char *texts[] = {p->gradient ? "d" : "", p->name, p->suffix ? "." : "",
                           p->suffix ? p->suffix : "", more};
    invar_value_name name = {.layer = p->layer};

    INVAR_CHECK(invar_text_join(name.text, sizeof name.text, texts, 5));
    return name;
}

/*
 * Ensures a capacity of `bytes`. Flushes held-back ops first if the memory is replaced, because
 * they may use it.
 */
static invar_status ensure_buffer(invar_dataflow_tracker *w, void **data, size_t *have,
                                  size_t bytes, const char *what)
{
    invar_op_runner *runner = w->run->op_runner;

    if (bytes <= *have)
        return INVAR_OK;
    if (runner->graph_cache)
        INVAR_TRY(invar_cuda_graph_cache_flush(runner->graph_cache));
    invar_device_free(&runner->dev, *data);
    *data = NULL;
    *have = 0;
    INVAR_TRY(invar_device_alloc(&runner->dev, data, bytes, what));
    *have = bytes;
    return INVAR_OK;
}

void invar_hook_buffers_release(invar_hook_buffers *memory, const invar_device *dev)
{
    invar_device_free(dev, memory->parts.data);
    invar_device_free(dev, memory->rows.data);
    invar_device_free(dev, memory->gathered[0].data);
    invar_device_free(dev, memory->gathered[1].data);
    *memory = (invar_hook_buffers){0};
}

/* Runs an op outside the audit, which checks only the calls of the run itself. */
static invar_status run_without_audit(invar_dataflow_tracker *w, invar_op op, const void *args)
{
    invar_op_runner *runner = w->run->op_runner;
    invar_audit *audit = runner->audit;
    invar_status status;

    runner->audit = NULL;
    status = invar_op_runner_run(runner, op, args);
    runner->audit = audit;
    return status;
}

/* Rows (P, n) of experts or of a KV cache, and those that belong to each token (T, slots). */
typedef struct invar_unordered_rows {
    invar_dataflow_tracker *watch;
    const invar_tensor *rows, *by_slot;
} elsewhere;

/* The reordered rows as (T, slots * n). */
static invar_tensor rows_in_token_order(const elsewhere *e)
{
    return invar_tensor_2d(e->rows->data, e->rows->dtype, e->by_slot->shape[0],
                           e->by_slot->shape[1] * e->rows->shape[1]);
}

invar_status invar_dataflow_rows(invar_tensor *out, const invar_observed_value *value)
{
    const elsewhere *e = value->unordered_rows;
    invar_embedding_fwd_args args;
    invar_hook_buffers *m;
    int64_t count;

    *out = *value->rows;
    if (!e)
        return INVAR_OK;
    INVAR_CHECK(e->by_slot->row_stride == e->by_slot->shape[1]);
    m = e->watch->run->memory;
    count = e->by_slot->shape[0] * e->by_slot->shape[1];
    INVAR_TRY(ensure_buffer(e->watch, &m->rows.data, &m->rows.bytes, invar_host_staging_span(out),
                            "rows to show"));
    out->data = m->rows.data;
    args = (invar_embedding_fwd_args){
        .out = invar_tensor_2d(out->data, out->dtype, count, e->rows->shape[1]),
        .table = *e->rows,
        .ids = invar_tensor_1d(e->by_slot->data, INVAR_DTYPE_I32, count)};
    return run_without_audit(e->watch, INVAR_OP_EMBEDDING_FWD, &args);
}

/* Writes the names of the sources to `out` and returns their number. */
static int name_sources(invar_value_name out[INVAR_DATAFLOW_INPUTS], const invar_op_graph *p,
                        const sources *read)
{
    for (int32_t i = 0; i < read->count; i++) {
        int32_t from = read->of[i];
        out[i] = name_of(from < 0 ? p->buffers[-1 - from].source : &p->points[from], "");
    }
    return read->count;
}

/* Gathers the expert rows that other ranks computed. Collective over the expert axis. */
static invar_status fetch_rows(const invar_dataflow_tracker *w, const invar_graph_point *point,
                               const invar_tensor *rows)
{
    invar_tensor start = invar_tensor_1d((void *)(uintptr_t)point->experts.offsets, INVAR_DTYPE_I64,
                                         point->experts.count + 1);
    invar_graph_transfer transfer = {
        .kind = INVAR_GRAPH_TRANSFER_EXPERTS, .axis = INVAR_GRAPH_TRANSFER_EXPERT, .full = *rows};

    if (!point->experts.offsets)
        return INVAR_OK;
    start = invar_op_graph_find(w->program, &start, w->run);
    transfer.experts = (invar_row_offsets){start.data, point->experts.count};
    return invar_transfer_runner_run(w->run->transfers, w->run->op_runner, &transfer);
}

/* Gathers all rows if each rank of the axis has a range of them. Collective over the axis. */
static invar_status fetch_shares(invar_dataflow_tracker *w, invar_graph_transfer_axis axis,
                                 const int64_t *shares, invar_tensor *rows)
{
    bool context = axis == INVAR_GRAPH_TRANSFER_CONTEXT;
    const invar_layout *layout = w->run->transfers ? w->run->transfers->layout : NULL;
    invar_hook_buffers *m = w->run->memory;
    invar_graph_transfer transfer = {
        .kind = INVAR_GRAPH_TRANSFER_ROW_RANGES, .axis = axis, .local = *rows, .start = shares};

    if (!shares)
        return INVAR_OK;
    INVAR_CHECK(rows->row_stride == rows->shape[1]);
    rows->shape[0] = shares[context ? layout->context.size : layout->tensor.size];
    INVAR_TRY(ensure_buffer(w, &m->gathered[context].data, &m->gathered[context].bytes,
                            invar_host_staging_span(rows), "rows of all ranks"));
    rows->data = m->gathered[context].data;
    transfer.full = *rows;
    return invar_transfer_runner_run(w->run->transfers, w->run->op_runner, &transfer);
}

/*
 * Returns the op that a single rank would run: folds of partial sums of ranks count as part of the
 * op before them.
 */
static invar_op op_of_single_rank(const invar_op_graph *p, int32_t call)
{
    while (call > 0 &&
           (p->nodes[call].op == INVAR_OP_SHARDS_FOLD || p->nodes[call].op == INVAR_OP_TOKEN_FOLD))
        call--;
    return p->nodes[call].op;
}

/* Shows a point. `rows` is the point's tensor, or its twin from the decomposition of the call. */
static invar_status show_point(invar_dataflow_tracker *w, const invar_graph_point *point,
                               const sources *read, const invar_tensor *rows, invar_op op,
                               const char *more)
{
    const invar_op_graph *p = w->program;
    const invar_graph_exec_args *run = w->run;
    invar_tensor shown = *rows;
    invar_tensor by_slot = invar_op_graph_find(p, &point->by_slot, run);
    const elsewhere e = {w, rows, &by_slot};
    invar_observed_value value = {.name = name_of(point, more),
                                  .op = invar_op_name(op),
                                  .backward = point->backward,
                                  .is_residual = point->stream && !*more,
                                  .op_runner = run->op_runner,
                                  .rows = &shown,
                                  .samples = &run->samples[point->samples],
                                  .device_samples = &run->device_samples[point->samples]};

    value.n_inputs = name_sources(value.inputs, p, read);
    if (invar_tensor_present(&by_slot) && !by_slot.data) // no kv_slots were supplied
        return INVAR_OK;
    INVAR_TRY(fetch_rows(w, point, rows));
    INVAR_TRY(fetch_shares(w, INVAR_GRAPH_TRANSFER_TENSOR, point->tp_starts, &shown));
    INVAR_TRY(fetch_shares(w, INVAR_GRAPH_TRANSFER_CONTEXT, point->cp_starts, &shown));
    if (invar_tensor_present(&by_slot)) {
        shown = rows_in_token_order(&e);
        value.unordered_rows = &e;
    }
    return run->hooks->on_value(run->hooks->payload, &value);
}

/* Shows the rows that the decomposed call computed for this point, as NAME.parts. */
static invar_status show_parts(invar_dataflow_tracker *w, const invar_graph_point *point,
                               const sources *read, const invar_tensor *rows)
{
    for (int i = 0; i < w->parts.outputs && w->parts.count > 0; i++) {
        const invar_fused_part_output *o = &w->parts.output[i];
        invar_tensor side = *rows;
        if (o->fused.data != rows->data)
            continue;
        side.data = o->reference.data;
        side.scale = o->reference.scale;
        side.row_stride = invar_tensor_row_elements(rows);
        return show_point(w, point, read, &side, w->parts.call[o->call].op, ".parts");
    }
    return INVAR_OK;
}

/*
 * Adds the sources of everything in the tensor's first row: adjacent gradients of a group are read
 * as one tensor.
 */
static void read_row(sources *s, const invar_dataflow_tracker *w, const invar_tensor *t)
{
    size_t begin = invar_op_graph_offset_of(t->data);
    size_t bytes = (size_t)invar_tensor_row_elements(t) * (size_t)invar_dtype_bits(t->dtype) / 8;
    int32_t count = s->count;

    for (int32_t at = w->rooms[invar_op_graph_buffer_of(t->data)]; at >= 0;
         at = w->contents[at].next)
        if (w->contents[at].offset - begin < bytes)
            add_sources(s, &w->contents[at].from);
    if (s->count == count)
        read_memory(s, w, t->data);
}

/*
 * Reports to hooks.on_grad which parameter gradients the next node adds to, and from which points.
 */
static invar_status show_sums(const invar_dataflow_tracker *w)
{
    const invar_op_graph *p = w->program;
    const invar_graph_node *c = &p->nodes[w->call];
    const invar_forward_hooks *probe = w->run->hooks;
    const void *args = p->bytes + c->args;
    invar_observed_grad sum;
    sources read;
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    for (int i = 0; i < count && probe->on_grad; i++) {
        invar_tensor t = tensor_in(&fields[i], args);
        if (!t.data || fields[i].role == INVAR_FIELD_IN ||
            p->buffers[invar_op_graph_buffer_of(t.data)].input != INVAR_INPUT_GRADS)
            continue;
        read.count = 0;
        for (int k = 0; k < count; k++) {
            invar_tensor in = tensor_in(&fields[k], args);
            if (in.data && fields[k].role == INVAR_FIELD_IN)
                read_row(&read, w, &in);
        }
        sum.n_inputs = name_sources(sum.inputs, p, &read);
        sum.offset = invar_op_graph_offset_of(t.data);
        sum.bytes = invar_host_staging_span(&t);
        INVAR_TRY(probe->on_grad(probe->payload, &sum));
    }
    return INVAR_OK;
}

invar_status invar_dataflow_show(invar_dataflow_tracker *tracker)
{
    const invar_op_graph *p = tracker->program;
    const invar_graph_node *c = &p->nodes[tracker->call];
    sources read;

    follow_leading_transfers(tracker);
    INVAR_TRY(show_sums(tracker));
    follow_node(&read, tracker);
    for (int32_t i = c->points; i < c->points + c->n_points; i++) {
        const invar_graph_point *point = &p->points[i];
        invar_tensor rows = invar_op_graph_find(p, &point->rows, tracker->run);
        if (point->recomputed)
            continue;
        INVAR_TRY(
            show_point(tracker, point, &read, &rows, op_of_single_rank(p, tracker->call - 1), ""));
        INVAR_TRY(show_parts(tracker, point, &read, &rows));
    }
    return INVAR_OK;
}

/* ---- decomposed calls ------------------------------------------------------------------------ */

static invar_status run_parts(invar_dataflow_tracker *w)
{
    INVAR_TRY(invar_fused_parts_copy_accumulators(&w->run->op_runner->dev, &w->parts));
    for (int i = 0; i < w->parts.count; i++)
        INVAR_TRY(run_without_audit(w, w->parts.call[i].op, &w->parts.call[i].args));
    return INVAR_OK;
}

invar_status invar_dataflow_before(invar_dataflow_tracker *tracker, const void *args)
{
    const invar_graph_node *c = &tracker->program->nodes[tracker->call];
    invar_hook_buffers *m = tracker->run->memory;

    tracker->parts.count = 0;
    if (!tracker->run->hooks->parts || c->n_points == 0)
        return INVAR_OK;
    invar_fused_parts_plan(&tracker->parts, c->op, args, NULL, NULL);
    if (tracker->parts.count == 0)
        return INVAR_OK;
    INVAR_CHECK(tracker->parts.host_bytes == 0); // only ops of the optimizer need host memory
    INVAR_TRY(ensure_buffer(tracker, &m->parts.data, &m->parts.bytes, tracker->parts.bytes,
                            "the parts of a fused call"));
    invar_fused_parts_plan(&tracker->parts, c->op, args, m->parts.data, NULL);
    return run_parts(tracker);
}
