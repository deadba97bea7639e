# packs.py - packs: one file with all that a recorded step needs, as `invar pack` writes it.
#
# docs/formats.md has the format. A header of the archive has one form for a name and a size: it is
# made anew and compared, so links, devices, owners and paths that lead elsewhere cannot be said.
# Every member is hashed again each time its bytes are handed out.
# SPDX-License-Identifier: Apache-2.0
"""Packs, read."""
from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO, Optional, Type

from invar import _json as js
from invar._files import name_of, reason, regular
from invar._library import Error
from invar.hashing import hash_bytes
from invar.ledger import Path
from invar.reading import Run, read
from invar.rollouts import Rollout, parse_rollout

FORMAT, MANIFEST, RECIPE, LEDGER = "invar-pack 1", "manifest.json", "recipe.ini", "ledger.db"
BLOCK = 512
MOST_MEMBERS, MOST_DEPTH, MOST_MANIFEST = 4096, 8, 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_ROLLOUT = re.compile(r"rollout-[0-9]+\.jsonl")
PATHS = ("hf-checkpoint", "prompt-data", "chat-template-path", "ref-load", "critic-load",
         "opd-teacher-load", "lora-adapter-path", "load-debug-rollout-data")


@dataclass(frozen=True)
class Member:
    """A file of a pack: its name, its size and its XXH3-128."""
    name: str
    bytes: int
    hash: str
    offset: int


def _header(name: str, size: int) -> bytes:
    """The one header that a member of this name and size has."""
    fields = {0: name, 100: "0000644", 108: "0000000", 116: "0000000", 124: f"{size:011o}",
              136: "0" * 11, 148: " " * 8, 156: "0", 257: "ustar", 263: "00", 329: "0000000",
              337: "0000000"}
    block = bytearray(BLOCK)
    for at, text in fields.items():
        block[at:at + len(text)] = text.encode()
    block[148:155] = f"{sum(block):06o}\0".encode()
    return bytes(block)


def _parse_header(block: bytes) -> tuple[str, int]:
    """Name and size; Wrong for what the writer does not write."""
    name = block[:100].rstrip(b"\0").decode("ascii", "replace")
    digits = block[124:135]
    if not _NAME.fullmatch(name) or name.count("/") >= MOST_DEPTH:
        raise js.Wrong(f"the member {js.shown(name)} has a name that no member may have")
    size = int(digits, 8) if re.fullmatch(rb"[0-7]{11}", digits) else -1
    if size < 0 or _header(name, size) != block:
        raise js.Wrong(f"the header of {js.shown(name)} is damaged, or not of invar's making")
    return name, size


