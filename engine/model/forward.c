/*
 * forward.c - the walk through a model: embedding, layers, and back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/forward.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/pass.h"

#include "base/invar_banned.h"

/* ---- gradients ------------------------------------------------------------------------------- */

static size_t padded(size_t bytes)
{
    return (bytes + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN;
}

static size_t master_bytes(const invar_param *p)
{
    return padded((size_t)(p->master.shape[0] * p->master.row_stride) * sizeof(float));
}

static invar_status zero_all(invar_grads *grads)
{
    return invar_device_zero(&grads->dev, grads->memory, grads->bytes);
}

static void lay_out_grads(invar_grads *grads, const invar_model *model)
{
    char *next = grads->memory;

    INVAR_CHECK(model->order[0] == 0 && model->embedding == &model->params[0]);
    for (int64_t k = 0; k < model->n_params; k++) {
        int64_t i = model->order[k];
        const invar_param *p = &model->params[i];
        grads->of[i] = p->master;
        grads->of[i].data = next;
        if (p->cols == 0 && !grads->vectors)
            grads->vectors = next; // the matrices are all before them
        next += master_bytes(p);
    }
    grads->embedding_bytes = master_bytes(model->embedding);
    grads->vector_bytes = (size_t)(next - (char *)grads->vectors);
    if (model->head == model->embedding) {
        grads->tied_head = model->embedding->master;
        grads->tied_head.data = next;
    }
}

invar_status invar_grads_new(invar_grads **out, const invar_model *model)
{
    bool tied = model->head == model->embedding;
    invar_grads *grads = NULL;
    size_t bytes = tied ? master_bytes(model->embedding) : 0;
    invar_status status;

    *out = NULL;
    for (int64_t i = 0; i < model->n_params; i++)
        bytes += master_bytes(&model->params[i]);
    INVAR_TRY(invar_alloc((void **)&grads, 1, sizeof *grads, "gradients"));
    *grads = (invar_grads){.bytes = bytes, .dev = model->dev};
    status = invar_alloc((void **)&grads->of, (size_t)model->n_params, sizeof *grads->of,
                         "the list of gradients");
    if (status == INVAR_OK)
        status = invar_alloc((void **)&grads->digests, (size_t)model->n_params,
                             sizeof *grads->digests, "digests of gradients");
    if (status == INVAR_OK)
        status = invar_device_take(&grads->dev, &grads->memory, bytes, "gradients");
    if (status == INVAR_OK)
        status = zero_all(grads);
    if (status != INVAR_OK) {
        invar_grads_free(grads);
        return status;
    }
    lay_out_grads(grads, model);
    grads->fresh = true;
    *out = grads;
    return INVAR_OK;
}

void invar_grads_free(invar_grads *grads)
{
    if (!grads)
        return;
    invar_free(grads->of);
    invar_free(grads->digests);
    invar_device_give(&grads->dev, grads->memory);
    invar_free(grads);
}

invar_status invar_grads_zero(invar_grads *grads)
{
    grads->fresh = true;
    INVAR_TRY(invar_device_zero(&grads->dev, grads->memory, grads->embedding_bytes));
    return invar_device_zero(&grads->dev, grads->vectors, grads->vector_bytes);
}

invar_status invar_grads_join(invar_grads *grads, const invar_model *model, const invar_device *dev)
{
    const invar_tensor *sum = &grads->of[0]; // the embedding comes first
    invar_caller caller;
    invar_status status;

    if (grads->fresh) { // a step without a backward
        INVAR_TRY(zero_all(grads));
        grads->fresh = false;
    }
    if (!invar_tensor_present(&grads->tied_head))
        return INVAR_OK;
    INVAR_CHECK(model->embedding == &model->params[0]);
    invar_caller_init(&caller, dev);
    status = INVAR_CALL(&caller, ADD, add, .out = *sum, .a = grads->tied_head, .b = *sum);
    invar_caller_release(&caller);
    return status;
}

/* ---- the pass -------------------------------------------------------------------------------- */

invar_status invar_pass_new(invar_pass **out, const invar_device *dev,
                            const invar_pass_options *options)
{
    INVAR_TRY(invar_alloc((void **)out, 1, sizeof **out, "a pass"));
    memset(*out, 0, sizeof **out);
    (*out)->options = *options;
    invar_caller_init(&(*out)->caller, dev);
    return INVAR_OK;
}

void invar_pass_free(invar_pass *pass)
{
    if (!pass)
        return;
    invar_staging_release(&pass->staging, &pass->caller.dev);
    invar_staging_release(&pass->head_staging, &pass->caller.dev);
    invar_staging_release(&pass->back_staging, &pass->caller.dev);
    invar_pass_release_memory(pass);
    invar_caller_release(&pass->caller);
    invar_free(pass);
}

void invar_pass_probe(invar_pass *pass, const invar_forward_probe *probe)
{
    pass->probe = probe ? *probe : (invar_forward_probe){0};
}

void invar_pass_audit(invar_pass *pass, invar_audit *audit)
{
    pass->caller.audit = audit;
}

bool invar_pass_tape(invar_pass *pass, invar_tape *tape)
{
    bool watched = pass->probe.take || pass->caller.audit;

    pass->caller.tape = watched ? NULL : tape;
    return !watched;
}

invar_status invar_pass_show(invar_pass *pass, const invar_forward_value *value)
{
    invar_forward_value shown = *value;

    if (!pass->probe.take)
        return INVAR_OK;
    if (!shown.samples)
        shown.samples = &pass->rows.samples;
    return pass->probe.take(pass->probe.payload, &shown);
}

invar_tensor *invar_pass_grad(const invar_pass *pass, invar_grads *grads, const invar_param *p)
{
    return &grads->of[p - pass->model->params];
}

invar_tensor invar_pass_heads(const invar_tensor *t, int64_t heads)
{
    invar_tensor view = invar_tensor_3d(t->data, t->dtype, t->shape[0], heads, t->shape[1] / heads);

    view.row_stride = t->row_stride;
    return view;
}

invar_status invar_block_norm(invar_pass *pass, const invar_tensor *y, const invar_tensor *x,
                              const invar_param *weight, int64_t heads)
{
    return INVAR_CALL(&pass->caller, RMSNORM_FWD, rmsnorm_fwd, .y = invar_pass_heads(y, heads),
                      .x = invar_pass_heads(x, heads), .weight = weight->weight,
                      .eps = pass->model->spec.norm_eps);
}

invar_status invar_block_norm_backward(invar_pass *pass, const invar_tensor *dx,
                                       const invar_tensor *dy, const invar_tensor *x,
                                       const invar_param *weight, int64_t heads,
                                       const invar_segments *units, invar_grads *grads)
{
    return INVAR_CALL(&pass->caller, RMSNORM_BWD, rmsnorm_bwd, .dx = invar_pass_heads(dx, heads),
                      .dweight = *invar_pass_grad(pass, grads, weight),
                      .dy = invar_pass_heads(dy, heads), .x = invar_pass_heads(x, heads),
                      .weight = weight->weight, .units = *units, .eps = pass->model->spec.norm_eps);
}

invar_status invar_block_join_backward(invar_pass *pass, int64_t layer,
                                       const invar_block_join *join, invar_grads *grads)
{
    invar_temps *t = &pass->temps;
    invar_tensor d = invar_pass_heads(&t->d, 1);

    if (!pass->probe.take)
        return INVAR_CALL(&pass->caller, RMSNORM_BWD, rmsnorm_bwd, .dx = d,
                          .dweight = *invar_pass_grad(pass, grads, join->weight),
                          .dy = invar_pass_heads(&t->branch, 1), .x = invar_pass_heads(join->x, 1),
                          .weight = join->weight->weight, .units = pass->given.units,
                          .eps = pass->model->spec.norm_eps, .residual = d);
    INVAR_TRY(invar_block_norm_backward(pass, &t->d_norm, &t->branch, join->x, join->weight, 1,
                                        &pass->given.units, grads));
    INVAR_TRY(INVAR_SHOW_BACK(pass, layer, join->norm, RMSNORM_BWD, &t->d_norm,
                              .inputs = {join->dy, join->of}));
    INVAR_TRY(INVAR_CALL(&pass->caller, ADD, add, .out = t->d, .a = t->d, .b = t->d_norm));
    return INVAR_SHOW_BACK(pass, layer, join->point, ADD, &t->d, .inputs = {"d", join->norm},
                           .stream = true);
}

/* ---- forward --------------------------------------------------------------------------------- */

static invar_acts *acts_of(invar_pass *pass, int64_t layer)
{
    invar_acts *a = &pass->acts[pass->n_acts > 1 ? layer : 0];

    a->x = pass->x[layer];
    a->y = pass->x[layer + 1];
    return a;
}

static invar_status run_layer(invar_pass *pass, int64_t layer)
{
    invar_acts *a = acts_of(pass, layer);

    pass->caller.layer = layer;
    INVAR_TRY(invar_block_attention(pass, layer, a));
    return invar_block_mlp(pass, layer, a);
}

static invar_tensor ids_of(const invar_pass *pass)
{
    return invar_tensor_1d((void *)(uintptr_t)pass->given.ids, INVAR_DTYPE_I32, pass->rows.count);
}

static size_t segment_bytes(const invar_segments *s)
{
    return (size_t)(s->count + 1) * sizeof *s->start;
}

/* Numbers of one row's routing, in all layers. */
static size_t route_of(const invar_model *model)
{
    return (size_t)(invar_model_sparse_layers(model) * model->spec.experts_per_token);
}

/* The arrays of the run to where its ops read them. */
static invar_status send_rows(invar_pass *pass)
{
    const invar_rows *r = &pass->rows;
    const invar_tensor *table = r->cache ? &r->cache[0].pages : NULL;
    invar_given *g = &pass->given;
    int32_t *routing = g->routing; // its room is laid out already
    size_t rows = (size_t)r->count;
    const invar_staged arrays[] = {
        {(const void **)&g->ids, rows * sizeof *g->ids},
        {(const void **)&g->positions, rows * sizeof *g->positions},
        {(const void **)&g->samples.start, segment_bytes(&r->samples)},
        {(const void **)&g->units.start, segment_bytes(&r->units)},
        {(const void **)&g->pages,
         table ? (size_t)(table->shape[0] * table->row_stride) * sizeof *g->pages : 0},
        {(const void **)&g->lengths, (size_t)r->samples.count * sizeof *g->lengths},
        {(const void **)&g->routing_replay,
         rows * route_of(pass->model) * sizeof *g->routing_replay},
    };

    *g = (invar_given){.ids = r->ids,
                       .positions = r->positions,
                       .samples = r->samples,
                       .units = r->units,
                       .pages = table ? table->data : NULL,
                       .lengths = r->lengths,
                       .routing_replay = r->routing_replay,
                       .routing = routing};
    return invar_staging_send(&pass->staging, &pass->caller.dev, arrays,
                              sizeof arrays / sizeof *arrays);
}

invar_status invar_pass_routing(invar_pass *pass)
{
    const invar_rows *r = &pass->rows;

    if (!r->routing || pass->given.routing == r->routing)
        return INVAR_OK;
    return invar_caller_get(&pass->caller, r->routing, pass->given.routing,
                            (size_t)r->count * route_of(pass->model) * sizeof *r->routing);
}

invar_status invar_pass_run(invar_pass *pass, const invar_model *model, const invar_rows *rows)
{
    pass->model = model;
    pass->rows = *rows;
    pass->state = INVAR_PASS_EMPTY;
    if (rows->cache && pass->options.train)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a training pass takes whole samples, no cache");
    INVAR_TRY(invar_pass_lay_out(pass));
    INVAR_TRY(send_rows(pass));
    INVAR_TRY(INVAR_CALL(&pass->caller, EMBEDDING_FWD, embedding_fwd, .out = pass->x[0],
                         .table = model->embedding->weight, .ids = ids_of(pass)));
    INVAR_TRY(INVAR_SHOW(pass, -1, "embed", EMBEDDING_FWD, &pass->x[0], .stream = true));
    for (int64_t i = 0; i < model->spec.layers; i++)
        INVAR_TRY(run_layer(pass, i));
    pass->caller.layer = -1;
    pass->state = INVAR_PASS_RUN;
    return INVAR_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The layer's activations are there again; nothing is shown a second time. */
static invar_status restore_layer(invar_pass *pass, int64_t layer)
{
    invar_forward_probe probe = pass->probe;
    invar_status status;

    if (!pass->options.recompute || layer == pass->model->spec.layers - 1)
        return INVAR_OK; // the last layer's are still there
    pass->probe = (invar_forward_probe){0};
    status = run_layer(pass, layer);
    pass->probe = probe;
    return status;
}

static invar_status walk_back(invar_pass *pass, invar_grads *grads)
{
    for (int64_t i = pass->model->spec.layers - 1; i >= 0; i--) {
        invar_acts *a = acts_of(pass, i);
        pass->caller.layer = i;
        INVAR_TRY(restore_layer(pass, i));
        INVAR_TRY(invar_block_mlp_backward(pass, i, a, grads));
        INVAR_TRY(invar_block_attention_backward(pass, i, a, grads));
    }
    pass->caller.layer = -1;
    grads->fresh = false;
    return INVAR_CALL(&pass->caller, EMBEDDING_BWD, embedding_bwd,
                      .dtable = *invar_pass_grad(pass, grads, pass->model->embedding),
                      .dout = pass->temps.d, .ids = ids_of(pass));
}

invar_status invar_pass_backward(invar_pass *pass, const float *dlogp, const float *dentropy,
                                 invar_grads *grads)
{
    INVAR_TRY(invar_head_backward(pass, dlogp, dentropy, grads));
    return walk_back(pass, grads);
}

invar_status invar_pass_backward_values(invar_pass *pass, const float *dvalue,
                                        const invar_segments *units, invar_grads *grads)
{
    INVAR_TRY(invar_head_backward_values(pass, dvalue, units, grads));
    return walk_back(pass, grads);
}
