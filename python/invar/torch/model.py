# model.py - a transformers model that computes with Invar's kernels.
#
# Modules keep their parameters and names; each gets a class that is derived from its own and has
# another forward. The model's class checks every call first: an unknown argument or module is
# rejected, never computed by PyTorch's kernels.
# SPDX-License-Identifier: Apache-2.0
"""make_invariant: batch size, padding and position change no bit."""
from __future__ import annotations

import copy
import functools
from typing import Any, Mapping, Optional, TypeVar

import torch
import transformers
from torch import Tensor, nn

from invar.ops import format_of
from invar.torch import experts, ops
from invar.torch.attention import NAME

FAMILIES = {"llama", "qwen2", "qwen3", "qwen3_moe"}
Model = TypeVar("Model", bound=nn.Module)


# ---- modules -----------------------------------------------------------------------------------


class _Replaced(nn.Module):
    """Base of the replacing classes; copies and pickles of such a module keep the class."""

    _invar_format: Optional[str] = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        made: Any = super().__reduce_ex__(max(protocol, 2))
        return (_restore, (getattr(type(self), "_invar_stock"),), *made[2:])


class _Linear(_Replaced):
    def forward(self: Any, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias, self._invar_format)


class _Embedding(_Replaced):
    def forward(self: Any, ids: Tensor) -> Tensor:
        return ops.embedding(ids, self.weight, self.padding_idx)


class _Norm(_Replaced):
    def forward(self: Any, x: Tensor) -> Tensor:
        return ops.rmsnorm(x, self.weight, self.variance_epsilon)


