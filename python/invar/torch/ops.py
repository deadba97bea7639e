# ops.py - Invar's kernels as operators of PyTorch: torch.ops.invar.*, with fake and autograd.
#
# Rows of activations are tokens, packed one sample after the other. The gradient of a weight is one
# sum over all tokens in order, computed in f32 and rounded once to the type of the weight.
# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch over Invar's kernels."""
from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from invar._library import Error
from invar.torch.calls import all_rows, f32, like, operator, ready, run
from invar.torch.formats import PLAIN, activation, prepared, quantise, weight

# ---- linear ------------------------------------------------------------------------------------


@operator("invar::linear")
def _linear(x: Tensor, w: Tensor, bias: Optional[Tensor], codes: Optional[Tensor] = None,
            scale: Optional[Tensor] = None, format: str = PLAIN) -> Tensor:
    y = x.new_empty(x.shape[0], w.shape[0])
    run("linear.fwd", y=y, x=activation(x, format), w=weight(w, format, codes, scale),
        bias=None if bias is None else ready(bias), n_more=0, k_shards=1)
    return y


@_linear.register_fake
def _(x: Tensor, w: Tensor, bias: Optional[Tensor], codes: Optional[Tensor] = None,
      scale: Optional[Tensor] = None, format: str = PLAIN) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[0])


@operator("invar::linear_dx")
def linear_dx(dy: Tensor, w: Tensor, codes: Optional[Tensor] = None,
              scale: Optional[Tensor] = None, format: str = PLAIN) -> Tensor:
    """Returns the gradient of x."""
    dx = dy.new_empty(dy.shape[0], w.shape[1])
    run("linear.dx", dx=dx, n_parts=1, k_shards=1, **{
        "parts[0].dy": activation(dy, format), "parts[0].w": weight(w, format, codes, scale)})
    return dx


@linear_dx.register_fake
def _(dy: Tensor, w: Tensor, codes: Optional[Tensor] = None, scale: Optional[Tensor] = None,
      format: str = PLAIN) -> Tensor:
    return dy.new_empty(dy.shape[0], w.shape[1])


@operator("invar::linear_dw")
def linear_dw(dy: Tensor, x: Tensor) -> Tensor:
    """Returns the gradient of w, in f32."""
    dw = f32(dy, dy.shape[1], x.shape[1])
    run("linear.dw", dw=dw, dy=ready(dy), x=ready(x), units=all_rows(dy), fresh=1)
    return dw


@linear_dw.register_fake
def _(dy: Tensor, x: Tensor) -> Tensor:
    return f32(dy, dy.shape[1], x.shape[1])


@operator("invar::token_sum")
def _token_sum(x: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[1], dtype=torch.float32)
    run("token.sum", out=out, x=ready(x), units=all_rows(x))
    return out


@_token_sum.register_fake
def _(x: Tensor) -> Tensor:
    return f32(x, x.shape[1])


def _linear_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, w, bias, codes, scale, ctx.format = inputs
    ctx.save_for_backward(x, w, codes, scale)
    ctx.bias = None if bias is None else bias.dtype


def _linear_backward(ctx: Any, dy: Tensor) -> Any:
    x, w, codes, scale = ctx.saved_tensors
    dx = linear_dx(dy, w, codes, scale, ctx.format) if ctx.needs_input_grad[0] else None
    dw = linear_dw(dy, x).to(w.dtype) if ctx.needs_input_grad[1] else None
    db = None
    if ctx.bias is not None and ctx.needs_input_grad[2]:
        db = _token_sum(dy).to(ctx.bias)
    return dx, dw, db, None, None, None


_linear.register_autograd(_linear_backward, setup_context=_linear_setup)


