/*
 * pass.c - forward and backward of a pass: runs the op graph of the layers on packed rows.
 *
 * The op graph is rebuilt only if its key changes (invar_layers_key: shapes, spec, row ranges);
 * otherwise the last one runs with new addresses. All arrays of a run are uploaded in one copy.
 * Hooks, audit and CUDA graph cache act on the op runner of the pass.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/pass.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* ---- create and free ------------------------------------------------------------------------- */

invar_status invar_pass_new(invar_pass **out, const invar_device *dev,
                            const invar_pass_options *options)
{
    invar_pass *pass = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(pass, 1, "a pass"));
    pass->options = *options;
    invar_op_runner_init(&pass->op_runner, dev);
    status = invar_op_graph_new(&pass->layers.graph.graph);
    if (status == INVAR_OK)
        status = invar_op_graph_new(&pass->head.graph.graph);
    if (status == INVAR_OK)
        *out = pass;
    else
        invar_pass_free(pass);
    return status;
}

static void release_graph(invar_pass_graph *part, const invar_device *dev)
{
    invar_builder_release(&part->builder);
    invar_op_graph_free(part->graph);
    invar_device_free(dev, part->memory);
}

void invar_pass_free(invar_pass *pass)
{
    if (!pass)
        return;
    invar_op_runner_release(&pass->op_runner);
    invar_hook_buffers_release(&pass->hook_buffers, &pass->op_runner.dev);
    invar_upload_buffer_release(&pass->layers.staging, &pass->op_runner.dev);
    invar_upload_buffer_release(&pass->head.staging, &pass->op_runner.dev);
    invar_upload_buffer_release(&pass->head.back_staging, &pass->op_runner.dev);
    invar_transfer_runner_release(&pass->transfers, &pass->op_runner.dev);
    invar_vocab_parallel_release(&pass->vocab);
    invar_free(pass->own_units);
    invar_free(pass->in_order);
    release_graph(&pass->layers.graph, &pass->op_runner.dev);
    release_graph(&pass->head.graph, &pass->op_runner.dev);
    invar_free(pass->head.array_memory);
    invar_free(pass);
}

invar_status invar_pass_alloc_scratch(invar_pass *pass)
{
    return invar_op_runner_alloc_scratch(&pass->op_runner);
}

void invar_pass_probe(invar_pass *pass, const invar_forward_hooks *probe)
{
    pass->hooks = probe ? *probe : (invar_forward_hooks){0};
}

void invar_pass_audit(invar_pass *pass, invar_audit *audit)
{
    pass->op_runner.audit = audit;
}

bool invar_pass_tape(invar_pass *pass, invar_cuda_graph_cache *graph_cache)
{
    bool watched = (pass->hooks.on_value && !pass->hooks.graph_safe) || pass->op_runner.audit;

    pass->op_runner.graph_cache = watched ? NULL : graph_cache;
    return !watched;
}

/* ---- op graphs ------------------------------------------------------------------------------- */

invar_graph_exec_args invar_pass_exec_args(invar_pass *pass, const invar_pass_graph *part)
{
    return (invar_graph_exec_args){.op_runner = &pass->op_runner,
                                   .block = part->memory,
                                   .poison = pass->options.poison,
                                   .inputs = pass->inputs,
                                   .hooks = &pass->hooks,
                                   .memory = &pass->hook_buffers,
                                   .samples = &pass->rows.samples,
                                   .device_samples = &pass->samples,
                                   .transfers = &pass->transfers};
}

/* Allocates some headroom, so that growing stops soon. */
invar_status invar_pass_plan(invar_pass *pass, invar_pass_graph *part, const char *what)
{
    size_t need, room;

    INVAR_TRY(invar_op_graph_plan(part->graph));
    need = part->graph->block;
    room = invar_device_growth_bytes(&pass->op_runner.dev, need, 8);
    if (need <= part->bytes)
        return INVAR_OK;
    invar_device_free(&pass->op_runner.dev, part->memory);
    part->memory = NULL;
    part->bytes = 0;
    INVAR_TRY(invar_device_alloc(&pass->op_runner.dev, &part->memory, room, what));
    part->bytes = room;
    return INVAR_OK;
}

