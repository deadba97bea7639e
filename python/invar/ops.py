# ops.py - the kernels of Invar by name, on tensors of any library.
# SPDX-License-Identifier: Apache-2.0
"""Ops of Invar: every sum in one stated order, whatever the batch."""
from __future__ import annotations

import contextlib
import functools
import os
import struct
import sys
import threading
import weakref
from ctypes import addressof, byref, c_void_p, create_string_buffer, sizeof
from dataclasses import dataclass
from typing import Any, ContextManager, Optional, Union

from invar import _library as lib
from invar.tensors import BFLOAT, CODES, FLOAT, INTEGER, View, view

Field = Union[Any, int, float]


@dataclass(frozen=True)
class Format:
    """How a quantized tensor is stored: DLPack's types of codes and scales, columns of a scale
    block."""
    code: int
    bits: int
    scale_code: int
    scale_bits: int
    block: int
    weight_rows: int  # rows of a weight that share a scale


FORMATS = {"fp8": Format(CODES["f8_e4m3fn"], 8, FLOAT, 32, 128, 128),
           "mxfp8": Format(CODES["f8_e4m3fn"], 8, CODES["f8_e8m0fnu"], 8, 32, 1),
           "int4": Format(INTEGER, 4, BFLOAT, 16, 32, 1)}


def format_of(name: str) -> Format:
    """Returns the format with that name."""
    if name not in FORMATS:
        raise lib.Error("INVALID", f"format {name!r} does not exist; there are "
                        f"{', '.join(FORMATS)}")
    return FORMATS[name]


