/*
 * attention.c - attention block: norm, q k v, QK norm, rotary embedding, attention, output,
 * residual.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "engine/model/blocks.h"

#include "base/invar_banned.h"

/* Smallest number of features that consists of complete heads and complete scale blocks. */
static int64_t heads_atom(const invar_builder *b, int64_t dim)
{
    int64_t width = dim;

    while (width % b->model.head_block != 0)
        width += dim;
    return width;
}

static invar_projection build_projection(invar_builder *b, const invar_model_spec *s,
                                         const char *name, const char *param, int64_t rows)
{
    invar_logical_split split =
        invar_logical_split_rows(s->logical_tp, heads_atom(b, s->attention.head_dim));
    invar_projection out = {.name = name};
    char full[INVAR_PARAM_NAME_SIZE];

    (void)snprintf(full, sizeof full, "self_attn.%s_proj.weight", param);
    out.w = invar_build_cut_param(b, INVAR_PARAM_LINEAR, full, rows, s->hidden, &split);
    if (s->attention.qkv_bias) {
        (void)snprintf(full, sizeof full, "self_attn.%s_proj.bias", param);
        out.bias = invar_build_cut_param(b, INVAR_PARAM_BIAS, full, rows, 0, &split);
    }
    return out;
}

static int64_t window_of(const invar_model_spec *s, int64_t layer)
{
    return s->attention.window > 0 && layer >= s->attention.window_from ? s->attention.window : 0;
}

invar_tensor invar_block_attention(invar_builder *b, const invar_model_spec *s, invar_tensor x)
{
    int64_t q = s->attention.heads * s->attention.head_dim,
            kv = s->attention.kv_heads * s->attention.head_dim;
    invar_weight norm =
        invar_build_param(b, INVAR_PARAM_NORM, "input_layernorm.weight", 1, s->hidden, 0);
    invar_logical_split in =
        invar_logical_split_columns(s->logical_tp, heads_atom(b, s->attention.head_dim));
    invar_projection qkv[3];
    invar_rope_input qk[2] = {{.name = "q"}, {.name = "k"}};
    invar_weight out;
    invar_attention_inputs a = {.window = window_of(s, b->layer)};

    qkv[0] = build_projection(b, s, "q.proj", "q", q);
    qkv[1] = build_projection(b, s, "k.proj", "k", kv);
    qkv[2] = build_projection(b, s, "v", "v", kv);
    if (s->attention.qk_norm) {
        int64_t dim = s->attention.head_dim;
        qk[0].norm = invar_build_param(b, INVAR_PARAM_NORM, "self_attn.q_norm.weight", 1, dim, 0);
        qk[1].norm = invar_build_param(b, INVAR_PARAM_NORM, "self_attn.k_norm.weight", 1, dim, 0);
    }
    out =
        invar_build_cut_param(b, INVAR_PARAM_LINEAR, "self_attn.o_proj.weight", s->hidden, q, &in);
    invar_graph_linears(b, invar_graph_norm(b, "norm_in", x, &norm), qkv, 3, NULL);
    qk[0].x = qkv[0].y;
    qk[1].x = qkv[1].y;
    qk[0].heads = a.heads = invar_build_heads_of(&qkv[0].w, s->attention.head_dim);
    qk[1].heads = a.kv_heads = invar_build_heads_of(&qkv[1].w, s->attention.head_dim);
    invar_graph_rope(b, qk, 2);
    a.q = qk[0].y;
    a.k = qk[1].y;
    a.v = qkv[2].y;
    return invar_graph_add_linear(b, "attn", x, invar_graph_attention(b, "o", &a), &out);
}
