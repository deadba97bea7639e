/*
 * params.c - which parameters a spec has, under which names, in which order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/params.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/invar_banned.h"

typedef struct list {
    invar_param *at; /* NULL: only counted */
    int64_t count;
    int64_t layer;
} list;

typedef struct extents {
    int64_t stack, rows, cols;
} extents;

/* Appends a parameter; of a layer when one is set. Its place is returned for the layer's table. */
static int64_t add(list *l, invar_param_kind kind, const char *name, extents e)
{
    if (l->at) {
        invar_param *p = &l->at[l->count];
        *p = (invar_param){
            .kind = kind, .layer = l->layer, .stack = e.stack, .rows = e.rows, .cols = e.cols};
        if (l->layer >= 0)
            (void)snprintf(p->name, sizeof p->name, "model.layers.%" PRId64 ".%s", l->layer, name);
        else
            (void)snprintf(p->name, sizeof p->name, "%s", name);
    }
    return l->count++;
}

static void add_projection(list *l, const char *name, const invar_model_spec *spec, int64_t rows)
{
    char full[INVAR_PARAM_NAME_SIZE / 2];

    (void)snprintf(full, sizeof full, "self_attn.%s_proj.weight", name);
    (void)add(l, INVAR_PARAM_LINEAR, full, (extents){1, rows, spec->hidden});
    if (spec->qkv_bias) {
        (void)snprintf(full, sizeof full, "self_attn.%s_proj.bias", name);
        (void)add(l, INVAR_PARAM_BIAS, full, (extents){1, rows, 0});
    }
}

static void add_attention(list *l, const invar_model_spec *spec)
{
    int64_t q = spec->heads * spec->head_dim, kv = spec->kv_heads * spec->head_dim;

    (void)add(l, INVAR_PARAM_NORM, "input_layernorm.weight", (extents){1, spec->hidden, 0});
    add_projection(l, "q", spec, q);
    add_projection(l, "k", spec, kv);
    add_projection(l, "v", spec, kv);
    if (spec->qk_norm) {
        (void)add(l, INVAR_PARAM_NORM, "self_attn.q_norm.weight", (extents){1, spec->head_dim, 0});
        (void)add(l, INVAR_PARAM_NORM, "self_attn.k_norm.weight", (extents){1, spec->head_dim, 0});
    }
    (void)add(l, INVAR_PARAM_LINEAR, "self_attn.o_proj.weight", (extents){1, spec->hidden, q});
    (void)add(l, INVAR_PARAM_NORM, "post_attention_layernorm.weight",
              (extents){1, spec->hidden, 0});
}

static void add_mlp(list *l, const invar_model_spec *spec)
{
    int64_t d = spec->hidden, n = spec->intermediate;

    (void)add(l, INVAR_PARAM_LINEAR, "mlp.gate_proj.weight", (extents){1, n, d});
    (void)add(l, INVAR_PARAM_LINEAR, "mlp.up_proj.weight", (extents){1, n, d});
    (void)add(l, INVAR_PARAM_LINEAR, "mlp.down_proj.weight", (extents){1, d, n});
}

static void add_experts(list *l, const invar_model_spec *spec)
{
    int64_t e = spec->experts, d = spec->hidden, n = spec->expert_intermediate;

    (void)add(l, INVAR_PARAM_ROUTER, "mlp.gate.weight", (extents){1, e, d});
    (void)add(l, INVAR_PARAM_EXPERT, "mlp.experts.gate_proj.weight", (extents){e, n, d});
    (void)add(l, INVAR_PARAM_EXPERT, "mlp.experts.up_proj.weight", (extents){e, n, d});
    (void)add(l, INVAR_PARAM_EXPERT, "mlp.experts.down_proj.weight", (extents){e, d, n});
}

int64_t invar_params_list(invar_param *out, const invar_model_spec *spec)
{
    list l = {out, 0, -1};

    (void)add(&l, INVAR_PARAM_EMBEDDING, "model.embed_tokens.weight",
              (extents){1, spec->vocab, spec->hidden});
    for (l.layer = 0; l.layer < spec->layers; l.layer++) {
        add_attention(&l, spec);
        if (spec->sparse[l.layer])
            add_experts(&l, spec);
        else
            add_mlp(&l, spec);
    }
    l.layer = -1;
    (void)add(&l, INVAR_PARAM_NORM, "model.norm.weight", (extents){1, spec->hidden, 0});
    if (spec->value_head)
        (void)add(&l, INVAR_PARAM_HEAD, "score.weight", (extents){1, 1, spec->hidden});
    else if (!spec->tied)
        (void)add(&l, INVAR_PARAM_HEAD, "lm_head.weight", (extents){1, spec->vocab, spec->hidden});
    return l.count;
}

const invar_param *invar_params_layer(invar_layer *out, const invar_model_spec *spec, int64_t layer,
                                      const invar_param *next)
{
    *out = (invar_layer){0};
    out->norm_in = next++;
    out->wq = next++;
    out->bq = spec->qkv_bias ? next++ : NULL;
    out->wk = next++;
    out->bk = spec->qkv_bias ? next++ : NULL;
    out->wv = next++;
    out->bv = spec->qkv_bias ? next++ : NULL;
    out->norm_q = spec->qk_norm ? next++ : NULL;
    out->norm_k = spec->qk_norm ? next++ : NULL;
    out->wo = next++;
    out->norm_post = next++;
    out->router = spec->sparse[layer] ? next++ : NULL;
    out->gate = next++;
    out->up = next++;
    out->down = next++;
    return next;
}