/* Number of expert ids of one row in all sparse layers. */
static int64_t route_of(const invar_model *model)
{
    return invar_model_sparse_layers(model) * model->spec.experts.per_token;
}

static invar_tensor routing_array(invar_builder *b, const invar_model *model,
                                  invar_graph_input which)
{
    int64_t first = b->rows.context ? invar_row_partition_first(b->rows.context) : 0,
            route = route_of(model);

    return invar_tensor_2d((int32_t *)invar_op_graph_input(b->graph, which) + first * route,
                           INVAR_DTYPE_I32, b->rows.count, route);
}

/*
 * Writes the symbolic caches of the layers to `out`. The keys of the first layer start their
 * memory.
 */
static void set_cache_inputs(invar_kv_pages *out, invar_builder *b, const invar_packed_rows *rows,
                             const invar_index_range *layers)
{
    char *name = invar_op_graph_input(b->graph, INVAR_INPUT_CACHE);
    const char *base = rows->cache ? rows->cache[0].k.data : NULL;

    for (int64_t i = 0; rows->cache && i < layers->count; i++) {
        invar_kv_pages *to = &out[layers->first + i];
        *to = rows->cache[i];
        to->k.data = name + ((const char *)to->k.data - base);
        to->v.data = name + ((const char *)to->v.data - base);
        to->pages.data = invar_op_graph_input(b->graph, INVAR_INPUT_PAGES);
    }
    b->cache = rows->cache ? out : NULL;
    b->lengths = invar_op_graph_input(b->graph, INVAR_INPUT_LENGTHS);
}

/*
 * Returns 0 (one span) if no sample is longer than a span: the bits are the same, and no memory for
 * sums of several spans is needed.
 */
static int64_t span_of(const invar_packed_rows *rows, int64_t span)
{
    const int64_t *start = rows->samples.offsets;

    for (int64_t i = 0; i < rows->samples.count; i++)
        if ((rows->cache ? rows->lengths[i] : start[i + 1] - start[i]) > span)
            return span;
    return 0;
}

/*
 * Divides rows over ranks, except rows with a KV cache, which are few, and rows with fewer token
 * blocks than ranks.
 */
static void divide_packed_rows(invar_row_partition *out, const invar_packed_rows *rows, int size,
                               int rank)
{
    memset(out, 0, sizeof *out);
    out->size = 1;
    out->row[1] = rows->count;
    if (size > 1 && !rows->cache && invar_row_partition_blocks(&rows->units) >= size)
        invar_row_partition_init(out, &rows->units, size, rank);
}

/* Number of tensor-parallel ranks that divide the residual stream. */
static int stream_ranks(const invar_model *model)
{
    return model->layout && model->layout->sequence_parallel ? model->part.tensors : 1;
}

/*
 * Divides the rows over context-parallel ranks, and over sequence-parallel ones if every rank then
 * gets a block.
 */
static void divide_rows(invar_row_partitions *out, const invar_model *model,
                        const invar_packed_rows *rows)
{
    const invar_model_partition *part = &model->part;
    int each = stream_ranks(model);

    if (part->contexts > 1 && invar_row_partition_blocks(&rows->units) < part->contexts * each)
        each = 1;
    divide_packed_rows(&out->residual, rows, part->contexts * each,
                       part->context * each + (each > 1 ? part->tensor : 0));
    invar_row_partition_group(&out->context, &out->stream, &out->residual, &rows->units,
                              out->residual.size > 1 ? each : 1);
}

invar_index_range invar_pass_own_rows(const invar_pass *pass)
{
    const invar_row_partition *stream = &pass->division.stream;

    return (invar_index_range){invar_row_partition_first(stream),
                               invar_row_partition_count(stream)};
}

static invar_index_range layers_of(const invar_pass *pass)
{
    return invar_model_partition_chunk(&pass->model->part, pass->model->spec.layers,
                                       pass->options.chunk);
}

