# tensors.py - views of tensors of any library: torch, the buffer protocol, DLPack.
#
# Nothing is copied here unless the tensor is on a GPU and host memory is requested. A View keeps
# the memory that it describes alive.
# SPDX-License-Identifier: Apache-2.0
"""Tensors of other libraries as the C library reads them."""
from __future__ import annotations

import ctypes
import functools
import sys
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_ssize_t, c_uint8, c_uint16
from ctypes import c_uint64, c_void_p, py_object
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from invar._library import DEVICE, HOST, Tensor

# DLPack's type codes, and the names of types in a ledger.
INTEGER, UNSIGNED, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
LETTERS = {INTEGER: "i", UNSIGNED: "u", FLOAT: "f", BFLOAT: "bf", COMPLEX: "c"}
SMALL = {7: "f8_e3m4", 8: "f8_e4m3", 9: "f8_e4m3b11fnuz", 10: "f8_e4m3fn", 11: "f8_e4m3fnuz",
         12: "f8_e5m2", 13: "f8_e5m2fnuz", 14: "f8_e8m0fnu"}
CODES = {name: code for code, name in SMALL.items()}
NEAR = (1, 3)  # DLPack's devices in host memory: plain, and pinned for CUDA
CUDA = 2


@dataclass
class View:
    """A tensor in the host's memory or a GPU's. `owner` keeps that memory alive."""
    address: int
    code: int
    bits: int
    shape: tuple[int, ...]
    strides: Optional[tuple[int, ...]]  # in elements; None if dense
    owner: Any
    gpu: Optional[int] = None  # index of the GPU that has the memory; None for the host
    fixed: Optional[str] = None  # reason why the memory is read-only; None if it is writable

    @property
    def dtype(self) -> str:
        """"f32", "bf16", "i64", "bool", "f8_e4m3fn"."""
        if self.code == BOOL:
            return "bool"
        return SMALL.get(self.code) or f"{LETTERS[self.code]}{self.bits}"

    def describe(self) -> Tensor:
        """Returns the struct of the library, which points into the View."""
        dims = len(self.shape)
        strides = (c_int64 * dims)(*self.strides) if self.strides is not None else None
        return Tensor(self.address, (c_int64 * dims)(*self.shape), strides, dims, self.code,
                      self.bits, HOST if self.gpu is None else DEVICE)


# ---- torch -------------------------------------------------------------------------------------

TORCH = {"float64": (FLOAT, 64), "float32": (FLOAT, 32), "float16": (FLOAT, 16),
         "bfloat16": (BFLOAT, 16), "complex64": (COMPLEX, 64), "complex128": (COMPLEX, 128),
         "int64": (INTEGER, 64), "int32": (INTEGER, 32), "int16": (INTEGER, 16),
         "int8": (INTEGER, 8), "uint8": (UNSIGNED, 8), "uint16": (UNSIGNED, 16),
         "uint32": (UNSIGNED, 32), "uint64": (UNSIGNED, 64), "bool": (BOOL, 8)}


@functools.lru_cache(maxsize=None)
def _type_of_torch(dtype: Any) -> tuple[int, int]:
    name = str(dtype).removeprefix("torch.")
    small = CODES.get("f8_" + name.removeprefix("float8_"))
    if name not in TORCH and small is None:
        raise TypeError(f"a tensor of {dtype} has no type that a ledger knows")
    return TORCH[name] if small is None else (small, 8)


def _of_torch(tensor: Any, stay: bool) -> View:
    gpu, fixed = tensor.get_device() if stay and tensor.is_cuda else None, None
    if gpu is None and tensor.device.type != "cpu":
        fixed = f"lies on {tensor.device}, and was copied"
        tensor = tensor.detach().cpu()
    if tensor.is_conj() or tensor.is_neg():
        fixed = "is a conjugated or negated view, and was copied"
        tensor = tensor.detach().resolve_conj().resolve_neg()
    code, bits = _type_of_torch(tensor.dtype)
    return View(tensor.data_ptr(), code, bits, tensor.shape, tensor.stride(), tensor, gpu, fixed)


# ---- the buffer protocol -----------------------------------------------------------------------


class Buffer(ctypes.Structure):
    """Py_buffer."""
    _fields_ = [("buf", c_void_p), ("obj", py_object), ("len", c_ssize_t),
                ("itemsize", c_ssize_t), ("readonly", c_int), ("ndim", c_int),
                ("format", c_char_p), ("shape", POINTER(c_ssize_t)),
                ("strides", POINTER(c_ssize_t)), ("suboffsets", POINTER(c_ssize_t)),
                ("internal", c_void_p)]


