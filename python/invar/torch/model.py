# model.py - a transformers model that computes with Invar's kernels.
#
# Modules keep their parameters and names; their forward is replaced, and the attention is one that
# is registered with transformers. What is not known is refused, not left as it is.
# SPDX-License-Identifier: Apache-2.0
"""make_invariant: batch size, padding and position change no bit."""
from __future__ import annotations

import types
from typing import Any, Callable, Optional, TypeVar

import torch
import transformers
from torch import Tensor, nn
from transformers import masking_utils

from invar.ops import format_of
from invar.torch import experts, ops

NAME = "invar"  # of the attention, in transformers' tables
FAMILIES = {"llama", "qwen3", "qwen3_moe"}
Model = TypeVar("Model", bound=nn.Module)


# ---- attention ---------------------------------------------------------------------------------


def _mask(batch_size: int, q_length: int, kv_length: int, mask_function: Any = None,
          attention_mask: Optional[Tensor] = None, **_: Any) -> Optional[Tensor]:
    """What attention is told: the padding mask as it is, (batch, keys), or None."""
    if mask_function is not masking_utils.causal_mask_function:
        raise NotImplementedError(
            "make_invariant: attention is causal over whole samples; sliding windows, packed "
            "position_ids and other masks are not offered")
    if attention_mask is not None and attention_mask.shape[-1] != kv_length:
        raise NotImplementedError("make_invariant: the attention mask has another length than "
                                  "the keys; static caches are not offered")
    return attention_mask


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
            attention_mask: Optional[Tensor], scaling: Optional[float] = None,
            dropout: float = 0.0, **kwargs: Any) -> tuple[Tensor, None]:
    """query is (batch, heads, queries, dim); key and value may be longer, of a cache."""
    if dropout != 0.0 or kwargs.get("sliding_window") is not None:
        raise NotImplementedError("make_invariant: attention has neither dropout nor a window")
    batch, _, q_length, dim = query.shape
    kv_length = key.shape[2]
    scale = dim ** -0.5 if scaling is None else scaling
    if attention_mask is not None and attention_mask.ndim != 2:
        raise NotImplementedError("make_invariant: the attention mask is (batch, keys)")
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if q_length != kv_length:
        return _attend_cached(q, k, v, attention_mask, scale), None
    shape = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    if attention_mask is None:
        starts = torch.arange(batch + 1, device=q.device).mul_(q_length)
        return ops.attention(q, k, v, starts, scale).reshape(shape), None
    kept, starts = _packing(attention_mask)
    packed = ops.attention(q.index_select(0, kept), k.index_select(0, kept),
                           v.index_select(0, kept), starts, scale)
    return torch.zeros_like(q).index_copy(0, kept, packed).reshape(shape), None


