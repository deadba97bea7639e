# _json.py - values of JSON lines: read strictly, checked by their kind, written as the engine does.
#
# Python's parser takes more than JSON: NaN, keys twice, halves of surrogates, numbers of any size.
# What the engine's parser refuses is refused here. A kind has three functions: `load` makes the
# value of Python from that of JSON, `check` refuses what may not be there, `text` writes it.
# SPDX-License-Identifier: Apache-2.0
"""Strict JSON, and kinds of members."""
from __future__ import annotations

import json
import math
import operator
import re
import struct
import sys
from array import array
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional

if TYPE_CHECKING:  # an array has no parameters before Python 3.12
    Ints = array[int]
    Floats = array[float]
else:
    Ints = Floats = array

I32, U32, I64 = (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1
MOST_DEPTH = 510  # below metadata; the engine reads 512 levels a line


class Wrong(Exception):
    """What is wrong with a value; the caller knows where it stands."""


def plain(text: str) -> str:
    """A text of others on one line of a message."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode()
                   for c in text)


def shown(value: Any) -> str:
    """A value of others in a message: not more than a line has room for."""
    try:
        text = ascii(value)
    except RecursionError:
        text = "..."
    return text if len(text) <= 60 else text[:60] + "..."


# ---- numbers -------------------------------------------------------------------------------------

class Real(float):
    """A real that was read, with its text, so that metadata are written as they were."""
    source: str

    def __new__(cls, text: str) -> "Real":
        self = super().__new__(cls, text)
        self.source = str(text)
        return self


def _zero(text: str) -> str:
    return "-0.0" if text == "-0" else text  # readers take -0 for an integer, without its sign


def f64_text(value: float) -> str:
    """As few digits as read back to the same bits."""
    digits = 1 if float(f"{value:.15g}") == value else 16
    while float(text := f"{value:.{digits}g}") != value:
        digits += 1
    return _zero(text)


def round_f32(value: float) -> float:
    """The nearest f32; Wrong where it is too large."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        raise Wrong(f"is too large: {value!r}") from None
    return rounded


def _reads_as(text: str, value: float) -> bool:
    """Whether the text is the f32, read at once and also by way of a double, which rounds twice."""
    double = float(text)
    try:
        if struct.unpack("<f", struct.pack("<f", double))[0] != value:
            return False
    except OverflowError:
        return False
    # only where the double lies half way between two f32 can the two differ
    away = abs(double - value)
    if away == 0 or math.frexp(away)[0] != 0.5:
        return True
    bits = struct.unpack("<I", struct.pack("<f", abs(value)))[0]
    further = bits + (1 if abs(double) > abs(value) else -1)
    other = (Fraction(1 << 128) if further == 0x7f800000 else
             Fraction(struct.unpack("<f", struct.pack("<I", further))[0]))
    exact = abs(Fraction(text))
    here, there = abs(exact - Fraction(abs(value))), abs(exact - other)
    return here < there or (here == there and bits % 2 == 0)


def f32_text(value: float) -> str:
    """The same for an f32, also where the text is read as a double and rounded."""
    digits = 1 if _reads_as(f"{value:.6g}", value) else 7
    while not _reads_as(text := f"{value:.{digits}g}", value):
        digits += 1
    return _zero(text)


# ---- texts ---------------------------------------------------------------------------------------

_ESCAPED = re.compile(r'[\x00-\x1f"\\\x7f]')
_METADATA_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
_METADATA_SHORT = {**_SHORT, "\b": "\\b", "\f": "\\f", "\r": "\\r", "\t": "\\t"}


def quote(text: str) -> str:
    """A text as the engine writes it."""
    return '"' + _ESCAPED.sub(
        lambda found: _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}", text) + '"'


def _quote_metadata(text: str) -> str:
    """A text as the engine's library for JSON writes it."""
    return '"' + _METADATA_ESCAPED.sub(
        lambda found: _METADATA_SHORT.get(found[0]) or f"\\u{ord(found[0]):04X}", text) + '"'


def _metadata_real(value: float) -> str:
    if isinstance(value, Real):
        return value.source
    text = re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.17g}")
    return text if "." in text or "e" in text else text + ".0"