FULL_READ_ONLY = 0x011C  # PyBUF_FULL_RO
FORMATS = {"?": BOOL, "e": FLOAT, "f": FLOAT, "d": FLOAT, "Zf": COMPLEX, "Zd": COMPLEX}
FORMATS.update(dict.fromkeys("bhilqn", INTEGER))
FORMATS.update(dict.fromkeys("BHILQN", UNSIGNED))


class _Held:
    """A buffer that is released with this object."""

    def __init__(self, source: Any) -> None:
        self.buffer = Buffer()
        self.held = False
        ctypes.pythonapi.PyObject_GetBuffer(
            py_object(source), ctypes.byref(self.buffer), FULL_READ_ONLY)
        self.held = True

    def __del__(self) -> None:
        if self.held:
            ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self.buffer))


def _of_buffer(source: Any) -> View:
    held = _Held(source)
    b = held.buffer
    text = (b.format or b"B").decode()
    order, kind = (text[0], text[1:]) if text[0] in "@=<>!" else ("@", text)
    if order in ">!" and b.itemsize > 1:
        raise TypeError(f"elements of the format {text!r} are big-endian: convert them first")
    if kind not in FORMATS or sys.byteorder != "little" or bool(b.suboffsets):
        raise TypeError(f"a buffer of the format {text!r} is no tensor of numbers")
    shape = tuple(b.shape[i] for i in range(b.ndim))
    strides: Optional[tuple[int, ...]] = None
    if b.strides:
        if any(b.strides[i] % b.itemsize for i in range(b.ndim)):
            raise TypeError("elements do not lie at multiples of their size: copy the array first")
        strides = tuple(b.strides[i] // b.itemsize for i in range(b.ndim))
    return View(b.buf or 0, FORMATS[kind], 8 * b.itemsize, shape, strides, held,
                fixed="is read-only memory" if b.readonly else None)


# ---- DLPack ------------------------------------------------------------------------------------


class DLTensor(ctypes.Structure):
    """DLPack's struct of this name, which is the first member of a DLManagedTensor."""
    _fields_ = [("data", c_void_p), ("device", c_int32), ("device_id", c_int32),
                ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes = [py_object, c_char_p]
_pointer.restype = c_void_p


def _of_dlpack(source: Any, stream: Optional[int]) -> View:
    far = stream is not None and source.__dlpack_device__()[0] == CUDA
    # in the protocol, 1 is the default stream; the producer orders its own work before the
    # consumer's
    capsule = source.__dlpack__(stream=stream or 1) if far else source.__dlpack__()
    address = _pointer(capsule, b"dltensor")
    t = ctypes.cast(address, POINTER(DLTensor)).contents
    if t.device not in NEAR and not far:
        raise TypeError(f"the tensor lies on a device (DLPack's kind {t.device}): "
                        "copy it to the CPU first")
    if t.lanes != 1 or (t.code not in LETTERS and t.code != BOOL and t.code not in SMALL):
        raise TypeError(f"DLPack's type {t.code} with {t.bits} bits and {t.lanes} lanes "
                        "has no name in a ledger")
    if not 0 <= t.ndim <= 64:
        raise TypeError(f"a tensor of {t.ndim} dimensions")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else None
    return View((t.data or 0) + t.byte_offset, t.code, t.bits, shape, strides, (source, capsule),
                t.device_id if far else None)


# ---- any of them -------------------------------------------------------------------------------


def is_torch(source: Any) -> bool:
    """Returns whether `source` is a tensor of torch; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def is_tensor(source: Any) -> bool:
    """Returns whether `view` may accept `source`: tensors, arrays, bytes."""
    if is_torch(source) or hasattr(source, "__dlpack__"):
        return True
    try:
        memoryview(source).release()
    except TypeError:
        return False
    return True


def view(source: Any, stream: Optional[int] = None) -> View:
    """Returns a view of a torch tensor, or of an object with the buffer protocol or DLPack.

    With the CUDA stream that will use it, a tensor on a GPU stays there.
    """
    if is_torch(source):
        return _of_torch(source, stream is not None)
    try:
        return _of_buffer(source)
    except (TypeError, ValueError, BufferError):
        if not hasattr(source, "__dlpack__"):
            raise
    return _of_dlpack(source, stream)


def describe_all(views: Sequence[View]) -> Any:
    """Returns an array of structs for the library; the views must outlive it."""
    return (Tensor * len(views))(*(v.describe() for v in views))