@dataclass
class Quantised:
    """A quantized tensor for Device.run: codes and scales.

    format    "fp8": e4m3 with an f32 scale for 1 x 128 values, or 128 x 128 (weights).
              "mxfp8": e4m3 with a power of two for 1 x 32. "int4": bf16 scales for 1 x 32.
    codes     (rows, columns) of one byte; int4: (rows, columns / 2), the even column below
    scale     (bands of rows, blocks of columns), dense
    rows_per_scale  1, or 128
    period    rows of one expert: scale bands start again after them; 0 if there is one matrix
    """
    format: str
    codes: Any
    scale: Any
    rows_per_scale: int = 1
    period: int = 0

    def views(self, stream: int) -> tuple[View, View]:
        """Returns views of codes and scales with the types of the format."""
        kind = format_of(self.format)
        codes, scale = view(self.codes, stream), view(self.scale, stream)
        if len(codes.shape) != 2 or codes.bits != 8 or scale.bits != kind.scale_bits:
            raise lib.Error("INVALID", f"codes of {self.format} are bytes in rows, their scales "
                            f"have {kind.scale_bits} bits")
        if self.format == "int4":
            codes.shape = codes.shape[0], 2 * codes.shape[1]
            if codes.strides is not None:
                codes.strides = 2 * codes.strides[0], codes.strides[1]
        codes.code, codes.bits, scale.code = kind.code, kind.bits, kind.scale_code
        return codes, scale

    @staticmethod
    def scales(name: str, rows: int, columns: int, rows_per_scale: int = 1,
               period: int = 0) -> tuple[int, int]:
        """Returns the shape of the scales of such a tensor."""
        period = period or max(rows, 1)
        bands = rows // period * -(-period // rows_per_scale) + -(-(rows % period) //
                                                                 rows_per_scale)
        return bands, -(-columns // format_of(name).block)


_ARGUMENT = "PPPPiiiiqdii"  # lib.Argument for the module struct, because many are written at once
_BYTES = struct.calcsize("@" + _ARGUMENT)
assert _BYTES == sizeof(lib.Argument)


@functools.lru_cache(maxsize=1024)
def _layout(arguments: int, extents: int) -> struct.Struct:
    return struct.Struct("@" + _ARGUMENT * arguments + "q" * extents)


@functools.lru_cache(maxsize=1024)
def _name(text: str) -> Any:
    """Encodes a text for the library, in memory that lives as long as it is referenced."""
    return create_string_buffer(lib.encode(text, "an argument"))


class _Call:
    """The arguments of one call: an array of lib.Argument, then their shapes and strides."""

    def __init__(self, op: bytes) -> None:
        self.op, self.count = op, 0
        self._values: list[list[Any]] = []  # values of each argument, and the offset of its shape
        self._extents: list[int] = []
        self._kept: list[Any] = []

    def number(self, name: str, integer: int, real: float, kind: int) -> None:
        """Appends an int or a float."""
        if not -1 << 63 <= integer < 1 << 63:
            raise lib.Error("INVALID", f"{name}: {integer} does not fit into 64 bits")
        text = _name(name)
        self._kept.append(text)
        self._values.append([addressof(text), 0, 0, 0, 0, 0, 0, 0, integer, real, kind, 0])
        self.count += 1

    def tensor(self, name: str, one: View) -> None:
        """Appends a tensor, which must live as long as this object."""
        text = _name(name)
        self._kept += (text, one)
        dims, at = len(one.shape), len(self._extents)
        self._extents += one.shape
        if one.strides is not None:
            self._extents += one.strides
        self._values.append([addressof(text), one.address, at,
                             -1 if one.strides is None else at + dims, dims, one.code, one.bits,
                             lib.HOST if one.gpu is None else lib.DEVICE, 0, 0.0, lib.TENSOR, 0])
        self.count += 1

    def pack(self) -> Any:
        """Returns the array for the library."""
        buffer = create_string_buffer(max(1, _BYTES * self.count + 8 * len(self._extents)))
        extents = addressof(buffer) + _BYTES * self.count
        flat: list[Any] = []
        for value in self._values:
            if value[10] == lib.TENSOR:
                value[2] = extents + 8 * value[2]
                value[3] = extents + 8 * value[3] if value[3] >= 0 else 0
            flat += value
        _layout(self.count, len(self._extents)).pack_into(buffer, 0, *flat, *self._extents)
        return buffer


# start of the error for scratch memory that could not be allocated; the op has not run then
_SCRATCH = "scratch of ops: "


def _torch_cuda() -> Any:
    """Returns torch.cuda if PyTorch is imported and uses a GPU. Does not import it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


class Device:
    """A device that runs ops.

    kind       "cpu", "cuda" or "cuda:1". A GPU is an H100 or H200, with the module invar-cuda.so.
    numerics   "ieee": one fused step per product. "sm90": the bits of an H200, slow on a CPU.
               The default is the fast one of the device.
    threads    number of threads; None for all CPUs. Bits do not depend on it.

    Threads may share it: their calls wait for each other. After `fork` the child opens a device of
    its own when it first uses it; on a GPU that is an error, as in CUDA.
    """

    def __init__(self, kind: str = "cpu", *, numerics: Optional[str] = None,
                 threads: Optional[int] = None) -> None:
        family, _, number = kind.partition(":")
        self.kind, self.numerics = kind, numerics or ("sm90" if family == "cuda" else "ieee")
        self.gpu: Optional[int] = None
        self._handle: Optional[c_void_p] = None
        if family == "cuda":
            self.gpu, threads = int(number) if number.isdecimal() else 0, 1
        self._threads = threads or os.cpu_count() or 1
        self._lock = threading.RLock()
        self._forked = False
        self._open()
        _open_devices.add(self)

    def _open(self) -> None:
        handle = c_void_p()
        with self._current():
            lib.call("device_open", byref(handle), lib.encode(self.kind, "a device"),
                     lib.encode(self.numerics, "numerics"), self._threads)
        self._handle = handle

    def _after_fork(self) -> None:
        """In a forked child: discards the parent's handle, whose threads do not exist here."""
        self._forked = self._forked or self._handle is not None
        self._handle, self._lock = None, threading.RLock()

    def _opened(self) -> c_void_p:
        """Returns the library's handle, opening the device if needed. The caller holds the lock."""
        if self._handle is None and self._forked:
            if self.gpu is not None:
                raise lib.Error("STATE", f"{self.kind} was opened before a fork, behind which "
                                "CUDA does not work; start processes with \"spawn\"")
            self._open()
            self._forked = False
        if self._handle is None:
            raise lib.Error("STATE", "the device is closed")
        return self._handle

    def _current(self) -> ContextManager[Any]:
        """Keeps PyTorch's current GPU: CUDA has one current GPU per thread."""
        cuda = _torch_cuda() if self.gpu is not None else None
        if cuda is None or cuda.current_device() == self.gpu or self.gpu >= cuda.device_count():
            return contextlib.nullcontext()
        return cuda.device(self.gpu)  # type: ignore[no-any-return]

    def _stream(self, asked: Optional[int]) -> Optional[int]:
        """Returns the stream of a call as a number; None on a CPU."""
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

    def _add(self, call: "_Call", name: str, one: View) -> None:
        if one.gpu is not None and one.gpu != self.gpu:
            raise lib.Error("INVALID", f"{name}: lies on cuda:{one.gpu}; the device is {self.kind}")
        if one.fixed is not None and lib.LIBRARY.invar_api_op_writes(
                call.op, lib.encode(name, "an argument")) > 0:
            raise lib.Error("INVALID", f"{call.op.decode()}: {name}: {one.fixed}; the op writes "
                            "it: give memory that can be written in place")
        call.tensor(name, one)

    def _fill(self, call: "_Call", fields: dict[str, Field], stream: int) -> None:
        for name, value in fields.items():
            if value is None:
                continue
            if isinstance(value, (bool, int)):
                call.number(name, int(value), 0.0, lib.INTEGER)
            elif isinstance(value, float):
                call.number(name, 0, value, lib.FLOAT)
            elif isinstance(value, Quantised):
                codes, scale = value.views(stream)
                self._add(call, name, codes)
                self._add(call, name + ".scale", scale)
                call.number(name + ".scale_rows", value.rows_per_scale, 0.0, lib.INTEGER)
                call.number(name + ".scale_period", value.period, 0.0, lib.INTEGER)
            else:
                self._add(call, name, view(value, stream))

    def run(self, op: str, fields: dict[str, Field], *, stream: Optional[int] = None) -> None:
        """Runs an op: device.run("add", {"out": y, "a": a, "b": b}).

        The fields are those of kernels-deterministic/op_fields.def: tensors, Quantised, ints and
        floats; None omits one. Outputs are written in place, so they must exist and be writable.

        On a GPU all tensors must be there. The op runs in the CUDA stream, by default PyTorch's
        current one or else CUDA's default, and this returns before it has run. A stream must exist
        until the next call has returned. An index that is out of range is reported by a later call,
        or by `wait`.
        """
        stream = self._stream(stream)
        call = _Call(lib.encode(op, "an op"))
        # a torch tensor on a GPU is described only, never copied, whatever the device
        self._fill(call, fields, stream or 0)
        packed = call.pack()
        with self._lock, self._current():
            handle = self._opened()
            try:
                lib.call("call_in", handle, stream, call.op, packed, call.count)
            except lib.Error as error:
                cuda = _torch_cuda() if self.gpu is not None else None
                if cuda is None or not str(error).startswith(_SCRATCH):
                    raise
                cuda.empty_cache()  # PyTorch keeps memory that it does not use
                lib.call("call_in", handle, stream, call.op, packed, call.count)

    def wait(self) -> None:
        """Waits until everything has run. Raises the errors of these ops."""
        with self._lock, self._current():
            lib.call("device_wait", self._opened())

    def close(self) -> None:
        """Stops its threads and frees its memory, after the calls of other threads."""
        with self._lock:
            handle, self._handle, self._forked = self._handle, None, False
            if handle is not None:
                with self._current():
                    lib.LIBRARY.invar_api_device_close(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


_open_devices: "weakref.WeakSet[Device]" = weakref.WeakSet()


def _after_fork() -> None:
    for device in list(_open_devices):
        device._after_fork()


os.register_at_fork(after_in_child=_after_fork)


def revision(op: str) -> int:
    """Returns the numerics revision of an op, which rises when a bit of its results may change."""
    found: int = lib.LIBRARY.invar_api_op_revision(lib.encode(op, "an op"))
    if found < 0:
        raise lib.Error("NOTFOUND", lib.LIBRARY.invar_api_error().decode())
    return found
