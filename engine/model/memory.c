/*
 * memory.c - where the activations of a pass lie, and the arrays that its head makes.
 *
 * The layout is a list of calls that hand out pieces of one block, made twice: once without a block
 * to learn its size, once for real. So it is a pure function of model, rows and options.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/carve.h"
#include "engine/model/pass.h"

#include "base/invar_banned.h"

static invar_tensor take(invar_carver *c, invar_dtype dtype, int64_t rows, int64_t cols)
{
    size_t bytes = (size_t)(rows * cols) * (size_t)invar_dtype_bits(dtype) / 8;

    return invar_tensor_2d(invar_carve(c, bytes), dtype, rows, cols);
}

static invar_tensor take_vector(invar_carver *c, invar_dtype dtype, int64_t n)
{
    return invar_tensor_1d(invar_carve(c, (size_t)n * (size_t)invar_dtype_bits(dtype) / 8), dtype,
                           n);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The extents that the buffers depend on. */
typedef struct extents {
    invar_dtype storage;
    int64_t t, hidden, q, kv, heads;
    int64_t dense;  /* widest dense MLP, 0: none */
    int64_t expert; /* 0: no experts */
    int64_t p;      /* expert rows */
    int64_t experts, slots;
} extents;

static extents measure(const invar_pass *pass)
{
    const invar_model_spec *s = &pass->model->spec;
    extents e = {.storage = pass->model->storage,
                 .t = pass->rows.count,
                 .hidden = s->hidden,
                 .q = s->heads * s->head_dim,
                 .kv = s->kv_heads * s->head_dim,
                 .heads = s->heads,
                 .experts = s->experts,
                 .slots = s->experts_per_token};

    for (int64_t i = 0; i < s->layers; i++)
        if (s->sparse[i])
            e.expert = s->expert_intermediate;
        else
            e.dense = s->intermediate;
    e.p = e.expert ? e.t * e.slots : 0;
    return e;
}

/*
 * All but x and y, which are the residual stream's. The MLP's buffers have room for the widest kind
 * of MLP that will use them; the blocks shape them.
 */
static void lay_out_acts(invar_acts *a, invar_carver *c, const extents *e, bool qk_norm, bool dense,
                         bool sparse)
{
    int64_t wide = larger(dense ? e->t * e->dense : 0, sparse ? e->p * e->expert : 0);

    a->norm_in = take(c, e->storage, e->t, e->hidden);
    a->q = take(c, e->storage, e->t, e->q);
    a->k = take(c, e->storage, e->t, e->kv);
    a->v = take(c, e->storage, e->t, e->kv);
    a->q_raw = qk_norm ? take(c, e->storage, e->t, e->q) : a->q;
    a->k_raw = qk_norm ? take(c, e->storage, e->t, e->kv) : a->k;
    a->o = take(c, e->storage, e->t, e->q);
    a->lse2 = take(c, INVAR_DTYPE_F32, e->t, e->heads);
    a->mid = take(c, e->storage, e->t, e->hidden);
    a->norm_mid = take(c, e->storage, e->t, e->hidden);
    a->gate = take(c, e->storage, 1, wide);
    a->up = take(c, e->storage, 1, wide);
    a->act = take(c, e->storage, 1, wide);
    if (!sparse)
        return;
    a->logits = take(c, INVAR_DTYPE_F32, e->t, e->experts);
    a->scores = take(c, INVAR_DTYPE_F32, e->t, e->experts);
    a->weights = take(c, INVAR_DTYPE_F32, e->t, e->slots);
    a->chosen = take(c, INVAR_DTYPE_I32, e->t, e->slots);
    a->slot_row = take(c, INVAR_DTYPE_I32, e->t, e->slots);
    a->row_token = take_vector(c, INVAR_DTYPE_I32, e->p);
    a->gathered = take(c, e->storage, e->p, e->hidden);
    a->expert_y = take(c, e->storage, e->p, e->hidden);
    a->expert_start = invar_carve(c, (size_t)(e->experts + 1) * sizeof *a->expert_start);
}

static invar_dtype operand_type(invar_format format)
{
    switch (format) {
    case INVAR_FORMAT_FP8: return INVAR_DTYPE_FP8;
    case INVAR_FORMAT_MXFP8: return INVAR_DTYPE_MXFP8;
    default: return INVAR_DTYPE_NONE;
    }
}

