# calls.py - runs ops of Invar on PyTorch tensors: on their device, in PyTorch's current stream.
# SPDX-License-Identifier: Apache-2.0
"""Helpers that all operators share."""
from __future__ import annotations

import functools
import threading
from typing import Any, Optional

import torch
from torch import Tensor

from invar._library import Error
from invar.ops import Device

# no CUDA graphs: a graph would keep the address of scratch memory that may move
operator = functools.partial(torch.library.custom_op, mutates_args=(),
                             tags=(torch.Tag.cudagraph_unsafe,))
_devices: dict[Optional[int], Device] = {}  # devices by GPU index; None for the CPU
_opening = threading.Lock()


def device(kind: str = "cpu") -> Device:
    """Returns the device of operators on tensors of "cpu", "cuda" or "cuda:1".

    The first call opens it: on a CPU with ieee and all CPUs, on a GPU with sm90.
    """
    family, _, number = kind.partition(":")
    known = kind in ("cpu", "cuda") or (family == "cuda" and number.isdecimal())
    gpu = int(number or 0) if family == "cuda" and known else None
    with _opening:
        if not known or gpu not in _devices:
            _devices[gpu] = Device(kind)  # Device rejects any other word
        return _devices[gpu]


def set_device(other: Device) -> None:
    """Sets the device of operators on such tensors, as in Device("cpu", numerics="sm90")."""
    if not isinstance(other, Device):
        raise Error("INVALID", f"an invar.ops.Device is wanted, not {other!r}")
    _devices[other.gpu] = other


def run(op: str, called: Optional[dict[str, str]] = None, /, **fields: Any) -> None:
    """Runs an op on the device of the first field, a tensor; tensors elsewhere are rejected.

    called   the caller's names of fields, for error messages
    """
    first: Tensor = next(iter(fields.values()))
    if not first.is_cuda and not first.is_cpu:
        raise RuntimeError(f"a tensor is on {first.device}; Invar's operators run on CPUs and CUDA")
    known = _devices.get(first.get_device() if first.is_cuda else None)
    try:
        (known or device(str(first.device))).run(op, fields)
    except Error as error:
        for field, name in (called or {}).items():
            if str(error).startswith(f"{op}: {field}: "):
                raise Error(error.status, str(error).replace(field, name, 1)) from None
        raise


def ready(x: Tensor) -> Tensor:
    """Returns the tensor as ops need it: dense."""
    return x.contiguous()


def like(x: Tensor) -> Tensor:
    """Returns an empty dense tensor with the type and shape of x."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def f32(x: Tensor, *shape: int) -> Tensor:
    """Returns an empty f32 tensor on the device of x."""
    return x.new_empty(shape, dtype=torch.float32)


def i32(x: Tensor, *shape: int) -> Tensor:
    """Returns an empty i32 tensor on the device of x."""
    return x.new_empty(shape, dtype=torch.int32)


def all_rows(x: Tensor) -> Tensor:
    """Returns row offsets of one unit with all rows, made on the device to avoid waiting for a
    copy."""
    return torch.arange(2, dtype=torch.int64, device=x.device).mul_(x.shape[0])
