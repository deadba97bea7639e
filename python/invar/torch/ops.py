# ops.py - Invar's kernels as operators of PyTorch: torch.ops.invar.*, with fake and autograd.
#
# Rows of activations are tokens, packed one sample behind the other. A gradient of a weight is one
# sum over all tokens in order, made in f32 and rounded once to the type of the weight.
# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch over Invar's kernels."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from invar.ops import Device

_device: Optional[Device] = None


def device() -> Device:
    """The device of the operators; opened when it is first needed: cpu, ieee, all CPUs."""
    global _device
    if _device is None:
        _device = Device()
    return _device


def set_device(other: Device) -> None:
    """Lets the operators run elsewhere, as on Device("cpu", numerics="sm90")."""
    global _device
    _device = other


def _run(op: str, **fields: Any) -> None:
    device().run(op, fields)


def _ready(x: Tensor) -> Tensor:
    """A tensor as ops take it: on the CPU, dense."""
    if x.device.type != "cpu":
        raise RuntimeError(f"a tensor is on {x.device}; Invar's operators run on the CPU only")
    return x.contiguous()


def _f32(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def _i32(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.int32)


def _all(rows: int) -> Tensor:
    """One unit that has all rows."""
    return torch.tensor([0, rows], dtype=torch.int64)


# ---- linear ------------------------------------------------------------------------------------


@torch.library.custom_op("invar::linear", mutates_args=())
def _linear(x: Tensor, w: Tensor, bias: Optional[Tensor]) -> Tensor:
    y = x.new_empty(x.shape[0], w.shape[0])
    _run("linear.fwd", y=y, x=_ready(x), w=_ready(w),
         bias=None if bias is None else _ready(bias), n_more=0, k_shards=1)
    return y


@_linear.register_fake
def _(x: Tensor, w: Tensor, bias: Optional[Tensor]) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[0])


@torch.library.custom_op("invar::linear_dx", mutates_args=())
def _linear_dx(dy: Tensor, w: Tensor) -> Tensor:
    dx = dy.new_empty(dy.shape[0], w.shape[1])
    _run("linear.dx", dx=dx, n_parts=1, k_shards=1,
         **{"parts[0].dy": _ready(dy), "parts[0].w": _ready(w)})
    return dx


@_linear_dx.register_fake
def _(dy: Tensor, w: Tensor) -> Tensor:
    return dy.new_empty(dy.shape[0], w.shape[1])


@torch.library.custom_op("invar::linear_dw", mutates_args=())
def _linear_dw(dy: Tensor, x: Tensor) -> Tensor:
    dw = _f32(dy, dy.shape[1], x.shape[1])
    _run("linear.dw", dw=dw, dy=_ready(dy), x=_ready(x), units=_all(dy.shape[0]), fresh=1)
    return dw


@_linear_dw.register_fake
def _(dy: Tensor, x: Tensor) -> Tensor:
    return _f32(dy, dy.shape[1], x.shape[1])


@torch.library.custom_op("invar::token_sum", mutates_args=())
def _token_sum(x: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[1], dtype=torch.float32)
    _run("token.sum", out=out, x=_ready(x), units=_all(x.shape[0]))
    return out


@_token_sum.register_fake
def _(x: Tensor) -> Tensor:
    return _f32(x, x.shape[1])


def _linear_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, w, bias = inputs
    ctx.save_for_backward(x, w)
    ctx.bias = None if bias is None else bias.dtype


def _linear_backward(ctx: Any, dy: Tensor) -> Any:
    x, w = ctx.saved_tensors
    dx = _linear_dx(dy, w) if ctx.needs_input_grad[0] else None
    dw = _linear_dw(dy, x).to(w.dtype) if ctx.needs_input_grad[1] else None
    db = None
    if ctx.bias is not None and ctx.needs_input_grad[2]:
        db = _token_sum(dy).to(ctx.bias)
    return dx, dw, db


_linear.register_autograd(_linear_backward, setup_context=_linear_setup)


def linear(x: Tensor, w: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """x w^T + bias, as torch.nn.functional.linear; x may have any number of dimensions."""
    y: Tensor = _linear(x.reshape(-1, x.shape[-1]), w, bias)
    return y.reshape(*x.shape[:-1], w.shape[0])


# ---- rmsnorm -----------------------------------------------------------------------------------


@torch.library.custom_op("invar::rmsnorm", mutates_args=())
def _rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _run("rmsnorm.fwd", y=y.unsqueeze(1), x=_ready(x).unsqueeze(1), weight=_ready(weight), eps=eps)
    return y


@_rmsnorm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("invar::rmsnorm_backward", mutates_args=())
def _rmsnorm_backward_op(dy: Tensor, x: Tensor, weight: Tensor,
                         eps: float) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    dweight = weight.new_zeros(weight.shape, dtype=torch.float32)
    _run("rmsnorm.bwd", dx=dx.unsqueeze(1), dweight=dweight, dy=_ready(dy).unsqueeze(1),
         x=_ready(x).unsqueeze(1), weight=_ready(weight), units=_all(x.shape[0]), eps=eps)
    return dx, dweight


@_rmsnorm_backward_op.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), _f32(weight, *weight.shape)


