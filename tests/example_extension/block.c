/*
 * block.c - a transformer block that only tests have: two gated MLPs of one input, in parallel.
 *
 * The activation of the first MLP is normalized; both outputs are added to the residual stream.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/example_extension/block.h"

static invar_weight matrix(invar_builder *b, const char *name, int64_t rows, int64_t cols)
{
    return invar_build_param(b, INVAR_PARAM_LINEAR, name, 1, rows, cols);
}

invar_tensor invar_toy_block(invar_builder *b, const invar_model_spec *s, invar_tensor x)
{
    int64_t d = s->hidden, n = s->intermediate;
    invar_weight norm = invar_build_param(b, INVAR_PARAM_NORM, "mlp.norm.weight", 1, d, 0);
    invar_projection mlp[2] = {{.name = "gate"}, {.name = "up"}};
    invar_projection side[2] = {{.name = "side.gate"}, {.name = "side.up"}};
    invar_weight inner, down, norm_b, down_b;
    invar_tensor act, y;

    mlp[0].w = matrix(b, "mlp.gate_proj.weight", n, d);
    mlp[1].w = matrix(b, "mlp.up_proj.weight", n, d);
    inner = invar_build_param(b, INVAR_PARAM_NORM, "mlp.act_norm.weight", 1, n, 0);
    down = matrix(b, "mlp.down_proj.weight", d, n);
    norm_b = invar_build_param(b, INVAR_PARAM_NORM, "side.norm.weight", 1, d, 0);
    side[0].w = matrix(b, "side.gate_proj.weight", n, d);
    side[1].w = matrix(b, "side.up_proj.weight", n, d);
    down_b = matrix(b, "side.down_proj.weight", d, n);
    act = invar_graph_swiglu(b, "act", invar_graph_norm(b, "norm_mid", x, &norm), mlp, NULL);
    act = invar_graph_norm(b, "act.norm", act, &inner);
    y = invar_graph_add_linear(b, "half", x, act, &down);
    // reads x, not y, so the gradient of x is a sum of three terms
    act =
        invar_graph_swiglu(b, "side.act", invar_graph_norm(b, "side.norm", x, &norm_b), side, NULL);
    return invar_graph_add_linear(b, "mlp", y, act, &down_b);
}