/* Room for the widest operand; its view is made where it is used. */
static void lay_out_operands(invar_pass *pass, invar_carver *c, const extents *e)
{
    invar_dtype dtype = operand_type(pass->model->format);
    int64_t widest = larger(larger(e->hidden, e->q), e->kv);
    int64_t rows = larger(e->t, e->p);

    widest = larger(larger(widest, e->dense), e->expert);
    for (int i = 0; i < 3; i++) {
        invar_tensor *t = &pass->temps.operand[i];
        memset(t, 0, sizeof *t);
        if (dtype == INVAR_DTYPE_NONE)
            continue;
        *t = take(c, dtype, rows, widest);
        t->scale = invar_carve(c, invar_tensor_scale_bytes(t));
    }
}

static void lay_out_backward(invar_pass *pass, invar_carver *c, const extents *e)
{
    invar_temps *t = &pass->temps;
    bool qk_norm = pass->model->spec.qk_norm;
    int64_t wide = larger(e->t * e->dense, e->p * e->expert);
    invar_tensor qkv = take(c, e->storage, e->t, e->q + 2 * e->kv);

    t->d = take(c, e->storage, e->t, e->hidden);
    t->d_norm = take(c, e->storage, e->t, e->hidden);
    t->d_o = take(c, e->storage, e->t, e->q);
    t->dq_raw = invar_tensor_columns(&qkv, 0, e->q);
    t->dk_raw = invar_tensor_columns(&qkv, e->q, e->kv);
    t->dv = invar_tensor_columns(&qkv, e->q + e->kv, e->kv);
    t->dq = qk_norm ? take(c, e->storage, e->t, e->q) : t->dq_raw;
    t->dk = qk_norm ? take(c, e->storage, e->t, e->kv) : t->dk_raw;
    t->d_act = take(c, e->storage, 1, wide);
    t->d_inner = take(c, e->storage, 1, 2 * wide);
    if (!e->expert)
        return;
    t->d_router = take(c, e->storage, e->t, e->hidden);
    t->d_expert_y = take(c, e->storage, e->p, e->hidden);
    t->d_gathered = take(c, e->storage, e->p, e->hidden);
    t->d_weights = take(c, INVAR_DTYPE_F32, e->t, e->slots);
    t->d_logits = take(c, e->storage, e->t, e->experts);
}

static void lay_out_layers(invar_pass *pass, invar_carver *c)
{
    const invar_model_spec *s = &pass->model->spec;
    extents e = measure(pass);
    bool keep = pass->options.train;

    // without a backward two rows of the residual stream alternate
    for (int64_t i = 0; i <= s->layers; i++)
        pass->x[i] = keep || i < 2 ? take(c, e.storage, e.t, e.hidden) : pass->x[i - 2];
    for (int64_t i = 0; i < pass->n_acts; i++) {
        bool alone = pass->n_acts == s->layers;
        bool sparse = alone ? s->sparse[i] : e.expert != 0;
        bool dense = alone ? !s->sparse[i] : e.dense != 0;
        lay_out_acts(&pass->acts[i], c, &e, s->qk_norm, dense, sparse);
    }
    // near, the routers write to where the caller wants their choice
    pass->given.routing = pass->rows.routing;
    if (pass->rows.routing && invar_device_far(&pass->caller.dev))
        pass->given.routing = invar_carve(
            c, (size_t)(e.t * invar_model_sparse_layers(pass->model) * e.slots) * sizeof(int32_t));
    pass->temps.branch = take(c, e.storage, e.t, e.hidden);
    lay_out_operands(pass, c, &e);
    if (keep)
        lay_out_backward(pass, c, &e);
}

/* The lists that depend on the model alone. */
static invar_status lay_out_lists(invar_pass *pass)
{
    int64_t layers = pass->model->spec.layers;
    int64_t acts = pass->options.train && !pass->options.recompute ? layers : 1;

    if (pass->n_acts != acts || pass->n_x != layers + 1) {
        invar_free(pass->acts);
        invar_free(pass->x);
        pass->acts = NULL;
        pass->x = NULL;
        pass->n_acts = pass->n_x = 0;
        INVAR_TRY(invar_alloc((void **)&pass->acts, (size_t)acts, sizeof *pass->acts,
                              "the list of activations"));
        INVAR_TRY(invar_alloc((void **)&pass->x, (size_t)layers + 1, sizeof *pass->x,
                              "the list of layer inputs"));
        pass->n_acts = acts;
        pass->n_x = layers + 1;
    }
    memset(pass->acts, 0, (size_t)acts * sizeof *pass->acts);
    memset(&pass->temps, 0, sizeof pass->temps);
    return INVAR_OK;
}

