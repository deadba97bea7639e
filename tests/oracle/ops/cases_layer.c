/*
 * cases_layer.c - a complete layer against Qwen3DecoderLayer, over packed samples.
 *
 * Every op reads what the previous op has stored, as in training.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "tests/oracle/ops/cases.h"

/* ---- linear layers --------------------------------------------------------------------------- */

static invar_tensor linear(invar_oracle_run *r, const invar_tensor *x, const invar_tensor *w)
{
    invar_tensor y = invar_oracle_storage(r, x->shape[0], w->shape[0]);

    assert_ok(invar_linear_fwd(&r->dev,
                               &(invar_linear_fwd_args){.y = y, .x = *x, .w = *w, .k_shards = 1}));
    return y;
}

invar_tensor invar_oracle_dx(invar_oracle_run *r, const invar_linear_part *parts, int32_t n_parts)
{
    invar_linear_dx_args args = {.n_parts = n_parts, .k_shards = 1};

    args.dx = invar_oracle_storage(r, parts[0].dy.shape[0], parts[0].w.shape[1]);
    memcpy(args.parts, parts, (size_t)n_parts * sizeof *parts);
    assert_ok(invar_linear_dx(&r->dev, &args));
    return args.dx;
}

void invar_oracle_expect_dw(invar_oracle_run *r, const char *name, const invar_tensor *dy,
                            const invar_tensor *x, const invar_tensor *w, invar_row_offsets units)
{
    invar_tensor dw = invar_oracle_sum(r, w);

    assert_ok(invar_linear_dw(
        &r->dev, &(invar_linear_dw_args){.dw = dw, .dy = *dy, .x = *x, .units = units}));
    invar_oracle_expect(r, r->name, name, &dw, INVAR_ORACLE_BLOCK);
}

/* ---- the gated layer ------------------------------------------------------------------------- */

static invar_tensor given_with(invar_oracle_run *r, const char *stem, const char *suffix)
{
    char name[32];

    snprintf(name, sizeof name, "%s%s", stem, suffix);
    return invar_oracle_input(r, name);
}

void invar_oracle_mlp_forward(invar_oracle_mlp *m, invar_oracle_run *r, const invar_tensor *x,
                              const char *suffix)
{
    m->x = *x;
    m->wgate = given_with(r, "wgate", suffix);
    m->wup = given_with(r, "wup", suffix);
    m->wdown = given_with(r, "wdown", suffix);
    m->gate = linear(r, x, &m->wgate);
    m->up = linear(r, x, &m->wup);
    m->act = invar_oracle_output_like(r, &m->gate);
    assert_ok(invar_swiglu_fwd(
        &r->dev, &(invar_swiglu_fwd_args){.y = m->act, .gate = m->gate, .up = m->up}));
    m->y = linear(r, &m->act, &m->wdown);
}

static void expect_mlp_dw(invar_oracle_run *r, const char *stem, const char *suffix,
                          const invar_tensor *dy, const invar_tensor *x, const invar_tensor *w,
                          invar_row_offsets units)
{
    char name[32];

    snprintf(name, sizeof name, "%s%s", stem, suffix);
    invar_oracle_expect_dw(r, name, dy, x, w, units);
}

invar_tensor invar_oracle_mlp_backward(const invar_oracle_mlp *m, invar_oracle_run *r,
                                       const invar_tensor *dy, invar_row_offsets units,
                                       const char *suffix)
{
    invar_tensor dgate = invar_oracle_output_like(r, &m->gate),
                 dup = invar_oracle_output_like(r, &m->up);
    invar_tensor dact = invar_oracle_dx(r, &(invar_linear_part){*dy, m->wdown}, 1);

    expect_mlp_dw(r, "dwdown", suffix, dy, &m->act, &m->wdown, units);
    assert_ok(invar_swiglu_bwd(
        &r->dev, &(invar_swiglu_bwd_args){
                     .dgate = dgate, .dup = dup, .dy = dact, .gate = m->gate, .up = m->up}));
    expect_mlp_dw(r, "dwgate", suffix, &dgate, &m->x, &m->wgate, units);
    expect_mlp_dw(r, "dwup", suffix, &dup, &m->x, &m->wup, units);
    return invar_oracle_dx(r, (invar_linear_part[]){{dgate, m->wgate}, {dup, m->wup}}, 2);
}

/* ---- norms and rotation ---------------------------------------------------------------------- */

/* Views the rows as heads that are `dim` wide. */
static invar_tensor by_head(const invar_tensor *t, int64_t dim)
{
    return invar_tensor_3d(t->data, t->dtype, t->shape[0], t->shape[1] / dim, dim);
}

