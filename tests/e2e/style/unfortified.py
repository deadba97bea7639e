#!/usr/bin/env python3
# unfortified.py BUILD - every C file of the build compiles without _FORTIFY_SOURCE.
#
# A fortified build declares functions such as realpath that the feature macros of a file hide, so a
# missing feature macro shows only in builds without fortification, such as sanitizer builds. Each
# command of BUILD/compile_commands.json is run again with the flags of the build, but checks only
# the syntax. Control: a file that uses realpath without the macro must be rejected.
# SPDX-License-Identifier: Apache-2.0
"""Compiles the C files of the build as a build without fortification does."""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

UNDECLARED = b"#include <stdlib.h>\nchar *invar_path(void);\n" \
             b"char *invar_path(void)\n{\n    return realpath(\".\", 0);\n}\n"


def check_syntax(command, folder, source=None):
    """Returns the messages of the compiler; empty if the file compiles. `source` is its content."""
    words = [*command, "-U_FORTIFY_SOURCE", "-fsyntax-only"]
    result = subprocess.run(words, cwd=folder, input=source, capture_output=True, check=False)
    return result.stderr.decode(errors="replace") if result.returncode else ""


def read_commands(build):
    """Yields (file, command, folder) for each C file of the product and of its tests."""
    root = pathlib.Path.cwd().resolve()
    seen = set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"]).resolve()
        generated = file.is_relative_to(build.resolve())
        if generated or not file.is_relative_to(root) or file.suffix != ".c" or file in seen:
            continue
        seen.add(file)
        yield str(file.relative_to(root)), shlex.split(entry["command"]), entry["directory"]


def main():
    """Compiles all files, at most two at a time; returns the exit code."""
    files = list(read_commands(pathlib.Path(sys.argv[1])))
    if not files:
        print("compile_commands.json names no C file", file=sys.stderr)
        return 1
    _, command, folder = files[0]
    command = [*command[:command.index("-c")], "-x", "c", "-"]
    if "realpath" not in check_syntax(command, folder, UNDECLARED):
        print("a file that uses realpath without _XOPEN_SOURCE was accepted", file=sys.stderr)
        return 1
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        messages = list(pool.map(lambda file: check_syntax(*file[1:]), files))
    for (name, _, _), message in zip(files, messages):
        if message:
            print(f"{name} does not compile without _FORTIFY_SOURCE\n{message}", file=sys.stderr)
    print(f"{len(files)} files")
    return 1 if any(messages) else 0


if __name__ == "__main__":
    sys.exit(main())