def check_text(value: Any, nul: bool = True) -> str:
    """A text that UTF-8 can hold."""
    if not isinstance(value, str):
        raise Wrong(f"is no text: {shown(value)}")
    if not nul and "\0" in value:
        raise Wrong("has a NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Wrong(f"is no Unicode: {shown(value)}") from None
    return value


# ---- parsing -------------------------------------------------------------------------------------

def _real(text: str) -> Real:
    value = Real(text)
    if math.isinf(value):
        raise Wrong(f"a number is too large: {shown(text)}")
    return value


def _integer(text: str) -> Any:
    """As the engine: what does not fit into 64 bits is the nearest real."""
    value = int(text) if len(text) <= 20 else I64 + 1
    return value if -I64 - 1 <= value <= I64 else _real(text)


def _constant(text: str) -> Any:
    raise Wrong(f"{text} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Wrong("an object has a key twice")
    return found


def parse(data: bytes) -> Any:
    """One value of JSON; Wrong for everything else."""
    try:
        return json.loads(data.decode(), parse_float=_real, parse_int=_integer,
                          parse_constant=_constant, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise Wrong(f"is not UTF-8 after byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Wrong(f"is no JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise Wrong("is nested too deeply") from None


# ---- kinds ---------------------------------------------------------------------------------------

class Kind:
    """What a member may be; `absent`: it may be missing, and then has its default."""
    absent = False

    def load(self, value: Any) -> Any:
        """The value of Python for one of JSON."""
        return value

    def check(self, value: Any) -> Any:
        """The value as the dataclass holds it."""
        raise NotImplementedError

    def text(self, value: Any) -> str:
        """The checked value as a file has it."""
        raise NotImplementedError


def _index(value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise Wrong(f"is no integer: {shown(value)}") from None


def _number(value: Any) -> float:
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise Wrong(f"is no number: {shown(value)}") from None
    if not math.isfinite(number):
        raise Wrong("is not finite, and JSON has no such number")
    return number


def _sequence(value: Any) -> list[Any]:
    """The elements of a list, an array or a tensor."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise Wrong(f"is no list: {shown(value)}")
    found = value.tolist() if hasattr(value, "tolist") else list(value)
    return found if isinstance(found, list) else [found]


def _each(values: list[Any], check: Callable[[Any], Any]) -> list[Any]:
    """Every element, checked; a refusal names the first that is wrong."""
    found = []
    for i, value in enumerate(values):
        try:
            found.append(check(value))
        except Wrong as error:
            raise Wrong(f"has a wrong value {i}, which {error}") from None
    return found


class Integer(Kind):
    """An integer in a range."""

    def __init__(self, low: int = 0, high: int = I64, *, absent: bool = False) -> None:
        self.low, self.high, self.absent = low, high, absent

    def check(self, value: Any) -> int:
        number = _index(value)
        if not self.low <= number <= self.high:
            raise Wrong(f"is {shown(number)}, not {self.low} to {self.high}")
        return number

    def text(self, value: Any) -> str:
        return str(value)


class Boolean(Kind):
    """true or false."""

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise Wrong(f"is neither true nor false: {shown(value)}")
        return value

    def text(self, value: Any) -> str:
        return "true" if value else "false"


class Double(Kind):
    """A finite f64."""

    def check(self, value: Any) -> float:
        return _number(value)

    def text(self, value: Any) -> str:
        return f64_text(value)


class Single(Kind):
    """A finite f32, as the float that has its value."""

    def check(self, value: Any) -> float:
        return round_f32(_number(value))

    def text(self, value: Any) -> str:
        return f32_text(value)


class Text(Kind):
    """A text, which may hold U+0000 where it is one of a model."""

    def __init__(self, *, nul: bool = False) -> None:
        self.nul = nul

    def check(self, value: Any) -> str:
        return check_text(value, self.nul)

    def text(self, value: Any) -> str:
        return quote(value)


class Texts(Kind):
    """A list of texts."""

    def check(self, value: Any) -> list[str]:
        return _each(_sequence(value), lambda one: check_text(one, nul=False))

    def text(self, value: Any) -> str:
        return "[" + ",".join(map(quote, value)) + "]"


class Choice(Text):
    """One of some words."""

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__()
        self.words = words

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise Wrong(f"is none of {', '.join(self.words)}: {shown(value)}")
        return value


class Digest(Text):
    """An XXH3-128."""

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{32}", value):
            raise Wrong(f"is no hash of 32 digits: {shown(value)}")
        return value


class Integers(Kind):
    """A list of integers from 0 to `high`, as an array."""

    def __init__(self, code: str, high: int, *, null: bool = False) -> None:
        self.code, self.null, self.element = code, null, Integer(0, high)

    def check(self, value: Any) -> Optional[Ints]:
        if value is None and self.null:
            return None
        return array(self.code, _each(_sequence(value), self.element.check))

    def text(self, value: Any) -> str:
        return "null" if value is None else "[" + ",".join(map(str, value)) + "]"


class Shorts(Integers):
    """Integers of 16 bits, in a file the hexadecimal digits of their bytes, little end first."""

    def __init__(self) -> None:
        super().__init__("H", (1 << 16) - 1, null=True)

    def load(self, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, str) or not re.fullmatch("([0-9a-f]{4})*", value):
            raise Wrong("is no text of hexadecimal digits, four a number")
        return _little(array("H", bytes.fromhex(value)))

    def text(self, value: Any) -> str:
        return "null" if value is None else f'"{_little(array("H", value)).tobytes().hex()}"'


def _little(values: Ints) -> Ints:
    if sys.byteorder != "little":
        values.byteswap()
    return values


class Singles(Kind):
    """A list of finite f32 as an array, or null."""

    def check(self, value: Any) -> Optional[Floats]:
        if value is None:
            return None
        element = Single()
        return array("f", _each(_sequence(value), element.check))

    def text(self, value: Any) -> str:
        return "null" if value is None else "[" + ",".join(map(f32_text, value)) + "]"


class Parts(Kind):
    """Named numbers, at least one."""
    absent = True

    def check(self, value: Any) -> dict[str, float]:
        if not isinstance(value, Mapping) or not 1 <= len(value) <= 32:
            raise Wrong(f"is no object of 1 to 32 numbers: {shown(value)}")
        for name in value:
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.@-]{1,47}", name):
                raise Wrong(f"has the name {shown(name)}; use 1 to 47 letters, digits, _, -, . "
                            "or @")
        return {name: _each([value[name]], _number)[0] for name in sorted(value)}

    def text(self, value: Any) -> str:
        return "{" + ",".join(f"{quote(name)}:{f64_text(value[name])}" for name in value) + "}"


class Metadata(Kind):
    """An object of anything."""

    def check(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Wrong(f"is no object: {shown(value)}")
        try:
            _check_any(value, 0)
        except RecursionError:
            raise Wrong("is nested too deeply") from None
        return value

    def text(self, value: Any) -> str:
        pieces: list[str] = []
        try:
            _put_any(pieces, value)
        except RecursionError:
            raise Wrong("is nested too deeply") from None
        return "".join(pieces)


def _check_any(value: Any, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise Wrong("is nested too deeply")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise Wrong(f"has a key that is no text: {shown(key)}")
            check_text(key, nul=False)
            _check_any(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_any(item, depth + 1)
    elif isinstance(value, str):
        check_text(value)
    elif isinstance(value, float):
        _number(value)
    elif isinstance(value, int):
        if not -I64 - 1 <= value <= I64:
            raise Wrong("has an integer that does not fit into 64 bits")
    elif value is not None:
        raise Wrong(f"has a value that JSON has not: {shown(value)}")


def _put_any(out: list[str], value: Any) -> None:
    """As the engine's library for JSON writes it: compact, with its keys in order."""
    if isinstance(value, dict):
        for i, key in enumerate(sorted(value, key=str.encode)):
            out.append(("," if i else "{") + _quote_metadata(key) + ":")
            _put_any(out, value[key])
        out.append("}" if value else "{}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            out.append("," if i else "[")
            _put_any(out, item)
        out.append("]" if value else "[]")
    elif isinstance(value, str):
        out.append(_quote_metadata(value))
    elif isinstance(value, float):
        out.append(_metadata_real(value))
    else:
        out.append(json.dumps(value))