static invar_tensor norm(invar_oracle_run *r, const invar_tensor *x, const invar_tensor *weight)
{
    invar_tensor y = invar_oracle_output_like(r, x);

    assert_ok(invar_rmsnorm_fwd(
        &r->dev, &(invar_rmsnorm_fwd_args){.y = by_head(&y, weight->shape[0]),
                                           .x = by_head(x, weight->shape[0]),
                                           .weight = *weight,
                                           .eps = (float)invar_oracle_number(r, "eps")}));
    return y;
}

static invar_tensor norm_back(invar_oracle_run *r, const char *name, const invar_tensor *dy,
                              const invar_tensor *x, const invar_tensor *weight)
{
    invar_tensor dx = invar_oracle_output_like(r, x), dweight = invar_oracle_sum(r, weight);
    int64_t dim = weight->shape[0];

    assert_ok(invar_rmsnorm_bwd(
        &r->dev, &(invar_rmsnorm_bwd_args){.dx = by_head(&dx, dim),
                                           .dweight = dweight,
                                           .dy = by_head(dy, dim),
                                           .x = by_head(x, dim),
                                           .weight = *weight,
                                           .units = invar_oracle_row_offsets(r, "samples"),
                                           .eps = (float)invar_oracle_number(r, "eps")}));
    invar_oracle_expect(r, r->name, name, &dweight, INVAR_ORACLE_BLOCK);
    return dx;
}

/* Values of the forward that the backward of the layer needs; each sample is a unit. */
typedef struct layer {
    invar_row_offsets samples;
    invar_tensor x, norm_in, norm_post, norm_q, norm_k, wq, wk, wv, wo;
    invar_tensor h, q_raw, k_raw; /* q and k are values before their norms */
    invar_attention_fwd_args attention;
    invar_tensor x_mid, h_mid; /* x after the attention's residual, and its norm */
    invar_oracle_mlp mlp;
    invar_rope_fwd_args rope; /* tables and positions */
    int64_t dim;              /* columns of one head */
} layer;

static void make_rope(layer *l, invar_oracle_run *r)
{
    int64_t tokens = l->x.shape[0];
    invar_tensor view = invar_tensor_2d(NULL, INVAR_DTYPE_F32, tokens, l->dim / 2);

    l->rope = (invar_rope_fwd_args){
        .positions = invar_oracle_output(r, invar_tensor_1d(NULL, INVAR_DTYPE_I32, tokens)),
        .cosine = invar_oracle_output(r, view),
        .sine = invar_oracle_output(r, view)};
    for (int64_t s = 0; s < l->samples.count; s++)
        for (int64_t t = l->samples.offsets[s]; t < l->samples.offsets[s + 1]; t++)
            ((int32_t *)l->rope.positions.data)[t] = (int32_t)(t - l->samples.offsets[s]);
    assert_ok(invar_rope_table(
        &r->dev, &(invar_rope_table_args){.cosine = l->rope.cosine,
                                          .sine = l->rope.sine,
                                          .theta = invar_oracle_number(r, "rope_theta")}));
}

static invar_tensor rotate(const layer *l, invar_oracle_run *r, const invar_tensor *x, bool back)
{
    invar_tensor y = invar_oracle_output_like(r, x);
    invar_rope_fwd_args args = l->rope;

    args.y = by_head(&y, l->dim);
    args.x = by_head(x, l->dim);
    assert_ok(back ? invar_rope_bwd(&r->dev, &args) : invar_rope_fwd(&r->dev, &args));
    return y;
}

/* ---- the layer ------------------------------------------------------------------------------- */

static void load(layer *l, invar_oracle_run *r)
{
    *l = (layer){.samples = invar_oracle_row_offsets(r, "samples"),
                 .x = invar_oracle_input(r, "x"),
                 .norm_in = invar_oracle_input(r, "norm_in"),
                 .norm_post = invar_oracle_input(r, "norm_post"),
                 .norm_q = invar_oracle_input(r, "norm_q"),
                 .norm_k = invar_oracle_input(r, "norm_k"),
                 .wq = invar_oracle_input(r, "wq"),
                 .wk = invar_oracle_input(r, "wk"),
                 .wv = invar_oracle_input(r, "wv"),
                 .wo = invar_oracle_input(r, "wo")};
    l->dim = l->norm_q.shape[0];
    make_rope(l, r);
}

