# rollouts.py - rollout files: the samples of one rollout, as `save-debug-rollout-data` writes them.
#
# docs/formats.md has the format. A dataclass has the members of a line in their order, and each
# says by its kind what it may be: one table to read, to check and to write. Reading checks what the
# engine checks; the same rollout gives the bytes that the engine wrote.
# SPDX-License-Identifier: Apache-2.0
"""Rollout files, read and written."""
from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Optional

from invar import _json as js
from invar._files import name_of, reason, regular
from invar._library import Error
from invar.ledger import Path

FORMAT, VERSION = "invar-rollout", 1
MARK = b'{"format":"invar-rollout",'
MOST_BYTES = 64 << 30
FINISHES = ("none", "stop", "length", "abort")


@dataclass(kw_only=True)
class Sampling:
    """How the tokens were drawn."""
    seed: Annotated[int, js.Integer(0, js.U32)]
    purpose: Annotated[int, js.Integer(0, 255)]
    temperature: Annotated[float, js.Single()]
    top_k: Annotated[int, js.Integer(-js.I32 - 1, js.I32)]
    top_p: Annotated[float, js.Single()]
    min_p: Annotated[float, js.Single()]
    max_response: Annotated[int, js.Integer()]
    max_context: Annotated[int, js.Integer()]
    min_response: Annotated[int, js.Integer()]
    stop_ids: Annotated[js.Ints, js.Integers("i", js.I32)]
    stop: Annotated[list[str], js.Texts()]
    skip_special: Annotated[bool, js.Boolean()]


@dataclass(kw_only=True)
class Header:
    """What holds for all samples of a rollout; hashes are texts of 32 hexadecimal digits."""
    rollout: Annotated[int, js.Integer()]
    run: Annotated[str, js.Digest()]
    weights: Annotated[int, js.Integer()]
    weights_hash: Annotated[str, js.Digest()]
    tokenizer: Annotated[str, js.Digest()]
    n_samples_per_prompt: Annotated[int, js.Integer(1)]
    sampling: Sampling


@dataclass(kw_only=True)
class Sample:
    """One sample; docs/formats.md says what the members mean.

    Tokens, log-probs, mask and routing are arrays of the standard library, which numpy and torch
    take without a copy; any sequence of numbers may be put in their place.
    """
    index: Annotated[int, js.Integer()]
    group: Annotated[int, js.Integer()]
    prompt: Annotated[int, js.Integer()]
    rollout: Annotated[int, js.Integer(0, js.U32)]
    draw: Annotated[int, js.Integer(0, js.U32)]
    prompt_text: Annotated[str, js.Text()]
    label: Annotated[str, js.Text()]
    metadata: Annotated[dict[str, Any], js.Metadata()]
    prompt_tokens: Annotated[int, js.Integer(1)]
    tokens: Annotated[js.Ints, js.Integers("i", js.I32)]
    logprobs: Annotated[Optional[js.Floats], js.Singles()]
    mask: Annotated[Optional[js.Ints], js.Integers("B", 1, null=True)]
    route_size: Annotated[int, js.Integer(0, 1 << 31)]
    routing: Annotated[Optional[js.Ints], js.Shorts()]
    response: Annotated[str, js.Text(nul=True)]
    finish: Annotated[str, js.Choice(FINISHES)]
    weights: Annotated[int, js.Integer()]
    weights_first: Annotated[Optional[int], js.Integer(absent=True)] = None  # None: `weights`
    weights_hash: Annotated[str, js.Digest()]
    prompt_hash: Annotated[str, js.Digest()]
    reward: Annotated[float, js.Double()]
    parts: Annotated[dict[str, float], js.Parts()] = dataclasses.field(
        default_factory=dict)
    removed: Annotated[bool, js.Boolean()]
    turns: Annotated[int, js.Integer(1, absent=True)] = 0  # 0: no plug-in led it


