# hashing.py - digests of named tensors.
# SPDX-License-Identifier: Apache-2.0
"""Digests of bytes and of named tensors."""
from __future__ import annotations

import array
import os
import re
from ctypes import create_string_buffer
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Mapping, Optional, Union

from invar._library import DIGEST_BYTES, call, one_line
from invar.tensors import describe_all, is_tensor, view

# Kinds of tensors, each with the phase and the op of a step that produce the value.
KINDS = {"param": ("optimizer", "step"), "grad": ("backward", "autograd"),
         "opt": ("optimizer", "state"), "act": ("forward", "module"), "data": ("data", "load")}
_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@dataclass(frozen=True)
class TensorDigest:
    """The digest of one tensor: `digest` covers its bytes; the other fields describe the tensor."""
    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: bytes
    kind: str = "param"

    @property
    def hex(self) -> str:
        """The digest as hexadecimal text, as in a ledger."""
        return self.digest.hex()

    @property
    def layer(self) -> int:
        """The first number among the parts of the name, as in "model.layers.3.mlp"; -1 if none."""
        found = _LAYER.search(self.name)
        return int(found.group(1)) if found else -1


@dataclass(frozen=True)
class Digests:
    """Digests of named tensors, in order. `a + b` has the digests of both."""
    tensors: tuple[TensorDigest, ...] = ()

    def __add__(self, other: "Digests") -> "Digests":
        return Digests(self.tensors + other.tensors)

    def __iter__(self) -> Iterator[TensorDigest]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, name: str) -> TensorDigest:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    def digest(self) -> bytes:
        """One digest over names, types, shapes and bytes of all tensors, in any order."""
        lines = sorted(f"{t.name}\0{t.dtype}\0{','.join(map(str, t.shape))}\0{t.hex}\n"
                       for t in self.tensors)
        return hash_bytes("".join(lines).encode("utf-8", "surrogateescape"))


def hash_bytes(data: Union[bytes, bytearray, memoryview]) -> bytes:
    """Returns the XXH3-128 of bytes as 16 bytes; `xxhsum -H2` prints the same value."""
    if isinstance(data, str):
        raise TypeError("bytes are hashed, not a text: encode it first")
    raw = bytes(data)
    out = create_string_buffer(DIGEST_BYTES)
    call("hash_bytes", out, raw, len(raw))
    return out.raw


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


def _optimizer(state: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the tensors of a torch optimizer: `state[3].exp_avg` belongs to parameter 3."""
    for number, values in state.items():
        known = {key: array.array("d", [value]) if isinstance(value, (int, float)) else value
                 # some optimizers count steps in plain numbers
                 for key, value in values.items() if value is not None}
        yield from _named(known, f"state[{number}]")


def _named(source: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Names and tensors of a module, a mapping, pairs, a sequence, or one tensor.

    Items of a sequence are named by their index. A nested tensor has both names: `1.mask`.
    """
    if hasattr(source, "state_dict"):
        source = source.state_dict()
    if is_tensor(source):
        yield name or "value", source
        return
    if isinstance(source, Mapping) and {*source} == {"state", "param_groups"}:
        yield from _optimizer(source["state"])
        return
    items: Iterable[tuple[Any, Any]]
    if isinstance(source, Mapping):
        items = source.items()
    elif isinstance(source, Iterable) and not isinstance(source, (str, set, frozenset)):
        items = list(source)
        if not all(map(_is_pair, items)):
            items = ((str(number), item) for number, item in enumerate(items))
    else:
        what = f"tensor {name!r}: " if name else ""
        raise TypeError(f"{what}a module, an optimizer, a tensor, and dicts, pairs and sequences "
                        f"of tensors can be hashed, not {source!r:.200}")
    for key, item in items:
        if not isinstance(key, str):
            raise TypeError(f"the name of a tensor is a text, not {key!r:.200}")
        yield from _named(item, f"{name}.{key}" if name else key)


def hash_tensors(source: Any, *, kind: str = "param", prefix: str = "",
                 threads: Optional[int] = None) -> Digests:
    """Returns the digest of every tensor of `source`.

    source   a torch.nn.Module (its state_dict), an optimizer of torch (its state), a mapping of
             names to tensors, pairs of both, a sequence (its items are called "0", "1", ...), or
             one tensor. A tensor is torch's, or has the buffer protocol or DLPack: numpy, JAX, ...
             A nested tensor has both names: `{"a": (x, y)}` has "a.0" and "a.1".
    kind     what the tensors are: param, grad, opt, act or data
    prefix   put in front of every name
    threads  number of hashing threads; None for all CPUs. The digests do not depend on it.

    The bytes are the elements in row-major order, so strides do not matter. The digest is the one
    that Invar itself records for a tensor with the same bytes.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is none of {', '.join(KINDS)}")
    pairs = list(_named(source))
    views = []
    for name, tensor in pairs:
        try:
            views.append(view(tensor))
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise TypeError(f"tensor {name!r}: {one_line(error)}") from error
    out = create_string_buffer(DIGEST_BYTES * max(1, len(views)))
    call("hash_tensors", out, describe_all(views), len(views), threads or os.cpu_count() or 1)
    return Digests(tuple(
        TensorDigest(prefix + name, v.dtype, v.shape,
                     out.raw[DIGEST_BYTES * i:DIGEST_BYTES * (i + 1)], kind)
        for i, ((name, _), v) in enumerate(zip(pairs, views))))


def hash_gradients(model: Any, *, prefix: str = "", threads: Optional[int] = None) -> Digests:
    """Returns the digests of the gradients that a torch.nn.Module has, each named NAME.grad."""
    grads = [(name + ".grad", p.grad) for name, p in model.named_parameters()
             if p.grad is not None]
    return hash_tensors(grads, kind="grad", prefix=prefix, threads=threads)