/* Sets the row inputs of the graph: this rank's rows, and all rows for sums over them. */
static void set_row_inputs(invar_builder *b, invar_pass *pass)
{
    const invar_packed_rows *rows = &pass->rows;
    const invar_row_partitions *d = &pass->division;
    int64_t first = invar_row_partition_first(&d->context);

    b->rows.all_count = rows->count;
    b->rows.all_ids = b->rows.ids =
        invar_build_array(b, INVAR_INPUT_IDS, INVAR_DTYPE_I32, rows->count);
    b->rows.positions = invar_build_array(b, INVAR_INPUT_POSITIONS, INVAR_DTYPE_I32, b->rows.count);
    b->rows.samples = (invar_row_offsets){invar_op_graph_input(b->graph, INVAR_INPUT_SAMPLES),
                                          rows->samples.count};
    b->rows.all_units = b->rows.units =
        (invar_row_offsets){invar_op_graph_input(b->graph, INVAR_INPUT_UNITS), rows->units.count};
    if (d->stream.size > 1) {
        b->rows.stream = &d->stream;
        b->rows.stream_units = (invar_row_offsets){
            invar_op_graph_input(b->graph, INVAR_INPUT_OWN_UNITS), d->residual.units};
    }
    if (d->context.size > 1) {
        invar_op_graph_reserve_rows(b->graph, b->rows.count,
                                    invar_row_partition_max(b->rows.all_count, d->context.size));
        b->rows.context = &d->context;
        b->rows.units = (invar_row_offsets){
            invar_op_graph_input(b->graph, INVAR_INPUT_CONTEXT_UNITS), d->context.units};
        b->rows.ids =
            invar_tensor_1d((int32_t *)b->rows.ids.data + first, INVAR_DTYPE_I32, b->rows.count);
        b->rows.positions.data = (int32_t *)b->rows.positions.data + first;
    }
}

static invar_status build_layers_graph(invar_pass *pass)
{
    const invar_model *model = pass->model;
    const invar_packed_rows *rows = &pass->rows;
    invar_builder *b = &pass->layers.graph.builder;
    invar_kv_pages cache[INVAR_SPEC_MAX_LAYERS];
    invar_index_range layers = layers_of(pass);

    invar_decoder_begin(b, pass->layers.graph.graph, model,
                        invar_row_partition_count(&pass->division.context));
    b->train = pass->options.train;
    set_row_inputs(b, pass);
    b->kv_span = span_of(rows, model->spec.attention.kv_span);
    b->q_span = span_of(rows, model->spec.attention.q_span);
    set_cache_inputs(cache, b, rows, &layers);
    if (rows->routing_replay)
        b->replay = routing_array(b, model, INVAR_INPUT_REPLAY);
    // if the host can access the memory, the routers write directly to the caller's array
    if (rows->routing)
        b->routing =
            invar_device_is_local(&pass->op_runner.dev)
                ? invar_op_graph_tensor(b->graph, INVAR_DTYPE_I32, b->rows.count, route_of(model))
                : routing_array(b, model, INVAR_INPUT_ROUTING);
    pass->layers.io =
        invar_decoder_build(b, model, &layers, pass->options.train && pass->options.recompute);
    if (b->train)
        invar_op_graph_source(b->graph, pass->layers.io.d_stream.data, &invar_head_stream);
    return invar_pass_plan(pass, &pass->layers.graph, "activations");
}

static void fill_key(invar_layers_key *key, const invar_pass *pass)
{
    const invar_packed_rows *r = &pass->rows;

    memset(key, 0, sizeof *key);
    memcpy(&key->spec, &pass->model->spec, sizeof key->spec);
    key->format = pass->model->format;
    key->layers = layers_of(pass);
    key->rows = r->count;
    key->samples = r->samples.count;
    key->units = r->units.count;
    key->kv_span = span_of(r, pass->model->spec.attention.kv_span);
    key->q_span = span_of(r, pass->model->spec.attention.q_span);
    if (r->cache) {
        memcpy(&key->cache, &r->cache[0], sizeof key->cache);
        key->cache.k.data = key->cache.v.data = key->cache.pages.data = NULL;
    }
    key->replayed = r->routing_replay != NULL;
    key->routed = r->routing != NULL;
    key->part = pass->model->part;
    memcpy(&key->division, &pass->division, sizeof key->division);
}

