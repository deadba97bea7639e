/*
 * mlp.c - gated MLP block: norm, gate and up, SwiGLU, down, residual.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/blocks.h"

#include "base/invar_banned.h"

invar_tensor invar_block_mlp(invar_builder *b, const invar_model_spec *s, invar_tensor x)
{
    int64_t d = s->hidden, n = s->intermediate;
    invar_weight norm =
        invar_build_param(b, INVAR_PARAM_NORM, "post_attention_layernorm.weight", 1, d, 0);
    invar_projection gate_up[2] = {{.name = "gate"}, {.name = "up"}};
    invar_logical_split out = invar_logical_split_rows(s->logical_tp, INVAR_ATOM_FEATURES);
    invar_logical_split in = invar_logical_split_columns(s->logical_tp, INVAR_ATOM_FEATURES);
    invar_weight down;
    invar_tensor act;

    gate_up[0].w = invar_build_cut_param(b, INVAR_PARAM_LINEAR, "mlp.gate_proj.weight", n, d, &out);
    gate_up[1].w = invar_build_cut_param(b, INVAR_PARAM_LINEAR, "mlp.up_proj.weight", n, d, &out);
    down = invar_build_cut_param(b, INVAR_PARAM_LINEAR, "mlp.down_proj.weight", d, n, &in);
    act = invar_graph_swiglu(b, "act", invar_graph_norm(b, "norm_mid", x, &norm), gate_up, NULL);
    return invar_graph_add_linear(b, "mlp", x, act, &down);
}
