# attention.py - the attention of transformers models: causal, over whole samples, padded or cached.
#
# Importing this file registers the attention, because the config of a loaded model names it.
# SPDX-License-Identifier: Apache-2.0
"""Causal attention for transformers' AttentionInterface."""
from __future__ import annotations

from typing import Any, Optional

import torch
import transformers
from torch import Tensor, nn
from transformers import masking_utils

from invar.torch import ops

NAME = "invar"  # name in transformers' tables


def _mask(mask_function: Any = None, attention_mask: Optional[Tensor] = None,
          **_: Any) -> Optional[Tensor]:
    """Returns the padding mask for _attend, (batch, keys), or None.

    The mask is a copy for this forward, because the caller may change its own afterwards and
    _packing caches its result on the copy. A compiled model always asks for a mask of packed
    samples; _check_call has already rejected calls with packed samples.
    """
    if (mask_function is not masking_utils.causal_mask_function and
            not torch.compiler.is_compiling()):
        raise NotImplementedError(
            "make_invariant: attention is causal over whole samples; sliding windows, packed "
            "position_ids and other masks are not offered")
    return None if attention_mask is None else attention_mask.to(torch.bool, copy=True)


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
            attention_mask: Optional[Tensor], scaling: Optional[float] = None,
            dropout: float = 0.0, **kwargs: Any) -> tuple[Tensor, None]:
    """Computes attention. query is (batch, heads, queries, dim); key and value are longer with a
    cache."""
    if dropout != 0.0 or kwargs.get("sliding_window") is not None:
        raise NotImplementedError("make_invariant: attention has neither dropout nor a window")
    if kwargs.get("is_causal") is False:
        raise NotImplementedError("make_invariant: attention is causal; is_causal=False is not "
                                  "offered")
    batch, _, q_length, dim = query.shape
    kv_length = key.shape[2]
    scale = dim ** -0.5 if scaling is None else scaling
    if attention_mask is not None and tuple(attention_mask.shape) != (batch, kv_length):
        raise NotImplementedError(
            f"make_invariant: the attention mask is (batch, keys), here ({batch}, {kv_length}), "
            f"not {tuple(attention_mask.shape)}")
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
    """Returns the rows that are tokens, and the start of each sample among them; cached for all
    layers."""
    found: Optional[tuple[Tensor, Tensor]] = getattr(mask, "_invar_packing", None)
    if found is None:
        lengths = mask.sum(1)
        found = (mask.flatten().nonzero()[:, 0],
                 torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
        mask._invar_packing = found  # type: ignore[attr-defined]
    return found


def _attend_cached(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor],
                   scale: float) -> Tensor:
    """Computes new rows over a cache: each sequence is one page, with its padding moved after its
    keys."""
    batch, q_length = q.shape[:2]
    keep = torch.ones(k.shape[:2], dtype=torch.bool, device=k.device) if mask is None else mask
    order = torch.argsort(~keep, dim=1, stable=True)
    index = order[:, :, None, None].expand_as(k)
    new = keep[:, -q_length:]
    rows = torch.cat([new.new_zeros(1, dtype=torch.int64), new.sum(1).cumsum(0)])
    pages = torch.arange(batch, dtype=torch.int32, device=q.device)[:, None]
    packed = ops.attention_paged(q[new], k.gather(1, index), v.gather(1, index), pages, rows,
                                 keep.sum(1), scale)
    return torch.zeros_like(q).masked_scatter(new[:, :, None, None], packed)


transformers.AttentionInterface.register(NAME, _attend)
transformers.AttentionMaskInterface.register(NAME, _mask)