def _kinds(of: Any) -> dict[str, Any]:
    """The members of a line in their order: a kind, or the dataclass of an object."""
    hints = typing.get_type_hints(of, include_extras=True)
    return {field.name: hints[field.name].__metadata__[0]
            if hasattr(hints[field.name], "__metadata__") else hints[field.name]
            for field in dataclasses.fields(of)}


_KINDS: dict[Any, dict[str, Any]] = {of: _kinds(of) for of in (Sampling, Header, Sample)}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default is not dataclasses.MISSING else {}


def _check_sample(sample: Sample) -> None:
    """What members say of each other."""
    total, prompt = len(sample.tokens), sample.prompt_tokens
    if prompt > total:
        raise js.Wrong(f'"prompt_tokens" is {prompt}, of {total} tokens')
    for name, values, expected in (
            ("logprobs", sample.logprobs, total - prompt), ("mask", sample.mask, total - prompt),
            ("routing", sample.routing, (total - 1) * sample.route_size)):
        if values is not None and len(values) != expected:
            raise js.Wrong(f'"{name}" has {len(values)} values, expected {expected}')
    if sample.weights_first is not None and sample.weights_first > sample.weights:
        raise js.Wrong(f'"weights_first" is {sample.weights_first}, after "weights", which is '
                       f"{sample.weights}")
    if sample.weights_first == sample.weights:
        sample.weights_first = None


def _take(of: Any, value: Any) -> Any:
    """The object of a line as its dataclass, every member checked."""
    if not isinstance(value, dict):
        raise js.Wrong("is no object")
    kinds = _KINDS[of]
    taken: dict[str, Any] = {}
    for field in dataclasses.fields(of):
        kind, name = kinds[field.name], field.name
        if name not in value:
            if not getattr(kind, "absent", False):
                raise js.Wrong(f'"{name}" is missing')
            continue
        try:
            taken[name] = (_take(kind, value[name]) if isinstance(kind, type)
                           else kind.check(kind.load(value[name])))
        except js.Wrong as error:
            raise js.Wrong(f'"{name}" {error}') from None
    for name in value:
        if name not in kinds:
            raise js.Wrong(f"{js.shown(name)} is no member that may be there")
    return of(**taken)


def _put(item: Any) -> tuple[Any, str]:
    """A checked copy of a dataclass, and its members as text."""
    members: list[str] = []
    taken: dict[str, Any] = {}
    for field in dataclasses.fields(item):
        kind, value, name = _KINDS[type(item)][field.name], getattr(item, field.name), field.name
        if getattr(kind, "absent", False) and value == _default(field):
            continue
        try:
            if isinstance(kind, type):
                if not isinstance(value, kind):
                    raise js.Wrong(f"is no {kind.__name__}: {js.shown(value)}")
                taken[name], text = _put(value)
                text = "{" + text + "}"
            else:
                taken[name] = kind.check(value)
                text = kind.text(taken[name])
        except js.Wrong as error:
            raise js.Wrong(f'"{name}" {error}') from None
        members.append(f'"{name}":{text}')
    return type(item)(**taken), ",".join(members)


def _check_order(before: Optional[Sample], sample: Sample) -> None:
    if before and not (before.index < sample.index and before.group <= sample.group):
        raise js.Wrong(f"sample {sample.index} of group {sample.group} after sample "
                       f"{before.index} of group {before.group}")


