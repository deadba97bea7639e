# built.py - makes this tree's package invar importable, with the library of a build.
# SPDX-License-Identifier: Apache-2.0
"""Paths of the package invar and its library."""
import functools
import importlib.metadata
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[2] / "python"


def use(library, program=None):
    """Sets the environment so that only this package and library are used."""
    for name in ("CI", "INVAR_FACTS", "INVAR_LEDGER", "INVAR_SAVE"):
        os.environ.pop(name, None)
    os.environ["INVAR_LIBRARY"] = str(pathlib.Path(library).resolve())
    if program:
        os.environ["INVAR_PROGRAM"] = program
    sys.path[:0] = [str(PACKAGE), str(HERE.parent)]
    sys.dont_write_bytecode = True
    # Each ledger asks for all installed packages, which takes half of the time of such tests, and
    # which do not change while a test runs.
    importlib.metadata.packages_distributions = functools.cache(
        importlib.metadata.packages_distributions)
