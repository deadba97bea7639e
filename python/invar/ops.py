# ops.py - the kernels by name, on tensors of any library.
# SPDX-License-Identifier: Apache-2.0
"""Ops of Invar: every sum in one stated order, whatever the batch."""
from __future__ import annotations

import contextlib
import os
import sys
from ctypes import byref, c_void_p
from typing import Any, ContextManager, Optional, Union

from invar import _library as lib
from invar.tensors import View, view

Field = Union[Any, int, float]


def _torch_cuda() -> Any:
    """torch.cuda where PyTorch is imported and uses a GPU; does not import it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


class Device:
    """Where ops run.

    kind       "cpu", "cuda" or "cuda:1". A GPU is an H100 or H200, with the module invar-cuda.so.
    numerics   "ieee": one fused step a product. "sm90": the bits of an H200, slow on a CPU.
               By default that which is fast.
    threads    None: all CPUs. Bits do not depend on it.
    """

    def __init__(self, kind: str = "cpu", *, numerics: Optional[str] = None,
                 threads: Optional[int] = None) -> None:
        family, _, number = kind.partition(":")
        self.kind, self.numerics = kind, numerics or ("sm90" if family == "cuda" else "ieee")
        self.gpu: Optional[int] = None
        self._handle: Optional[c_void_p] = None
        if family == "cuda":
            self.gpu, threads = int(number) if number.isdigit() else 0, 1
        handle = c_void_p()
        with self._current():
            lib.call("device_open", byref(handle), lib.encode(kind, "a device"),
                     lib.encode(self.numerics, "numerics"), threads or os.cpu_count() or 1)
        self._handle = handle

    def _current(self) -> ContextManager[Any]:
        """CUDA has one current GPU a thread: PyTorch's stays what it is."""
        cuda = _torch_cuda() if self.gpu is not None else None
        if cuda is None or self.gpu >= cuda.device_count():
            return contextlib.nullcontext()
        return cuda.device(self.gpu)  # type: ignore[no-any-return]

    def _stream(self, asked: Optional[int]) -> Optional[int]:
        """The stream of a call, as a number; None: there are none."""
        if self.gpu is None:
            if asked is not None:
                raise lib.Error("INVALID", "a CPU has no streams")
            return None
        cuda = _torch_cuda()
        if cuda is not None and cuda.is_current_stream_capturing():
            raise lib.Error("STATE", "a CUDA graph is being captured: ops of Invar have scratch "
                            "that a graph would not own; capture without them")
        if asked is None:
            asked = cuda.current_stream(self.gpu).cuda_stream if cuda is not None else 0
        return asked

    def _argument(self, name: str, value: Any, stream: Optional[int],
                  views: list[View]) -> lib.Argument:
        key = lib.encode(name, "an argument")
        if isinstance(value, (bool, int)):
            return lib.Argument(key, lib.Tensor(), int(value), 0.0, lib.INTEGER, 0)
        if isinstance(value, float):
            return lib.Argument(key, lib.Tensor(), 0, value, lib.FLOAT, 0)
        # of a torch tensor on a GPU only the description is made, whatever the device
        one = view(value, 0 if stream is None else stream)
        if one.gpu is not None and one.gpu != self.gpu:
            raise lib.Error("INVALID", f"{name}: lies on cuda:{one.gpu}; the device is {self.kind}")
        views.append(one)
        return lib.Argument(key, one.describe(), 0, 0.0, lib.TENSOR, 0)

    def run(self, op: str, fields: dict[str, Field], *, stream: Optional[int] = None) -> None:
        """Runs an op: device.run("add", {"out": y, "a": a, "b": b}).

        The fields are those of kernels-deterministic/fields.def: tensors, ints and floats; None is
        left out. Outputs are written in place, so they must exist and be writable.

        On a GPU all tensors lie there. The op runs in the CUDA stream, by default PyTorch's current
        one or else CUDA's default, and this returns before it has run. An index that is out of
        range is reported by a later call, or by `wait`.
        """
        if self._handle is None:
            raise lib.Error("STATE", "the device is closed")
        stream = self._stream(stream)
        views: list[View] = []
        arguments = [self._argument(name, value, stream, views) for name, value in fields.items()
                     if value is not None]
        with self._current():
            lib.call("call_in", self._handle, stream, lib.encode(op, "an op"),
                     (lib.Argument * len(arguments))(*arguments), len(arguments))

    def wait(self) -> None:
        """Until everything has run; raises what failed in it."""
        if self._handle is None:
            raise lib.Error("STATE", "the device is closed")
        with self._current():
            lib.call("device_wait", self._handle)

    def close(self) -> None:
        """Ends its threads and gives back its memory."""
        handle, self._handle = self._handle, None
        if handle is not None:
            lib.LIBRARY.invar_api_device_close(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


def revision(op: str) -> int:
    """The numerics revision of an op: it rises when a bit of its results may change."""
    found: int = lib.LIBRARY.invar_api_op_revision(lib.encode(op, "an op"))
    if found < 0:
        raise lib.Error("NOTFOUND", lib.LIBRARY.invar_api_error().decode())
    return found
