# built.py - the package of this tree over the library of a build: for tests that then import invar.
# SPDX-License-Identifier: Apache-2.0
"""Where the package invar is found, and what it finds."""
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[2] / "python"


def use(library, program=None):
    """The environment says nothing else about invar."""
    for name in ("CI", "INVAR_FACTS", "INVAR_LEDGER", "INVAR_SAVE"):
        os.environ.pop(name, None)
    os.environ["INVAR_LIBRARY"] = str(pathlib.Path(library).resolve())
    if program:
        os.environ["INVAR_PROGRAM"] = program
    sys.path[:0] = [str(PACKAGE), str(HERE.parent)]
    sys.dont_write_bytecode = True