/* Builds the op graph for the rows, unless the last one differs in addresses only. */
static invar_status prepare_layers_graph(invar_pass *pass)
{
    invar_layers_key key;

    fill_key(&key, pass);
    if (memcmp(&key, &pass->layers.key, sizeof key) == 0)
        return INVAR_OK;
    memset(&pass->layers.key, 0, sizeof pass->layers.key); // invalid until the graph is complete
    INVAR_TRY(build_layers_graph(pass));
    memcpy(&pass->layers.key, &key, sizeof key);
    return INVAR_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

static size_t segment_bytes(const invar_row_offsets *s)
{
    return (size_t)(s->count + 1) * sizeof *s->offsets;
}

/* Fills the array 0, 1, ..., the ids for copies of rows. */
static invar_status ensure_copy_ids(invar_pass *pass)
{
    int64_t rows = pass->division.context.size > 1 ? pass->rows.count : 0;

    if (rows <= pass->in_order_capacity)
        return INVAR_OK;
    invar_free(pass->in_order);
    pass->in_order = NULL;
    pass->in_order_capacity = 0;
    INVAR_TRY(INVAR_ALLOC(pass->in_order, (size_t)rows, "the order of rows"));
    pass->in_order_capacity = rows;
    for (int32_t i = 0; i < rows; i++)
        pass->in_order[i] = i;
    return INVAR_OK;
}

/*
 * Lists the units of this rank's residual rows, then those of its context-parallel rows, if rows
 * are divided.
 */
static invar_status list_own_units(invar_pass *pass)
{
    const invar_row_partitions *d = &pass->division;
    int64_t need = d->residual.units + d->context.units + 2;

    if (d->residual.size == 1)
        return INVAR_OK;
    if (need > pass->own_units_capacity) {
        invar_free(pass->own_units);
        pass->own_units = NULL;
        pass->own_units_capacity = 0;
        INVAR_TRY(INVAR_ALLOC(pass->own_units, 2 * (size_t)need, "units of rows"));
        pass->own_units_capacity = 2 * need;
    }
    invar_row_partition_units(pass->own_units, &d->residual, &pass->rows.units);
    invar_row_partition_units(pass->own_units + d->residual.units + 1, &d->context,
                              &pass->rows.units);
    return INVAR_OK;
}

/* Sets the input buffers of the run and uploads its arrays. */
static invar_status upload_rows(invar_pass *pass)
{
    const invar_packed_rows *r = &pass->rows;
    const invar_tensor *table = r->cache ? &r->cache[0].pages : NULL;
    const void **g = pass->inputs;
    size_t rows = (size_t)r->count;
    const invar_row_partitions *d = &pass->division;
    invar_index_range own = invar_pass_own_rows(pass);
    invar_index_range picked = {invar_row_partition_first(&pass->division.context) + own.first,
                                own.count};
    size_t divided = invar_vocab_parallel_divided(pass->model->embedding) ? sizeof *r->ids : 0;
    const invar_upload arrays[] = {
        {&g[INVAR_INPUT_IDS], rows * sizeof *r->ids},
        {&g[INVAR_INPUT_POSITIONS], rows * sizeof *r->positions},
        {&g[INVAR_INPUT_SAMPLES], segment_bytes(&r->samples)},
        {&g[INVAR_INPUT_UNITS], segment_bytes(&r->units)},
        {&g[INVAR_INPUT_OWN_UNITS], (size_t)(d->residual.units + 1) * sizeof *pass->own_units},
        {&g[INVAR_INPUT_CONTEXT_UNITS], (size_t)(d->context.units + 1) * sizeof *pass->own_units},
        {&g[INVAR_INPUT_IN_ORDER], rows * sizeof *pass->in_order},
        {&g[INVAR_INPUT_PAGES],
         table ? (size_t)(table->shape[0] * table->row_stride) * sizeof(int32_t) : 0},
        {&g[INVAR_INPUT_SLOTS], rows * sizeof *r->kv_slots},
        {&g[INVAR_INPUT_LENGTHS], (size_t)r->samples.count * sizeof *r->lengths},
        {&g[INVAR_INPUT_REPLAY], rows * (size_t)route_of(pass->model) * sizeof *r->routing_replay},
        {&g[INVAR_INPUT_OWN_IDS],
         (size_t)invar_row_partition_count(&pass->division.context) * divided},
        {&g[INVAR_INPUT_OWN_D_IDS], rows * divided},
        {&g[INVAR_INPUT_PICKED], (size_t)own.count * divided},
    };

    INVAR_TRY(list_own_units(pass));
    INVAR_TRY(ensure_copy_ids(pass));
    g[INVAR_INPUT_MODEL] = pass->model->memory.trained;
    g[INVAR_INPUT_BASE] = pass->model->memory.base;
    g[INVAR_INPUT_CACHE] = r->cache ? r->cache[0].k.data : NULL;
    g[INVAR_INPUT_IDS] = r->ids;
    g[INVAR_INPUT_POSITIONS] = r->positions;
    g[INVAR_INPUT_SAMPLES] = r->samples.offsets;
    g[INVAR_INPUT_UNITS] = r->units.offsets;
    g[INVAR_INPUT_OWN_UNITS] = d->stream.size > 1 ? pass->own_units : NULL;
    g[INVAR_INPUT_CONTEXT_UNITS] =
        d->context.size > 1 ? pass->own_units + d->residual.units + 1 : NULL;
    g[INVAR_INPUT_IN_ORDER] = d->context.size > 1 ? pass->in_order : NULL;
    g[INVAR_INPUT_PAGES] = table ? table->data : NULL;
    g[INVAR_INPUT_SLOTS] = pass->hooks.on_value ? r->kv_slots : NULL;
    g[INVAR_INPUT_LENGTHS] = r->lengths;
    g[INVAR_INPUT_REPLAY] = r->routing_replay;
    g[INVAR_INPUT_ROUTING] = r->routing;
    if (divided > 0)
        INVAR_TRY(invar_vocab_parallel_rows(&pass->vocab, pass->model->embedding,
                                            &pass->model->part, r->ids, r->count, &picked));
    g[INVAR_INPUT_OWN_IDS] =
        divided > 0 ? pass->vocab.own_ids + invar_row_partition_first(&pass->division.context)
                    : NULL;
    g[INVAR_INPUT_OWN_D_IDS] = pass->vocab.own_d_ids;
    g[INVAR_INPUT_PICKED] = pass->vocab.picked;
    INVAR_TRY(invar_upload_buffer_send(&pass->layers.staging, &pass->op_runner.dev, arrays,
                                       sizeof arrays / sizeof *arrays));
    pass->samples = (invar_row_offsets){g[INVAR_INPUT_SAMPLES], r->samples.count};
    return INVAR_OK;
}

/* Gathers the routing that each context-parallel rank has computed for its rows. */
static invar_status gather_routing(invar_pass *pass, size_t row_bytes)
{
    const invar_layout *layout = pass->model->layout;
    size_t bytes[INVAR_ROW_PARTITION_MAX_RANKS];

    if (pass->division.context.size == 1 ||
        invar_layout_skips_transfers(layout, pass->op_runner.dev.backend->memory.dry_run))
        return INVAR_OK;
    for (int r = 0; r < pass->division.context.size; r++)
        bytes[r] =
            (size_t)(pass->division.context.row[r + 1] - pass->division.context.row[r]) * row_bytes;
    return invar_layout_gather(layout, &layout->context, "choices of experts", pass->rows.routing,
                               bytes);
}

invar_status invar_pass_routing(invar_pass *pass)
{
    invar_graph_exec_args how = invar_pass_exec_args(pass, &pass->layers.graph);
    int64_t route = route_of(pass->model);
    size_t row_bytes = (size_t)route * sizeof *pass->rows.routing;
    invar_tensor chosen;

    if (!pass->rows.routing)
        return INVAR_OK;
    if (invar_device_is_local(&pass->op_runner.dev) &&
        !pass->op_runner.dev.backend->memory.dry_run) {
        chosen = invar_op_graph_find(pass->layers.graph.graph, &pass->layers.graph.builder.routing,
                                     &how);
        INVAR_TRY(invar_op_runner_download(
            &pass->op_runner,
            pass->rows.routing + invar_row_partition_first(&pass->division.context) * route,
            chosen.data, (size_t)invar_row_partition_count(&pass->division.context) * row_bytes));
    }
    return gather_routing(pass, row_bytes);
}

size_t invar_pass_stream_bytes(const invar_model *model, const invar_packed_rows *rows)
{
    int64_t bits = model->spec.hidden * invar_dtype_bits(model->storage);
    invar_row_partitions division;

    divide_rows(&division, model, rows);
    return (size_t)(invar_row_partition_count(&division.residual) * bits / 8);
}

static invar_status upload_residual(invar_pass *pass, const invar_tensor *to, const void *from)
{
    invar_graph_exec_args how = invar_pass_exec_args(pass, &pass->layers.graph);

    if (!from)
        return INVAR_OK;
    return invar_device_upload(&pass->op_runner.dev,
                               invar_op_graph_find(pass->layers.graph.graph, to, &how).data, from,
                               invar_pass_stream_bytes(pass->model, &pass->rows));
}

static invar_status download_residual(void *out, invar_pass *pass, const invar_tensor *from)
{
    invar_graph_exec_args how = invar_pass_exec_args(pass, &pass->layers.graph);

    if (pass->op_runner.dev.backend->memory.dry_run) // nothing was computed
        return INVAR_OK;
    return invar_op_runner_download(&pass->op_runner, out,
                                    invar_op_graph_find(pass->layers.graph.graph, from, &how).data,
                                    invar_pass_stream_bytes(pass->model, &pass->rows));
}

invar_status invar_pass_get_residual(invar_pass *pass, void *out)
{
    if (pass->state == INVAR_PASS_EMPTY)
        return INVAR_FAIL(INVAR_E_STATE, 0, "a stage hands rows on before its layers ran");
    return download_residual(out, pass, &pass->layers.io.stream);
}

invar_status invar_pass_run(invar_pass *pass, const invar_model *model,
                            const invar_packed_rows *rows)
{
    invar_graph_exec_args how;

    pass->model = model;
    pass->transfers.layout = model->layout;
    pass->rows = *rows;
    pass->state = INVAR_PASS_EMPTY;
    if (rows->cache && pass->options.train)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a training pass takes whole samples, no cache");
    divide_rows(&pass->division, model, rows);
    INVAR_TRY(prepare_layers_graph(pass));
    if (invar_tensor_present(&pass->layers.io.first) != (rows->residual_in != NULL))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "layers behind the first ones begin with a stream");
    INVAR_TRY(upload_rows(pass));
    INVAR_TRY(upload_residual(pass, &pass->layers.io.first, rows->residual_in));
    how = invar_pass_exec_args(pass, &pass->layers.graph);
    INVAR_TRY(invar_op_graph_run(pass->layers.graph.graph, 0, &how));
    pass->op_runner.layer = -1;
    pass->state = INVAR_PASS_RUN;
    return INVAR_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

invar_status invar_pass_set_residual_grad(invar_pass *pass, const void *d_stream)
{
    if (pass->state != INVAR_PASS_RUN || !pass->options.train)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "a backward needs a training pass whose layers have just run");
    pass->state = INVAR_PASS_EMPTY;
    INVAR_TRY(upload_residual(pass, &pass->layers.io.d_stream, d_stream));
    pass->state = INVAR_PASS_GRADIENT;
    return INVAR_OK;
}

invar_status invar_pass_backward(invar_pass *pass, invar_grads *grads)
{
    invar_graph_exec_args how = invar_pass_exec_args(pass, &pass->layers.graph);

    if (pass->state != INVAR_PASS_GRADIENT)
        return INVAR_FAIL(INVAR_E_STATE, 0, "a backward of the layers needs that of the head");
    pass->inputs[INVAR_INPUT_GRADS] = grads->memory;
    pass->state = INVAR_PASS_EMPTY;
    how.overwrite = grads->overwrite_next;
    INVAR_TRY(invar_op_graph_run(pass->layers.graph.graph, 1, &how));
    pass->op_runner.layer = -1;
    grads->overwrite_next = false;
    return INVAR_OK;
}

invar_status invar_pass_get_residual_grad(invar_pass *pass, void *out)
{
    if (!pass->options.train || !invar_tensor_present(&pass->layers.io.d_first))
        return INVAR_FAIL(INVAR_E_STATE, 0, "no stage comes before these layers");
    return download_residual(out, pass, &pass->layers.io.d_first);
}
