# experts.py - a mixture-of-experts layer as one operator of PyTorch: router, products, sums.
# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts over Invar's kernels."""
from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from invar._library import Error
from invar.torch.calls import all_rows, f32, i32, like, operator, ready, run
from invar.torch.formats import PLAIN, activation, prepared, quantise, weight
from invar.torch.ops import linear_dw, linear_dx

_Moe = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _router(normalise: bool) -> dict[str, Any]:
    return {"router.scoring": 0, "router.groups": 1, "router.groups_kept": 1,
            "router.group_score_top": 1, "router.normalise": int(normalise),
            "router.normalise_eps": 0.0, "router.scale": 1.0}


# In a number format, gate and up have separate codes: [gate, its scales, up, ..., down, ...].


def _gate_up(w: Tensor, inner: int, codes: Sequence[Tensor],
             format: str) -> list[tuple[slice, Any]]:
    """Returns the products of the first layer: columns of `hidden`, and the weight that computes
    them."""
    if format == PLAIN:
        return [(slice(None), w.reshape(-1, w.shape[2]))]
    return [(slice(0, inner), weight(w, format, codes[0], codes[1], inner)),
            (slice(inner, None), weight(w, format, codes[2], codes[3], inner))]


def _down(w: Tensor, codes: Sequence[Tensor], format: str) -> Any:
    if format == PLAIN:
        return w.reshape(-1, w.shape[2])
    return weight(w, format, codes[4], codes[5], w.shape[1])


@operator("invar::moe")
def _moe(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, codes: Sequence[Tensor],
         top_k: int, normalise: bool, format: str) -> _Moe:
    """Computes the layer; values that the backward needs are returned with the result."""
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
    taken = activation(rows, format)
    for columns, w in _gate_up(gate_up, inner, codes, format):
        run("moe.linear.fwd", y=hidden[:, columns], x=taken, w=w, experts=starts, k_shards=1)
    act, y = x.new_empty(slots, inner), x.new_empty(slots, width)
    run("swiglu.fwd", y=act, gate=hidden[:, :inner], up=hidden[:, inner:])
    run("moe.linear.fwd", y=y, x=activation(act, format), w=_down(down, codes, format),
        experts=starts, k_shards=1)
    out = like(x)
    run("moe.combine.fwd", out=out, y=y, weights=weights, slot_row=slot_row)
    return out, ids, weights, scores, row_token, slot_row, starts, hidden, act, y


@_moe.register_fake
def _(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, codes: Sequence[Tensor],
      top_k: int, normalise: bool, format: str) -> _Moe:
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
                     codes: Sequence[Tensor], normalise: bool,
                     format: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
        **{"parts[0].dy": activation(dy, format), "parts[0].w": _down(down, codes, format)})
    run("swiglu.bwd", dgate=dhidden[:, :inner], dup=dhidden[:, inner:], dy=dact,
        gate=hidden[:, :inner], up=hidden[:, inner:])
    rows, drows = x.new_empty(slots, width), x.new_empty(slots, width)
    run("moe.gather.fwd", out=rows, x=x, row_token=row_token)
    run("moe.linear.dw", dw=dgate_up.view(-1, width), dy=dhidden, x=rows, **where)
    parts = {}
    for i, (columns, w) in enumerate(_gate_up(gate_up, inner, codes, format)):
        parts[f"parts[{i}].dy"] = activation(dhidden[:, columns], format)
        parts[f"parts[{i}].w"] = w
    run("moe.linear.dx", dx=drows, n_parts=len(parts) // 2, experts=starts, k_shards=1, **parts)
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
      hidden: Tensor, act: Tensor, y: Tensor, codes: Sequence[Tensor], normalise: bool,
      format: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (like(x), f32(router, *router.shape),
            f32(gate_up, *gate_up.shape), f32(down, *down.shape))


def _moe_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, router, gate_up, down, codes, _, ctx.normalise, ctx.format = inputs
    ctx.kept = len(output) - 1
    ctx.save_for_backward(x, router, gate_up, down, *output[1:], *codes)


def _moe_backward(ctx: Any, dout: Tensor, *_: Any) -> Any:
    x, router, gate_up, down, *more = ctx.saved_tensors
    kept, codes = more[:ctx.kept], more[ctx.kept:]
    dx, drouter, dgate_up, ddown = _moe_backward_op(dout, x, router, gate_up, down, *kept, codes,
                                                    ctx.normalise, ctx.format)
    return (dx, drouter.to(router.dtype), dgate_up.to(gate_up.dtype), ddown.to(down.dtype),
            [None] * len(codes), None, None, None)


_moe.register_autograd(_moe_backward, setup_context=_moe_setup)


def _codes(w: Tensor, format: str, pieces: int) -> list[Tensor]:
    """Quantizes stacked experts, whose rows are `pieces` weights one after the other."""
    def make() -> list[Tensor]:
        made = []
        for piece in w.detach().chunk(pieces, 1):
            q = quantise(piece.reshape(-1, piece.shape[2]), format, weight=True,
                         period=piece.shape[1])
            made += [q.codes, q.scale]
        return made
    return prepared(w, format, make)


def _check(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int) -> None:
    """Checks shapes before the ops do, whose errors would name tensors that the caller does not
    know."""
    experts, width, inner = router.shape[0], x.shape[-1], down.shape[-1]
    for name, found, wanted, what in (
            ("router", router, (experts, width), "(experts, width of x)"),
            ("gate_up", gate_up, (experts, 2 * inner, width), "(experts, 2 inner, width of x)"),
            ("down", down, (experts, width, inner), "(experts, width of x, inner)")):
        if tuple(found.shape) != wanted:
            raise Error("INVALID",
                        f"moe: {name}: {tuple(found.shape)}; expected {wanted}, {what}")
    if not 1 <= top_k <= experts:
        raise Error("INVALID", f"moe: top_k: {top_k}; expected 1 to {experts}, all experts")


def moe(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int,
        normalise: bool = True, format: Optional[str] = None) -> Tensor:
    """Computes a mixture-of-experts layer with a softmax router.

    router is (experts, width), gate_up (experts, 2 inner, width), down (experts, width, inner).
    format: number format of the experts, "fp8", "mxfp8" or "int4" for bfloat16; None for theirs.
    """
    _check(x, router, gate_up, down, top_k)
    codes = [] if format is None else _codes(gate_up, format, 2) + _codes(down, format, 1)
    out = _moe(x.reshape(-1, x.shape[-1]), router, gate_up, down, codes, top_k, normalise,
               format or PLAIN)[0]
    return out.reshape(x.shape)  # type: ignore[no-any-return]
