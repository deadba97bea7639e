/*
 * decoder.c - builds the op graph of a decoder and its backward, with optional recomputation.
 *
 * The same walk over embedding, layers and head declares the parameters (without memory) and builds
 * the graph, so canonical parameter order and graph cannot diverge. With recomputation, the
 * backward of the last layer runs first; each earlier layer is then built a second time with hidden
 * points, and nodes of it that no backward reads are dropped.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/decoder.h"

#include <string.h>

#include "engine/model/family.h"
#include "engine/model/lora/adapters.h"

#include "base/invar_banned.h"

static int64_t sparse_before(const invar_model_spec *s, int64_t layer)
{
    int64_t count = 0;

    for (int64_t i = 0; i < layer; i++)
        count += s->experts.sparse[i];
    return count;
}

int64_t invar_model_sparse_before(const invar_model *model, int64_t layer)
{
    return sparse_before(&model->spec, layer);
}

int64_t invar_model_sparse_layers(const invar_model *model)
{
    return sparse_before(&model->spec, model->spec.layers);
}

int64_t invar_model_spec_route(const invar_model_spec *spec)
{
    return sparse_before(spec, spec->layers) * spec->experts.per_token;
}

static invar_tensor build_embedding(invar_builder *b, const invar_model_spec *s)
{
    invar_logical_split split = invar_logical_split_rows(s->logical_tp, INVAR_ATOM_IDS);
    invar_weight table = invar_build_cut_param(
        b, INVAR_PARAM_EMBEDDING, "model.embed_tokens.weight", s->vocab, s->hidden, &split);

    return invar_graph_embed(b, "embed", &table);
}

static invar_tensor build_layer(invar_builder *b, const invar_model_spec *s, int64_t i,
                                invar_tensor x)
{
    const invar_family_traits *family = invar_family_traits_of(s->family);

    b->layer = i;
    b->sparse_layers = sparse_before(s, i);
    invar_build_rename(b, &x, "x");
    x = family->attention(b, s, x);
    return (s->experts.sparse[i] ? family->sparse : family->dense)(b, s, x);
}

/* ---- parameters ------------------------------------------------------------------------------ */

static void declare_all(invar_builder *b, const invar_model_spec *s)
{
    invar_logical_split ids = invar_logical_split_rows(s->logical_tp, INVAR_ATOM_IDS);
    invar_tensor x = build_embedding(b, s);

    for (int64_t i = 0; i < s->layers; i++)
        x = build_layer(b, s, i, x);
    b->layer = -1;
    (void)invar_build_param(b, INVAR_PARAM_NORM, "model.norm.weight", 1, s->hidden, 0);
    if (s->value_head)
        (void)invar_build_param(b, INVAR_PARAM_HEAD, "score.weight", 1, 1, s->hidden);
    else if (!s->tied)
        (void)invar_build_cut_param(b, INVAR_PARAM_HEAD, "lm_head.weight", s->vocab, s->hidden,
                                    &ids);
}

invar_status invar_decoder_declare(int64_t *count_out, invar_param *out,
                                   const invar_model_spec *spec, invar_format format)
{
    invar_builder b = {.model = {.declared = out,
                                 .storage = INVAR_DTYPE_F32,
                                 .head_block = invar_format_head_block(format),
                                 .tensors = 1,
                                 .experts = 1},
                       .layer = -1,
                       .rows = {.count = 1, .all_count = 1}};
    invar_status status;

    INVAR_TRY(invar_op_graph_new(&b.graph));
    declare_all(&b, spec);
    status = b.graph->status;
    *count_out = b.model.next_param;
    invar_builder_release(&b);
    invar_op_graph_free(b.graph);
    return status;
}

/* ---- op graph -------------------------------------------------------------------------------- */

static invar_tensor rope_table_input(invar_op_graph *graph, const invar_model *model,
                                     const invar_tensor *t)
{
    invar_tensor named = *t;

    named.data = (char *)invar_op_graph_input(graph, INVAR_INPUT_MODEL) +
                 ((char *)t->data - (char *)model->memory.trained);
    return named;
}