def _end(samples: int, body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest()
    return f'{{"end":true,"samples":{samples},"sha256":"{digest}"}}\n'.encode()


@dataclass(kw_only=True)
class Rollout:
    """The samples of one rollout, in order of `index`, the samples of a group together."""
    header: Header
    samples: list[Sample]

    def encode(self) -> bytes:
        """The bytes of its file. Equal rollouts give equal bytes, those of the engine."""
        if not isinstance(self.header, Header):
            raise Error("INVALID", f"the header is no Header: {js.shown(self.header)}")
        where, before = "the header", None
        try:
            lines = [f'{{"format":"{FORMAT}","version":{VERSION},{_put(self.header)[1]}}}\n']
            for number, sample in enumerate(self.samples):
                where = f"samples[{number}]"
                if not isinstance(sample, Sample):
                    raise js.Wrong(f"is no Sample: {js.shown(sample)}")
                if sample.weights_first == sample.weights:  # is not said
                    sample = dataclasses.replace(sample, weights_first=None)
                checked, text = _put(sample)
                _check_sample(checked)
                _check_order(before, checked)
                before = checked
                lines.append("{" + text + "}\n")
        except js.Wrong as error:
            raise Error("INVALID", f"{where}: {error}") from None
        body = "".join(lines).encode()
        return body + _end(len(self.samples), body)

    def write(self, path: Path) -> None:
        """Writes the file, whole or not at all, and makes its folder.

        Nothing is replaced but an empty file and another rollout file.
        """
        data, name = self.encode(), name_of(path)
        try:
            _replace(name, data)
        except OSError as error:
            raise Error("IO", f"{js.plain(name)}: cannot be written: {reason(error)}") from error


def _check_output(name: str) -> None:
    """Refuses to replace what is no rollout file."""
    try:
        info = os.lstat(name)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(info.st_mode):
        raise Error("INVALID", f"{js.plain(name)}: a folder, a link or a device lies there and is "
                    "not replaced; give another name")
    with open(name, "rb") as file:
        head = file.read(len(MARK))
    if head not in (b"", MARK):
        raise Error("INVALID", f"{js.plain(name)}: a file of another kind lies there and is not "
                    "replaced; remove it, or give another name")


def _replace(name: str, data: bytes) -> None:
    folder, partial = os.path.dirname(name) or ".", name + ".partial"
    os.makedirs(folder, exist_ok=True)
    _check_output(name)
    if os.path.lexists(partial):
        os.unlink(partial)  # what a killed process left, or a link that leads elsewhere
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, name)
    except BaseException:
        os.unlink(partial)
        raise
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(place)  # the name, too
    finally:
        os.close(place)


def _take_header(value: Any) -> Header:
    if not isinstance(value, dict) or value.pop("format", None) != FORMAT:
        raise js.Wrong("no rollout file")
    version = value.pop("version", None)
    if type(version) is not int or version < 1:
        raise js.Wrong(f'"version" is no version: {js.shown(version)}')
    if version != VERSION:
        raise Error("UNSUPPORTED", f"version {version} of the format, this package reads {VERSION}")
    taken: Header = _take(Header, value)
    return taken


def parse_rollout(data: bytes, where: str) -> Rollout:
    """The rollout that the bytes of a file hold; `where` stands for its name in messages."""
    at = data.rfind(b"\n", 0, len(data) - 1) + 1
    body, last = data[:at], data[at:]
    lines = body.split(b"\n")[:-1]
    if not lines or last != _end(len(lines) - 1, body):
        raise Error("CORRUPT", f"{where}: cut off or changed: the last line does not end what is "
                    "before it")
    header: Optional[Header] = None
    samples: list[Sample] = []
    for number, line in enumerate(lines, 1):
        try:
            value = js.parse(line)
            if header is None:
                header = _take_header(value)
                continue
            sample: Sample = _take(Sample, value)
            _check_sample(sample)
            _check_order(samples[-1] if samples else None, sample)
            samples.append(sample)
        except js.Wrong as error:
            raise Error("CORRUPT", f"{where}:{number}: {error}") from None
        except Error as error:
            raise Error(error.status, f"{where}:{number}: {error}") from None
    assert header is not None  # there is a first line
    return Rollout(header=header, samples=samples)


def read_rollout(path: Path) -> Rollout:
    """A rollout file, checked: its last line, every member, every range.

    What is damaged is an Error of status CORRUPT with file, line and member.
    """
    name = name_of(path)
    with regular(name) as (file, size):
        if size > MOST_BYTES:
            raise Error("INVALID", f"{js.plain(name)}: has {size} bytes, more than {MOST_BYTES}")
        data = file.read(size)
    return parse_rollout(data, js.plain(name))