class _Archive:
    """An archive, read from its beginning to its end."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.left, self.at = file, size, 0

    def get(self, size: int) -> bytes:
        """Exactly so many bytes, which the archive has."""
        data = self.file.read(size) if size <= self.left else b""
        if len(data) != size:
            raise js.Wrong("the archive ends too early")
        self.left -= size
        self.at += size
        return data

    def members(self) -> tuple[list[Member], bytes]:
        """All members, and the content of the last one."""
        found: dict[str, Member] = {}
        data = b""
        while any(block := self.get(BLOCK)):
            name, size = _parse_header(block)
            if name in found:
                raise js.Wrong(f'the member "{name}" is there twice')
            if len(found) == MOST_MEMBERS:
                raise js.Wrong(f'the member "{name}" is one too many')
            at, data = self.at, self.get(size)
            found[name] = Member(name, size, hash_bytes(data).hex(), at)
            if any(self.get(-size % BLOCK)):
                raise js.Wrong(f'something stands behind the member "{name}"')
        if any(self.get(BLOCK)) or self.left:
            raise js.Wrong("something follows the end of the archive")
        return list(found.values()), data


def _member(value: Any, key: str, kind: js.Kind) -> Any:
    if not isinstance(value, dict) or key not in value:
        raise js.Wrong(f'{MANIFEST}: "{key}" is missing')
    try:
        return kind.check(value[key])
    except js.Wrong as error:
        raise js.Wrong(f'{MANIFEST}: "{key}" {error}') from None


def _check_manifest(data: bytes, members: list[Member]) -> tuple[str, int]:
    """Run and step; every member but the manifest is listed, in the order of the archive."""
    if len(data) > MOST_MANIFEST:
        raise js.Wrong(f"{MANIFEST} has more than {MOST_MANIFEST} bytes")
    try:
        manifest = js.parse(data)
    except js.Wrong as error:
        raise js.Wrong(f"{MANIFEST} {error}") from None
    if (form := _member(manifest, "format", js.Text())) != FORMAT:
        raise Error("UNSUPPORTED", f"{js.shown(form)} is a format that this package does not read")
    run, step = _member(manifest, "run", js.Digest()), _member(manifest, "step", js.Integer())
    listed = manifest.get("members")
    if not isinstance(listed, list) or len(listed) != len(members):
        raise js.Wrong(f"{MANIFEST} does not list the members of the pack")
    for item, member in zip(listed, members):
        if _member(item, "name", js.Text()) != member.name:
            raise js.Wrong(f'"{member.name}" is not what the manifest lists there')
        if (_member(item, "bytes", js.Integer()) != member.bytes
                or _member(item, "xxh128", js.Digest()) != member.hash):
            raise js.Wrong(f'"{member.name}" is damaged: its hash is not that of the manifest')
    for name in (RECIPE, LEDGER):
        if name not in {member.name for member in members}:
            raise js.Wrong(f'"{name}" is missing')
    return run, step


def _check_recipe(recipe: str) -> None:
    """Only what is in the pack is ever named."""
    for line in recipe.splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        outside = value.startswith("/") or ".." in value
        if key in PATHS and outside and not (key == "prompt-data" and value.startswith("task:")):
            raise js.Wrong(f"{RECIPE}: {key} is a path out of the pack: {js.shown(value)}")


class Pack:
    """A pack whose members were verified; `invar.read_pack(path)` opens it.

    run       uuid of the run
    step      the step that it holds
    members   names, sizes and hashes of its files, in order, without the manifest

    The end of a `with` block, or `close`, removes what `ledger` had to unpack.
    """

    def __init__(self, path: Path) -> None:
        self.path = name_of(path)
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None
        try:
            with regular(self.path) as (file, size):
                members, data = _Archive(file, size).members()
            if not members or members[-1].name != MANIFEST:
                raise js.Wrong(f'"{MANIFEST}" is not the last member: this is no pack')
            self.members = tuple(members[:-1])
            self.run, self.step = _check_manifest(data, members[:-1])
            _check_recipe(self.recipe)
        except js.Wrong as error:
            raise Error("CORRUPT", f"{js.plain(self.path)}: {error}") from None
        except Error as error:
            if error.status != "UNSUPPORTED":
                raise
            raise Error(error.status, f"{js.plain(self.path)}: {error}") from None

    def read(self, name: str) -> bytes:
        """The bytes of a member, hashed again."""
        for member in self.members:
            if member.name == name:
                with regular(self.path) as (file, _):
                    file.seek(member.offset)
                    data = file.read(member.bytes)
                if len(data) != member.bytes or hash_bytes(data).hex() != member.hash:
                    raise Error("CORRUPT", f'{js.plain(self.path)}: "{name}" was changed since the '
                                "pack was opened")
                return data
        raise Error("NOTFOUND", f"{js.plain(self.path)}: has no member {js.shown(name)}")

    @property
    def recipe(self) -> str:
        """The recipe of the run; its paths are members."""
        try:
            return self.read(RECIPE).decode()
        except UnicodeDecodeError:
            raise Error("CORRUPT", f"{js.plain(self.path)}: {RECIPE} is not UTF-8") from None

    def ledger(self) -> Run:
        """The ledger, opened: the run, without the detail of older steps."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="invar-pack-")
        file = os.path.join(self._folder.name, LEDGER)
        if not os.path.exists(file):
            _write(file, self.read(LEDGER))
        return read(file, self.run)

    def rollouts(self) -> list[Rollout]:
        """The rollout files that the step was trained from; none where it sampled."""
        return [parse_rollout(self.read(member.name), f"{js.plain(self.path)}: {member.name}")
                for member in self.members if _ROLLOUT.fullmatch(member.name)]

    def extract(self, folder: Path) -> None:
        """Unpacks all members into a folder that is new or empty, wholly or not at all."""
        name = os.path.normpath(name_of(folder))
        partial = name + ".partial"
        try:
            if os.path.lexists(name) and (os.path.islink(name) or os.listdir(name)):
                raise Error("INVALID", f"{js.plain(name)}: is no new or empty folder; give another "
                            "name")
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            os.mkdir(partial)
            try:
                for member in self.members:
                    file = os.path.join(partial, *member.name.split("/"))
                    os.makedirs(os.path.dirname(file), exist_ok=True)
                    _write(file, self.read(member.name))
                os.rename(partial, name)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        except OSError as error:
            raise Error("IO", f"{js.plain(name)}: cannot be made: {reason(error)}") from error

    def close(self) -> None:
        """Removes what was unpacked to read the ledger."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def __enter__(self) -> "Pack":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


def _write(name: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o644), "wb") as file:
        file.write(data)


def read_pack(path: Path) -> Pack:
    """Opens a pack and verifies every member: sizes and hashes are those of its manifest.

    What is damaged, or not written by `invar pack`, is an Error of status CORRUPT.
    """
    return Pack(path)