static void forward(layer *l, invar_oracle_run *r)
{
    int64_t tokens = l->x.shape[0], heads = l->wq.shape[0] / l->dim;
    invar_tensor q, k, v, o, projected, y = invar_oracle_output_like(r, &l->x);
    invar_tensor lse2 =
        invar_oracle_output(r, invar_tensor_2d(NULL, INVAR_DTYPE_F32, tokens, heads));

    l->h = norm(r, &l->x, &l->norm_in);
    l->q_raw = linear(r, &l->h, &l->wq);
    l->k_raw = linear(r, &l->h, &l->wk);
    v = linear(r, &l->h, &l->wv);
    q = norm(r, &l->q_raw, &l->norm_q);
    q = rotate(l, r, &q, false);
    k = norm(r, &l->k_raw, &l->norm_k);
    k = rotate(l, r, &k, false);
    o = invar_oracle_output_like(r, &q);
    l->attention = (invar_attention_fwd_args){.o = by_head(&o, l->dim),
                                              .lse2 = lse2,
                                              .q = by_head(&q, l->dim),
                                              .k = by_head(&k, l->dim),
                                              .v = by_head(&v, l->dim),
                                              .samples = l->samples};
    assert_ok(invar_attention_fwd(&r->dev, &l->attention));
    projected = linear(r, &o, &l->wo);
    l->x_mid = invar_oracle_output_like(r, &l->x);
    assert_ok(invar_add(&r->dev, &(invar_add_args){l->x_mid, l->x, projected}));
    l->h_mid = norm(r, &l->x_mid, &l->norm_post);
    invar_oracle_mlp_forward(&l->mlp, r, &l->h_mid, "");
    assert_ok(invar_add(&r->dev, &(invar_add_args){y, l->x_mid, l->mlp.y}));
    invar_oracle_expect(r, r->name, "y", &y, INVAR_ORACLE_BLOCK);
}

/* Computes the gradient of h, the attention's input, from that of its output. */
static invar_tensor attention_backward(const layer *l, invar_oracle_run *r, const invar_tensor *d_o)
{
    const invar_attention_fwd_args *a = &l->attention;
    invar_tensor dq = invar_oracle_output_like(r, d_o), dk = invar_oracle_output_like(r, &l->k_raw);
    invar_tensor dv = invar_oracle_output_like(r, &l->k_raw);

    assert_ok(invar_attention_bwd(&r->dev, &(invar_attention_bwd_args){.dq = by_head(&dq, l->dim),
                                                                       .dk = by_head(&dk, l->dim),
                                                                       .dv = by_head(&dv, l->dim),
                                                                       .d_o = by_head(d_o, l->dim),
                                                                       .o = a->o,
                                                                       .lse2 = a->lse2,
                                                                       .q = a->q,
                                                                       .k = a->k,
                                                                       .v = a->v,
                                                                       .samples = l->samples}));
    dq = rotate(l, r, &dq, true);
    dq = norm_back(r, "dnorm_q", &dq, &l->q_raw, &l->norm_q);
    dk = rotate(l, r, &dk, true);
    dk = norm_back(r, "dnorm_k", &dk, &l->k_raw, &l->norm_k);
    invar_oracle_expect_dw(r, "dwq", &dq, &l->h, &l->wq, l->samples);
    invar_oracle_expect_dw(r, "dwk", &dk, &l->h, &l->wk, l->samples);
    invar_oracle_expect_dw(r, "dwv", &dv, &l->h, &l->wv, l->samples);
    return invar_oracle_dx(r, (invar_linear_part[]){{dq, l->wq}, {dk, l->wk}, {dv, l->wv}}, 3);
}

static void backward(const layer *l, invar_oracle_run *r)
{
    invar_tensor dy = invar_oracle_input(r, "dy"), dx = invar_oracle_output_like(r, &dy), dh, d_o,
                 part;
    invar_tensor o = invar_tensor_2d(l->attention.o.data, r->storage, dy.shape[0], l->wo.shape[1]);

    dh = invar_oracle_mlp_backward(&l->mlp, r, &dy, l->samples, "");
    part = norm_back(r, "dnorm_post", &dh, &l->x_mid, &l->norm_post);
    assert_ok(invar_add(&r->dev, &(invar_add_args){dx, dy, part}));
    invar_oracle_expect_dw(r, "dwo", &dx, &o, &l->wo, l->samples);
    d_o = invar_oracle_dx(r, &(invar_linear_part){dx, l->wo}, 1);
    dh = attention_backward(l, r, &d_o);
    part = norm_back(r, "dnorm_in", &dh, &l->x, &l->norm_in);
    assert_ok(invar_add(&r->dev, &(invar_add_args){dx, dx, part}));
    invar_oracle_expect(r, r->name, "dx", &dx, INVAR_ORACLE_BLOCK);
}

void invar_oracle_layer(invar_oracle_run *r)
{
    layer l;

    load(&l, r);
    forward(&l, r);
    backward(&l, r);
}