def _packing(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows are tokens, and where samples begin among them; found once for all layers."""
    found: Optional[tuple[Tensor, Tensor]] = getattr(mask, "_invar_packing", None)
    if found is None:
        keep = mask.bool()
        lengths = keep.sum(1)
        found = (keep.flatten().nonzero()[:, 0],
                 torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
        mask._invar_packing = found  # type: ignore[attr-defined]
    return found


def _attend_cached(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor],
                   scale: float) -> Tensor:
    """New rows over a cache: every sequence is one page, its padding moved behind its keys."""
    batch, q_length = q.shape[:2]
    keep = (torch.ones(k.shape[:2], dtype=torch.bool, device=k.device) if mask is None
            else mask.bool())
    order = torch.argsort(~keep, dim=1, stable=True)
    index = order[:, :, None, None].expand_as(k)
    new = keep[:, -q_length:]
    rows = torch.cat([new.new_zeros(1, dtype=torch.int64), new.sum(1).cumsum(0)])
    pages = torch.arange(batch, dtype=torch.int32, device=q.device)[:, None]
    packed = ops.attention_paged(q[new], k.gather(1, index), v.gather(1, index), pages, rows,
                                 keep.sum(1), scale)
    return torch.zeros_like(q).masked_scatter(new[:, :, None, None], packed)


# ---- modules -----------------------------------------------------------------------------------


def _linear(self: Any, x: Tensor) -> Tensor:
    return ops.linear(x, self.weight, self.bias, self._invar_format)


def _embed(self: Any, ids: Tensor) -> Tensor:
    return ops.embedding(ids, self.weight, self.padding_idx)


def _norm(self: Any, x: Tensor) -> Tensor:
    return ops.rmsnorm(x, self.weight, self.variance_epsilon)


def _mlp(self: Any, x: Tensor) -> Tensor:
    out: Tensor = self.down_proj(ops.swiglu(self.gate_proj(x), self.up_proj(x)))
    return out


def _experts(self: Any, x: Tensor) -> Tensor:
    return experts.moe(x, self.gate.weight, self.experts.gate_up_proj, self.experts.down_proj,
                       self.gate.top_k, self.gate.norm_topk_prob, self._invar_format)


LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _rotary(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine with the same bits on every device."""
    known = self.config.rope_parameters
    llama3 = [float(known[name]) for name in LLAMA3] if self.rope_type == "llama3" else []
    both = ops.rotary(position_ids.flatten(), self.config.max_position_embeddings,
                      self.inv_freq.shape[0], float(known["rope_theta"]), llama3)
    cosine, sine = both.to(x.dtype).reshape(*position_ids.shape, -1).chunk(2, -1)
    return torch.cat((cosine, cosine), -1), torch.cat((sine, sine), -1)


def _has_table(module: Any) -> bool:
    """Whether our tables have its angles; the others stay PyTorch's, which have no sums either."""
    known = getattr(module.config, "rope_parameters", None) or {}
    return (getattr(module, "rope_type", None) in ("default", "llama3") and
            known.get("partial_rotary_factor", 1.0) == 1.0 and module.attention_scaling == 1.0 and
            "rope_theta" in known)


def _forward_of(module: nn.Module) -> Optional[Callable[..., Any]]:
    """The forward that takes the place of the module's own; None: it stays."""
    name = type(module).__name__
    if isinstance(module, nn.Linear):
        return _linear
    if isinstance(module, nn.Embedding):
        return _embed
    if name.endswith("RMSNorm"):
        return _norm
    if name.endswith("RotaryEmbedding"):
        return _rotary if _has_table(module) else None
    if name.endswith("SparseMoeBlock"):
        return _experts
    if name.endswith("MLP"):
        return _mlp
    return None


def _check(model: nn.Module) -> Any:
    config: Any = getattr(model, "config", None)
    family = getattr(config, "model_type", type(model).__name__)
    if family not in FAMILIES:
        raise NotImplementedError(f"make_invariant knows {', '.join(sorted(FAMILIES))}; "
                                  f"this model is of the family {family!r}")
    if config.hidden_act != "silu":
        raise NotImplementedError(f"make_invariant: the activation {config.hidden_act!r} is not "
                                  "silu")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise NotImplementedError("make_invariant: sliding windows are not offered")
    if getattr(config, "output_router_logits", False):
        raise NotImplementedError("make_invariant: router logits are not returned; set "
                                  "output_router_logits=False")
    for name, module in model.named_modules():
        if type(module).__name__.endswith("SparseMoeBlock") and not hasattr(
                getattr(module, "experts", None), "gate_up_proj"):
            raise NotImplementedError(f"make_invariant: the experts of {name} are no stacked "
                                      "weights; transformers 5 has them so")
        if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.sparse or
                                                 module.scale_grad_by_freq):
            raise NotImplementedError(f"make_invariant: the embedding {name} has max_norm, sparse "
                                      "or scale_grad_by_freq, which are not offered")
    types_of = {p.dtype for p in model.parameters()}
    if len(types_of) != 1 or not types_of <= {torch.float32, torch.bfloat16}:
        raise NotImplementedError("make_invariant: all weights are float32, or all are bfloat16; "
                                  f"here they are {', '.join(sorted(map(str, types_of)))}")
    return config


def make_invariant(model: Model, format: Optional[str] = None) -> Model:
    """Lets a transformers model compute with Invar's kernels; returns the same model.

    Afterwards the logits of a sample have the same bits whatever else is in the batch, however it
    is padded, on which side, at which place of the batch it stands, and whether its tokens are fed
    at once or one by one with a cache. Gradients are sums in a fixed order: repeated, they repeat.

    Families: llama, qwen3, qwen3_moe, in float32 or bfloat16, on CPUs and on an H100 or H200, where
    the model may be moved before or after. Others are refused, and so are sliding windows, dropout
    in attention and positions from max_position_embeddings on.

    format: "fp8", "mxfp8" or "int4" for the linear layers of a bfloat16 model, as `invar train` has
    them: of attention, MLP and experts; embedding, head, norms and router stay as they are.
    """
    config = _check(model)
    if format is not None:
        format_of(format)
        if next(model.parameters()).dtype != torch.bfloat16:
            raise NotImplementedError(f"make_invariant: the format {format} is that of a bfloat16 "
                                      "model")
    head = model.get_output_embeddings()  # type: ignore[operator]
    transformers.AttentionInterface.register(NAME, _attend)
    transformers.AttentionMaskInterface.register(NAME, _mask)
    for module in model.modules():
        forward = _forward_of(module)
        if forward is not None:
            setattr(module, "_invar_format", None if module is head else format)
            module.forward = types.MethodType(forward, module)
    config._attn_implementation = NAME
    return model
