# packs.py - reads packs: one file with everything that a recorded step needs (`invar pack`).
#
# docs/formats.md describes the format. The engine unpacks and verifies a pack, into a folder that
# only this user may enter; all results come from there.
# SPDX-License-Identifier: Apache-2.0
"""Packs, read."""
from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Optional, Type

import invar._library as lib
from invar.ledger import Path
from invar.reading import Run, read
from invar.rollouts import Rollout, read_rollout


@dataclass(frozen=True)
class Member:
    """A file of a pack: its name, its size and its XXH3-128."""
    name: str
    bytes: int
    hash: str


class Pack:
    """A pack whose members were verified; `invar.read_pack(path)` opens it.

    run       uuid of the run
    step      the recorded step
    members   names, sizes and hashes of its files, in order, without the manifest

    It is unpacked into a temporary folder, which the end of a `with` block, or `close`, removes.
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        name = lib.encode(self.path, "a path")
        self._unpacked: Optional[tempfile.TemporaryDirectory[str]] = tempfile.TemporaryDirectory(
            prefix="invar-pack-")
        try:
            lib.call("pack_unpack", name, os.fsencode(self._unpacked.name))
            with open(self._file("manifest.json"), encoding="utf-8") as file:
                manifest = json.load(file)
        except BaseException:
            self.close()
            raise
        self.run: str = manifest["run"]
        self.step: int = manifest["step"]
        self.members = tuple(Member(one["name"], one["bytes"], one["xxh128"])
                             for one in manifest["members"])

    def _file(self, name: str) -> str:
        """Returns the path of an unpacked member."""
        if self._unpacked is None:
            raise lib.Error("STATE", f"{self.path}: the pack is closed")
        return os.path.join(self._unpacked.name, name)

    def read(self, name: str) -> bytes:
        """Returns the bytes of a member."""
        if name not in (member.name for member in self.members):
            raise lib.Error("NOTFOUND", f"{self.path}: has no member {name!r:.60}")
        with open(self._file(name), "rb") as file:
            return file.read()

    @property
    def recipe(self) -> str:
        """The recipe of the run; its paths are members."""
        return self.read("recipe.ini").decode()

    def ledger(self) -> Run:
        """The ledger, opened: the run, without the detail of older steps."""
        return read(self._file("ledger.db"), self.run)

    def rollouts(self) -> list[Rollout]:
        """The rollout files that the step was trained from; empty if the step sampled."""
        try:
            return [read_rollout(self._file(member.name)) for member in self.members
                    if re.fullmatch(r"rollout-[0-9]+\.jsonl", member.name)]
        except lib.Error as error:
            raise lib.Error(error.status, f"{self.path}: {error}") from None

    def extract(self, folder: Path) -> None:
        """Copies all members to a folder that is new or empty; after an error it is unchanged."""
        name = os.path.normpath(os.fspath(folder))
        partial = name + ".partial"
        try:
            if os.path.lexists(name) and (os.path.islink(name) or os.listdir(name)):
                raise lib.Error("INVALID", f"{name}: is no new or empty folder; give another name")
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            os.mkdir(partial)
            try:
                for member in self.members:
                    file = os.path.join(partial, member.name)
                    os.makedirs(os.path.dirname(file), exist_ok=True)
                    shutil.copyfile(self._file(member.name), file)
                os.rename(partial, name)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        except OSError as error:
            raise lib.Error("IO", f"{name}: cannot be made: {error.strerror}") from error

    def close(self) -> None:
        """Removes the unpacked files."""
        folder, self._unpacked = self._unpacked, None
        if folder is not None:
            folder.cleanup()

    def __enter__(self) -> "Pack":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


def read_pack(path: Path) -> Pack:
    """Opens a pack and verifies every member: sizes and hashes are those of its manifest.

    A file that is damaged, or not written by `invar pack`, raises Error (CORRUPT).
    """
    return Pack(path)