def linear(x: Tensor, w: Tensor, bias: Optional[Tensor] = None,
           format: Optional[str] = None) -> Tensor:
    """Returns x w^T + bias, as torch.nn.functional.linear; x may have any number of dimensions.

    format: "fp8", "mxfp8" or "int4" for tensors of bfloat16; None to use them as they are.
    """
    codes: list[Any] = [None, None]
    if format is not None:
        def make() -> list[Tensor]:
            q = quantise(w.detach(), format or PLAIN, weight=True)
            return [q.codes, q.scale]
        codes = list(prepared(w, format, make))
    y: Tensor = _linear(x.reshape(-1, x.shape[-1]), w, bias, *codes, format or PLAIN)
    return y.reshape(*x.shape[:-1], w.shape[0])


# ---- rmsnorm -----------------------------------------------------------------------------------


@operator("invar::rmsnorm")
def _rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = like(x)
    run("rmsnorm.fwd", y=y.unsqueeze(1), x=ready(x).unsqueeze(1), weight=ready(weight), eps=eps)
    return y


@_rmsnorm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return like(x)


@operator("invar::rmsnorm_backward")
def _rmsnorm_backward_op(dy: Tensor, x: Tensor, weight: Tensor,
                         eps: float) -> tuple[Tensor, Tensor]:
    dx = like(x)
    dweight = weight.new_zeros(weight.shape, dtype=torch.float32)
    run("rmsnorm.bwd", dx=dx.unsqueeze(1), dweight=dweight, dy=ready(dy).unsqueeze(1),
        x=ready(x).unsqueeze(1), weight=ready(weight), units=all_rows(x), eps=eps)
    return dx, dweight


@_rmsnorm_backward_op.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return like(x), f32(weight, *weight.shape)


def _rmsnorm_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _rmsnorm_backward(ctx: Any, dy: Tensor) -> Any:
    x, weight = ctx.saved_tensors
    dx, dweight = _rmsnorm_backward_op(dy, x, weight, ctx.eps)
    return dx, dweight.to(weight.dtype), None


_rmsnorm.register_autograd(_rmsnorm_backward, setup_context=_rmsnorm_setup)


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Returns x divided by the root mean square of its last dimension, times weight."""
    y: Tensor = _rmsnorm(x.reshape(-1, x.shape[-1]), weight, eps)
    return y.reshape(x.shape)


# ---- swiglu ------------------------------------------------------------------------------------


@operator("invar::swiglu")
def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    y = like(gate)
    run("swiglu.fwd", y=y, gate=ready(gate), up=ready(up))
    return y


@_swiglu.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    return like(gate)


@operator("invar::swiglu_backward")
def _swiglu_backward_op(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    dgate = like(gate)
    dup = like(up)
    run("swiglu.bwd", dgate=dgate, dup=dup, dy=ready(dy), gate=ready(gate), up=ready(up))
    return dgate, dup


@_swiglu_backward_op.register_fake
def _(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return like(gate), like(up)


def _swiglu_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _swiglu_backward(ctx: Any, dy: Tensor) -> Any:
    return _swiglu_backward_op(dy, *ctx.saved_tensors)


_swiglu.register_autograd(_swiglu_backward, setup_context=_swiglu_setup)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Returns silu(gate) * up."""
    y: Tensor = _swiglu(gate.reshape(-1, gate.shape[-1]), up.reshape(-1, up.shape[-1]))
    return y.reshape(gate.shape)


# ---- attention ---------------------------------------------------------------------------------


@operator("invar::attention")
def _attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor,
               scale: float) -> tuple[Tensor, Tensor]:
    o = like(q)
    lse2 = f32(q, q.shape[0], q.shape[1])
    run("attention.fwd", {"samples": "starts"}, o=o, lse2=lse2, q=ready(q), k=ready(k),
        v=ready(v), samples=ready(starts), **_shape(scale))
    return o, lse2


def _shape(scale: float) -> dict[str, Any]:
    return {"shape.scale": scale, "shape.window": 0, "shape.kv_span": 0, "shape.q_span": 0}


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return like(q), f32(q, q.shape[0], q.shape[1])


