# rollouts.py - rollout files: the samples of one rollout, as `save-debug-rollout-data` writes them.
#
# docs/formats.md describes the format. The engine reads, checks and writes the files. This module
# only makes dataclasses from the lines that the engine wrote, and lines for the engine to check.
# SPDX-License-Identifier: Apache-2.0
"""Rollout files, read and written."""
from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import json
import os
import re
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Iterable, NoReturn, Optional

import invar._library as lib
from invar.ledger import Path

if TYPE_CHECKING:  # array.array has no type parameters before Python 3.12
    Ints = array[int]
    Floats = array[float]
else:
    Ints = Floats = array


@dataclass(kw_only=True)
class Sampling:
    """How the tokens were drawn."""
    seed: int
    purpose: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    max_response: int
    max_context: int
    min_response: int
    stop_ids: Ints
    stop: list[str]
    skip_special: bool


@dataclass(kw_only=True)
class Header:
    """Properties of all samples of a rollout; hashes are texts of 32 hexadecimal digits.

    dtype, numerics and model name the arithmetic that sampled. They are None if it is unknown.
    filtered_groups is the number of groups that a filter rejected, None if there was no filter.
    """
    rollout: int
    run: str
    weights: int
    weights_hash: str
    tokenizer: str
    n_samples_per_prompt: int
    filtered_groups: Optional[int] = None
    sampling: Sampling
    dtype: Optional[str] = None
    numerics: Optional[str] = None
    model: Optional[str] = None


@dataclass(kw_only=True)
class Sample:
    """One sample; docs/formats.md describes the members.

    Tokens, log-probs, mask and routing are arrays of the standard library, which numpy and torch
    take without a copy; any sequence of numbers may be put in their place.
    """
    index: int
    group: int
    prompt: int
    rollout: int
    draw: int
    prompt_text: str
    label: str
    metadata: dict[str, Any]
    prompt_tokens: int
    tokens: Ints
    logprobs: Optional[Floats]
    mask: Optional[Ints]
    route_size: int
    routing: Optional[Ints]
    response: str
    finish: str
    weights: int
    weights_first: Optional[int] = None  # None if equal to `weights`
    weights_hash: str
    prompt_hash: str
    reward: float
    parts: dict[str, float] = field(default_factory=dict)
    removed: bool
    turns: int = 0  # 0 if the sample is not multi-turn


_START = b'{"format":"invar-rollout","version":%d,'  # start of the header line

# Members that are left out of a line if they have these values.
_ABSENT: dict[str, Any] = {"weights_first": None, "parts": {}, "turns": 0, "dtype": None,
                           "numerics": None, "model": None, "filtered_groups": None}


# ---- reading -------------------------------------------------------------------------------------

def _single(value: float) -> float:
    """Returns the f32 whose shortest decimal text was parsed as this double."""
    return array("f", [value])[0]


def _experts(digits: str) -> Ints:
    return array("H", struct.unpack(f"<{len(digits) // 4}H", bytes.fromhex(digits)))


# Converters of members that have another form in JSON; null stays None.
_LOAD: dict[str, Callable[[Any], Any]] = {
    "sampling": lambda members: _load(Sampling, members),
    "temperature": _single, "top_p": _single, "min_p": _single, "reward": float,
    "parts": lambda parts: {name: float(value) for name, value in parts.items()},
    "stop_ids": functools.partial(array, "i"), "tokens": functools.partial(array, "i"),
    "logprobs": functools.partial(array, "f"), "mask": functools.partial(array, "B"),
    "routing": _experts,
}


def _load(of: Any, members: dict[str, Any]) -> Any:
    """Makes a dataclass from the members of a line that the engine wrote."""
    return of(**{name: value if value is None or name not in _LOAD else _LOAD[name](value)
                 for name, value in members.items()})


def _parse(data: bytes) -> Rollout:
    header, *samples = map(json.loads, data.split(b"\n")[:-2])
    del header["format"], header["version"]
    return Rollout(header=_load(Header, header),
                   samples=[_load(Sample, members) for members in samples])


def read_rollout(path: Path) -> Rollout:
    """Reads a rollout file. The engine checks its last line, every member and every range.

    Damage raises Error (CORRUPT), which names the file, the line and the member.
    """
    return _parse(_bytes("rollout_read", lib.encode(os.fspath(path), "a path")))