/* Replaces the block where it is too small; a little more, so that growth soon ends. */
static invar_status ensure(void **block, size_t *have, const invar_device *dev, size_t need,
                           const char *what)
{
    if (need <= *have)
        return INVAR_OK;
    invar_device_give(dev, *block);
    *block = NULL;
    *have = 0;
    INVAR_TRY(invar_device_take(dev, block, need + need / 8, what));
    *have = need + need / 8;
    return INVAR_OK;
}

static invar_status ensure_arrays(invar_pass *pass, size_t need)
{
    if (need <= pass->head_array_bytes)
        return INVAR_OK;
    invar_free(pass->head_arrays);
    pass->head_arrays = NULL;
    pass->head_array_bytes = 0;
    INVAR_TRY(invar_alloc(&pass->head_arrays, need + need / 8, 1, "the list of the head's rows"));
    pass->head_array_bytes = need + need / 8;
    return INVAR_OK;
}

void invar_pass_release_memory(invar_pass *pass)
{
    invar_free(pass->acts);
    invar_free(pass->x);
    invar_device_give(&pass->caller.dev, pass->memory);
    invar_device_give(&pass->caller.dev, pass->head_memory);
    invar_free(pass->head_arrays);
}

invar_status invar_pass_lay_out(invar_pass *pass)
{
    invar_carver c = {NULL, 0};

    INVAR_TRY(lay_out_lists(pass));
    lay_out_layers(pass, &c);
    INVAR_TRY(ensure(&pass->memory, &pass->bytes, &pass->caller.dev, c.used, "activations"));
    c = (invar_carver){pass->memory, 0};
    lay_out_layers(pass, &c);
    return INVAR_OK;
}

/* Log-probabilities and entropies side by side: they are fetched together. */
static void lay_out_results(invar_head_acts *h, invar_carver *c, int64_t rows)
{
    size_t bytes = (size_t)rows * sizeof(float);
    uintptr_t at = (uintptr_t)invar_carve(c, 2 * bytes);

    h->logp = invar_tensor_1d((void *)at, INVAR_DTYPE_F32, rows);
    h->entropy = invar_tensor_1d((void *)(at + bytes), INVAR_DTYPE_F32, rows);
}

static void lay_out_head(invar_pass *pass, invar_carver *c, int64_t rows, int64_t piece)
{
    const invar_model *m = pass->model;
    invar_head_acts *h = &pass->tail;
    int64_t width = m->head->rows, hidden = m->spec.hidden;

    h->x = take(c, m->storage, rows, hidden);
    h->norm = take(c, m->storage, rows, hidden);
    h->logits = take(c, INVAR_DTYPE_F32, piece, width);
    lay_out_results(h, c, rows);
    h->max = take_vector(c, INVAR_DTYPE_F32, rows);
    h->logsum = take_vector(c, INVAR_DTYPE_F32, rows);
    h->whole = piece == rows;
    if (!pass->options.train)
        return;
    h->d_logits = m->storage == INVAR_DTYPE_F32 ? h->logits : take(c, m->storage, piece, width);
    h->d_norm = take(c, m->storage, rows, hidden);
    h->d_x = take(c, m->storage, rows + 1, hidden);
}

static void lay_out_arrays(invar_pass *pass, invar_carver *c, int64_t rows)
{
    invar_head_acts *h = &pass->tail;

    h->row = invar_carve(c, (size_t)rows * sizeof *h->row);
    h->parts = invar_carve(c, 2 * (size_t)(rows + 1) * sizeof *h->parts);
    h->fetched = invar_carve(c, 2 * (size_t)rows * sizeof *h->fetched);
    if (!pass->options.train)
        return;
    h->back = invar_carve(c, (size_t)pass->rows.count * sizeof *h->back);
    h->values = invar_carve(c, (size_t)rows * sizeof(float));
}

invar_status invar_pass_lay_out_head(invar_pass *pass, int64_t rows, int64_t piece)
{
    invar_carver c = {NULL, 0};

    memset(&pass->tail, 0, sizeof pass->tail);
    lay_out_head(pass, &c, rows, piece);
    INVAR_TRY(ensure(&pass->head_memory, &pass->head_bytes, &pass->caller.dev, c.used,
                     "rows of the head"));
    c = (invar_carver){pass->head_memory, 0};
    lay_out_head(pass, &c, rows, piece);
    c = (invar_carver){NULL, 0};
    lay_out_arrays(pass, &c, rows);
    INVAR_TRY(ensure_arrays(pass, c.used));
    c = (invar_carver){pass->head_arrays, 0};
    lay_out_arrays(pass, &c, rows);
    return INVAR_OK;
}
