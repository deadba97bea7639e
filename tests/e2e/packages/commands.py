#!/usr/bin/env python3
# commands.py FILE [STAGE] - prints the shell commands of a CI file, or of a stage of a Dockerfile.
#
# FILE is docs/ci/github-actions.yml (`run:`), docs/ci/gitlab-ci.yml (`script:`) or a Dockerfile
# (RUN of STAGE, counted from 0). The parser knows only the syntax of these files, and rejects any
# other.
# SPDX-License-Identifier: Apache-2.0
"""Extracts the commands that CI and Docker would run."""
import pathlib
import re
import sys


def indent(line):
    return len(line) - len(line.lstrip())


def block(lines, at):
    """Returns the lines below lines[at] with a deeper indent, without comments."""
    below = []
    for line in lines[at + 1:]:
        if line.strip() and indent(line) <= indent(lines[at].replace("- ", "  ", 1)):
            break
        if line.strip() and not line.strip().startswith("#"):
            below.append(line.strip())
    return below


def of_workflow(lines):
    for at, line in enumerate(lines):
        match = re.match(r"\s*(?:- )?run: (.*)$", line)
        if match:
            yield from block(lines, at) if match[1] == "|" else [match[1]]


def of_pipeline(lines):
    for at, line in enumerate(lines):
        if re.match(r"\s*(?:before_|after_)?script:\s*$", line):
            for command in block(lines, at):
                if not command.startswith("- "):
                    sys.exit(f"commands.py: {command}: a list of commands was expected")
                yield command[2:]


def of_stage(text, stage):
    stages = re.split(r"^FROM ", re.sub(r"\\\n\s*", "", text), flags=re.M)[1:]
    for command in re.findall(r"^RUN (.*)$", stages[stage], re.M):
        yield f"({command})"  # each RUN begins in the WORKDIR


def main():
    path = pathlib.Path(sys.argv[1])
    text = path.read_text(encoding="utf-8")
    if path.name == "Dockerfile":
        commands = list(of_stage(text, int(sys.argv[2])))
    elif re.search(r"^jobs:", text, re.M):
        commands = list(of_workflow(text.splitlines()))
    else:
        commands = list(of_pipeline(text.splitlines()))
    if not commands:
        sys.exit(f"commands.py: {path}: no command was found")
    print("set -eux")
    print("\n".join(commands))


if __name__ == "__main__":
    main()
