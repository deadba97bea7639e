# _files.py - files of others, opened to be read.
# SPDX-License-Identifier: Apache-2.0
"""Regular files, opened with errors of the package."""
from __future__ import annotations

import contextlib
import os
import stat
from typing import BinaryIO, Iterator

from invar._json import plain
from invar._library import Error, encode
from invar.ledger import Path


def name_of(path: Path) -> str:
    """The name of a file, as the system takes it."""
    name = os.fspath(path)
    encode(name, "a path")
    return name


def _opener(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not wait


def reason(error: Exception) -> str:
    """Why the system refused, on one line."""
    return getattr(error, "strerror", None) or plain(str(error))


@contextlib.contextmanager
def regular(name: str) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file and its size; what fails while it is read is an Error, too."""
    try:
        with open(name, "rb", opener=_opener) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise Error("IO", f"{plain(name)}: is no regular file")
            yield file, info.st_size
    except FileNotFoundError as error:
        raise Error("NOTFOUND", f"{plain(name)}: no such file") from error
    except OSError as error:
        raise Error("IO", f"{plain(name)}: cannot be read: {reason(error)}") from error
