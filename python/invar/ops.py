# ops.py - the kernels by name, on tensors of any library.
# SPDX-License-Identifier: Apache-2.0
"""Ops of Invar: every sum in one stated order, whatever the batch."""
from __future__ import annotations

import os
from ctypes import byref, c_void_p
from typing import Any, Optional, Union

from invar import _library as lib
from invar.tensors import View, view

Field = Union[Any, int, float]


class Device:
    """Where ops run.

    kind       "cpu"
    numerics   "ieee": one fused step a product. "sm90": the bits of an H200, slower here.
    threads    None: all CPUs. Bits do not depend on it.
    """

    def __init__(self, kind: str = "cpu", *, numerics: str = "ieee",
                 threads: Optional[int] = None) -> None:
        self.kind, self.numerics = kind, numerics
        self._handle: Optional[c_void_p] = None
        handle = c_void_p()
        lib.call("device_open", byref(handle), lib.encode(kind, "a device"),
                 lib.encode(numerics, "numerics"), threads or os.cpu_count() or 1)
        self._handle = handle

    def run(self, op: str, fields: dict[str, Field]) -> None:
        """Runs an op: device.run("add", {"out": y, "a": a, "b": b}).

        The fields are those of kernels-deterministic/fields.def: tensors, ints and floats; None is
        left out. Outputs are written in place, so they must exist and be writable.
        """
        if self._handle is None:
            raise lib.Error("STATE", "the device is closed")
        views: list[View] = []
        arguments = []
        for name, value in fields.items():
            key = lib.encode(name, "an argument")
            if value is None:
                continue
            if isinstance(value, (bool, int)):
                arguments.append(lib.Argument(key, lib.Tensor(), int(value), 0.0, lib.INTEGER, 0))
            elif isinstance(value, float):
                arguments.append(lib.Argument(key, lib.Tensor(), 0, value, lib.FLOAT, 0))
            else:
                views.append(view(value))
                arguments.append(lib.Argument(key, views[-1].describe(), 0, 0.0, lib.TENSOR, 0))
        lib.call("call", self._handle, lib.encode(op, "an op"),
                 (lib.Argument * len(arguments))(*arguments), len(arguments))

    def close(self) -> None:
        """Ends its threads."""
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