@operator("invar::attention_backward")
def _attention_backward_op(do: Tensor, o: Tensor, lse2: Tensor, q: Tensor, k: Tensor, v: Tensor,
                           starts: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (like(x) for x in (q, k, v))
    run("attention.bwd", dq=dq, dk=dk, dv=dv, d_o=ready(do), o=o, lse2=lse2, q=ready(q),
        k=ready(k), v=ready(v), samples=ready(starts), **_shape(scale))
    return dq, dk, dv


@_attention_backward_op.register_fake
def _(do: Tensor, o: Tensor, lse2: Tensor, q: Tensor, k: Tensor, v: Tensor, starts: Tensor,
      scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return like(q), like(k), like(v)


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
    """Computes causal attention over packed samples.

    q is (tokens, heads, dim), k and v (tokens, key heads, dim). Sample i has the rows
    [starts[i], starts[i + 1]); starts is int64, one longer than there are samples.
    """
    starts = starts.to(q.device)
    o, _ = _attention(q, k, v, starts, q.shape[-1] ** -0.5 if scale is None else scale)
    return o  # type: ignore[no-any-return]


@operator("invar::attention_paged")
def attention_paged(q: Tensor, k: Tensor, v: Tensor, pages: Tensor, rows: Tensor, lengths: Tensor,
                    scale: float) -> Tensor:
    """Computes attention for the last rows of each sequence over a paged KV cache, bit-equal.

    q is (rows, heads, dim), k and v (pages, page size, key heads, dim), pages int32 (sequences,
    max pages). Sequence s has the rows [rows[s], rows[s + 1]) and lengths[s] keys.
    """
    o = like(q)
    called = {"cache.k": "k", "cache.v": "v", "cache.pages": "pages"}
    run("attention.paged", called, o=o, q=ready(q), rows=ready(rows), lengths=ready(lengths),
        **{"cache.k": ready(k), "cache.v": ready(v), "cache.pages": ready(pages)},
        **_shape(scale))
    return o


@attention_paged.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, pages: Tensor, rows: Tensor, lengths: Tensor,
      scale: float) -> Tensor:
    return like(q)


# ---- embedding ---------------------------------------------------------------------------------


INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _ids(ids: Tensor, what: str) -> Tensor:
    """Returns ids as i32; an id that does not fit becomes the largest or smallest i32, which no
    table has."""
    if ids.dtype not in INTEGERS:
        raise Error("INVALID", f"{what} are integers, not {ids.dtype}")
    if ids.dtype == torch.int64:
        ids = ids.clamp(-2 ** 31, 2 ** 31 - 1)
    return ids.to(torch.int32)


@operator("invar::embedding")
def _embedding(ids: Tensor, table: Tensor, padding: int) -> Tensor:
    out = table.new_empty(ids.shape[0], table.shape[1])
    run("embedding.fwd", out=out, table=ready(table), ids=_ids(ids, "ids"))
    return out


@_embedding.register_fake
def _(ids: Tensor, table: Tensor, padding: int) -> Tensor:
    return table.new_empty(ids.shape[0], table.shape[1])


@operator("invar::embedding_backward")
def _embedding_backward_op(dout: Tensor, ids: Tensor, rows: int, padding: int) -> Tensor:
    dtable = dout.new_zeros(rows, dout.shape[1], dtype=torch.float32)
    run("embedding.bwd", dtable=dtable, dout=ready(dout), ids=_ids(ids, "ids"),
        units=all_rows(dout))
    if padding >= 0:
        dtable[padding] = 0
    return dtable


@_embedding_backward_op.register_fake
def _(dout: Tensor, ids: Tensor, rows: int, padding: int) -> Tensor:
    return f32(dout, rows, dout.shape[1])


def _embedding_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ids, table, ctx.padding = inputs
    ctx.save_for_backward(ids)
    ctx.rows, ctx.dtype = table.shape[0], table.dtype


def _embedding_backward(ctx: Any, dout: Tensor) -> Any:
    dtable = _embedding_backward_op(dout, *ctx.saved_tensors, ctx.rows, ctx.padding)
    return None, dtable.to(ctx.dtype), None


_embedding.register_autograd(_embedding_backward, setup_context=_embedding_setup)


def embedding(ids: Tensor, table: Tensor, padding: Optional[int] = None) -> Tensor:
    """Returns the rows of the table at the given ids; the row `padding` gets no gradient."""
    out: Tensor = _embedding(ids.reshape(-1), table, -1 if padding is None else padding)
    return out.reshape(*ids.shape, table.shape[1])


# ---- rotary positions --------------------------------------------------------------------------

_tables: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}