def _rmsnorm_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _rmsnorm_backward(ctx: Any, dy: Tensor) -> Any:
    x, weight = ctx.saved_tensors
    dx, dweight = _rmsnorm_backward_op(dy, x, weight, ctx.eps)
    return dx, dweight.to(weight.dtype), None


_rmsnorm.register_autograd(_rmsnorm_backward, setup_context=_rmsnorm_setup)


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x divided by the root of the mean of its squares over the last index, times weight."""
    y: Tensor = _rmsnorm(x.reshape(-1, x.shape[-1]), weight, eps)
    return y.reshape(x.shape)


# ---- swiglu ------------------------------------------------------------------------------------


@torch.library.custom_op("invar::swiglu", mutates_args=())
def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    y = torch.empty_like(gate, memory_format=torch.contiguous_format)
    _run("swiglu.fwd", y=y, gate=_ready(gate), up=_ready(up))
    return y


@_swiglu.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    return torch.empty_like(gate, memory_format=torch.contiguous_format)


@torch.library.custom_op("invar::swiglu_backward", mutates_args=())
def _swiglu_backward_op(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    dgate = torch.empty_like(gate, memory_format=torch.contiguous_format)
    dup = torch.empty_like(up, memory_format=torch.contiguous_format)
    _run("swiglu.bwd", dgate=dgate, dup=dup, dy=_ready(dy), gate=_ready(gate), up=_ready(up))
    return dgate, dup


@_swiglu_backward_op.register_fake
def _(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate), torch.empty_like(up)


def _swiglu_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _swiglu_backward(ctx: Any, dy: Tensor) -> Any:
    return _swiglu_backward_op(dy, *ctx.saved_tensors)


_swiglu.register_autograd(_swiglu_backward, setup_context=_swiglu_setup)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    y: Tensor = _swiglu(gate.reshape(-1, gate.shape[-1]), up.reshape(-1, up.shape[-1]))
    return y.reshape(gate.shape)


# ---- attention ---------------------------------------------------------------------------------


@torch.library.custom_op("invar::attention", mutates_args=())
def _attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor,
               scale: float) -> tuple[Tensor, Tensor]:
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse2 = _f32(q, q.shape[0], q.shape[1])
    _run("attention.fwd", o=o, lse2=lse2, q=_ready(q), k=_ready(k), v=_ready(v),
         samples=_ready(starts), **_shape(scale))
    return o, lse2


def _shape(scale: float) -> dict[str, Any]:
    return {"shape.scale": scale, "shape.window": 0, "shape.kv_span": 0, "shape.q_span": 0}


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), _f32(q, q.shape[0], q.shape[1])


@torch.library.custom_op("invar::attention_backward", mutates_args=())
def _attention_backward_op(do: Tensor, o: Tensor, lse2: Tensor, q: Tensor, k: Tensor, v: Tensor,
                           starts: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    _run("attention.bwd", dq=dq, dk=dk, dv=dv, d_o=_ready(do), o=o, lse2=lse2, q=_ready(q),
         k=_ready(k), v=_ready(v), samples=_ready(starts), **_shape(scale))
    return dq, dk, dv


@_attention_backward_op.register_fake
def _(do: Tensor, o: Tensor, lse2: Tensor, q: Tensor, k: Tensor, v: Tensor, starts: Tensor,
      scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _attention_setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, starts, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, starts, *output)


def _attention_backward(ctx: Any, do: Tensor, dlse2: Any) -> Any:
    q, k, v, starts, o, lse2 = ctx.saved_tensors
    dq, dk, dv = _attention_backward_op(do, o, lse2, q, k, v, starts, ctx.scale)
    return dq, dk, dv, None, None


_attention.register_autograd(_attention_backward, setup_context=_attention_setup)


def attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor,
              scale: Optional[float] = None) -> Tensor:
    """Causal attention over packed samples.

    q is (tokens, heads, dim), k and v (tokens, key heads, dim). Sample i has the rows
    [starts[i], starts[i + 1]); starts is int64, one longer than there are samples.
    """
    o, _ = _attention(q, k, v, starts, q.shape[-1] ** -0.5 if scale is None else scale)
    return o  # type: ignore[no-any-return]


@torch.library.custom_op("invar::attention_paged", mutates_args=())
def attention_paged(q: Tensor, k: Tensor, v: Tensor, pages: Tensor, rows: Tensor, lengths: Tensor,
                    scale: float) -> Tensor:
    """The bits of attention for the last rows of each sequence, over a paged KV cache.

    q is (rows, heads, dim), k and v (pages, page size, key heads, dim), pages int32 (sequences,
    most pages). Sequence s has the rows [rows[s], rows[s + 1]) and lengths[s] keys.
    """
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    _run("attention.paged", o=o, q=_ready(q), rows=_ready(rows), lengths=_ready(lengths),
         **{"cache.k": _ready(k), "cache.v": _ready(v), "cache.pages": _ready(pages)},
         **_shape(scale))
    return o


@attention_paged.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, pages: Tensor, rows: Tensor, lengths: Tensor,
      scale: float) -> Tensor:
    return torch.empty_like(q)


# ---- log-probabilities -------------------------------------------------------------------------


@torch.library.custom_op("invar::logprob", mutates_args=())
def _logprob(logits: Tensor, targets: Tensor,
             temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    logp, most, logsum = (logits.new_empty(logits.shape[0]) for _ in range(3))
    _run("logprob.fwd", logp=logp, max=most, logsum=logsum, logits=_ready(logits),
         targets=_ready(targets), temperature=temperature)
    return logp, most, logsum


@_logprob.register_fake
def _(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    empty = logits.new_empty(logits.shape[0])
    return empty, torch.empty_like(empty), torch.empty_like(empty)


@torch.library.custom_op("invar::logprob_backward", mutates_args=())
def _logprob_backward_op(dlogp: Tensor, most: Tensor, logsum: Tensor, logits: Tensor,
                         targets: Tensor, temperature: float) -> Tensor:
    dlogits = torch.empty_like(logits, memory_format=torch.contiguous_format)
    _run("logprob.bwd", dlogits=dlogits, dlogp=_ready(dlogp), max=most, logsum=logsum,
         logits=_ready(logits), targets=_ready(targets), temperature=temperature)
    return dlogits


@_logprob_backward_op.register_fake
def _(dlogp: Tensor, most: Tensor, logsum: Tensor, logits: Tensor, targets: Tensor,
      temperature: float) -> Tensor:
    return torch.empty_like(logits)


def _logprob_setup(ctx: Any, inputs: Any, output: Any) -> None:
    logits, targets, ctx.temperature = inputs
    ctx.save_for_backward(logits, targets, *output[1:])


def _logprob_backward(ctx: Any, dlogp: Tensor, dmost: Any, dlogsum: Any) -> Any:
    logits, targets, most, logsum = ctx.saved_tensors
    return _logprob_backward_op(dlogp, most, logsum, logits, targets, ctx.temperature), None, None


_logprob.register_autograd(_logprob_backward, setup_context=_logprob_setup)


def logprob(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """The log-probability of each target under its row of logits, which are f32 here."""
    rows = logits.reshape(-1, logits.shape[-1]).float()
    logp, _, _ = _logprob(rows, targets.reshape(-1).to(torch.int32), temperature)
    return logp.reshape(targets.shape)  # type: ignore[no-any-return]


# ---- a mixture of experts ----------------------------------------------------------------------

_Moe = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _router(normalise: bool) -> dict[str, Any]:
    return {"router.scoring": 0, "router.groups": 1, "router.groups_kept": 1,
            "router.group_score_top": 1, "router.normalise": int(normalise),
            "router.normalise_eps": 0.0, "router.scale": 1.0}


@torch.library.custom_op("invar::moe", mutates_args=())
def _moe(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int,
         normalise: bool) -> _Moe:
    """Everything of the layer; what the backward needs is returned beside the result."""
    x, router, gate_up, down = map(_ready, (x, router, gate_up, down))
    tokens, (experts, both, width) = x.shape[0], gate_up.shape
    slots, inner = tokens * top_k, both // 2
    logits = _f32(x, tokens, experts)
    _run("linear.fwd", y=logits, x=x, w=router, n_more=0, k_shards=1)
    ids, weights = _i32(x, tokens, top_k), logits.new_empty(tokens, top_k)
    scores = torch.empty_like(logits)
    _run("moe.route.fwd", ids=ids, weights=weights, scores=scores, logits=logits,
         **_router(normalise))
    row_token, slot_row = _i32(x, slots), _i32(x, tokens, top_k)
    starts = torch.empty(experts + 1, dtype=torch.int64)
    _run("moe.plan", row_token=row_token, slot_row=slot_row, expert_start=starts, ids=ids,
         experts=experts)
    rows, hidden = x.new_empty(slots, width), x.new_empty(slots, both)
    _run("moe.gather.fwd", out=rows, x=x, row_token=row_token)
    _run("moe.linear.fwd", y=hidden, x=rows, w=gate_up.reshape(-1, width), experts=starts,
         k_shards=1)
    act, y = x.new_empty(slots, inner), x.new_empty(slots, width)
    _run("swiglu.fwd", y=act, gate=hidden[:, :inner], up=hidden[:, inner:])
    _run("moe.linear.fwd", y=y, x=act, w=down.reshape(-1, inner), experts=starts, k_shards=1)
    out = torch.empty_like(x)
    _run("moe.combine.fwd", out=out, y=y, weights=weights, slot_row=slot_row)
    return out, ids, weights, scores, row_token, slot_row, starts, hidden, act, y


@_moe.register_fake
def _(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int,
      normalise: bool) -> _Moe:
    tokens, (experts, both, width) = x.shape[0], gate_up.shape
    slots = tokens * top_k
    return (torch.empty_like(x), _i32(x, tokens, top_k),
            _f32(x, tokens, top_k), _f32(x, tokens, experts),
            _i32(x, slots), _i32(x, tokens, top_k),
            x.new_empty(experts + 1, dtype=torch.int64), x.new_empty(slots, both),
            x.new_empty(slots, both // 2), x.new_empty(slots, width))


@torch.library.custom_op("invar::moe_backward", mutates_args=())
def _moe_backward_op(dout: Tensor, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor,
                     ids: Tensor, weights: Tensor, scores: Tensor, row_token: Tensor,
                     slot_row: Tensor, starts: Tensor, hidden: Tensor, act: Tensor, y: Tensor,
                     normalise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dout, x, router, gate_up, down = map(_ready, (dout, x, router, gate_up, down))
    tokens, (experts, both, width) = x.shape[0], gate_up.shape
    slots, inner, units = y.shape[0], both // 2, _all(x.shape[0])
    dy, dweights = torch.empty_like(y), torch.empty_like(weights)
    _run("moe.combine.bwd", dy=dy, dweights=dweights, dout=dout, y=y, weights=weights,
         slot_row=slot_row)
    ddown, dgate_up = _f32(down, *down.shape), _f32(gate_up, *gate_up.shape)
    where = {"row_token": row_token, "experts": starts, "units": units, "fresh": 1}
    _run("moe.linear.dw", dw=ddown.view(-1, inner), dy=dy, x=act, **where)
    dact, dhidden = torch.empty_like(act), torch.empty_like(hidden)
    _run("moe.linear.dx", dx=dact, n_parts=1, experts=starts, k_shards=1,
         **{"parts[0].dy": dy, "parts[0].w": down.reshape(-1, inner)})
    _run("swiglu.bwd", dgate=dhidden[:, :inner], dup=dhidden[:, inner:], dy=dact,
         gate=hidden[:, :inner], up=hidden[:, inner:])
    rows, drows = x.new_empty(slots, width), x.new_empty(slots, width)
    _run("moe.gather.fwd", out=rows, x=x, row_token=row_token)
    _run("moe.linear.dw", dw=dgate_up.view(-1, width), dy=dhidden, x=rows, **where)
    _run("moe.linear.dx", dx=drows, n_parts=1, experts=starts, k_shards=1,
         **{"parts[0].dy": dhidden, "parts[0].w": gate_up.reshape(-1, width)})
    dx, dlogits = torch.empty_like(x), x.new_empty(tokens, experts)
    _run("moe.gather.bwd", dx=dx, dout=drows, slot_row=slot_row)
    _run("moe.route.bwd", dlogits=dlogits, dweights=dweights, ids=ids, scores=scores,
         **_router(normalise))
    total = torch.empty_like(x)
    _run("add", out=total, a=dx, b=_linear_dx(dlogits, router))
    return total, _linear_dw(dlogits, x), dgate_up, ddown


@_moe_backward_op.register_fake
def _(dout: Tensor, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor,
      weights: Tensor, scores: Tensor, row_token: Tensor, slot_row: Tensor, starts: Tensor,
      hidden: Tensor, act: Tensor, y: Tensor,
      normalise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (torch.empty_like(x), _f32(router, *router.shape),
            _f32(gate_up, *gate_up.shape), _f32(down, *down.shape))


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