void invar_decoder_begin(invar_builder *b, invar_op_graph *graph, const invar_model *model,
                         int64_t rows)
{
    invar_builder_lists lists = {.values = b->lists.values,
                                 .value_bytes = b->lists.value_bytes,
                                 .backward_records = b->lists.backward_records,
                                 .record_bytes = b->lists.record_bytes,
                                 .args = b->lists.args,
                                 .args_capacity = b->lists.args_capacity,
                                 .groups = b->lists.groups,
                                 .group_bytes = b->lists.group_bytes};

    invar_op_graph_clear(graph);
    if (lists.value_bytes)
        memset(lists.values, 0, lists.value_bytes);
    *b = (invar_builder){.graph = graph,
                         .model = {.params = model->base,
                                   .param_base = model->memory.trained,
                                   .frozen_base = model->memory.base,
                                   .storage = model->storage,
                                   .norm_eps = model->spec.norm_eps,
                                   .head_block = invar_format_head_block(model->format),
                                   .tensor = model->part.tensor,
                                   .tensors = model->part.tensors,
                                   .expert = model->part.expert,
                                   .experts = model->part.experts},
                         .rows.count = rows,
                         .layer = -1,
                         .lists = lists};
    b->model.cosine = rope_table_input(graph, model, &model->rope.cosine);
    b->model.sine = rope_table_input(graph, model, &model->rope.sine);
}

/*
 * Builds layer i again from its kept input x[0], with everything that its backward needs. The
 * gradient of its first output x[1] moves to the new output.
 */
static void rebuild_layer(invar_builder *b, const invar_model *model, int64_t i,
                          const invar_tensor x[2])
{
    invar_tensor y, d;

    b->hide_points = true;
    invar_build_value_info(b, &x[0])->readers = 0; // its readers were discarded
    b->model.next_param = model->first[i];
    y = build_layer(b, &model->spec, i, x[0]);
    b->hide_points = false;
    d = invar_build_grad_in(b, &x[1]);
    invar_build_grad_set(b, &y, &d);
}

/* Appends the backward. Backward records from number `before` on belong to the layers. */
static void build_backward(invar_builder *b, invar_decoder *out, const invar_model *model,
                           const invar_index_range *layers, const invar_tensor *x, int32_t before,
                           bool recompute)
{
    for (int64_t i = layers->count - 2; recompute && i >= 0; i--) {
        invar_build_backward(b, before);
        rebuild_layer(b, model, layers->first + i, &x[i]);
    }
    invar_build_backward(b, 0);
    if (invar_tensor_present(&out->first)) {
        out->d_first = invar_build_grad_in(b, &out->first);
        invar_op_graph_host_access(b->graph, &out->d_first);
    }
    if (recompute) // drops results of a recomputed layer that only the next layer reads
        invar_op_graph_eliminate_dead(b->graph, b->graph->section_start[1]);
}

/* Declares the input of a first layer that is not layer 0. */
static invar_tensor begin_at_layer(invar_builder *b, const invar_model *model, int64_t i)
{
    invar_tensor x = invar_build_residual_buffer(b, b->model.storage, 1, model->spec.hidden);

    b->model.next_param = model->first[i];
    invar_op_graph_host_access(b->graph, &x);
    invar_op_graph_initial_point(b->graph,
                                 &(invar_graph_point){.name = "mlp", .layer = i - 1, .rows = x});
    invar_build_value_info(b, &x)->stream = true;
    return x;
}

invar_decoder invar_decoder_build(invar_builder *b, const invar_model *model,
                                  const invar_index_range *layers, bool recompute)
{
    invar_tensor x[INVAR_SPEC_MAX_LAYERS + 1];
    invar_decoder out = {.first = {0}};
    int32_t before;

    if (layers->first > 0)
        out.first = begin_at_layer(b, model, layers->first);
    x[0] = layers->first > 0 ? out.first : build_embedding(b, &model->spec);
    before = b->lists.n_records;
    for (int64_t i = 0; i < layers->count; i++) {
        x[i + 1] = build_layer(b, &model->spec, layers->first + i, x[i]);
        if (recompute && i < layers->count - 1) // the values of the last layer are still valid
            invar_build_discard_backward(b, before);
    }
    out.stream = x[layers->count];
    invar_op_graph_host_access(b->graph, &out.stream);
    if (layers->first + layers->count == model->spec.layers) {
        out.all = invar_build_all_rows(b, &out.stream);
        invar_op_graph_host_access(b->graph, &out.all);
    }
    if (invar_tensor_present(&b->routing))
        invar_op_graph_host_access(b->graph, &b->routing);
    invar_op_graph_end_section(b->graph);
    if (!b->train)
        return out;
    out.d_stream = invar_build_residual_buffer(b, b->model.storage, 1, model->spec.hidden);
    invar_op_graph_host_access(b->graph, &out.d_stream);
    if (layers->first + layers->count < model->spec.layers)
        invar_op_graph_initial_point(b->graph,
                                     &(invar_graph_point){.name = "x",
                                                          .gradient = true,
                                                          .layer = layers->first + layers->count,
                                                          .rows = out.d_stream});
    invar_build_grad_set(b, &out.stream, &out.d_stream);
    build_backward(b, &out, model, layers, x, before, recompute);
    invar_op_graph_end_section(b->graph);
    return out;
}
