# _library.py - loads libinvar.so with ctypes: its path, its functions, its errors.
#
# Everything here mirrors api/invar.h. A library with another INVAR_API_ABI is rejected.
# SPDX-License-Identifier: Apache-2.0
"""The shared library beneath the package."""
from __future__ import annotations

import ctypes
import operator
import os
import pathlib
import shlex
from ctypes import POINTER, c_char, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from typing import Any, Iterable, Mapping, Optional

ABI = 2
DIGEST_BYTES = 16
READ, WRITE, CREATE = 0, 1, 2
NULL, INT, REAL, TEXT, BLOB = range(5)
TENSOR, INTEGER, FLOAT = range(3)
HOST, DEVICE = range(2)


class Error(RuntimeError):
    """An error of the library; `status` is its kind, for example "NOTFOUND"."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return Error, (self.status, str(self))  # copies and pickles need both arguments


class Tensor(ctypes.Structure):
    """invar_api_tensor."""
    _fields_ = [("data", c_void_p), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("dims", c_int32), ("code", c_int32), ("bits", c_int32), ("place", c_int32)]


class Argument(ctypes.Structure):
    """invar_api_argument."""
    _fields_ = [("name", c_char_p), ("tensor", Tensor), ("integer", c_int64), ("real", c_double),
                ("kind", c_int32), ("reserved", c_int32)]


class Pair(ctypes.Structure):
    """invar_api_pair."""
    _fields_ = [("key", c_char_p), ("value", c_char_p)]


class Fact(ctypes.Structure):
    """invar_api_fact."""
    _fields_ = [("scope", c_char_p), ("key", c_char_p), ("value", c_char_p)]


class Point(ctypes.Structure):
    """invar_api_point."""
    _fields_ = [("name", c_char_p), ("phase", c_char_p), ("op", c_char_p), ("kind", c_char_p),
                ("dtype", c_char_p), ("shape", POINTER(c_int64)), ("dims", c_int64),
                ("layer", c_int64), ("level", c_int64)]


class Number(ctypes.Structure):
    """invar_api_number."""
    _fields_ = [("name", c_char_p), ("value", c_double)]


class Step(ctypes.Structure):
    """invar_api_step."""
    _fields_ = [("step", c_int64), ("digests", c_char_p), ("batch", c_char_p),
                ("metrics", POINTER(Number)), ("n_metrics", c_int64),
                ("gauges", POINTER(Number)), ("n_gauges", c_int64),
                ("start_ns", c_int64), ("duration_ns", c_int64)]


class Value(ctypes.Structure):
    """invar_api_value."""
    _fields_ = [("type", c_int32), ("integer", c_int64), ("real", c_double), ("data", c_void_p),
                ("bytes", c_uint64)]


class Verified(ctypes.Structure):
    """invar_api_verify_result."""
    _fields_ = [("runs", c_int64), ("entries", c_int64), ("rows", c_int64), ("steps", c_int64),
                ("bad", c_int64), ("first", c_char * 512)]


Row = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(c_char_p), POINTER(Value), c_int32)

# Functions that return a status, with the types of their arguments.
STATUS = {
    "hash_bytes": [c_char_p, c_void_p, c_uint64],
    "hash_tensors": [c_char_p, POINTER(Tensor), c_int64, c_int32],
    "device_open": [POINTER(c_void_p), c_char_p, c_char_p, c_int32],
    "device_wait": [c_void_p],
    "call_in": [c_void_p, c_void_p, c_char_p, c_void_p, c_int64],  # an array of Argument
    "ledger_open": [POINTER(c_void_p), c_char_p, c_int32, c_char_p],
    "ledger_begin": [c_void_p, c_char_p, c_char_p, POINTER(Pair), c_int64, POINTER(Fact), c_int64],
    "ledger_resume": [c_void_p, c_int64, c_char_p, POINTER(Fact), c_int64],
    "ledger_define": [c_void_p, POINTER(Point), c_int64],
    "ledger_append": [c_void_p, POINTER(Step)],
    "ledger_chain": [POINTER(c_int64), c_char_p, c_void_p],
    "ledger_note": [c_void_p, c_char_p, c_char_p, c_char_p, c_char_p],
    "ledger_evaluate": [c_void_p, c_char_p, POINTER(Number), c_int64],
    "ledger_finish": [c_void_p, c_int64, c_char_p],
    "ledger_find": [POINTER(c_int64), c_void_p, c_char_p],
    "ledger_content": [c_char_p, c_void_p, c_int64],
    "ledger_select": [c_void_p, c_char_p, c_int64, Row, c_void_p],
    "ledger_verify": [POINTER(Verified), c_void_p],
    "ledger_seal": [POINTER(c_void_p), c_void_p, c_int64],
    "ledger_seal_check": [c_void_p, c_char_p],
    "ledger_diff": [POINTER(c_void_p), c_void_p, c_int64, c_void_p, c_int64],
    "ledger_report": [c_void_p, c_int64, c_char_p],
    "rollout_read": [POINTER(c_void_p), POINTER(c_uint64), c_char_p],
    "rollout_format": [POINTER(c_void_p), POINTER(c_uint64), c_char_p, c_uint64],
    "rollout_write": [c_char_p, c_char_p, c_uint64],
    "pack_unpack": [c_char_p, c_char_p],
}


def _path() -> str:
    """Returns INVAR_LIBRARY, or the path of the library that was installed with the package."""
    return os.environ.get("INVAR_LIBRARY") or str(
        pathlib.Path(__file__).resolve().parent / "libinvar.so")


def _declare(library: ctypes.CDLL) -> None:
    for name in ("invar_api_version", "invar_api_error", "invar_api_status_name"):
        getattr(library, name).restype = c_char_p
    library.invar_api_status_name.argtypes = [c_int32]
    library.invar_api_free.argtypes = [c_void_p]
    library.invar_api_free.restype = None
    library.invar_api_op_revision.argtypes = [c_char_p]
    library.invar_api_op_revision.restype = c_int32
    library.invar_api_op_writes.argtypes = [c_char_p, c_char_p]
    library.invar_api_op_writes.restype = c_int32
    for name in ("invar_api_ledger_close", "invar_api_device_close"):
        getattr(library, name).argtypes = [c_void_p]
        getattr(library, name).restype = None
    for name, arguments in STATUS.items():
        function = getattr(library, "invar_api_" + name)
        function.argtypes = arguments
        function.restype = c_int32


def _remedy(path: str) -> str:
    """Returns the advice to build or install the missing library."""
    folder = pathlib.Path(path).absolute().parent
    if (folder / "CMakeCache.txt").exists():
        return f"run cmake --build {shlex.quote(str(folder))} --target invar_api"
    return ("install the package with `pip install ./python`, or let INVAR_LIBRARY name "
            "libinvar.so of a build")


def _load() -> ctypes.CDLL:
    path = _path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"{path}: cannot be loaded: {error}; {_remedy(path)}") from error
    library.invar_api_abi.restype = c_int32
    abi = library.invar_api_abi()
    if abi != ABI:
        raise ImportError(f"{path}: has interface {abi}, this package needs {ABI}; "
                          "build both from one tree")
    try:
        _declare(library)
    except AttributeError as error:  # an earlier version of the library lacks the function
        raise ImportError(f"{error}; build library and package from one tree") from error
    return library


LIBRARY = _load()


def library_version() -> str:
    """Returns the version of Invar that the library was built from."""
    version: bytes = LIBRARY.invar_api_version()
    return version.decode()


def call(name: str, *arguments: Any) -> None:
    """Calls invar_api_NAME. Raises Error if it fails."""
    status = getattr(LIBRARY, "invar_api_" + name)(*arguments)
    if status != 0:
        raise Error(LIBRARY.invar_api_status_name(status).decode(),
                    LIBRARY.invar_api_error().decode("utf-8", "replace"))


def one_line(error: object) -> str:
    """Returns the text of another library's exception as one printable line of limited length."""
    text = " ".join(str(error).split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:2000])