def _bytes(name: str, *arguments: Any) -> bytes:
    """Returns the bytes that a function of the library allocated."""
    text, size = ctypes.c_void_p(), ctypes.c_uint64()
    lib.call(name, ctypes.byref(text), ctypes.byref(size), *arguments)
    return lib.take_bytes(text, size.value)


# ---- writing -------------------------------------------------------------------------------------

def _plain(value: Any) -> Any:
    """Converts a value of another library to one that JSON has."""
    if hasattr(value, "tolist"):  # arrays of the standard library, numpy and torch
        return value.tolist()
    if isinstance(value, Sampling):
        return vars(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        return list(value)
    if hasattr(value, "__float__"):
        return float(value)
    raise TypeError(f"has a value that JSON has not, of type {type(value).__name__}")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"),
                            default=_plain)


def _encode_object(value: Any) -> str:
    """Encodes a value; a value that JSON would change is an error."""
    text = _ENCODER.encode(value)  # raises for circular values, so the recursion below ends
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, Mapping):
            for key in item:
                if not isinstance(key, str):
                    raise TypeError(f"has a key that is no text: {key!r:.60}")
            left += item.values()
        elif isinstance(item, (list, tuple)):
            left += item
        elif hasattr(item, "tolist"):
            left.append(item.tolist())
        elif isinstance(item, int) and not -1 << 63 <= item < 1 << 63:
            raise ValueError("has an integer that does not fit into 64 bits")
    return text


def _encode_experts(value: Any) -> str:
    if value is None:
        return "null"
    values = value if isinstance(value, (list, tuple, array)) else _plain(value)
    return f'"{struct.pack(f"<{len(values)}H", *values).hex()}"'


_ENCODE: dict[str, Callable[[Any], str]] = {
    "metadata": _encode_object, "parts": _encode_object, "routing": _encode_experts}


def _line(item: Any, of: Any, where: str, start: bytes = b"{") -> bytes:
    """Returns the line of a dataclass. A value that JSON cannot represent is an Error."""
    if not isinstance(item, of):
        raise lib.Error("INVALID", f"{where}: is no {of.__name__}, but a {type(item).__name__}")
    members = []
    for one in dataclasses.fields(item):
        value = getattr(item, one.name)
        try:
            if one.name not in _ABSENT or value != _ABSENT[one.name]:
                text = _ENCODE.get(one.name, _ENCODER.encode)(value)
                members.append(f'"{one.name}":{text}'.encode())
        except (ArithmeticError, RuntimeError, TypeError, ValueError, struct.error) as error:
            why = str(error).partition("\n")[0]
            raise lib.Error("INVALID", f'{where}: "{one.name}": {why}') from None
    return start + b",".join(members) + b"}\n"


def _refuse(error: lib.Error) -> NoReturn:
    """A line that the engine rejects is the caller's sample: raises the error for it."""
    found = re.match(r"rollout:(\d+): ", message := str(error))
    if error.status != "CORRUPT" or not found:
        raise error
    number = int(found[1])
    where = "the header" if number == 1 else f"samples[{number - 2}]"
    raise lib.Error("INVALID", f"{where}: {message[found.end():]}") from None


@dataclass(kw_only=True)
class Rollout:
    """The samples of one rollout, in order of `index`, the samples of a group together."""
    header: Header
    samples: list[Sample]

    def _lines(self) -> bytes:
        version = 1 if getattr(self.header, "dtype", None) is None else 2
        lines = [_line(self.header, Header, "the header", _START % version)]
        lines += [_line(sample, Sample, f"samples[{number}]")
                  for number, sample in enumerate(self.samples)]
        body = b"".join(lines)
        return body + b'{"end":true,"samples":%d,"sha256":"%s"}\n' % (
            len(lines) - 1, hashlib.sha256(body).hexdigest().encode())

    def encode(self) -> bytes:
        """Returns the bytes of its file, written by the engine. Equal rollouts give equal bytes."""
        lines = self._lines()
        try:
            return _bytes("rollout_format", lines, len(lines))
        except lib.Error as error:
            _refuse(error)

    def write(self, path: Path) -> None:
        """Writes the file atomically, and makes its folder.

        Only an empty file or another rollout file is replaced.
        """
        lines = self._lines()
        try:
            lib.call("rollout_write", lib.encode(os.fspath(path), "a path"), lines, len(lines))
        except lib.Error as error:
            _refuse(error)