class _Mlp(_Replaced):
    def forward(self: Any, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(ops.swiglu(self.gate_proj(x), self.up_proj(x)))
        return out


class _Experts(_Replaced):
    def forward(self: Any, x: Tensor) -> Tensor:
        return experts.moe(x, self.gate.weight, self.experts.gate_up_proj, self.experts.down_proj,
                           self.gate.top_k, self.gate.norm_topk_prob, self._invar_format)


LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class _Rotary(_Replaced):
    def forward(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosine and sine with the same bits on every device."""
        known = self.config.rope_parameters
        llama3 = [float(known[name]) for name in LLAMA3] if self.rope_type == "llama3" else []
        both = ops.rotary(position_ids.flatten(), self.config.max_position_embeddings,
                          self.inv_freq.shape[0], float(known["rope_theta"]), llama3)
        cosine, sine = both.to(x.dtype).reshape(*position_ids.shape, -1).chunk(2, -1)
        return torch.cat((cosine, cosine), -1), torch.cat((sine, sine), -1)


class _Model(_Replaced):
    """The base model, or a model that contains it and a head."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        stock = _came_later(self)
        if stock is not None:
            name = next(name for name, module in self.named_modules() if module is stock)
            raise NotImplementedError(
                f"make_invariant: {name} came later and would compute with PyTorch's kernels; "
                "call make_invariant again, behind all changes of the model")
        if self.base_model is self:
            _check_call(self.config, {**dict(zip(ARGUMENTS, args)), **kwargs})
        return super().__call__(*args, **kwargs)


def _place(stock: type) -> Optional[type[_Replaced]]:
    """Returns the class that replaces modules of class `stock`; None if they stay."""
    if issubclass(stock, nn.Linear):
        return _Linear
    if issubclass(stock, nn.Embedding):
        return _Embedding
    if issubclass(stock, transformers.PreTrainedModel):
        return _Model
    for ending, place in (("RMSNorm", _Norm), ("RotaryEmbedding", _Rotary),
                          ("SparseMoeBlock", _Experts), ("MLP", _Mlp)):
        if stock.__name__.endswith(ending):
            return place
    return None


@functools.lru_cache(maxsize=None)
def _replaced(stock: Any) -> Any:
    """Returns the class of replaced modules, with the name that transformers knows."""
    place = _place(stock)
    assert place is not None
    return type(stock.__name__, (place, stock), {
        "__module__": stock.__module__, "__qualname__": stock.__qualname__,
        "__doc__": stock.__doc__, "_invar_stock": stock})


def _restore(stock: type) -> Any:
    """Returns an empty module of the replacing class, for copies and pickles."""
    made = _replaced(stock)
    return made.__new__(made)


def _has_table(module: Any) -> bool:
    """Returns whether our tables have its angles. Others stay PyTorch's, which compute no sums."""
    known = getattr(module.config, "rope_parameters", None) or {}
    return (getattr(module, "rope_type", None) in ("default", "llama3") and
            known.get("partial_rotary_factor", 1.0) == 1.0 and module.attention_scaling == 1.0 and
            "rope_theta" in known)


def _is_stock(module: nn.Module) -> bool:
    """Returns whether the module should be replaced but is not."""
    if isinstance(module, _Replaced):
        return False
    place = _place(type(module))
    return place is not None and (place is not _Rotary or _has_table(module))


def _came_later(model: nn.Module) -> Optional[nn.Module]:
    """Returns a module added after make_invariant; nested models check their own modules."""
    waiting = [model]
    while waiting:
        for module in waiting.pop()._modules.values():
            if isinstance(module, _Model) or module is None:
                continue
            if _is_stock(module):
                return module
            if module._modules:
                waiting.append(module)
    return None


# ---- calls -------------------------------------------------------------------------------------

# the first positional arguments
ARGUMENTS = ("input_ids", "attention_mask", "position_ids", "past_key_values")


def _check_call(config: Any, given: Mapping[str, Any]) -> None:
    """Rejects arguments that would be ignored or computed in another way."""
    if config._attn_implementation != NAME:
        raise NotImplementedError(f"make_invariant: the attention is {config._attn_implementation} "
                                  "again; call make_invariant again")
    for what in ("attentions", "router_logits"):
        if given.get(f"output_{what}", getattr(config, f"output_{what}", False)):
            raise NotImplementedError(f"make_invariant: {what} are not returned; set "
                                      f"output_{what}=False")
    mask = given.get("attention_mask")
    if isinstance(mask, Tensor) and (mask.is_floating_point() or mask.is_complex()):
        raise NotImplementedError(
            f"make_invariant: an attention mask of {mask.dtype} may be one of factors or of terms; "
            "give (batch, keys) of bool or integers, 1 for tokens and 0 for padding")
    cache = given.get("past_key_values")
    if cache is not None and not isinstance(cache, transformers.DynamicCache):
        raise NotImplementedError(
            f"make_invariant: a {type(cache).__name__} is not offered, since it has empty or "
            "rounded keys; use a DynamicCache, the default")
    positions = given.get("position_ids")
    if mask is None and positions is not None and positions.shape[-1] > 1:
        _check_positions(positions)


def _check_positions(positions: Tensor) -> None:
    """Checks that, without a mask, each row is one sample."""
    if torch.compiler.is_compiling():
        raise NotImplementedError("make_invariant: a compiler cannot see whether position_ids are "
                                  "packed; give an attention_mask with them, or leave them out")
    if not bool((positions.diff(dim=-1) == 1).all()):
        raise NotImplementedError(
            "make_invariant: packed position_ids are not offered: give each sample a row and "
            "an attention_mask (one of ones where a row is one sample with such positions)")


# ---- the switch --------------------------------------------------------------------------------


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
        _check_module(name, module)
    types_of = {p.dtype for p in model.parameters()}
    if len(types_of) != 1 or not types_of <= {torch.float32, torch.bfloat16}:
        raise NotImplementedError("make_invariant: all weights are float32, or all are bfloat16; "
                                  f"here they are {', '.join(sorted(map(str, types_of)))}")
    return config


def _check_module(name: str, module: nn.Module) -> None:
    place = _place(type(module))
    if type(module).__name__.endswith("SparseMoeBlock") and not hasattr(
            getattr(module, "experts", None), "gate_up_proj"):
        raise NotImplementedError(f"make_invariant: the experts of {name} are no stacked "
                                  "weights; transformers 5 has them so")
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.sparse or
                                             module.scale_grad_by_freq):
        raise NotImplementedError(f"make_invariant: the embedding {name} has max_norm, sparse "
                                  "or scale_grad_by_freq, which are not offered")
    plain = next((c for c in (nn.Linear, nn.Embedding) if isinstance(module, c)), None)
    own = plain is not None and not isinstance(module, _Replaced) and (
        type(module).forward is not plain.forward)
    if own or (place not in (None, _Model) and "forward" in module.__dict__):
        raise NotImplementedError(f"make_invariant: the forward of {name} is not that of "
                                  f"{type(module).__name__} alone; call make_invariant before "
                                  "hooks, adapters and other replacements of it")


def make_invariant(model: Model, format: Optional[str] = None) -> Model:
    """Makes a transformers model compute with Invar's kernels; returns the same model.

    Afterwards the bits of a sample's logits do not depend on the rest of the batch, on its padding,
    on its position in the batch, or on whether its tokens are fed at once or one by one with a
    cache. Gradients are sums in a fixed order, so the same step gives the same gradients.

    Families: llama, qwen2, qwen3, qwen3_moe, in float32 or bfloat16, on CPUs and on an H100 or
H200; the model may be moved before or after. Other families are rejected, and so are sliding
    windows, dropout in attention, caches other than DynamicCache and positions from
    max_position_embeddings on. Call it after everything that changes modules: a module that is
    added later is rejected when it is used.

    format: "fp8", "mxfp8" or "int4" for the linear layers of a bfloat16 model, as in `invar train`:
    attention, MLP and experts are quantized; embedding, heads, norms and router are not.
    """
    config = _check(model)
    if format is not None:
        format_of(format)
        if next(model.parameters()).dtype != torch.bfloat16:
            raise NotImplementedError(f"make_invariant: the format {format} is that of a bfloat16 "
                                      "model")
    layers = {module for layer in model.modules() if type(layer).__name__.endswith("DecoderLayer")
              for module in layer.modules()}
    own = copy.deepcopy(config)  # another model may have the same config
    own._attn_implementation = NAME
    for module in model.modules():
        if _is_stock(module):
            stock: Any = type(module)
            module.__class__ = _replaced(stock)
        if isinstance(module, _Replaced):
            module._invar_format = format if module in layers else None
        if module.__dict__.get("config") is config:
            setattr(module, "config", own)
    return model
