# experts.py - a layer of experts as one operator of PyTorch: router, products, sums.
# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts over Invar's kernels."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from invar.torch.calls import all_rows, f32, i32, like, operator, ready, run
from invar.torch.ops import linear_dw, linear_dx

_Moe = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _router(normalise: bool) -> dict[str, Any]:
    return {"router.scoring": 0, "router.groups": 1, "router.groups_kept": 1,
            "router.group_score_top": 1, "router.normalise": int(normalise),
            "router.normalise_eps": 0.0, "router.scale": 1.0}


@operator("invar::moe")
def _moe(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int,
         normalise: bool) -> _Moe:
    """Everything of the layer; what the backward needs is returned beside the result."""
    x, router, gate_up, down = map(ready, (x, router, gate_up, down))
    tokens, (experts, both, width) = x.shape[0], gate_up.shape
    slots, inner = tokens * top_k, both // 2
    logits = f32(x, tokens, experts)
    run("linear.fwd", y=logits, x=x, w=router, n_more=0, k_shards=1)
    ids, weights = i32(x, tokens, top_k), logits.new_empty(tokens, top_k)
    scores = like(logits)
    run("moe.route.fwd", ids=ids, weights=weights, scores=scores, logits=logits,
         **_router(normalise))
    row_token, slot_row = i32(x, slots), i32(x, tokens, top_k)
    starts = x.new_empty(experts + 1, dtype=torch.int64)
    run("moe.plan", row_token=row_token, slot_row=slot_row, expert_start=starts, ids=ids,
         experts=experts)
    rows, hidden = x.new_empty(slots, width), x.new_empty(slots, both)
    run("moe.gather.fwd", out=rows, x=x, row_token=row_token)
    run("moe.linear.fwd", y=hidden, x=rows, w=gate_up.reshape(-1, width), experts=starts,
         k_shards=1)
    act, y = x.new_empty(slots, inner), x.new_empty(slots, width)
    run("swiglu.fwd", y=act, gate=hidden[:, :inner], up=hidden[:, inner:])
    run("moe.linear.fwd", y=y, x=act, w=down.reshape(-1, inner), experts=starts, k_shards=1)
    out = like(x)
    run("moe.combine.fwd", out=out, y=y, weights=weights, slot_row=slot_row)
    return out, ids, weights, scores, row_token, slot_row, starts, hidden, act, y


@_moe.register_fake
def _(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int,
      normalise: bool) -> _Moe:
    tokens, (experts, both, width) = x.shape[0], gate_up.shape
    slots = tokens * top_k
    return (like(x), i32(x, tokens, top_k),
            f32(x, tokens, top_k), f32(x, tokens, experts),
            i32(x, slots), i32(x, tokens, top_k),
            x.new_empty(experts + 1, dtype=torch.int64), x.new_empty(slots, both),
            x.new_empty(slots, both // 2), x.new_empty(slots, width))


@operator("invar::moe_backward")
def _moe_backward_op(dout: Tensor, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor,
                     ids: Tensor, weights: Tensor, scores: Tensor, row_token: Tensor,
                     slot_row: Tensor, starts: Tensor, hidden: Tensor, act: Tensor, y: Tensor,
                     normalise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dout, x, router, gate_up, down = map(ready, (dout, x, router, gate_up, down))
    tokens, (experts, both, width) = x.shape[0], gate_up.shape
    slots, inner, units = y.shape[0], both // 2, all_rows(x)
    dy, dweights = like(y), like(weights)
    run("moe.combine.bwd", dy=dy, dweights=dweights, dout=dout, y=y, weights=weights,
         slot_row=slot_row)
    ddown, dgate_up = f32(down, *down.shape), f32(gate_up, *gate_up.shape)
    where = {"row_token": row_token, "experts": starts, "units": units, "fresh": 1}
    run("moe.linear.dw", dw=ddown.view(-1, inner), dy=dy, x=act, **where)
    dact, dhidden = like(act), like(hidden)
    run("moe.linear.dx", dx=dact, n_parts=1, experts=starts, k_shards=1,
         **{"parts[0].dy": dy, "parts[0].w": down.reshape(-1, inner)})
    run("swiglu.bwd", dgate=dhidden[:, :inner], dup=dhidden[:, inner:], dy=dact,
         gate=hidden[:, :inner], up=hidden[:, inner:])
    rows, drows = x.new_empty(slots, width), x.new_empty(slots, width)
    run("moe.gather.fwd", out=rows, x=x, row_token=row_token)
    run("moe.linear.dw", dw=dgate_up.view(-1, width), dy=dhidden, x=rows, **where)
    run("moe.linear.dx", dx=drows, n_parts=1, experts=starts, k_shards=1,
         **{"parts[0].dy": dhidden, "parts[0].w": gate_up.reshape(-1, width)})
    dx, dlogits = like(x), x.new_empty(tokens, experts)
    run("moe.gather.bwd", dx=dx, dout=drows, slot_row=slot_row)
    run("moe.route.bwd", dlogits=dlogits, dweights=dweights, ids=ids, scores=scores,
         **_router(normalise))
    total = like(x)
    run("add", out=total, a=dx, b=linear_dx(dlogits, router))
    return total, linear_dw(dlogits, x), dgate_up, ddown


@_moe_backward_op.register_fake
def _(dout: Tensor, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor,
      weights: Tensor, scores: Tensor, row_token: Tensor, slot_row: Tensor, starts: Tensor,
      hidden: Tensor, act: Tensor, y: Tensor,
      normalise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (like(x), f32(router, *router.shape),
            f32(gate_up, *gate_up.shape), f32(down, *down.shape))


def _moe_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, router, gate_up, down, _, ctx.normalise = inputs
    ctx.save_for_backward(x, router, gate_up, down, *output[1:])


def _moe_backward(ctx: Any, dout: Tensor, *_: Any) -> Any:
    x, router, gate_up, down, *kept = ctx.saved_tensors
    dx, drouter, dgate_up, ddown = _moe_backward_op(dout, x, router, gate_up, down, *kept,
                                                    ctx.normalise)
    return (dx, drouter.to(router.dtype), dgate_up.to(gate_up.dtype), ddown.to(down.dtype), None,
            None)


_moe.register_autograd(_moe_backward, setup_context=_moe_setup)


def moe(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int,
        normalise: bool = True) -> Tensor:
    """A layer of experts with a softmax router.

    router is (experts, width), gate_up (experts, 2 inner, width), down (experts, width, inner).
    """
    out = _moe(x.reshape(-1, x.shape[-1]), router, gate_up, down, top_k, normalise)[0]
    return out.reshape(x.shape)  # type: ignore[no-any-return]
