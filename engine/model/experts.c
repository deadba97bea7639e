/*
 * experts.c - mixture-of-experts block: norm, router, dispatch, expert MLPs, combine, residual.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/blocks.h"

#include "base/invar_banned.h"

static invar_moe_router router_of(const invar_model_spec *s)
{
    return (invar_moe_router){.scoring = INVAR_MOE_SOFTMAX,
                              .groups = 1,
                              .groups_kept = 1,
                              .group_score_top = 1,
                              .normalise = s->experts.normalize,
                              .scale = 1.0f};
}

static invar_weight expert_stack(invar_builder *b, const char *name, int64_t experts, int64_t rows,
                                 int64_t cols, invar_logical_split split)
{
    split.experts = experts;
    return invar_build_cut_param(b, INVAR_PARAM_EXPERT, name, rows, cols, &split);
}

invar_tensor invar_block_experts(invar_builder *b, const invar_model_spec *s, invar_tensor x)
{
    int64_t e = s->experts.count, d = s->hidden, n = s->experts.intermediate;
    invar_weight norm =
        invar_build_param(b, INVAR_PARAM_NORM, "post_attention_layernorm.weight", 1, d, 0);
    invar_projection router = {.name = "router", .f32 = true};
    invar_projection gate_up[2] = {{.name = "gate"}, {.name = "up"}}, down = {.name = "expert.y"};
    invar_moe_router how = router_of(s);
    invar_logical_split out = invar_logical_split_rows(s->logical_etp, INVAR_ATOM_FEATURES);
    invar_logical_split in = invar_logical_split_columns(s->logical_etp, INVAR_ATOM_FEATURES);
    invar_tensor normed, act;
    invar_moe_routing routes;

    router.w = invar_build_param(b, INVAR_PARAM_ROUTER, "mlp.gate.weight", 1, e, d);
    gate_up[0].w = expert_stack(b, "mlp.experts.gate_proj.weight", e, n, d, out);
    gate_up[1].w = expert_stack(b, "mlp.experts.up_proj.weight", e, n, d, out);
    down.w = expert_stack(b, "mlp.experts.down_proj.weight", e, d, n, in);
    normed = invar_graph_norm(b, "norm_mid", x, &norm);
    invar_graph_linears(b, normed, &router, 1, NULL);
    routes = invar_graph_moe_route(b, router.y, s->experts.per_token, &how);
    act = invar_graph_swiglu(b, "act", invar_graph_moe_dispatch(b, "expert.x", normed, &routes),
                             gate_up, &routes);
    invar_graph_linears(b, act, &down, 1, &routes);
    return invar_graph_add(b, "mlp", x, invar_graph_moe_combine(b, "down", down.y, &routes));
}