def take_bytes(text: c_void_p, size: int = -1) -> bytes:
    """Returns a copy of bytes that the library allocated, and frees them. If size is -1, they end
    at a NUL."""
    try:
        return ctypes.string_at(text.value or 0, size)
    finally:
        LIBRARY.invar_api_free(text)


def take_text(text: c_void_p) -> str:
    """Like take_bytes, for text in UTF-8."""
    return take_bytes(text).decode()


def encode(text: str, what: str) -> bytes:
    """Encodes a text for the library: UTF-8 without a NUL."""
    if not isinstance(text, str):
        raise Error("INVALID", f"{what} is a text, not {text!r}")
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Error("INVALID", f"{what} is no Unicode: {text!r}") from error
    if b"\0" in data:
        raise Error("INVALID", f"{what} has a NUL byte: {text!r}")
    return data


def integer(value: Any, what: str, least: int, most: int) -> int:
    """Checks that a number is an integer in the given range, and returns it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise Error("INVALID", f"{what} is an integer, not {value!r}") from None
    if not least <= number <= most:
        raise Error("INVALID", f"{what} is {least} to {most}, not {number}")
    return number


def mapping(value: Optional[Mapping[str, Any]], what: str) -> Mapping[str, Any]:
    """Checks that the value is a mapping; None becomes an empty one."""
    if value is not None and not isinstance(value, Mapping):
        raise Error("INVALID", f"{what} is a dict, not {value!r}")
    return value or {}


def numbers(values: Iterable[tuple[str, float]], what: str) -> tuple[Any, int]:
    """Returns named numbers as an array for the library, and their count."""
    listed = [Number(encode(name, what), value) for name, value in values]
    return (Number * len(listed))(*listed), len(listed)


def optional(text: Optional[str], what: str) -> Optional[bytes]:
    """Like encode, but None stays None."""
    return None if text is None else encode(text, what)