def _table(where: torch.device, rows: int, half: int, theta: float,
           llama3: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines of all positions, computed once."""
    key = (where, rows, half, theta, *llama3)
    if key not in _tables:
        cosine, sine = (torch.empty(rows, half, device=where) for _ in range(2))
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_context")
        run("rope.table", cosine=cosine, sine=sine, theta=theta, scaling=int(bool(llama3)),
            **dict(zip(names, llama3 or (1.0,) * len(names))))
        _tables[key] = cosine, sine
    return _tables[key]


@operator("invar::rotary")
def rotary(positions: Tensor, rows: int, half: int, theta: float,
           llama3: Sequence[float]) -> Tensor:
    """Returns cosines of each position's angles, then their sines: (positions, 2 half) f32.

Positions are less than rows. llama3 is empty, or factor, low_freq_factor, high_freq_factor and
    original_max_position_embeddings.
    """
    cosine, sine = _table(positions.device, rows, half, theta, llama3)
    unit = cosine.new_zeros(positions.shape[0], 1, 2 * half)
    unit[:, :, :half] = 1  # rotating (1, 0) by an angle gives its cosine and sine
    y = like(unit)
    run("rope.fwd", y=y, x=unit, positions=_ids(positions, "positions"), cosine=cosine, sine=sine)
    return y[:, 0]


@rotary.register_fake
def _(positions: Tensor, rows: int, half: int, theta: float, llama3: Sequence[float]) -> Tensor:
    return f32(positions, positions.shape[0], 2 * half)


# ---- log-probabilities -------------------------------------------------------------------------


@operator("invar::logprob")
def _logprob(logits: Tensor, targets: Tensor,
             temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    logp, most, logsum = (logits.new_empty(logits.shape[0]) for _ in range(3))
    run("logprob.fwd", logp=logp, max=most, logsum=logsum, logits=ready(logits),
        targets=ready(targets), temperature=temperature)
    return logp, most, logsum


@_logprob.register_fake
def _(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    empty = logits.new_empty(logits.shape[0])
    return empty, like(empty), like(empty)


@operator("invar::logprob_backward")
def _logprob_backward_op(dlogp: Tensor, most: Tensor, logsum: Tensor, logits: Tensor,
                         targets: Tensor, temperature: float) -> Tensor:
    dlogits = like(logits)
    run("logprob.bwd", dlogits=dlogits, dlogp=ready(dlogp), max=most, logsum=logsum,
        logits=ready(logits), targets=ready(targets), temperature=temperature)
    return dlogits


@_logprob_backward_op.register_fake
def _(dlogp: Tensor, most: Tensor, logsum: Tensor, logits: Tensor, targets: Tensor,
      temperature: float) -> Tensor:
    return like(logits)


def _logprob_setup(ctx: Any, inputs: Any, output: Any) -> None:
    logits, targets, ctx.temperature = inputs
    ctx.save_for_backward(logits, targets, *output[1:])


def _logprob_backward(ctx: Any, dlogp: Tensor, dmost: Any, dlogsum: Any) -> Any:
    logits, targets, most, logsum = ctx.saved_tensors
    return _logprob_backward_op(dlogp, most, logsum, logits, targets, ctx.temperature), None, None


_logprob.register_autograd(_logprob_backward, setup_context=_logprob_setup)


def logprob(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """Returns the log-probability of each target in its row of logits, computed in f32."""
    rows = logits.reshape(-1, logits.shape[-1]).float()
    logp, _, _ = _logprob(rows, _ids(targets.reshape(-1), "targets"), temperature)
    return logp.reshape(targets.shape)  # type: ignore[no-any-return]
